"""From a record to a job and a layout: what is taken, what is filled, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from layoutopt.costmodel.defaults import default_layout_values, likely_chunks
from layoutopt.costmodel.estimate import memory_of
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.software import Software, software
from layoutopt.validation.cases import Case, Incomplete, attention_kernel, case_of
from tests.validation.builders import record, row

MEGATRON = Software(name="megatron-test", framework="megatron", describes="a test")
DEEPSPEED = Software(
    name="deepspeed-test", framework="deepspeed", describes="a test", default_zero_stage=3
)
TORCHTITAN = Software(
    name="torchtitan-test", framework="torchtitan", describes="a test", default_zero_stage=3
)


def case(tmp_path: Path, **sections: Any) -> Case:
    return case_of(record(tmp_path, row(**sections)))


def missing(tmp_path: Path, **sections: Any) -> str:
    with pytest.raises(Incomplete) as caught:
        case(tmp_path, **sections)
    return str(caught.value)


def test_a_complete_record_is_taken_as_it_stands(tmp_path: Path) -> None:
    found = case(tmp_path)
    assert found.layout == Layout(tp=2, pp=2, dp=2, microbatches=32)
    assert found.job.gpus == 8
    assert found.job.model.layers == 32
    assert found.job.training.tokens == 4096 * 64
    assert found.job.cluster.gpu.name == "a100-sxm-80gb"
    assert found.job.cluster.gpus_per_node == 8
    assert not [word for word in found.filled if word.startswith("layout")]
    assert found.left_out == {}


def test_the_network_of_the_record_is_used(tmp_path: Path) -> None:
    """200 Gbit/s are 25e9 bytes/s, one way, on the level that leaves the node."""
    outermost = case(tmp_path).job.cluster.levels[-1]
    assert outermost.bytes_per_s_per_gpu_one_way == 25e9


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("hardware", "gpus"),
        ("hardware", "gpu"),
        ("training", "seq_len"),
        ("training", "global_batch"),
        ("model", "layers"),
    ],
)
def test_what_cannot_be_filled_is_named(tmp_path: Path, section: str, key: str) -> None:
    assert missing(tmp_path, **{section: {key: None}})


def test_an_unknown_gpu_is_not_scored(tmp_path: Path) -> None:
    assert "abacus" in missing(tmp_path, hardware={"gpu": "abacus"})


def test_a_layout_that_does_not_multiply_out_prints_the_product(tmp_path: Path) -> None:
    words = missing(tmp_path, layout={"dp": 3})
    assert "tp 2 x cp 1 x pp 2 x dp 3 = 12 GPUs" in words
    assert "the run had 8" in words


def test_one_missing_degree_follows_from_the_others(tmp_path: Path) -> None:
    found = case(tmp_path, layout={"cp": None})
    assert found.layout.cp == 1
    assert any(word.startswith("layout.cp = 1") for word in found.filled)


def test_two_missing_degrees_are_not_guessed(tmp_path: Path) -> None:
    assert "layout.tp, layout.dp" in missing(tmp_path, layout={"tp": None, "dp": None})


def test_a_batch_that_no_microbatch_divides_is_not_scored(tmp_path: Path) -> None:
    words = missing(tmp_path, training={"global_batch": 62, "micro_batch": 4})
    assert "62 is not a multiple of dp 2 x micro_batch 4" in words


def test_gaps_are_filled_and_listed(tmp_path: Path) -> None:
    found = case(
        tmp_path,
        training={"micro_batch": None, "precision": None},
        layout={"zero_stage": None, "recompute": None, "sequence_parallel": None},
    )
    defaults = default_layout_values(found.job.software, tp=2, pp=2)
    assert found.layout.micro_batch == defaults.micro_batch
    assert found.layout.zero_stage == defaults.zero_stage
    assert found.layout.recompute == defaults.recompute
    assert found.layout.sequence_parallel == defaults.sequence_parallel
    for key in ("micro_batch", "precision", "zero_stage", "recompute", "sequence_parallel"):
        assert any(f".{key} = " in word for word in found.filled), key


def test_a_v100_without_precision_ran_fp16(tmp_path: Path) -> None:
    found = case(tmp_path, hardware={"gpu": "v100-sxm2-32gb"}, training={"precision": None})
    assert found.job.training.precision == "fp16"


def test_an_unknown_precision_is_not_scored(tmp_path: Path) -> None:
    assert "int3" in missing(tmp_path, training={"precision": "int3"})


def test_experts_without_their_split_are_not_scored(tmp_path: Path) -> None:
    experts = {"experts": 8, "top_k": 2, "expert_ffn": 11008, "moe_layers": 32, "params": None}
    assert "layout.ep" in missing(tmp_path, model=experts, layout={"ep": None})


def test_expert_tensor_parallelism_comes_from_the_notes(tmp_path: Path) -> None:
    experts = {"experts": 8, "top_k": 2, "expert_ffn": 11008, "moe_layers": 32, "params": None}
    entry = row(model=experts, layout={"ep": 2})
    entry["notes"] = "CI golden values; expert TP: 2; attention backend: unfused"
    assert case_of(record(tmp_path, entry)).layout.etp == 2
    entry["notes"] = None
    assert case_of(record(tmp_path, entry)).layout.etp == 1


@pytest.mark.parametrize(
    ("kind", "notes", "taken"),
    [
        ("reserved", "rank-0 peak allocated", "reserved"),
        (
            None,
            "peak is max allocated after iteration 2, reserved memory stayed near 40 GB",
            "allocated",
        ),
        (None, "Max reserved 71.2 GiB (rank 3).", "reserved"),
        (None, "Dispatcher DeepEP.", None),
    ],
)
def test_the_kind_of_memory_comes_from_the_notes_where_no_field_says_it(
    tmp_path: Path, kind: str | None, notes: str, taken: str | None
) -> None:
    entry = row(measured={"memory_kind": kind})
    entry["notes"] = notes
    assert case_of(record(tmp_path, entry)).memory_kind == taken


def test_memory_of_the_last_rank_is_noticed(tmp_path: Path) -> None:
    entry = row()
    entry["notes"] = "memory of the rank that writes the log (the last one), torch allocated only"
    assert case_of(record(tmp_path, entry)).memory_of_last_stage
    assert not case(tmp_path).memory_of_last_stage


@pytest.mark.parametrize(
    ("given", "taken"),
    [("1F1B", "1f1b"), ("1F1B-I", "interleaved"), ("ZB-1p", "zb-h1"), ("ZB-2p", "zb-2p")],
)
def test_schedules_by_their_published_names(tmp_path: Path, given: str, taken: str) -> None:
    assert case(tmp_path, layout={"schedule": given}).layout.schedule == taken


@pytest.mark.parametrize(
    ("notes", "taken"),
    [
        ("attention backend: unfused; implementation: transformer_engine", "fused_softmax"),
        ("implementation: local", "fused_softmax"),
        ("attention backend: flash; implementation: transformer_engine", None),
        ("implementation: transformer_engine", None),
    ],
)
def test_notes_on_megatrons_attention(tmp_path: Path, notes: str, taken: str | None) -> None:
    """Its unfused backend and its local layers keep scores; a field of the record comes first."""
    entry = row()
    entry["notes"] = notes
    assert case_of(record(tmp_path, entry)).job.training.attention_kernel == taken
    entry["layout"]["flash_attention"] = True
    assert case_of(record(tmp_path, entry)).job.training.attention_kernel is None


def test_prediction_layers_in_the_notes(tmp_path: Path) -> None:
    entry = row()
    entry["notes"] = "expert TP: 1; MTP layers: 2"
    assert case_of(record(tmp_path, entry)).job.model.mtp_layers == 2
    assert case(tmp_path).job.model.mtp_layers == 0


def test_recompute_that_is_not_said_is_the_least_that_fits(tmp_path: Path) -> None:
    """The framework's usual one where that fits; what the record says is taken as it stands."""
    usual = case(tmp_path, layout={"recompute": None})
    assert usual.layout.recompute == "none"
    tight = {"recompute": None, "tp": 1, "pp": 1, "dp": 8}
    longer = {"seq_len": 16_384}
    forced = case(tmp_path, layout=tight, training=longer)
    assert forced.layout.recompute == "full"
    assert memory_of(forced.job, forced.layout).fits
    assert any("the least of it with which the run fits" in word for word in forced.filled)
    said = case(tmp_path, layout={**tight, "recompute": "none"}, training=longer)
    assert said.layout.recompute == "none"


def test_an_unknown_schedule_is_not_scored(tmp_path: Path) -> None:
    assert "chimera" in missing(tmp_path, layout={"schedule": "chimera"})


@pytest.mark.parametrize(
    ("kernel", "flash", "default", "taken"),
    [
        ("torch", None, "flash2", "unfused"),
        ("megatron_fused_softmax", None, "flash2", "fused_softmax"),
        ("flash_attention_1.0.8", True, "flash2", "flash1"),
        ("flash_attention_2", True, "flash3", "flash2"),
        ("flash_attention_2+rmsnorm_kernel", True, "flash3", "flash2"),
        ("flash_attention", None, "fused_softmax", "flash2"),
        ("flash_attention", None, "flash3", None),
        (None, None, "flash2", None),
        (None, True, "flash2", None),
        (None, True, "fused_softmax", "flash2"),
        (None, False, "flash2", "fused_softmax"),
        (None, False, "fused_softmax", None),
    ],
)
def test_attention_kernels(
    kernel: str | None, flash: bool | None, default: Any, taken: str | None
) -> None:
    profile = MEGATRON.model_copy(update={"attention_kernel": default})
    assert attention_kernel(kernel, flash, profile) == taken


def test_the_norm_kernel_is_fused_only_where_the_record_names_it(tmp_path: Path) -> None:
    def fused(kernel: str | None) -> bool | None:
        return case(tmp_path, training={"kernel": kernel}).job.training.fused_norm

    assert fused("flash_attention_2+rmsnorm_kernel") is True
    assert fused("flash_attention_2") is False
    assert fused(None) is None


@pytest.mark.parametrize(
    ("sections", "figures"),
    [
        ({"training": {"task": "lora"}}, set()),
        ({"training": {"optimizer": "muon"}}, {"time", "memory", "fit"}),
        ({"training": {"optimizer": "AdamW"}}, set()),
        ({"layout": {"offload": "optimizer"}}, {"time", "memory", "fit"}),
        ({"layout": {"offload": "none"}}, set()),
        ({"measured": {"use": {"time": False, "why": "too small"}}}, {"time"}),
        ({"measured": {"use": {"time": True}}}, set()),
    ],
)
def test_what_the_summaries_leave_out(
    tmp_path: Path, sections: dict[str, Any], figures: set[str]
) -> None:
    found = case(tmp_path, **sections)
    assert set(found.left_out) == figures
    assert all(found.left_out.values())


def test_a_task_says_what_is_trained(tmp_path: Path) -> None:
    """Adapters that a record does not describe are those of its framework's recipes."""
    plain = case(tmp_path).job.training
    assert (plain.finetune, plain.lora) == (None, None)
    assert case(tmp_path, training={"task": "sft"}).job.training.finetune == "full"
    entry = row(training={"task": "lora"})
    for framework, rank, names in (
        ("Megatron-Bridge", 16, ("q_proj", "k_proj", "v_proj")),
        ("NeMo AutoModel (PyTorch FSDP2/HSDP)", 8, ("q_proj", "down_proj")),
    ):
        found = case_of(record(tmp_path, {**entry, "framework": framework}))
        lora = found.job.training.lora
        assert lora is not None
        assert lora.rank == rank
        assert set(names) <= set(lora.targets)
        assert (len(lora.targets) == 3) == (rank == 16)
        assert any(f"training.lora = rank {rank}" in said for said in found.filled)


def test_a_calibration_replaces_the_profile(tmp_path: Path) -> None:
    def slower(job: Job) -> Job:
        return replace(job, software=job.software.model_copy(update={"compute_factor": 9.0}))

    found = case_of(record(tmp_path, row()), slower)
    assert found.job.software.compute_factor == 9.0
    assert software(found.job.software.name).compute_factor != 9.0


def test_deepspeed_refuses_sharded_gradients_with_a_pipeline() -> None:
    assert default_layout_values(DEEPSPEED, tp=1, pp=1).zero_stage == 3
    assert default_layout_values(DEEPSPEED, tp=1, pp=2).zero_stage == 1


def test_fsdp_keeps_gathered_weights_in_a_pipeline() -> None:
    assert default_layout_values(TORCHTITAN, tp=1, pp=1).reshard
    assert not default_layout_values(TORCHTITAN, tp=1, pp=2).reshard
    assert default_layout_values(MEGATRON, tp=1, pp=2).reshard


def test_sequence_parallelism_needs_tensor_parallelism() -> None:
    assert not default_layout_values(MEGATRON, tp=1, pp=1).sequence_parallel
    assert default_layout_values(MEGATRON, tp=2, pp=1).sequence_parallel


@pytest.mark.parametrize(
    ("profile", "layers", "pp", "microbatches", "chunks"),
    [
        (MEGATRON, 96, 1, 8, 1),
        (MEGATRON, 96, 12, 24, 4),
        (MEGATRON, 84, 4, 8, 7),  # 21 layers a stage: 7 chunks of 3
        (MEGATRON, 64, 64, 64, 1),  # one layer a stage
        (MEGATRON, 96, 12, 25, 1),  # pp must divide the microbatches
        (MEGATRON, 126, 16, 16, 1),  # layers do not divide
        (DEEPSPEED, 96, 12, 24, 1),
        (TORCHTITAN, 126, 8, 8, 2),
    ],
)
def test_likely_chunks(
    profile: Software, layers: int, pp: int, microbatches: int, chunks: int
) -> None:
    assert likely_chunks(profile, layers=layers, pp=pp, microbatches=microbatches) == chunks


def test_a_source_that_interleaves_and_does_not_say_how_gets_chunks_of_two_layers() -> None:
    """Llama 3: 126 layers and two places for embedding and loss head are 8 a stage, 4 chunks."""
    other = Software(name="in-house", framework="generic", describes="a test")
    for layers, chunks in ((126, 4), (128, 4), (125, 1)):
        found = likely_chunks(other, layers=layers, pp=16, microbatches=32, interleaves=True)
        assert found == chunks
    assert likely_chunks(other, layers=126, pp=16, microbatches=32) == 1
