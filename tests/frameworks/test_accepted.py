"""Solved plans, as launch configurations, given to the frameworks' own parsers and checks."""

from __future__ import annotations

import os
from typing import Any

import pytest

from layoutopt import estimate
from layoutopt.errors import RuleError
from layoutopt.launchers import emit
from layoutopt.launchers.plan import Plan
from tests.frameworks.ask import need_frameworks, verdicts
from tests.frameworks.solved import plans
from tests.launchers.plans import plan_of

pytestmark = [pytest.mark.tree, pytest.mark.frameworks]

FULL = os.environ.get("LAYOUTOPT_TESTS") == "full"
EACH = {"megatron": (16, 80), "torchtitan": (12, 60), "deepspeed": (12, 60)}
"""Solved plans of each framework: 40 in CI, 200 in full."""

Solved = list[tuple[str, Plan]]

WEIGHED = (
    ("tp=8,pp=4,zero_stage=1", "70B", 64),
    ("tp=4,pp=2,zero_stage=0", "8B", 64),
    ("tp=8,pp=8,zero_stage=1", "70B", 128),
    ("tp=1,pp=1,zero_stage=1", "llama-2-7b", 16),
)
"""Layouts whose weights and optimizer Megatron's own formula counts."""
SELDOM = (
    "tp=8,pp=1,zero_stage=1,offload_activations=true",
    "tp=8,pp=2,zero_stage=1,recompute=full,offload_optimizer=true",
    "tp=8,pp=4,vpp=3,layers_per_stage=2+2*30+18",
)
"""Layouts that solved plans seldom have: something in host memory, a chunk without layers."""
ORDERS = ("tp=4,cp=2,pp=2,dp=4", "tp=4,cp=1,pp=2,dp=8,axis_order=tp-cp-ep-pp-dp")
"""Layouts whose ranks Megatron's own generator groups."""


@pytest.fixture(scope="module")
def solved() -> dict[str, Solved]:
    """Plans by the framework that they were solved for."""
    need_frameworks()
    return {name: list(plans(name, full if FULL else few, 1)) for name, (few, full) in EACH.items()}


@pytest.fixture(scope="module")
def megatron(solved: dict[str, Solved]) -> dict[str, dict[str, Any]]:
    """Megatron's answers, all in one process: to import it takes the longest."""
    written, refused = cases(solved["megatron"], "megatron")
    assert not refused
    named = [(layout, plan_of(layout, model=model, gpus=gpus)) for layout, model, gpus in WEIGHED]
    named += [(layout, plan_of(layout)) for layout in SELDOM]
    written += cases(named, "megatron")[0]
    ordered, _ = cases([(layout, plan_of(layout)) for layout in ORDERS], "megatron")
    return accepted("megatron", [*written, *({**case, "groups": True} for case in ordered)])


def cases(found: Solved, launcher: str, **options: str) -> tuple[list[dict[str, Any]], list[str]]:
    """What the launcher writes of each plan, and the sentences of those that it refuses."""
    written, refused = [], []
    for name, plan in found:
        try:
            text = emit(plan, launcher, **options)
        except RuleError as error:
            refused.append(error.message)
            continue
        written.append({"id": name, "world": plan.gpus, "text": text})
    return written, refused


def accepted(judge: str, written: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    answers = verdicts(judge, written)
    wrong = {name: one["message"] for name, one in answers.items() if not one["ok"]}
    assert not wrong
    return answers


def test_megatron_accepts_every_plan(
    solved: dict[str, Solved], megatron: dict[str, dict[str, Any]]
) -> None:
    for name, plan in solved["megatron"]:
        layout, answer = plan.layout, megatron[name]
        assert answer["dp"] == layout.dp
        assert answer["vpp"] == layout.vpp
        assert answer["microbatches"] == layout.microbatches


@pytest.mark.parametrize(("layout", "model", "gpus"), WEIGHED)
def test_weights_and_optimizer_are_megatron_s_own_figure(
    layout: str, model: str, gpus: int, megatron: dict[str, dict[str, Any]]
) -> None:
    """Bytes of the worst rank by theoretical_memory_usage.py, within 1%."""
    answer = estimate(
        model=model, gpus=gpus, framework="megatron", layout=layout, seq_len=8192, global_batch=256
    )
    assert answer.memory is not None
    worst = max(one.weights + one.gradients + one.optimizer for one in answer.memory.stages)
    assert worst == pytest.approx(megatron[layout]["weight_and_optimizer_bytes"], rel=0.01)


@pytest.mark.parametrize("layout", ORDERS)
def test_ranks_are_numbered_as_megatron_numbers_them(
    layout: str, megatron: dict[str, dict[str, Any]]
) -> None:
    """Groups of tp, cp, dp and pp: innermost axis first."""
    said = megatron[layout]["groups"]
    for axis in ("tp", "cp", "dp", "pp"):
        assert sorted(map(sorted, said[axis])) == groups(plan_of(layout), axis)


def test_torchtitan_accepts_what_it_has_models_for(solved: dict[str, Solved]) -> None:
    found = solved["torchtitan"]
    written, refused = cases(found, "torchtitan")
    # Its flags say even splits alone; others are a list of modules in a Python configuration.
    reasons = ("no configuration of", "registry has", "cannot say layers_per_stage")
    assert all(any(reason in why for reason in reasons) for why in refused)
    named = [
        (f"given: {layout} of {model}", plan_of(layout, model=model, framework="torchtitan"))
        for model, layout in (
            ("8B", "tp=2,pp=1,zero_stage=3"),
            ("8B", "tp=1,cp=2,cp_kind=all_gather,pp=4,zero_stage=3,reshard=false"),
            ("70B", "tp=4,pp=4,vpp=2,zero_stage=3,reshard=false,recompute=full"),
            ("70B", "tp=8,pp=1,dp=8,zero_stage=3,shard_degree=4,recompute=selective"),
            ("qwen3-30b-a3b", "tp=1,pp=1,ep=8,zero_stage=3"),
        )
    ]
    given, none = cases(named, "torchtitan")
    assert not none
    answers = accepted("torchtitan", [*written, *given])
    for name, plan in named:
        assert answers[name]["dp"] == plan.layout.dp
        if plan.layout.pp > 1:
            ranks = [sum(answers[name]["stages"][rank :: plan.layout.pp]) for rank in range(4)]
            assert tuple(ranks) == plan.stages


def test_deepspeed_and_accelerate_accept_what_files_can_say(solved: dict[str, Solved]) -> None:
    found = solved["deepspeed"]
    named = [
        (f"given: {layout}", plan_of(layout, model="8B", framework="deepspeed"))
        for layout in (
            "tp=1,zero_stage=3",
            "tp=1,cp=2,cp_kind=ulysses,zero_stage=2",
            "tp=1,zero_stage=1",
        )
    ]
    written, _ = cases([*found, *named], "deepspeed")
    answers = accepted("deepspeed", written)
    for name, plan in named:
        answer, layout = answers[name], plan.layout
        assert answer["batch"] == plan.training.global_batch
        assert answer["microbatches"] == layout.microbatches
        assert answer["zero_stage"] == layout.zero_stage
    sharded = [(name, plan) for name, plan in solved["torchtitan"]]
    given, _ = cases(
        [*sharded, ("given", plan_of("tp=4,zero_stage=3", framework="generic"))], "accelerate"
    )
    assert given
    totals = accepted("accelerate", given)
    assert all(totals[case["id"]]["total"] == case["world"] for case in given)


def test_kubernetes_loses_no_key() -> None:
    need_frameworks()
    written = []
    for launcher in ("trainjob", "jobset", "job"):
        for layout in ("tp=8,pp=4", "tp=8,cp=2,pp=2"):
            found = [(f"{launcher} {layout}", plan_of(layout))]
            given, refused = cases(found, launcher, queue="gpu", topology="example.com/rack")
            assert not refused
            written += given
    accepted("kubernetes", written)


def groups(plan: Plan, axis: str) -> list[list[int]]:
    """Ranks that differ in ``axis`` alone."""
    degrees = {name: getattr(plan.layout, name) for name in ("tp", "cp", "dp", "pp")}
    order = [name for name in plan.layout.axis_order.split("-") if name in degrees]
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(plan.gpus):
        rest, place = rank, {}
        for name in order:
            rest, place[name] = divmod(rest, degrees[name])
        found.setdefault(tuple(place[name] for name in order if name != axis), []).append(rank)
    return sorted(found.values())
