"""Everything a person gets wrong: exit 2 and one message with field, value and nearest."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from layoutopt.schema import schema_text
from tests.cli.conftest import Run
from tests.cli.schemas import check

ESTIMATE = ("estimate", "--model", "llama-3.1-8b")
ON_64 = (*ESTIMATE, "--gpus", "64", "--layout")
SOLVE = ("solve", "--model", "llama-3.1-8b", "--gpus", "8")

CASES = [
    # (command, words of the message, field of the JSON error)
    ((*ESTIMATE, "--gpus", "0", "--layout", "tp=1"), ["gpus 0", "from 1 to"], "gpus"),
    ((*ESTIMATE, "--gpus", "-8", "--layout", "tp=1"), ["gpus -8", "below 1"], "gpus"),
    ((*ESTIMATE, "--gpus", "1.5", "--layout", "tp=1"), ["1.5", "fraction", "1 or 2"], "gpus"),
    ((*ESTIMATE, "--gpus", "abc", "--layout", "tp=1"), ["abc", "whole number"], "gpus"),
    ((*ESTIMATE, "--gpus", "nan", "--layout", "tp=1"), ["nan"], "gpus"),
    ((*ESTIMATE, "--gpus", "inf", "--layout", "tp=1"), ["inf"], "gpus"),
    ((*ESTIMATE, "--gpus", "٣٢", "--layout", "tp=1"), ["٣٢"], "gpus"),
    ((*ESTIMATE, "--gpus", "1B", "--layout", "tp=1"), ["1B", "10,000,000"], "gpus"),
    ((*ESTIMATE, "--gpus", "9" * 5000, "--layout", "tp=1"), ["9999"], "gpus"),
    ((*ESTIMATE, "--gpus", "8..16", "--layout", "tp=1"), ["one count", "8..16"], "gpus"),
    (("solve", "--model", "8B"), ["gpus is missing"], "gpus"),
    (("solve", "--gpus", "8"), ["model is missing"], "model"),
    ((*ESTIMATE, "--gpus", "8"), ["layout is missing"], "layout"),
    ((*ON_64, "tp=8,pp=4,dp=4"), ["tp 8 x cp 1 x pp 4 x dp 4 = 128", "64", "dp=2"], "layout"),
    ((*ON_64, "tp=3"), ["tp 3", "= 3", "64 GPUs", "63", "66"], "layout"),
    (
        (*ESTIMATE, "--gpus", "96", "--layout", "tp=12"),
        ["tp 12", "32 heads", "4 or 8 or 16"],
        "tp",
    ),
    ((*ESTIMATE, "--gpus", "64", "--layout", "pp=64"), ["pp 64", "32 layers"], "pp"),
    ((*ON_64, "cp=8", "--seq-len", "1000"), ["cp 8", "1000", "16"], "cp"),
    ((*ON_64, "tp=1", "--global-batch", "32"), ["dp 64", "batch of 32", "64"], "global_batch"),
    ((*ON_64, "tp=1", "--global-batch", "100"), ["dp 64", "64 or 128"], "global_batch"),
    (
        (*ON_64, "tp=1,micro_batch=2,microbatches=3", "--global-batch", "256"),
        ["dp 64 x micro_batch 2 x microbatches 3 = 384", "256"],
        "global_batch",
    ),
    ((*ON_64, "tpp=1"), ["'tpp'", "nearest: tp"], "layout"),
    ((*ON_64, "tp:1"), ["'tp:1'", "key=value"], "layout"),
    ((*ON_64, ""), ["layout is empty"], "layout"),
    ((*ON_64, "tp=8,tp=4"), ["tp=8", "tp=4"], "layout"),
    ((*ON_64, "recompute=fulll"), ["fulll", "nearest: full"], "layout.recompute"),
    ((*ON_64, "recompute=selective:3"), ["selective:3", "full:3"], "layout.recompute"),
    (
        (*ON_64, "pp=4,recompute=full:3+2*0"),
        ["lists 3 stages", "pp is 4"],
        "recompute",
    ),
    (
        (*ON_64, "pp=4,recompute=full:3+3*0", "--framework", "megatron-core"),
        ["megatron takes full recompute of one number of layers on all stages"],
        "recompute",
    ),
    (
        (*ON_64, "pp=4,schedule=zbv", "--framework", "megatron-core"),
        ["megatron does not run schedule zbv", "1f1b"],
        "schedule",
    ),
    ((*ON_64, "pp=32,schedule=zbv"), ["two chunks", "pp 2 to 16"], "schedule"),
    (
        (*ON_64, "pp=4,layers_per_stage=7+8+8+9", "--framework", "deepspeed"),
        ["deepspeed does not take a number of layers for each stage"],
        "layers_per_stage",
    ),
    ((*ON_64, "zero_stage=4"), ["4", "from 0 to 3"], "layout.zero_stage"),
    ((*ON_64, "axis_order=tp-pp"), ["tp-pp", "tp-cp-ep-dp-pp"], "layout.axis_order"),
    ((*ON_64, "sequence_parallel=maybe"), ["maybe", "true"], "layout.sequence_parallel"),
    ((*ON_64, "pp=4,layers_per_stage=7+8"), ["2 stages", "15 layers", "32"], "layers_per_stage"),
    ((*ON_64, "pp=4,layers_per_stage=9999999*1"), ["9999999"], "layout.layers_per_stage"),
    ((*ON_64, "vpp=9,pp=4"), ["vpp 9", "32 layers", "2 or 4 or 8"], "vpp"),
    ((*ON_64, '{"tp": 8,'), ["not JSON"], "layout"),
    ((*ON_64, '{"tp": true}'), ["layout.tp", "True"], "layout.tp"),
    ((*ON_64, '{"tp": NaN}'), ["layout.tp", "nan"], "layout.tp"),
    ((*ON_64, '{"tp": 8, "gpus": 32}'), ["layout.gpus 32", "gpus 64"], "layout.gpus"),
    ((*ON_64, "nowhere.json"), ["nowhere.json", "No such file"], "layout"),
    ((*ON_64, "-"), ["empty"], "layout"),
    ((*ON_64, "tp=1", "--model", "8B"), ["--model", "llama-3.1-8b", "8B"], "model"),
    ((*ON_64, "tp=1", "--gpu", "h1000"), ["h1000", "h100-sxm-80gb"], "gpu"),
    (
        (*ON_64, "tp=1", "--gpu", "a100", "--cluster", "p5.48xlarge"),
        ["--gpu a100", "--cluster aws-p5.48xlarge", "h100-sxm-80gb"],
        "gpu",
    ),
    ((*ON_64, "tp=1", "--cluster", "nope"), ["cluster 'nope'"], "cluster"),
    ((*ON_64, "tp=1", "--framework", "megatrn"), ["megatrn", "megatron-core"], "framework"),
    ((*ON_64, "tp=1", "--precision", "bf61"), ["bf61", "nearest: bf16"], "precision"),
    ((*ON_64, "tp=1", "--seq-len", "1T"), ["1T", "1,000,000,000"], "seq_len"),
    ((*ON_64, "tp=1", "--tokens", "1.55"), ["1.55", "1 or 2"], "tokens"),
    ((*ON_64, "tp=1", "--tokens", "2000000T"), ["2000000T", "above"], "tokens"),
    ((*ON_64, "tp=1", "--global-batch", "2B"), ["2B", "above 1,000,000,000"], "global_batch"),
    ((*ON_64, "tp=1", "--gpuss", "4"), ["--gpuss", "--gpus"], "--gpuss"),
    ((*ON_64, "tp=1", "--fix", "tp=1"), ["--fix"], "--fix"),
    (("estmate",), ["estmate", "estimate"], "command"),
    (("solve", "8B"), ["8B", "solve --help"], "command line"),
    (("solve", "--model"), ["--model", "no value"], "model"),
    (("solve", "--model", "llama-3.1-8bb", "--gpus", "8"), ["8bb", "llama-3.1-8b"], "model"),
    ((*SOLVE, "--fix", "tp=8", "--limit", "tp<=4"), ["tp=8", "tp<=4"], "fix"),
    ((*SOLVE, "--limit", "tp<=2", "--limit", "tp>4"), ["tp>4", "tp<=2"], "limit"),
    ((*SOLVE, "--limit", "tp<1"), ["tp<1", "tp<=1"], "limit"),
    ((*SOLVE, "--limit", "tpp<=4"), ["tpp", "tp"], "limit"),
    ((*SOLVE, "--limit", "tp~4"), ["tp~4", "tp<=8"], "limit"),
    ((*SOLVE, "--limit", "recompute<=1"), ["recompute"], "limit"),
    ((*SOLVE, "--fix", "tp=3"), ["tp 3", "8 GPUs", "tp=2 or tp=4"], "fix"),
    ((*SOLVE, "--fix", "tp=4,pp=4"), ["tp 4 x pp 4 = 16", "8 GPUs", "gpus=16"], "fix"),
    ((*SOLVE, "--fix", "tp=0"), ["tp 0"], "fix.tp"),
    ((*SOLVE, "--fix", "dp=8", "--global-batch", "4"), ["dp 8", "4 sequences", "dp=4"], "fix"),
    (
        (*SOLVE, "--fix", "dp=4,micro_batch=3", "--global-batch", "64"),
        ["dp 4 x micro_batch 3 = 12", "global_batch=60 or global_batch=72"],
        "fix",
    ),
    (
        ("solve", "--model", "llama-3.1-8b", "--gpus", "96", "--fix", "tp=12"),
        ["tp 12", "32 heads", "tp=4 or tp=8"],
        "fix",
    ),
    (
        ("solve", "--model", "llama-3.1-8b", "--gpus", "64", "--fix", "pp=64"),
        ["pp 64", "32 layers", "pp=32"],
        "fix",
    ),
    ((*SOLVE, "--fix", "cp=8", "--seq-len", "1000"), ["cp 8", "1000", "cp=4"], "fix"),
    ((*SOLVE, "--fix", "ep=2"), ["ep 2", "ep=1"], "fix"),
    ((*SOLVE, "--fix", "pp=4,vpp=9"), ["vpp 9", "32 layers", "vpp=2"], "fix"),
    (
        (*SOLVE, "--fix", "zero_stage=3,pp=2", "--framework", "megatron-core"),
        ["zero_stage 3"],
        "fix",
    ),
    ((*SOLVE, "--fix", "tp=2", "--fix", "tp=4"), ["tp=2", "tp=4"], "fix"),
    ((*SOLVE, "--fix", "recompute=ful"), ["ful", "full"], "fix.recompute"),
    ((*SOLVE, "--objective", "speed"), ["speed", "time, cost, energy"], "objective"),
    ((*SOLVE, "--deadline", "30"), ["30", "unit"], "deadline"),
    ((*SOLVE, "--deadline", "-3d"), ["-3d"], "deadline"),
    ((*SOLVE, "--time-limit", "nan"), ["nan"], "time_limit"),
    ((*SOLVE, "--time-limit", "0"), ["0", "above 0"], "time_limit"),
    ((*SOLVE, "--top", "1000"), ["1000", "100"], "top"),
    ((*SOLVE, "--workers", "0"), ["workers 0"], "workers"),
    ((*SOLVE, "--budget", "-5"), ["-5"], "budget"),
    ((*SOLVE, "--why-not", "tq=8"), ["'tq'", "tp"], "why_not"),
    ((*SOLVE, "--gpu", "tpu-v4", "--objective", "cost"), ["usd_per_gpu_hour"], "objective"),
    ((*SOLVE, "--gpu", "tpu-v4", "--budget", "1M"), ["usd_per_gpu_hour"], "budget"),
    (
        ("solve", "--model", "-", "--cluster", "-", "--gpus", "8"),
        ["--model -", "--cluster -"],
        "cluster",
    ),
    (("hardware", "h1000"), ["h1000", "h100-sxm-80gb"], "name"),
    (("models", "lama-3.1-8b"), ["lama-3.1-8b", "llama-3.1-8b"], "model"),
    (("validate",), ["records are missing"], "records"),
]


@pytest.mark.parametrize(("command", "words", "field"), CASES, ids=lambda value: str(value)[:50])
def test_a_bad_command_is_answered_with_one_message(
    run: Run, command: tuple[str, ...], words: list[str], field: str
) -> None:
    started = time.perf_counter()
    ran = run(*command, "--json")
    assert time.perf_counter() - started < 1
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert ran.err.startswith("layoutopt: ")
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err
    check(ran.json, "error")
    assert ran.json["field"] == field


def test_without_json_standard_output_stays_empty(run: Run) -> None:
    ran = run(*ON_64, "tp=3")
    assert (ran.code, ran.out) == (2, "")


def test_an_unknown_schema_names_the_nearest(run: Run) -> None:
    ran = run("schema", "plam")
    assert ran.code == 2
    assert "plan" in ran.err


@pytest.mark.parametrize(
    "text",
    ["", "[1, 2]", '{"hidden_size": 1, "hidden_size": 2}', '{"hidden_size": true}', "{", "x" * 10],
)
def test_a_broken_config_file_is_named(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    ran = run("solve", "--gpus", "8", "--json", "--model", str(path))
    assert ran.code == 2
    assert "config.json" in ran.err
    check(ran.json, "error")


def test_a_directory_is_no_model(run: Run, tmp_path: Path) -> None:
    ran = run("solve", "--gpus", "8", "--model", str(tmp_path))
    assert ran.code == 2
    assert "directory" in ran.err


def test_more_gpus_than_the_cluster_has(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    ran = run("solve", "--model", "8B", "--cluster", str(path), "--gpus", "64", "--json")
    assert ran.code == 2
    assert "4 nodes x 8 = 32" in ran.err
    assert ran.json["nearest"] == [32]


def test_a_misspelt_key_of_a_cluster_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER.replace("gpus_per_node", "gpus_per_nod"))
    ran = run("solve", "--model", "8B", "--cluster", str(path))
    assert ran.code == 2
    assert "gpus_per_node" in ran.err


CLUSTER = """\
name: four nodes
gpu: a100-sxm-80gb
gpus_per_node: 8
nodes: 4
levels:
  - {name: nvlink, gpus: 8, bandwidth_per_gpu_one_way: 300GB/s, latency: 2us}
  - {name: network, gpus: 32, bandwidth_per_gpu_one_way: 25Gbps, latency: 5us}
storage: {write: 10GB/s, write_per_node: 2GB/s}
failures_per_gpu_hour: 2.0e-5
"""


def test_every_error_code_is_in_the_schema() -> None:
    from layoutopt import errors

    leaves = (errors.InputError, errors.ProfileError, errors.RuleError, errors.ToolError)
    for leaf in (*leaves, errors.InternalError):
        assert f'"{leaf.code}"' in schema_text("error")
