"""The fit of memory's figures: the same predictions as the cost model's, and a loss that falls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.fit_memory import GRID, MemoryAlone, Runs
from benchmarks.ledger import with_memory
from layoutopt.costmodel.memory_fit import shipped
from layoutopt.validation import Scored, validate
from tests.validation.builders import row, write

pytestmark = pytest.mark.tree

MEASURED = Path(__file__).parents[2] / "benchmarks" / "measured"


def entries(tmp_path: Path, source: str, lines: int) -> list[Scored]:
    """Scored: every so many of a source's records, about ``lines`` of them."""
    text = (MEASURED / f"{source}.jsonl").read_text("utf-8").splitlines()
    path = tmp_path / f"{source}.jsonl"
    path.write_text("\n".join(text[:: max(1, len(text) // lines)]), "utf-8")
    return list(validate([path], estimator=MemoryAlone()).records)


@pytest.mark.parametrize("source", ["hagemann2023", "bigscience", "torchtitan"])
def test_what_is_said_is_what_the_cost_model_says(tmp_path: Path, source: str) -> None:
    runs = Runs(entries(tmp_path, source, 20))
    said = runs.said(shipped())
    want = [entry.predicted_gib for entry in runs.entries]
    assert said.gib.tolist() == pytest.approx(want, rel=1e-12)
    assert said.dies.tolist() == [entry.predicted_oom for entry in runs.entries]


def test_other_figures_say_what_the_cost_model_would(tmp_path: Path) -> None:
    """A norm that keeps more, and more workspace: the priced records follow."""
    found = entries(tmp_path, "hagemann2023", 8)
    runs = Runs(found)
    other = shipped().model_copy(
        update={"unfused_norm_bytes": 10.0, "workspace_bytes": shipped().workspace_bytes + 2**25}
    )
    more = runs.allocated(other) - runs.allocated(shipped())
    assert np.all(more >= 2**15)
    plain = [entry.record.training["kernel"] == "flash_attention_2" for entry in runs.entries]
    assert np.all(more[plain] > 2**15)


def test_a_fit_is_no_worse_than_its_start_and_inside_its_bounds(tmp_path: Path) -> None:
    runs = Runs(entries(tmp_path, "bigscience", 12))
    everything = np.ones(len(runs.cases), dtype=bool)
    fit = runs.fit(everything, rounds=1)
    assert runs.loss(fit, everything) <= runs.loss(shipped(), everything)
    for name, choice in GRID.items():
        assert min(choice.values) <= getattr(fit, name) <= max(choice.values)


def test_memory_that_a_fit_never_saw_replaces_what_was_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", row("a", measured={"peak_memory_gib": 10.0}), row("b"))
    first, second = validate([path], estimator=MemoryAlone()).records
    changed, kept = with_memory([first, second], {"a": {"gib": 12.0, "oom": True}})
    assert (changed.predicted_gib, changed.predicted_oom) == (12.0, True)
    assert kept == second
