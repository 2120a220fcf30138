"""The fit of step times: what it re-prices for a changed figure."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fit_time import MATTERS_TO, Fit, current, parameters
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.training import Precision
from layoutopt.validation.cases import Case
from layoutopt.validation.records import Record
from tests.costmodel.cases import EXPERTS, SMALL, job
from tests.costmodel.cases import soft as plain
from tests.costmodel.test_mamba import HYBRID

KERNELS = ("flash3", "flash1", "fused_softmax", "unfused")


def _case(number: int) -> Case:
    """One of eight jobs that differ in model, kernel, precision and norms."""
    precision: Precision = "fp8" if number % 2 else "bf16"
    asked = job(
        HYBRID if number == 7 else EXPERTS if number >= 4 else SMALL,
        precision=precision,
        attention_kernel=KERNELS[number % 4],
        fused_norm=number % 3 == 0,
        software=plain(name="generic"),
    )
    record = Record(str(number), "a.jsonl", 1, "", "", {}, {}, {}, {}, {})
    return Case(record, asked, Layout(tp=1, cp=1, pp=1, dp=64), (), {}, None, False)


@pytest.mark.parametrize("name", sorted(MATTERS_TO))
def test_a_figure_moves_no_price_but_those_it_is_said_to_touch(name: str) -> None:
    """Every job is priced anew; what `touched_by` leaves out stays equal to the last bit."""
    fitted = parameters()
    fit = Fit([_case(number) for number in range(8)], np.ones(8), fitted)
    start = current(fitted)
    place = next(i for i, p in enumerate(fitted) if (p.owner, p.name) == ("shared", name))
    moved = start.copy()
    moved[place] *= 1.5
    touched = {int(row) for batch in fit.touched_by(fitted[place]) for row in batch.rows}
    changed = fit.predicted(moved) != fit.predicted(start)
    assert {int(row) for row in np.flatnonzero(changed)} <= touched
    assert 0 < len(touched) < 8
