"""The table of how the search grows, on a question that takes a moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.search import every_legal, line_of, measured, space_asked
from tests.builders import small_cluster, small_model, small_question


def test_a_line_of_the_table_agrees_with_trying_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.search.SAMPLE", 20)
    cluster = small_cluster(64.0, per_node=2)
    question = small_question(small_model(layers=4), gpus=4, batch=4, cluster=cluster)
    question = replace(question, fix={"cp": 1})
    space = space_asked(question)
    assert sum(len(columns["tp"]) for columns in every_legal(space)) == space.candidates
    line = measured(question)
    assert line.agree
    assert line.searched.proved
    assert line.searched.first_s is not None
    assert line.searched.optimum_s is not None
    assert line.searched.first_s <= line.searched.optimum_s <= line.searched.proof_s
    assert "NOT" not in line_of(line)
