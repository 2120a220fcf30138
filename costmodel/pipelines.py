"""What a framework's pipeline can do: schedules, uneven stages, recompute of a part of a stage."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Literal

import yaml

from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.model import Frozen

USUAL_SCHEDULES = ("1f1b", "interleaved")
"""Every framework's; whether vpp may be more than 1 is another rule."""

SPLIT_BACKWARD = ("zb-h1", "zb-2p", "zbv")
"""Those that fill their bubble with weight gradients."""


class Pipelines(Frozen):
    """One framework's pipeline, beside 1F1B and its interleaving (data/pipelines.yaml)."""

    framework: str
    schedules: tuple[Literal["gpipe", "zb-h1", "zb-2p", "zbv"], ...] = ()
    searched: tuple[Literal["gpipe", "zb-h1", "zbv"], ...] = ()
    """Those that a search tries without being asked to."""
    splits: Literal["any", "even"] = "even"
    recompute: Literal["each", "same", "whole"] = "whole"
    """Full recompute of the first layers of a stage: a number for each stage, the same number for
    all, or the whole model."""
    source: str = ""


@lru_cache(maxsize=1)
def _table() -> dict[str, Pipelines]:
    data = resources.files("layoutopt.costmodel").joinpath("data/pipelines.yaml")
    rows = yaml.load(data.read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {row["framework"]: Pipelines(**row) for row in rows}


def pipelines_of(framework: str) -> Pipelines:
    """What ``framework`` can do; one that the data does not know can do the usual alone."""
    return _table().get(framework, Pipelines(framework=framework))


def partial_recompute(layout: Layout) -> Literal["each", "same", "whole"]:
    """Which of a framework's kinds of recompute the layout needs."""
    if layout.recompute != "full" or layout.recompute_layers is None:
        return "whole"
    counts = layout.recompute_layers
    return "same" if isinstance(counts, int) or len(set(counts)) == 1 else "each"
