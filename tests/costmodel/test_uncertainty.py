"""The band of comparable runs, and what happens where there are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.costmodel.extrapolation import MEASURED_GPUS
from layoutopt.costmodel.software import software
from layoutopt.costmodel.uncertainty import (
    Band,
    Cell,
    Kind,
    band,
    band_in,
    kind_of,
    scale_of,
    scale_words,
    wider,
)
from tests.costmodel.cases import job

MINE = Kind("hopper", "nemo", False, 64)
ALL = Kind(None, None, None, None)


def cell(kind: Kind, width: float, away: float, records: int = 20) -> Cell:
    return Cell(kind, width, away, records, ("dgxc", "nvidia", "papers", "mlperf"))


def test_a_kind_that_was_measured_has_its_own_band() -> None:
    found = band_in({MINE: cell(MINE, 0.08, 0.11), ALL: cell(ALL, 0.2, 0.3)}, MINE)
    assert (found.step_time_rel, found.records, found.comparable) == (0.08, 20, True)
    assert (
        "20 measured runs (hopper, nemo, dense, 9 to 64 GPUs; dgxc, nvidia, papers and 1 more)"
        in (found.basis)
    )


def test_a_kind_that_was_not_measured_has_a_wider_band_and_says_so() -> None:
    """The next wider kind is of all sizes; its band is that of unseen sources."""
    all_sizes = Kind("hopper", "nemo", False, None)
    cells = {all_sizes: cell(all_sizes, 0.08, 0.11), ALL: cell(ALL, 0.2, 0.3)}
    found = band_in(cells, MINE)
    assert (found.step_time_rel, found.comparable, found.extrapolated) == (0.11, False, False)
    assert "too few runs of this kind are measured (hopper, nemo, dense, 9 to 64 GPUs)" in (
        found.basis
    )


def test_a_wider_kind_is_never_narrower_than_its_own_band() -> None:
    assert band_in({ALL: cell(ALL, 0.2, 0.1)}, MINE).step_time_rel == 0.2


def test_beyond_the_measured_sizes_is_extrapolation() -> None:
    """The largest measured size stands in, as a fit that never saw the source was off there."""
    largest = replace(MINE, scale=MEASURED_GPUS)
    cells = {largest: cell(largest, 0.08, 0.15), ALL: cell(ALL, 0.2, 0.3)}
    found = band_in(cells, replace(MINE, scale=0))
    assert (found.step_time_rel, found.extrapolated, found.comparable) == (0.15, True, False)
    assert "extrapolation: nearly nothing is measured above 10,000 GPUs" in found.basis


def test_without_a_table_there_is_no_band() -> None:
    assert band_in({}, MINE) == Band(None, "not yet compared with measured runs")


@pytest.mark.parametrize(
    ("gpus", "scale"), [(1, 8), (8, 8), (9, 64), (512, 512), (10_000, 10_000), (10_001, 0)]
)
def test_classes_of_scale(gpus: int, scale: int) -> None:
    assert scale_of(gpus) == scale


def test_classes_of_scale_in_words() -> None:
    words = [scale_words(scale) for scale in (8, 64, 10_000, 0)]
    assert words == ["up to 8 GPUs", "9 to 64 GPUs", "513 to 10,000 GPUs", "more than 10,000 GPUs"]


def test_wider_kinds_hold_the_narrow_one() -> None:
    order = wider(MINE)
    assert (order[0], order[-1]) == (MINE, ALL)
    assert len(order) == 6


def test_no_framework_in_particular_compares_with_all() -> None:
    found = kind_of(job(gpus=64))
    assert (found.framework, found.experts, found.scale) == (None, False, 64)
    nemo = replace(job(gpus=64), software=software("megatron-bridge"))
    assert kind_of(nemo).framework == "nemo"


def test_the_shipped_table_answers_every_question() -> None:
    for gpus in (8, 64, 4096, 131_072):
        found = band(job(gpus=gpus))
        assert found.step_time_rel is not None
        assert 0.02 < found.step_time_rel < 1
        assert found.records >= 10
        assert found.extrapolated == (gpus > MEASURED_GPUS)
