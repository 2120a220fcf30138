"""Numbers, layouts, limits and defaults, as options and as Python values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.costmodel.layout import RECOMPUTE, Layout
from layoutopt.costmodel.models import load_model
from layoutopt.costmodel.rules import broken_rules
from layoutopt.errors import InputError
from layoutopt.inputs.defaults import default_global_batch, default_seq_len, default_tokens
from layoutopt.inputs.fixed import refuse_impossible
from layoutopt.inputs.layout_text import LAYOUT_KEYS, layout_to_dict, read_layout, stages_text
from layoutopt.inputs.limits import read_fix, read_limits, refuse_contradictions
from layoutopt.inputs.numbers import read_count, read_money, read_seconds
from layoutopt.inputs.request import read_estimate, read_solve
from layoutopt.optimizer.question import Limit
from layoutopt.report.plan_json import layout_difference, layout_line


@pytest.mark.parametrize(
    ("written", "number"),
    [("16384", 16384), ("+8", 8), ("16k", 16_000), ("1M", 10**6), ("1Mi", 2**20), (8.0, 8)],
)
def test_counts(written: object, number: int) -> None:
    assert read_count(written, "gpus", most=10**7) == number


def test_tokens_may_have_a_fraction_that_comes_out_whole() -> None:
    assert read_count("15.6T", "tokens", most=10**18, fraction=True) == 15_600_000_000_000


@pytest.mark.parametrize("bad", [True, None, [], 1.5, float("nan"), float("inf"), 10**30, "1_000"])
def test_what_is_no_count(bad: object) -> None:
    with pytest.raises(InputError) as caught:
        read_count(bad, "gpus", most=10**7)
    assert caught.value.field == "gpus"


@pytest.mark.parametrize(
    ("written", "seconds"), [("30d", 30 * 86_400), ("90min", 5400), (7, 7.0), (0.5, 0.5)]
)
def test_durations(written: object, seconds: float) -> None:
    assert read_seconds(written, "deadline") == seconds


def test_a_search_limit_may_be_bare_seconds_a_deadline_may_not() -> None:
    assert read_seconds("2.5", "time_limit", bare=True) == 2.5
    with pytest.raises(InputError, match="unit"):
        read_seconds("30", "deadline")


@pytest.mark.parametrize(
    ("written", "dollars"), [("$2.5M", 2.5e6), ("1000", 1000.0), ("99.5", 99.5), (7, 7.0)]
)
def test_money(written: object, dollars: float) -> None:
    assert read_money(written, "budget") == dollars


layouts = st.builds(
    Layout,
    tp=st.integers(1, 64),
    cp=st.integers(1, 8),
    pp=st.integers(1, 64),
    dp=st.integers(1, 4096),
    ep=st.integers(1, 64),
    etp=st.integers(1, 8),
    vpp=st.integers(1, 8),
    micro_batch=st.integers(1, 64),
    microbatches=st.integers(1, 4096),
    zero_stage=st.integers(0, 3),
    shard_degree=st.none() | st.integers(1, 64),
    reshard=st.booleans(),
    recompute=st.sampled_from(RECOMPUTE),
    sequence_parallel=st.booleans(),
    cp_kind=st.sampled_from(["ring", "all_gather", "ulysses"]),
    schedule=st.sampled_from(["1f1b", "interleaved", "gpipe", "zb-h1", "zbv"]),
    layers_per_stage=st.lists(st.integers(0, 40), min_size=1, max_size=20).map(tuple),
    axis_order=st.permutations(["tp", "cp", "ep", "dp", "pp"]).map("-".join),
)


@given(layouts)
@settings(max_examples=100, deadline=None)
def test_a_layout_survives_json(layout: Layout) -> None:
    split = layout.layers_per_stage or ()
    assert (
        Layout(**{"recompute_layers": None, **read_layout(layout_to_dict(layout, split))}) == layout
    )


@given(layouts)
@settings(max_examples=100, deadline=None)
def test_the_layout_line_says_what_is_not_usual(layout: Layout) -> None:
    read = read_layout(layout_line(layout))
    for key, value in read.items():
        assert getattr(layout, key) == value
    for key in set(LAYOUT_KEYS) - set(read) - {"gpus", "global_batch", "schedule"}:
        usual = False if key == "sequence_parallel" and layout.tp == 1 else getattr(Layout(), key)
        assert getattr(layout, key) == usual or (key == "sequence_parallel" and layout.tp == 1)


@given(layouts, layouts)
@settings(max_examples=100, deadline=None)
def test_a_difference_turns_one_layout_into_the_other(mine: Layout, best: Layout) -> None:
    text = layout_difference(mine, best).replace(" ", "")
    changed = read_layout(text) if text else {}
    for key in set(LAYOUT_KEYS) - {"gpus", "global_batch", "schedule", "sequence_parallel"}:
        if getattr(mine, key) is not None:
            assert changed.get(key, getattr(best, key)) == getattr(mine, key)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=50))
def test_runs_of_stages(layers: list[int]) -> None:
    assert (
        list(read_layout(f"layers_per_stage={stages_text(layers)}")["layers_per_stage"]) == layers
    )


def test_stages_in_words() -> None:
    assert stages_text([7, *[8] * 14, 7]) == "7+14*8+7"


def test_recompute_of_the_first_layers() -> None:
    assert read_layout("recompute=full:3") == {"recompute": "full", "recompute_layers": 3}
    each = {"recompute": "full", "recompute_layers": (4, 3, 0, 0)}
    assert read_layout("recompute=full:4+3+2*0") == each


@given(layouts, st.lists(st.integers(0, 40), min_size=2, max_size=20).map(tuple))
@settings(max_examples=50, deadline=None)
def test_recompute_of_each_stage_survives_json(layout: Layout, counts: tuple[int, ...]) -> None:
    each = replace(layout, recompute="full", recompute_layers=counts)
    written = layout_to_dict(each, each.layers_per_stage or ())
    assert Layout(**{"recompute_layers": None, **read_layout(written)}) == each


def test_fix_and_limit() -> None:
    assert read_fix("tp=8,recompute=full") == {"tp": 8, "recompute": "full"}
    assert read_fix({"tp": 8}) == read_fix(["tp=8"]) == {"tp": 8}
    assert read_limits(["tp<=8", "pp>=2,cp=1"]) == (
        Limit("tp", "<=", 8),
        Limit("pp", ">=", 2),
        Limit("cp", "==", 1),
    )


@pytest.mark.parametrize(
    ("fixed", "limits"), [("tp=8", "tp<8"), ("tp=8", "tp!=8"), ("pp=2", "pp>=4"), ("cp=2", "cp=1")]
)
def test_a_fixed_axis_outside_its_limit_names_both(fixed: str, limits: str) -> None:
    with pytest.raises(InputError, match=fixed):
        refuse_contradictions(read_fix(fixed), read_limits(limits))


def test_limits_that_meet_in_one_value_are_fine() -> None:
    refuse_contradictions({}, read_limits("tp>=4,tp<=4"))


@pytest.mark.parametrize(
    ("model", "gpus", "batch"),
    [
        ("llama-3.1-405b", 16384, 2048),  # 16.8M / 8192
        ("llama-3.1-405b", 6000, 1500),  # 375 x 4: 548 off 2,048; 375 x 8 is 952 off
        ("llama-3.1-405b", 131_072, 16_384),  # at least gpus / 8
        ("llama-3.1-70b", 1024, 1024),  # 8.4M / 8192
        ("llama-3.1-8b", 64, 512),  # 4.2M / 8192
        ("llama-3.1-8b", 1, 512),
        ("llama-3.1-8b", 9973, 9973),  # a prime: no smaller batch is divided
    ],
)
def test_default_batch(model: str, gpus: int, batch: int) -> None:
    size, reason = default_global_batch(load_model(model), gpus, 8192)
    assert size == batch
    assert f"{gpus:,}" in reason


@given(st.integers(1, 10**6), st.sampled_from([1024, 8192, 131_072]))
def test_the_default_batch_follows_its_rule(gpus: int, seq_len: int) -> None:
    batch, _ = default_global_batch(load_model("llama-3.1-8b"), gpus, seq_len)
    odd = gpus
    while odd % 2 == 0:
        odd //= 2
    multiple, rest = divmod(batch, odd)
    assert rest == 0
    assert multiple & (multiple - 1) == 0
    assert batch * 8 >= gpus


def test_default_sequence_and_tokens() -> None:
    assert default_seq_len(load_model("llama-3.1-405b"))[0] == 8192
    assert default_seq_len(load_model("gpt3-175b"))[0] == 2048
    assert default_tokens(load_model("llama-3.1-8b"))[0] == 20 * 8_030_261_248
    tokens, reason = default_tokens(load_model("deepseek-v3"))
    assert tokens < 20 * 40e9
    assert "active" in reason


def test_options_are_the_same_as_text_and_as_values() -> None:
    text = {"model": "405B", "gpus": "16k", "tokens": "15.6T", "layout": "tp=8,pp=16,dp=125"}
    values: dict[str, Any] = {
        "model": load_model("llama-3.1-405b"),
        "gpus": 16_000,
        "tokens": 15.6e12,
        "layout": {"tp": 8, "pp": 16, "dp": 125},
    }
    first, second = read_estimate(text), read_estimate(values)
    assert first.job == second.job
    assert first.layout == second.layout


def test_a_misspelt_option_names_the_nearest() -> None:
    with pytest.raises(InputError, match="global_batch"):
        read_solve({"model": "8B", "gpus": 8, "globl_batch": 4})


def test_a_gpu_without_bf16_trains_in_fp16() -> None:
    request = read_estimate(
        {"model": "llama-2-7b", "gpus": 8, "gpu": "v100-sxm2-32gb", "layout": "tp=8"}
    )
    assert request.job.training.precision in ("bf16", "fp16")
    has = request.job.cluster.gpu.peak_flops_per_s
    assert request.job.training.precision == ("bf16" if "bf16" in has else "fp16")


def test_a_precision_that_the_gpu_lacks_is_a_warning() -> None:
    request = read_solve({"model": "8B", "gpus": 8, "gpu": "a100-sxm-80gb", "precision": "fp8"})
    assert any("fp8" in warning for warning in request.warnings)


@given(
    gpus=st.sampled_from([1, 6, 8, 48, 64, 96]),
    batch=st.sampled_from([1, 12, 64, 96]),
    fixed=st.dictionaries(
        st.sampled_from(["tp", "cp", "pp", "dp", "vpp", "micro_batch", "microbatches"]),
        st.sampled_from([1, 2, 3, 4, 6, 8, 12]),
        max_size=4,
    ),
)
@settings(max_examples=100, deadline=None)
def test_what_is_refused_before_the_search_is_part_of_no_legal_layout(
    gpus: int, batch: int, fixed: dict[str, int]
) -> None:
    """A refusal is right: completing the fixed axes in every way finds no legal layout."""
    options = {"model": "llama-3.1-8b", "gpus": gpus, "global_batch": batch}
    job = read_solve(options).job
    try:
        refuse_impossible(fixed, job)
    except InputError:
        assert all(broken_rules(job, layout) for layout in _layouts(gpus, batch, fixed))


FRAMEWORKS = ("generic", "megatron", "megatron-2023", "torchtitan", "deepspeed", "nanotron", "jax")
WAYS: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 4),
    "cp": (1, 2, 4),
    "pp": (1, 2, 4),
    "cp_kind": ("ring", "all_gather", "ulysses"),
    "zero_stage": (0, 1, 3),
    "recompute": RECOMPUTE,
    "offload_optimizer": (False, True),
    "offload_activations": (False, True),
}


@given(
    framework=st.sampled_from(FRAMEWORKS),
    fixed=st.fixed_dictionaries(
        {}, optional={key: st.sampled_from(values) for key, values in WAYS.items()}
    ),
)
@settings(max_examples=60, deadline=None)
def test_what_a_framework_refuses_is_part_of_no_layout_of_it(
    framework: str, fixed: dict[str, Any]
) -> None:
    options = {"model": "llama-3.1-8b", "gpus": 4, "global_batch": 4, "framework": framework}
    job = read_solve(options).job
    try:
        refuse_impossible(fixed, job)
    except InputError:
        open_ways = {key: values for key, values in WAYS.items() if key not in fixed}
        for chosen in product(*open_ways.values()):
            whole = {**fixed, **dict(zip(open_ways, chosen, strict=True))}
            dp = 4 // (whole["tp"] * whole["cp"] * whole["pp"])
            if dp:
                usual = Layout().cp_kind
                layout = Layout(**whole, dp=dp, microbatches=4 // dp, sequence_parallel=False)
                alone = whole["cp"] == 1 and whole["cp_kind"] != usual
                assert alone or broken_rules(job, layout)


@pytest.mark.parametrize(
    ("framework", "fixed", "words", "nearest"),
    [
        ("torchtitan", {"cp_kind": "ulysses"}, "torchtitan has no cp_kind ulysses", "cp_kind=ring"),
        ("nanotron", {"tp": 16}, "nanotron copies no key-value heads", "tp=8"),
        ("deepspeed", {"vpp": 2}, "it has no interleaved pipeline", "vpp=1"),
        ("deepspeed", {"schedule": "zbv"}, "zbv; it runs 1f1b", "schedule=1f1b"),
        ("deepspeed", {"schedule": "interleaved"}, "it runs 1f1b", "schedule=1f1b"),
        (
            "nanotron",
            {"offload_optimizer": True},
            "nanotron does not offload the optimizer",
            "offload_optimizer=false",
        ),
        (
            "megatron",
            {"offload_activations": True, "pp": 2},
            "does not offload activations with pp 2",
            "offload_activations=false",
        ),
    ],
)
def test_what_is_fixed_is_refused_by_the_rule_of_its_framework(
    framework: str, fixed: dict[str, Any], words: str, nearest: str
) -> None:
    with pytest.raises(InputError, match=words) as refused:
        read_solve({"model": "70B", "gpus": 64, "framework": framework, "fix": fixed})
    assert nearest in refused.value.nearest


def test_a_kind_of_context_parallelism_that_nothing_uses_is_no_refusal() -> None:
    """An answer without cp says ring, and may be asked for again."""
    read_solve({"model": "8B", "gpus": 8, "framework": "deepspeed", "fix": {"cp_kind": "ring"}})


def _layouts(gpus: int, batch: int, fixed: dict[str, int]) -> Iterator[Layout]:
    """Every layout of ``gpus`` and ``batch`` that has the fixed values; vpp up to 12."""
    divisors = {n for total in (gpus, batch) for n in range(1, total + 1) if total % n == 0}
    every = sorted(divisors | {*range(1, 13)})
    free = {axis: [fixed[axis]] if axis in fixed else every for axis in _AXES}
    for tp, cp, pp in product(free["tp"], free["cp"], free["pp"]):
        if gpus % (tp * cp * pp):
            continue
        dp = gpus // (tp * cp * pp)
        for micro_batch in free["micro_batch"] if dp in free["dp"] else []:
            microbatches, rest = divmod(batch, dp * micro_batch)
            if rest or microbatches not in free["microbatches"]:
                continue
            for vpp in free["vpp"][:12]:
                yield Layout(tp, cp, pp, dp, 1, 1, vpp, micro_batch, microbatches,
                             sequence_parallel=False)  # fmt: skip


_AXES = ("tp", "cp", "pp", "dp", "vpp", "micro_batch", "microbatches")
