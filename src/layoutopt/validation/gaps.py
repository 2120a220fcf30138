"""What a measured run that leaves recompute unsaid most likely did."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.costmodel.estimate import memory_of
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import RECOMPUTE, Layout

DOUBT = 1 / 8
"""Five of six measured peaks are predicted to within this share (docs/accuracy.md): nearer than
that to what is usable, a prediction does not say that a run took more recompute than usual."""


def likely_recompute(job: Job, layout: Layout) -> Layout:
    """``layout`` with its framework's usual recompute, or the least beyond that with which it fits.

    Recompute costs time and buys nothing but memory, so runs take as little of it as they can.
    Whether the run died is not looked at. Where nothing fits, the usual one stays.
    """
    first = RECOMPUTE.index(layout.recompute)
    for recompute in RECOMPUTE[first:]:
        tried = replace(layout, recompute=recompute)
        memory = memory_of(job, tried)
        if memory.fits or memory.worst.reserved <= (1 + DOUBT) * memory.usable_bytes:
            return tried
    return layout
