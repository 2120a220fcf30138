"""The shipped software profiles and how records find theirs."""

from __future__ import annotations

import pytest

from layoutopt.costmodel.defaults import default_layout_values, likely_chunks
from layoutopt.costmodel.software import Software, software, software_for_record, software_names
from layoutopt.errors import InputError

NAMES = software_names()


@pytest.mark.parametrize("name", NAMES)
def test_profiles_are_plausible(name: str) -> None:
    profile = software(name)
    assert profile.name == name
    assert profile.describes
    shares = [value for key, value in profile.model_dump().items() if key.startswith("overlap_")]
    assert shares
    assert all(0 <= share <= 1 for share in shares)
    assert profile.compute_factor > 0
    assert profile.comm_factor > 0
    assert profile.microbatch_overhead_s >= 0
    assert profile.step_overhead_s >= 0
    assert 0 <= profile.default_zero_stage <= 3
    assert profile.gradient_bytes in (2, 4)


@pytest.mark.parametrize("name", NAMES)
def test_weights_and_state_are_a_known_sum(name: str) -> None:
    """A 16-bit copy beside fp32 master and moments (and DeepSpeed's fp32 gradient; or moments in 16
    bit), or fp32 weights that are the master."""
    profile = software(name)
    assert (profile.weight_bytes, profile.optimizer_bytes) in ((2, 12), (2, 16), (2, 8), (4, 8))


def test_an_older_release_keeps_the_fitted_figures_of_its_profile() -> None:
    new, old = (
        software_for_record("torchtitan main 2026"),
        software_for_record("torchtitan 2024-04"),
    )
    assert (new.logit_bytes, old.logit_bytes) == (4, 14)
    assert old.model_copy(update={"logit_bytes": 4.0, "matches": new.matches}) == new


def test_a_bare_framework_means_its_first_profile() -> None:
    for name in NAMES:
        framework = software(name).framework
        if framework not in NAMES:
            assert software(framework).framework == framework


def test_an_unknown_framework_lists_those_there_are() -> None:
    with pytest.raises(InputError) as raised:
        software("caffe")
    assert raised.value.field == "framework"
    assert raised.value.nearest == NAMES
    assert "caffe" in raised.value.message


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("Megatron-LM (2021)", "megatron"),
        ("Megatron-DeepSpeed", "deepspeed"),
        ("NeMo / Megatron Core r0.9", "nemo"),
        ("torchtitan (FSDP2)", "torchtitan"),
        ("LLM Foundry, Composer FSDP", "fsdp"),
        ("DeepSpeed ZeRO-3", "deepspeed"),
        ("something else", "generic"),
    ],
)
def test_a_record_finds_its_profile(text: str, framework: str) -> None:
    assert software_for_record(text).framework == framework


def test_a_profile_refuses_keys_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="overlap_everything"):
        Software.model_validate(
            {"name": "x", "framework": "x", "describes": "x", "overlap_everything": 1}
        )


def test_deepspeed_does_not_shard_gradients_under_a_pipeline() -> None:
    profile = software("deepspeed")
    assert default_layout_values(profile, tp=1, pp=1).zero_stage == profile.default_zero_stage
    assert default_layout_values(profile, tp=1, pp=4).zero_stage <= 1


def test_fsdp_keeps_gathered_weights_under_a_pipeline() -> None:
    profile = software("torchtitan")
    assert default_layout_values(profile, tp=1, pp=1).reshard
    assert not default_layout_values(profile, tp=1, pp=4).reshard
    assert default_layout_values(software("deepspeed"), tp=1, pp=4).reshard


def test_sequence_parallelism_needs_tensor_parallelism() -> None:
    profile = software("megatron-core")
    assert not default_layout_values(profile, tp=1, pp=1).sequence_parallel
    assert default_layout_values(profile, tp=2, pp=1).sequence_parallel


def test_chunks_of_runs_that_do_not_say() -> None:
    """Megatron interleaves whole layers where pp divides layers and microbatches."""
    megatron = software("megatron-core")
    chunks = likely_chunks(megatron, layers=96, pp=8, microbatches=64)
    assert chunks > 1
    assert 96 // 8 % chunks == 0
    assert likely_chunks(megatron, layers=96, pp=8, microbatches=12) == 1
    assert likely_chunks(megatron, layers=96, pp=1, microbatches=64) == 1
    assert likely_chunks(software("torchtitan"), layers=32, pp=4, microbatches=8) == 2
    assert likely_chunks(software("deepspeed"), layers=96, pp=8, microbatches=64) == 1
