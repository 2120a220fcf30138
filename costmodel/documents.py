"""Documents in a sequence: how long they are, whether they are packed, and what attention sees.

A packed sequence is one document after another, the last one cut where the sequence ends, and a
token attends to its own document alone (a block-diagonal mask: cu_seqlens of the flash kernels,
Krell et al. 2021, arXiv 2107.02027, section 3). Every sequence costs the mean (A23).
Without packing a sequence holds one document, and padding up to its end, over which the kernels
compute all the same.
"""

from __future__ import annotations

import math
from typing import Literal

from layoutopt.costmodel.model import Frozen

Lengths = Literal["fixed", "exponential"]


class Documents(Frozen):
    """What the sequences of a run are made of."""

    mean_tokens: int
    """Mean tokens of a document."""
    lengths: Lengths = "fixed"
    """fixed: all are as long as the mean; exponential: an exponential distribution of that mean,
    whose second moment is twice the square of it."""
    packed: bool = True

    def tokens(self, seq_len: int) -> float:
        """Tokens of a sequence, mean, padding left out.

        Packed: all of it. Else the mean of min(length, seq_len): for exponential lengths of mean d
        the integral of exp(-x / d) from 0 to seq_len, d (1 - exp(-seq_len / d)).
        """
        if self.packed:
            return float(seq_len)
        if self.lengths == "fixed":
            return float(min(self.mean_tokens, seq_len))
        return -self.mean_tokens * math.expm1(-seq_len / self.mean_tokens)

    def filled_share(self, seq_len: int) -> float:
        """Share of a sequence's positions that hold tokens."""
        return self.tokens(seq_len) / seq_len

    def mean_reach(self, seq_len: int, reach: float) -> float:
        """Mean of min(i, ``reach``) over the tokens i of a packed sequence's documents: how many a
        token attends to, causal, where none sees further than ``reach`` (at most seq_len).

        fixed: whole documents and one shorter one, to the sequence's end. exponential: a token is
        the i-th of its document with the weight P(length > i) = exp(-i / d), up to seq_len.
        """
        mean = self.mean_tokens
        if self.lengths == "fixed":
            whole, rest = divmod(seq_len, mean)
            return (whole * _seen(mean, reach) + _seen(rest, reach)) / seq_len
        near, end = reach / mean, seq_len / mean
        # d^2 (1 - exp(-w)(1 + w)) + d^2 w (exp(-w) - exp(-s)), over d (1 - exp(-s)).
        below = -math.expm1(-near) - near * math.exp(-near)
        beyond = near * (math.exp(-near) - math.exp(-end))
        return mean * (below + beyond) / -math.expm1(-end)


def _seen(length: float, reach: float) -> float:
    """Integral of min(i, reach) over a document of ``length`` tokens."""
    near = min(length, reach)
    return near * near / 2 + near * (length - near)
