"""The solver-free check finds what is wrong with a plan."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

from layoutopt.costmodel.estimate import estimate
from layoutopt.optimizer.question import Limit
from layoutopt.optimizer.search import search
from layoutopt.optimizer.verify import broken
from tests.builders import small_cluster, small_model, small_question

QUESTION = small_question(gpus=4, batch=8)
FOUND = search(QUESTION).plan
assert FOUND is not None
PLAN = FOUND
OPTIMIZER = Path(__file__).parents[2] / "optimizer"


def test_a_sound_plan_has_nothing_against_it() -> None:
    assert broken(QUESTION, PLAN) == []


def test_products() -> None:
    plan = estimate(QUESTION.job, replace(PLAN.layout, dp=PLAN.layout.dp * 2))
    assert any("GPUs" in sentence for sentence in broken(QUESTION, plan))


def test_fix_and_limits() -> None:
    layout = PLAN.layout
    fixed = replace(QUESTION, fix={"recompute": "full" if layout.recompute == "none" else "none"})
    assert any("fixed to" in sentence for sentence in broken(fixed, PLAN))
    limited = replace(QUESTION, limits=(Limit("microbatches", ">", layout.microbatches),))
    assert any("microbatches is" in sentence for sentence in broken(limited, PLAN))


def test_memory() -> None:
    small = small_question(
        small_model(heads=16, head_dim=128), gpus=4, batch=8, cluster=small_cluster(1.7)
    )
    plan = estimate(small.job, PLAN.layout)
    assert any("usable" in sentence for sentence in broken(small, plan))
    claimed = replace(PLAN, memory=replace(PLAN.memory, usable_bytes=1))
    assert broken(QUESTION, claimed)


def test_deadline_and_budget() -> None:
    late = replace(QUESTION, deadline_s=PLAN.run.wall_time_s / 2)
    assert any("deadline" in sentence for sentence in broken(late, PLAN))
    dear = replace(QUESTION, budget_usd=(PLAN.run.cost_usd or 0) / 2)
    assert any("budget" in sentence for sentence in broken(dear, PLAN))


def test_figures() -> None:
    faster = replace(PLAN, step=replace(PLAN.step, time_s=PLAN.step.time_s * 0.999))
    assert any("estimate says" in sentence for sentence in broken(QUESTION, faster))
    parts = {**PLAN.step.breakdown_s, "compute": 0.0}
    hollow = replace(PLAN, step=replace(PLAN.step, breakdown_s=parts))
    assert any("add up" in sentence for sentence in broken(QUESTION, hollow))
    shorter = replace(PLAN, run=replace(PLAN.run, ideal_s=PLAN.run.ideal_s * 0.9))
    assert any("overheads" in sentence for sentence in broken(QUESTION, shorter))


def test_the_twin_shares_nothing_with_the_search() -> None:
    """exhaustive.py: of this room only the types of question and answer."""
    tree = ast.parse((OPTIMIZER / "exhaustive.py").read_text(encoding="utf-8"))
    rooms = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    mine = {module for module in rooms if module and module.startswith("layoutopt.optimizer")}
    assert mine == {"layoutopt.optimizer.question", "layoutopt.optimizer.outcome"}
