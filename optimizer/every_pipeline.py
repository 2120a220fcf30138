"""The plain twin of the search of pipelines: every split, count and schedule, one after another.

With exhaustive.py, and as that, it shares nothing with the search but the types of question and
answer and the rules of a layout. For very small questions and for tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from layoutopt.costmodel.layout import RECOMPUTE, Layout
from layoutopt.costmodel.pipelines import pipelines_of
from layoutopt.costmodel.rules import broken_rules
from layoutopt.costmodel.stages import even_split
from layoutopt.optimizer.exhaustive import asked_for, every_layout
from layoutopt.optimizer.question import USUAL, Question


def every_pipeline(question: Question) -> Iterator[Layout]:
    """Every legal pipeline that the question asks for, memory ignored."""
    fix = {axis: v for axis, v in question.fix.items() if axis not in ("vpp", "recompute")}
    limits = tuple(limit for limit in question.limits if limit.axis != "vpp")
    even = every_layout(replace(question, fix=fix, limits=limits, pipeline=USUAL))
    # DeepSpeed offloads the activations of layers that recompute alone.
    shapes = dict.fromkeys(replace(one, recompute="none") for one in even if one.vpp == 1)
    for shape in shapes:
        for layout in _schedules(question, shape):
            if asked_for(question, layout) and not broken_rules(question.job, layout):
                yield layout


def _schedules(question: Question, shape: Layout) -> Iterator[Layout]:
    layers, able = question.job.model.layers, pipelines_of(question.job.software.framework)
    asked = question.pipeline.schedules or ("1f1b", "interleaved", *able.searched)
    for schedule in asked:
        chunks = range(2, layers + 3) if schedule == "interleaved" else (1,)
        for vpp in chunks:
            if (schedule == "1f1b" or shape.pp > 1) and (vpp == 1 or vpp * shape.pp <= layers + 2):
                layout = replace(shape, vpp=vpp, schedule=schedule)
                for split in _splits(question, layout):
                    yield from _recompute(question, replace(layout, layers_per_stage=split))


def _splits(question: Question, layout: Layout) -> Iterator[tuple[int, ...] | None]:
    layers = question.job.model.layers
    able = pipelines_of(question.job.software.framework)
    even = even_split(layers, layout.pp)
    if question.pipeline.splits == "even" or able.splits == "even":
        if _cuts_evenly(layout, layers):  # Uneven chunks of even stages are not searched.
            yield None
        return
    for split in _compositions(layers, layout.pp):
        if all(_whole(layout, stage, held) for stage, held in enumerate(split)):
            yield None if split == even and _cuts_evenly(layout, layers) else split


def _compositions(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to put a layer or more on each stage."""
    if stages == 1:
        yield (layers,)
        return
    for first in range(1, layers - stages + 2):
        for rest in _compositions(layers - first, stages - 1):
            yield (first, *rest)


def _whole(layout: Layout, stage: int, held: int) -> bool:
    """Equal chunks; embedding and head in the place of a layer each."""
    if layout.schedule == "zbv":
        return held >= 2
    ends = (0, 1) if stage in (0, layout.pp - 1) and layout.pp > 1 else (0,)
    return any((held + end) % layout.vpp == 0 for end in ends)


def _cuts_evenly(layout: Layout, layers: int) -> bool:
    chunks = layout.pp * layout.vpp
    return layout.vpp == 1 or layers % chunks == 0 or (layers + 2) % chunks == 0


def _recompute(question: Question, layout: Layout) -> Iterator[Layout]:
    able = pipelines_of(question.job.software.framework).recompute
    for mode in RECOMPUTE:
        yield replace(layout, recompute=mode)
    if "recompute" in question.fix or question.pipeline.splits == "even" or able == "whole":
        return
    split = layout.layers_per_stage or even_split(question.job.model.layers, layout.pp)
    if able == "same":
        for number in range(layout.vpp, max(split), layout.vpp):
            yield replace(layout, recompute="full", recompute_layers=number)
        return
    for counts in product(*(range(held + 1) for held in split)):
        yield replace(layout, recompute="full", recompute_layers=counts)
