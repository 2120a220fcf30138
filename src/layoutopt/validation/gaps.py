"""What a measured run that leaves recompute unsaid most likely did."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.costmodel.estimate import memory_of
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import RECOMPUTE, Layout


def likely_recompute(job: Job, layout: Layout) -> Layout:
    """``layout`` with its framework's usual recompute, or the least beyond that with which it fits.

    Recompute costs time and buys nothing but memory, so runs take as little of it as they can.
    Whether the run died is not looked at. Where nothing fits, the usual one stays.
    """
    first = RECOMPUTE.index(layout.recompute)
    for recompute in RECOMPUTE[first:]:
        tried = replace(layout, recompute=recompute)
        if memory_of(job, tried).fits:
            return tried
    return layout
