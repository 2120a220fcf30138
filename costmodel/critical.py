"""What a large batch costs: more tokens for the same loss, by the critical batch size.

To the same loss a run needs tokens in proportion to 1 + batch / B. Source: McCandlish, Kaplan,
Amodei et al. 2018, "An Empirical Model of Large-Batch Training" (arXiv 1812.06162), equation 2.11
and section 2.3: examples processed E and steps S keep to (S / S_min - 1) (E / E_min - 1) = 1, so
that E = E_min (1 + batch / B) with the critical batch B = E_min / S_min.
"""

from __future__ import annotations

import math

from layoutopt.costmodel.counts import count
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.training import Training

CRITICAL_TOKENS = 2.1e8
"""B* of Kaplan et al. 2020 (arXiv 2001.08361), table 6: tokens."""
CRITICAL_EXPONENT = 0.21
"""alpha_B of the same table: B = B* / loss^(1 / alpha_B), equation 5.3."""


def final_loss(parameters: int, tokens: int) -> float:
    """Loss in nats a token after a run: 1.69 + 406.4 / N^0.34 + 410.7 / D^0.28.

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), equation 10.
    """
    loss: float = 1.69 + 406.4 / float(parameters) ** 0.34 + 410.7 / float(tokens) ** 0.28
    return loss


def critical_batch(model: Model, tokens: int) -> int:
    """Critical batch in tokens at the loss that the run ends with.

    Kaplan's law at Hoffmann's loss. The two were fitted on other data and tokenizers: good to a
    factor of two, at best.
    """
    loss = final_loss(count(model).active, tokens)
    return int(CRITICAL_TOKENS / math.pow(loss, 1 / CRITICAL_EXPONENT))


def at_batch(training: Training, global_batch: int, critical_tokens: float) -> Training:
    """The same run with another batch: as many more tokens as it needs for the same loss.

    ``training.tokens`` are those of a batch that is small beside the critical one.
    """
    share = global_batch * training.seq_len / critical_tokens
    tokens = math.ceil(training.tokens * (1 + share))
    return training.model_copy(update={"global_batch": global_batch, "tokens": tokens})
