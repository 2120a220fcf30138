"""What is said to be refused, against every layout there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest

from layoutopt.costmodel.estimate import memory_of
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.model import Moe
from layoutopt.optimizer.every_pipeline import every_pipeline
from layoutopt.optimizer.exhaustive import every_layout
from layoutopt.optimizer.question import Limit, Pipeline, Question
from layoutopt.optimizer.rejected import Rejected, _values, rejected
from layoutopt.optimizer.rejected_ways import refused_ways
from tests.builders import narrow, small_cluster, small_model, small_question

AXES = ("tp", "cp", "pp", "vpp", "ep", "zero_stage", "microbatches")


def asked(framework: str, **changes: object) -> Question:
    model = small_model(layers=4, heads=4, kv_heads=2)
    question = small_question(model, gpus=12, batch=12, seq_len=24, framework=framework)
    return replace(question, **changes)  # type: ignore[arg-type]


LIMITS = (Limit("tp", "<=", 2), Limit("pp", "!=", 2))


def by_axes(found: Iterable[Rejected]) -> dict[tuple[str, ...], set[tuple[int, ...]]]:
    """The refused values of each combination of the axes."""
    refused: dict[tuple[str, ...], set[tuple[int, ...]]] = {}
    for one in found:
        if one.axes and one.axes.keys() <= {*AXES, "dp"}:
            refused.setdefault(tuple(one.axes), set()).add(tuple(one.axes.values()))
    return refused


@pytest.mark.parametrize(
    ("framework", "limits"),
    [
        ("generic", ()), ("generic", LIMITS), ("megatron-core", ()), ("torchtitan", ()),
        ("deepspeed", ()), ("nanotron", ()), ("jax", ()),
    ],
)  # fmt: skip
def test_a_layout_is_legal_where_nothing_that_it_has_is_refused(
    framework: str, limits: tuple[Limit, ...]
) -> None:
    question = narrow(asked(framework, limits=limits, fix={"recompute": "none"}))
    refused = by_axes(rejected(question))
    legal = {
        tuple(getattr(layout, axis) for axis in AXES)
        for layout in every_layout(question)
        if layout.axis_order == Layout().axis_order
    }
    values, seen = _values(question.job), 0
    for chosen in itertools.product(*(values[axis] for axis in AXES)):
        layout = dict(zip(AXES, chosen, strict=True))
        dp = 12 // (layout["tp"] * layout["cp"] * layout["pp"])
        layout["dp"] = dp
        if dp and 12 % (dp * layout["microbatches"]):
            continue  # No micro_batch fills the batch: nothing that these values decide.
        allowed = not any(
            tuple(layout[axis] for axis in axes) in values for axes, values in refused.items()
        )
        assert allowed == (chosen in legal), layout
        seen += allowed
    assert seen == len(legal) > 0


@pytest.mark.parametrize(
    "framework", ["generic", "megatron-core", "torchtitan", "deepspeed", "jax"]
)
@pytest.mark.parametrize("experts", [False, True])
def test_no_layout_has_a_way_to_run_that_is_refused(framework: str, experts: bool) -> None:
    """Of every way there is something refused, and no legal pipeline of the search has it."""
    moe = Moe(experts=4, top_k=1, expert_ffn=512, layers=2).model_dump() if experts else None
    model = small_model(layers=2, heads=4, kv_heads=2, moe=moe)
    question = small_question(model, 4, 4, seq_len=64, framework=framework)
    question = replace(question, pipeline=Pipeline())
    found = list(refused_ways(question))
    assert len({(rule, tuple(axes.items())) for axes, rule, _ in found}) == len(found)
    told = {key for axes, _, _ in found for key in axes}
    assert {"schedule", "cp_kind"} <= told
    # What is left to be asked for is legal all the same.
    rules = [axes for axes, rule, _ in found if rule != "schedules_are_asked_for"]
    hidden = [axes for axes in rules if not any(map(_words, axes.values()))]
    for layout in every_pipeline(question):
        for axes in hidden:
            if "cp_kind" in axes and layout.cp == 1:
                continue
            assert any(getattr(layout, key) != value for key, value in axes.items()), axes


def _words(value: object) -> bool:
    """What stands for many values."""
    return isinstance(value, str) and (" " in value or "N" in value or value == "uneven")


def test_a_schedule_that_was_not_asked_for_says_how_to() -> None:
    found = {
        axes["schedule"]: one for axes, *one in refused_ways(asked("generic")) if "schedule" in axes
    }
    rule, message = found["gpipe"]
    assert rule == "keep_to_fix"
    question = replace(asked("generic"), pipeline=Pipeline())
    found = {axes["schedule"]: one for axes, *one in refused_ways(question) if "schedule" in axes}
    rule, message = found["zbv"]
    assert rule == "schedules_are_asked_for"
    assert "--fix schedule=zbv" in message


def test_experts_and_shard_groups_that_do_not_come_out_even() -> None:
    """etp 2 of tp 1; groups of 3 do not divide the 4 replicas that tp 3 leaves of 12 GPUs."""
    moe = Moe(experts=4, top_k=1, expert_ffn=512, layers=4).model_dump()
    question = small_question(small_model(layers=4, heads=4, kv_heads=2, moe=moe), 12, 12)
    found = [(rule, axes) for axes, rule, _ in refused_ways(question)]
    assert ("experts_stay_within_tensor_ranks", {"tp": 1, "etp": 2}) in found
    question = small_question(small_model(layers=4, heads=12, kv_heads=12), 12, 12)
    found = [(rule, axes) for axes, rule, _ in refused_ways(question)]
    assert ("shards_divide_replicas", {"tp": 3, "pp": 1, "shard_degree": 3}) in found


def lines(question: Question) -> list[Rejected]:
    return [one for one in rejected(question) if one.layout is not None]


def test_layouts_that_do_not_fit_are_told_with_what_they_lack() -> None:
    cluster = small_cluster(2.0)
    question = small_question(small_model(layers=4, heads=16, head_dim=128), cluster=cluster)
    found = lines(question)
    assert found
    for one in found[:20]:
        assert one.layout is not None
        assert not memory_of(question.job, one.layout).fits
        assert one.over_bytes
    assert not lines(small_question(cluster=small_cluster(64.0)))


def test_what_is_fixed_leaves_the_rest_out() -> None:
    told = [one for one in rejected(asked("generic", fix={"tp": 2})) if one.rule == "keep_to_fix"]
    found = [one for one in told if "tp" in one.axes]
    assert [one.axes for one in found] == [{"tp": 1}, {"tp": 3}, {"tp": 4}]
    assert found[0].message == "tp was fixed to 2"
