"""Runs out of Megatron-LM's training log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from layoutopt.calibration import calibrate
from layoutopt.calibration.megatron_log import is_log, records_of_log
from layoutopt.errors import InputError
from layoutopt.validation.cases import case_of

ARGUMENTS = {
    "bf16": "True",
    "context_parallel_size": "1",
    "data_parallel_size": "2",
    "expert_model_parallel_size": "1",
    "ffn_hidden_size": "11008",
    "fp16": "False",
    "fp8": "None",
    "group_query_attention": "False",
    "hidden_size": "4096",
    "micro_batch_size": "1",
    "num_attention_heads": "32",
    "num_experts": "None",
    "num_layers": "32",
    "num_query_groups": "1",
    "padded_vocab_size": "32000",
    "pipeline_model_parallel_size": "2",
    "recompute_granularity": "None",
    "seq_length": "4096",
    "sequence_parallel": "True",
    "swiglu": "True",
    "tensor_model_parallel_size": "2",
    "untie_embeddings_and_output_weights": "True",
    "use_distributed_optimizer": "True",
    "virtual_pipeline_model_parallel_size": "None",
    "world_size": "8",
}


def log(path: Path, steps: Sequence[tuple[int, float]], prefix: str = "", **changes: str) -> Path:
    """A log with (batch, milliseconds) iterations; ``prefix`` as srun puts before each line."""
    lines = ["using world size: 8, data-parallel size: 2", "-------- arguments --------"]
    for key, value in (ARGUMENTS | changes).items():
        lines.append(f"  {key} {'.' * (48 - len(key))} {value}")
    lines.append("-------- end of arguments --------")
    for number, (batch, milliseconds) in enumerate(steps, start=1):
        parts = (
            f" [2026-11-01 10:00:{number:02}] iteration {number:8}/     500",
            f"consumed samples: {number * batch:12}",
            f"elapsed time per iteration (ms): {milliseconds:.1f}",
            "throughput per GPU (TFLOP/s/GPU): 150.0",
            f"global batch size: {batch:5}",
            "lm loss: 9.1E+00 |",
        )
        lines.append(" | ".join(parts))
    path.write_text("".join(f"{prefix}{line}\n" for line in lines), encoding="utf-8")
    return path


STEPS = [(64, 60_000.0), (64, 12_000.0), (64, 10_100.0), (64, 10_000.0), (64, 9_900.0)]


@pytest.mark.parametrize("prefix", ["", "0: ", "[default7]:"])
def test_a_log_is_a_record(tmp_path: Path, prefix: str) -> None:
    """The first two intervals are warm-up; the median of the others is 10 s."""
    path = log(tmp_path / "train.log", STEPS, prefix)
    assert is_log(path)
    (record,) = records_of_log(path, "a100-sxm-80gb")
    assert record.id == "train.log:batch-64"
    assert record.measured == {"step_time_s": 10.0}
    case = case_of(record)
    assert (case.layout.tp, case.layout.pp, case.layout.dp) == (2, 2, 2)
    assert (case.layout.zero_stage, case.layout.recompute) == (1, "none")
    assert (case.layout.microbatches, case.layout.sequence_parallel) == (32, True)
    assert (case.job.model.ffn, case.job.model.kv_heads, case.job.model.vocab) == (11008, 32, 32000)
    assert (case.job.training.precision, case.job.gpus) == ("bf16", 8)


def test_each_batch_of_a_ramp_is_a_run(tmp_path: Path) -> None:
    steps = [*STEPS, *((128, seconds * 2) for _, seconds in STEPS), (256, 40_000.0)]
    found = records_of_log(log(tmp_path / "train.log", steps), "a100-sxm-80gb")
    assert [(r.training["global_batch"], r.measured["step_time_s"]) for r in found] == [
        (64, 10.0),
        (128, 20.0),
    ]


def test_experts_groups_and_eight_bits(tmp_path: Path) -> None:
    path = log(
        tmp_path / "train.log",
        STEPS,
        num_experts="8",
        moe_router_topk="2",
        moe_layer_freq="[0, 1, 1, 1]",
        expert_model_parallel_size="4",
        group_query_attention="True",
        num_query_groups="8",
        fp8="hybrid",
        recompute_granularity="full",
    )
    (record,) = records_of_log(path, "h100")
    assert (record.model["experts"], record.model["expert_ffn"]) == (8, 11008)
    assert record.model["moe_layers"] == 3
    assert (record.model["kv_heads"], record.layout["ep"]) == (8, 4)
    assert (record.training["precision"], record.layout["recompute"]) == ("fp8", "full")


def test_three_logs_calibrate(tmp_path: Path) -> None:
    paths = [
        log(tmp_path / f"run-{batch}.log", [(batch, ms * batch / 64) for _, ms in STEPS])
        for batch in (64, 128, 256)
    ]
    found = calibrate(paths, gpu="a100-sxm-80gb")
    assert found.site.runs == tuple(f"run-{n}.log:batch-{n}" for n in (64, 128, 256))
    assert found.site.framework == "megatron-core"


@pytest.mark.parametrize(
    ("text", "gpu", "words"),
    [
        ("nothing of use\n", "h100", "has no block of arguments"),
        ("  num_layers ...... 32\n", "h100", "has no line of an iteration"),
    ],
)
def test_what_a_log_lacks_is_said(tmp_path: Path, text: str, gpu: str, words: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        records_of_log(path, gpu)


def test_the_gpu_has_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give --gpu"):
        records_of_log(log(tmp_path / "train.log", STEPS), None)


def test_json_lines_are_no_log(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('\ufeff\n {"id": "a"}\n', encoding="utf-8")
    assert not is_log(path)
    assert not is_log(tmp_path / "missing.jsonl")
