"""The step: parts that add up, what hides behind what, and that better machines never lose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.costmodel import sharding, terms
from layoutopt.costmodel.axes import FULL, NONE, axes_of
from layoutopt.costmodel.efficiency import efficiency_of
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.results import BREAKDOWN
from layoutopt.costmodel.software import software, software_names
from layoutopt.costmodel.stage_work import end_seconds, exposed, layer_kind, message_seconds
from layoutopt.costmodel.stages import even_split, given_stages, stages_of
from layoutopt.costmodel.step import jitter, step_parts
from tests.costmodel.cases import CLUSTER, EXPERTS, IDEAL, LATENT, SMALL, job, one, soft
from tests.costmodel.drawn import layouts


def parts(asked: Job, layout: Layout, split: tuple[int, ...] | None = None) -> dict[str, float]:
    """Seconds by part of one layout."""
    stages = given_stages(split or even_split(asked.model.layers, layout.pp))
    return {
        name: float(value[0])
        for name, value in step_parts(asked, axes_of([layout]), stages).parts.items()
    }


def total(asked: Job, layout: Layout) -> float:
    """The step's seconds."""
    return sum(parts(asked, layout).values())


@pytest.mark.parametrize(
    ("wire", "window", "share", "left"),
    [
        (10, 100, 0.9, 1),  # a tenth never hides
        (10, 4, 0.9, 6),  # the window is too short
        (10, 100, 0.0, 10),  # the software hides nothing
        (10, 0, 1.0, 10),  # nothing to hide behind
        (10, 100, 1.0, 0),
    ],
)
def test_communication_hides_by_share_and_by_window(
    wire: float, window: float, share: float, left: float
) -> None:
    assert exposed(np.array(wire), np.array(window), share) == pytest.approx(left)


def test_jitter_grows_with_every_doubling_beyond_a_node() -> None:
    """0.4% a doubling: 3 doublings from 8 to 64."""
    shaky = IDEAL.model_copy(update={"jitter": 0.004})
    assert jitter(job(efficiency=shaky, gpus=64)) == pytest.approx(0.012)
    assert jitter(job(efficiency=shaky, gpus=8)) == jitter(job(efficiency=shaky, gpus=1)) == 0


def test_one_gpu_computes_and_steps_the_optimizer() -> None:
    """4 microbatches of 12 layers and both ends, then 34 bytes a parameter."""
    asked, layout = job(gpus=1, global_batch=4), Layout(microbatches=4, zero_stage=0)
    layer = terms.layer_terms(asked, one(1), one(1), one(1), one(1), one(0))
    ends = terms.embedding_seconds(asked, one(1), one(1), one(1)).total[0]
    ends += terms.head_seconds(asked, one(1), one(1), one(1)).total[0]
    got = parts(asked, layout)
    assert got.pop("compute") == pytest.approx(4 * (12 * layer.total[0] + ends))
    assert got.pop("optimizer") == pytest.approx(34 * 869_952 / 1e12)
    assert got.pop("pipeline_bubble") == pytest.approx(0, abs=1e-15)
    assert set(got.values()) == {0.0}


def test_the_bubble_is_one_pass_of_the_other_stages() -> None:
    """4 stages of 3 layers without ends' work: 3 t / v beside m t, with t of the slowest."""
    quiet = SMALL.model_copy(update={"vocab": 1})
    asked = job(quiet, global_batch=128)
    layout = Layout(pp=4, dp=16, microbatches=8, vpp=1)
    got = parts(asked, layout)
    stage = (got["compute"] + got["pp_comm"]) / 8
    assert got["pipeline_bubble"] == pytest.approx(3 * stage, rel=0.05)
    mixed = parts(asked, replace(layout, vpp=3, schedule="interleaved"))
    assert mixed["pp_comm"] == pytest.approx(3 * got["pp_comm"]), "as many messages as chunks"
    slot = (mixed["compute"] + mixed["pp_comm"]) / 8
    assert mixed["pipeline_bubble"] == pytest.approx(3 * slot / 3, rel=0.05)
    layer = layer_kind(asked, axes_of([layout]), one(NONE)).terms
    third = parts(asked, replace(layout, schedule="zb-h1"))
    weights = 3 * 3 * min(float(layer.weight[0]), float(layer.forward[0]))
    # Not waited for, and in the place of waiting: 3 (f + i - w) for 3 (f + i + w).
    assert third["pipeline_bubble"] == pytest.approx(got["pipeline_bubble"] - 2 * weights, rel=0.02)


def test_the_longest_stage_sets_the_pace() -> None:
    """3, 5, 2, 2 layers: compute is 5 layers' worth for every microbatch."""
    asked = job(SMALL.model_copy(update={"vocab": 8}))
    layout = Layout(pp=4, dp=16, microbatches=4)
    even, uneven = parts(asked, layout, (3, 3, 3, 3)), parts(asked, layout, (3, 5, 2, 2))
    layer = terms.layer_terms(asked, one(1), one(1), one(1), one(1), one(0)).total[0]
    assert uneven["compute"] == pytest.approx(4 * 5 * layer)
    assert sum(uneven.values()) > sum(even.values())


def test_a_heavy_loss_head_makes_the_last_stage_the_slowest() -> None:
    heavy = job(SMALL.model_copy(update={"vocab": 500_000}))
    layer = terms.layer_terms(heavy, one(1), one(1), one(1), one(1), one(0)).total[0]
    head = terms.head_seconds(heavy, one(1), one(1), one(1)).total[0]
    got = parts(heavy, Layout(pp=4, dp=16, microbatches=4))
    assert got["compute"] == pytest.approx(4 * (3 * layer + head))


def test_zero_3_gathers_for_every_layer_and_microbatch() -> None:
    """Nothing overlaps: 12 layers x m times the gathers, and the ends once a step."""
    asked = job()
    wire = sharding.gather_seconds(asked, one(1), one(1), one(3))
    each = 12 * float(wire.forward[0] + wire.backward[0])
    two, eight = (
        parts(asked, Layout(dp=64, zero_stage=3, microbatches=m))["dp_comm"] for m in (2, 8)
    )
    assert eight - two == pytest.approx(6 * each)
    once = {parts(asked, Layout(dp=64, zero_stage=1, microbatches=m))["dp_comm"] for m in (2, 8)}
    assert len(once) == 1, "ZeRO-1 talks once a step"


def test_without_resharding_the_second_gather_goes() -> None:
    asked = job()
    gather = float(sharding.gather_seconds(asked, one(1), one(1), one(3)).forward[0])
    layout = Layout(dp=64, zero_stage=3, microbatches=2)
    kept = parts(asked, replace(layout, reshard=False))["dp_comm"]
    assert parts(asked, layout)["dp_comm"] - kept == pytest.approx(2 * 12 * gather)


def test_overlap_hides_all_but_the_share_that_never_hides() -> None:
    """Compute is long where memory is slow: 90% of gathers and of the reduction hide."""
    gpu = CLUSTER.gpu.model_copy(update={"memory_bytes_per_s": 1e8})
    slow = CLUSTER.model_copy(update={"gpu": gpu})
    hiding = soft(overlap_fsdp=0.9, overlap_grad_reduce=0.9, overlap_param_gather=0.9)
    layout = Layout(dp=64, zero_stage=3, microbatches=1)
    bare = parts(job(cluster=slow), layout)["dp_comm"]
    assert parts(job(cluster=slow, software=hiding), layout)["dp_comm"] == pytest.approx(bare / 10)


def test_host_seconds_come_per_microbatch_and_per_step() -> None:
    """8 microbatches of 1 ms and 5 ms a step; stages wait for one another's too."""
    asked = job(software=soft(microbatch_overhead_s=1e-3, step_overhead_s=5e-3))
    assert parts(asked, Layout(dp=64, microbatches=8))["other"] == pytest.approx(13e-3)
    piped = parts(asked, Layout(pp=4, dp=16, microbatches=8))
    assert piped["other"] == pytest.approx(13e-3)
    assert piped["pipeline_bubble"] >= 3e-3


def test_jitter_is_a_share_of_everything_else() -> None:
    shaky = job(efficiency=IDEAL.model_copy(update={"jitter": 0.01}))
    layout = Layout(tp=2, dp=32, microbatches=2)
    calm = total(job(), layout)
    assert parts(shaky, layout)["other"] == pytest.approx(0.03 * calm)


@given(
    layouts(),
    st.sampled_from([SMALL, EXPERTS, LATENT]),
    st.sampled_from(software_names()),
)
def test_parts_are_those_of_the_contract_and_none_is_negative(
    layout: Layout, model: Model, name: str
) -> None:
    got = parts(job(model, software=software(name), efficiency=None), layout)
    assert tuple(got) == BREAKDOWN
    assert all(np.isfinite(value) for value in got.values())
    scale = sum(got.values())
    assert min(got.values()) >= -1e-12 * scale
    stages = given_stages(even_split(model.layers, layout.pp))
    whole = step_parts(
        job(model, software=software(name), efficiency=None), axes_of([layout]), stages
    )
    assert whole.total[0] == pytest.approx(scale)


BETTER = ("compute", "memory", "nvlink", "network", "nvlink_s", "network_s")


def better(what: str, factor: float) -> Job:
    """The round machine on shipped efficiencies, one figure of it ``factor`` better.

    Launching takes no time: where a layer waits for its host, shorter kernels leave a zero-bubble
    schedule less weight gradient to fill with, and the step grows by some millionths.
    """
    gpu, (inner, outer) = CLUSTER.gpu, CLUSTER.levels
    if what == "compute":
        peaks = {name: peak * factor for name, peak in gpu.peak_flops_per_s.items()}
        gpu = gpu.model_copy(update={"peak_flops_per_s": peaks})
    if what == "memory":
        gpu = gpu.model_copy(update={"memory_bytes_per_s": gpu.memory_bytes_per_s * factor})
    wider = {"nvlink": inner, "network": outer}
    if what in wider:
        rate = wider[what].bytes_per_s_per_gpu_one_way * factor
        wider[what] = wider[what].model_copy(update={"bytes_per_s_per_gpu_one_way": rate})
    if what.endswith("_s"):
        level = wider[what.removesuffix("_s")]
        wider[what.removesuffix("_s")] = level.model_copy(
            update={"latency_s": level.latency_s / factor}
        )
    cluster = CLUSTER.model_copy(update={"gpu": gpu, "levels": (wider["nvlink"], wider["network"])})
    reach = efficiency_of(gpu.architecture).model_copy(update={"launch_s": 0.0})
    return job(cluster=cluster, efficiency=reach, software=software("megatron-core"))


@given(
    layouts(),
    st.sampled_from(BETTER),
    st.floats(1.0, 50.0),
    st.sampled_from([SMALL, EXPERTS]),
    st.sampled_from(["ring", "all_gather", "ulysses"]),
)
def test_a_better_machine_is_never_slower(
    layout: Layout, what: str, factor: float, model: Model, kind: str
) -> None:
    drawn = replace(layout, cp_kind=kind)  # type: ignore[arg-type]
    now, then = (replace(better(what, f), model=model) for f in (1.0, factor))
    assert total(then, drawn) <= total(now, drawn) * (1 + 1e-9)


@given(st.lists(layouts(), min_size=2, max_size=6))
def test_arrays_of_layouts_equal_layouts_one_by_one(drawn: list[Layout]) -> None:
    same = [replace(layout, pp=3, dp=8) for layout in drawn]
    stages = given_stages((4, 4, 4))
    together = step_parts(job(), axes_of(same), stages).total
    alone = [step_parts(job(), axes_of([layout]), stages).total[0] for layout in same]
    assert together.tolist() == pytest.approx(alone, rel=1e-12)


def test_flags_and_axes_are_arrays() -> None:
    axes = axes_of([Layout(tp=2, cp=2, dp=16, reshard=False), Layout(dp=64, shard_degree=8)])
    assert axes.group.tolist() == [32, 64]
    assert axes.shard_degree.tolist() == [32, 8]
    assert axes.reshard.tolist() == [False, True]


def given_parts(asked: Job, layout: Layout) -> dict[str, float]:
    """Seconds by part of a layout with its own split and recompute."""
    return {
        name: float(value[0])
        for name, value in step_parts(
            asked, axes_of([layout]), stages_of(layout, asked.model.layers)
        ).parts.items()
    }


def test_stages_that_recompute_a_part_by_hand() -> None:
    """12 layers on 3 stages, 2 + 7 + 3; full on 0, 2 and 3 of them; nothing hides, no jitter."""
    asked = job()
    layout = Layout(pp=3, dp=16, cp=1, microbatches=8, recompute="full", recompute_layers=(0, 2, 3))
    layout = replace(layout, layers_per_stage=(2, 7, 3), zero_stage=0)
    axes = axes_of([layout])
    kinds = [layer_kind(asked, axes, one(code)) for code in (NONE, FULL)]
    kept, again = (float(kind.total[0]) for kind in kinds)
    ends = end_seconds(asked, axes)
    embedding, head = float(ends.embedding[0]), float(ends.head[0])
    message = float(message_seconds(asked, axes)[0])
    stages = [2 * kept + embedding, 5 * kept + 2 * again, 3 * again + head]
    got = given_parts(asked, layout)
    slowest = max(stages)
    assert slowest == stages[1]
    # Stage 0 comes first. Stage 1 waits for the last one's gradients: for the first of them but for
    # a forward pass that it does meanwhile, and for its last but for a backward pass.
    passed, later = 7 * float(kinds[0].terms.forward[0]), stages[2] + message
    assert passed < later
    assert slowest + message - passed < later
    waits = 2 * later - slowest - message
    assert got["pipeline_bubble"] == pytest.approx(stages[0] + message + waits)
    assert got["pp_comm"] == pytest.approx(8 * message)
    forward = float(layer_kind(asked, axes, one(FULL)).terms.recompute[0])
    assert got["recompute"] == pytest.approx(8 * 2 * forward)
    work = ("compute", "recompute", "tp_comm", "cp_comm", "ep_comm")
    assert sum(got[name] for name in work) == pytest.approx(8 * slowest)


@given(layouts(), st.sampled_from([SMALL, EXPERTS, LATENT]))
def test_all_layers_by_number_are_all_layers_and_none_are_none(
    layout: Layout, model: Model
) -> None:
    """full:12 and more is full, full:0 on each stage is none; between them the time rises."""
    asked, full = job(model), replace(layout, recompute="full")
    for most in (12, 40):
        assert given_parts(asked, replace(full, recompute_layers=most)) == pytest.approx(
            given_parts(asked, full)
        )
    none = replace(full, recompute_layers=(0,) * layout.pp)
    assert given_parts(asked, none) == pytest.approx(
        given_parts(asked, replace(layout, recompute="none"))
    )
    steps = [
        sum(given_parts(asked, replace(full, recompute_layers=most)).values())
        for most in (1, 2, 4, 12)
    ]
    assert steps == pytest.approx(sorted(steps))


def test_a_v_has_two_chunks_and_both_ends_on_its_first_stage() -> None:
    """Messages twice; embedding and head on stage 0; for each other stage a mean stage's input less
    its weight gradient."""
    plain = Layout(pp=4, dp=16, microbatches=16, zero_stage=0)
    asked, v_shape = job(), replace(plain, schedule="zbv")
    axes = axes_of([plain])
    kind = layer_kind(asked, axes, one(NONE))
    layer = float(kind.total[0])
    ends = end_seconds(asked, axes)
    both = float(ends.embedding[0] + ends.head[0])
    message = float(message_seconds(asked, axes)[0])
    got = given_parts(asked, v_shape)
    assert got["pp_comm"] == pytest.approx(16 * 2 * message)
    assert got["compute"] + got["tp_comm"] == pytest.approx(16 * (3 * layer + both))
    # 12 layers and the ends on 4 stages; two messages a microbatch, half of them with gradients.
    weights = 12 * float(kind.terms.weight[0]) + float(ends.weight[0])
    forward = 12 * float(kind.terms.forward[0]) + float(ends.forward[0])
    inputs = 12 * layer + both - forward - weights
    # Longer than the weight gradients that could fill half of it: 3 (f + i) - 3 f - 3 w.
    assert inputs / 2 > weights
    assert got["pipeline_bubble"] == pytest.approx(3 * ((inputs - weights) / 4 + message))
    assert given_parts(asked, replace(v_shape, vpp=2)) == got
    # The reduction of the first stage carries the head's weights too.
    assert got["dp_comm"] > given_parts(asked, plain)["dp_comm"]
    assert got["optimizer"] > given_parts(asked, plain)["optimizer"]
