"""Uneven stages, recompute of a part and other schedules: the search against trying everything."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from layoutopt.costmodel.model import Moe
from layoutopt.optimizer.every_pipeline import every_pipeline
from layoutopt.optimizer.exhaustive import try_everything
from layoutopt.optimizer.outcome import Outcome, Status
from layoutopt.optimizer.question import USUAL, Limit, Pipeline, Question
from layoutopt.optimizer.search import search
from layoutopt.optimizer.space import space_of
from layoutopt.optimizer.verify import broken
from tests.builders import small_cluster, small_model, small_question, with_memory
from tests.conftest import FULL
from tests.optimizer.drawn import drawn

EXAMPLES = 240 if FULL else 40
MOST = 250
RESOLUTION = 1e-6

_SCHEDULES = (None, None, None, None, ("zbv",), ("zb-h1", "1f1b"), ("gpipe",), ("interleaved",))
_MEMORY = (0.1, 0.3, 0.0, 0.6, -0.01, 0.2, -0.03, 1.0, 0.05, 1.5, -0.2)
"""As in tests/builders.py: 0 is what the leanest even layout needs, 1 what the fastest one does."""
_FRAMEWORKS = ("generic", "generic", "generic", "megatron-core", "torchtitan", "deepspeed")


@st.composite
def pipelines(draw: st.DrawFn) -> Question:
    """A question of a few layers on a few GPUs, most of which stand in a pipeline."""
    layers = draw(st.integers(2, 6))
    changes: dict[str, object] = {}
    if draw(st.integers(0, 5)) == 5:
        changes["moe"] = Moe(experts=4, top_k=1, expert_ffn=512, layers=layers).model_dump()
        changes["mtp_layers"] = draw(st.integers(0, 1))
    model = small_model(
        layers,
        4,
        draw(st.sampled_from((64, 128))),
        draw(st.sampled_from((1000, 128256))),
        **changes,
    )
    cluster = small_cluster(
        memory_gib=64.0,
        per_node=draw(st.sampled_from((2, 8))),
        network_bytes_per_s=draw(st.sampled_from((3e9, 50e9))),
    )
    framework = draw(st.sampled_from(_FRAMEWORKS))
    gpus = draw(st.sampled_from((2, 3, 4, 4)))
    seq_len = draw(st.sampled_from((16384, 2048, 8192)))
    batch = gpus * draw(st.sampled_from((1, 2, 4)))
    question = small_question(model, gpus, batch, seq_len, cluster, framework)
    schedules = draw(st.sampled_from(_SCHEDULES)) if framework == "generic" else None
    fix: dict[str, int | str] = {"zero_stage": draw(st.sampled_from((0, 1)))}
    if draw(st.integers(0, 3)):
        fix["pp"] = draw(st.sampled_from([p for p in (2, 3, 4, 4) if gpus % p == 0]))
        fix["tp"] = 1
    if draw(st.integers(0, 3)) == 0:
        fix["recompute"] = draw(st.sampled_from(("none", "selective", "full")))
    limits: tuple[Limit, ...] = (Limit("cp", "<", 2), Limit("micro_batch", "<", 3))
    if schedules == ("interleaved",):
        limits = (*limits, Limit("vpp", ">", 1))
    elif schedules is not None and "1f1b" in schedules:
        limits = (*limits, Limit("vpp", "==", 1))
    splits = "any" if draw(st.integers(0, 6)) else "even"
    question = replace(
        question,
        fix=fix,
        limits=limits,
        pipeline=Pipeline(splits, schedules),  # type: ignore[arg-type]
    )
    return with_memory(question, draw(st.sampled_from(_MEMORY)))


def test_search_of_pipelines_equals_trying_everything() -> None:
    """Among them enough that memory decides, that only an uneven split or a part that recomputes
    fits, and that are infeasible."""
    seen: Counter[str] = Counter()

    @drawn(EXAMPLES)
    @given(pipelines())
    def check(question: Question) -> None:
        assume(space_of(replace(question, pipeline=USUAL)).candidates)
        layouts = []
        for layout in every_pipeline(question):
            layouts.append(layout)
            assume(len(layouts) <= MOST)
        assume(layouts)
        slow, fast = try_everything(question, layouts), search(question)
        compare(question, fast, slow)
        seen["asked"] += 1
        seen["infeasible"] += slow.plan is None
        if fast.plan is not None:
            layout = fast.plan.layout
            seen["uneven"] += layout.layers_per_stage is not None
            seen["partly"] += layout.recompute_layers is not None
            seen[layout.schedule] += 1
            seen["even does not fit"] += try_everything(question).plan is None

    check()
    assert seen["asked"] >= EXAMPLES * 0.6
    for kind in ("infeasible", "uneven", "partly", "interleaved"):
        assert seen[kind] >= EXAMPLES / 80 or not FULL, (kind, seen)


def compare(question: Question, fast: Outcome, slow: Outcome) -> None:
    """Equal optimum, a bound that holds, and a plan without fault."""
    assert fast.status == slow.status
    if slow.plan is None or fast.plan is None:
        assert fast.misses
        return
    value = slow.plan.run.wall_time_s
    assert fast.plan.run.wall_time_s <= value * (1 + RESOLUTION)
    assert fast.search.bound is not None
    assert value * (1 - 3 * RESOLUTION) <= fast.search.bound <= value * (1 + 1e-12)
    assert fast.status is Status.OPTIMAL
    assert broken(question, fast.plan) == []
    best = fast.plan.run.wall_time_s
    for other in fast.alternatives:
        assert other.estimate.run.wall_time_s >= best * (1 - RESOLUTION)


@pytest.mark.parametrize("framework", ["generic", "megatron-core"])
def test_no_recompute_at_all_with_prediction_blocks(framework: str) -> None:
    """Such a block recomputes where any layer does, so that none is no part of some."""
    model = small_model(4, 4, 64, 128256, mtp_layers=1)
    question = small_question(model, 2, 8, 2048, small_cluster(64.0), framework)
    fix: dict[str, int | str | bool] = {"pp": 2, "tp": 1, "cp": 1, "vpp": 1, "zero_stage": 1}
    fix |= {"micro_batch": 1, "offload_optimizer": False, "offload_activations": False}
    question = replace(question, fix=fix, pipeline=Pipeline())
    outcome, slow = search(question), try_everything(question, every_pipeline(question))
    assert outcome.plan is not None
    assert slow.plan is not None
    assert outcome.plan.layout.recompute == "none"
    assert outcome.plan.run.wall_time_s <= slow.plan.run.wall_time_s * (1 + 1e-6)
