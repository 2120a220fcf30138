"""Measured runs from Megatron-LM's own training log: the arguments it prints, and its iterations.

    ------------------------ arguments ------------------------
      num_layers ...................................... 32
    -------------------- end of arguments ---------------------
    iteration      20/  500 | consumed samples: 20480 | elapsed time per iteration (ms): 5123.4 |
    ... | global batch size:  1024 | ...

Prefixes of srun and torchrun (``0: ``, ``[default7]:``) and everything between are skipped.
Format: megatron/training/arguments.py (_print_args) and megatron/training/training.py
(training_log) of Megatron-LM, core 0.5 and later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from layoutopt.errors import InputError
from layoutopt.validation.records import MAX_BYTES, Record

WARM_UP = 2
"""Printed intervals left out at the start, and after each change of batch: compilation, first
allocations, and the first collectives are in them."""

FEWEST = 3
"""Printed intervals that a batch size has after the warm-up."""

_ARGUMENT = re.compile(r"\s([a-z][a-z0-9_]*) \.{2,} (.*\S)\s*$")
_ITERATION = re.compile(
    r"\biteration\s+\d+/\s*\d+ \|.*elapsed time per iteration \(ms\):\s*([0-9.]+) \|"
    r".*global batch size:\s*(\d+) \|"
)
_PRECISIONS = {"fp8": "fp8", "fp4": "nvfp4"}


def is_log(path: str | Path) -> bool:
    """Whether a file's first printable character starts no JSON object."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            start = file.read(4096).lstrip("\ufeff \t\r\n")
    except OSError:
        return False  # whoever reads the file as records says what is wrong with it
    return bool(start) and not start.startswith("{")


def records_of_log(path: str | Path, gpu: str | None) -> list[Record]:
    """A record for each batch size of a log; raises InputError that says what the log lacks.

    ``gpu`` is the GPU type, which Megatron does not print.
    """
    name = Path(path).name
    arguments, steps = _read(Path(path))
    if not arguments or not steps:
        lacks = "block of arguments" if not arguments else "line of an iteration with its time"
        raise InputError(
            f"{path} is neither JSON lines nor a Megatron log: it has no {lacks}",
            field="records",
            value=str(path),
        )
    if gpu is None:
        raise InputError(
            f"{path} is a Megatron log, which does not name its GPU: give --gpu", field="gpu"
        )
    if arguments.get("multi_latent_attention") == "True":
        raise InputError(
            f"{path}: latent attention is not read from a log; write the run as a JSON line",
            field="multi_latent_attention",
            value=True,
        )
    return [
        _record(name, place, arguments, gpu, batch, milliseconds)
        for place, (batch, milliseconds) in enumerate(steps.items(), start=1)
    ]


def _read(path: Path) -> tuple[dict[str, str], dict[int, float]]:
    """Arguments as text, and the median milliseconds of a step by global batch."""
    if path.stat().st_size > MAX_BYTES:
        raise InputError(
            f"{path} has {path.stat().st_size} bytes; at most {MAX_BYTES} are read",
            field="records",
            value=str(path),
        )
    arguments: dict[str, str] = {}
    times: dict[int, list[float]] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if found := _ITERATION.search(line):
                times.setdefault(int(found[2]), []).append(float(found[1]))
            elif not times and (found := _ARGUMENT.search(line)):
                arguments.setdefault(found[1], found[2])
    steps = {
        batch: median(values[WARM_UP:])
        for batch, values in times.items()
        if len(values) >= WARM_UP + FEWEST
    }
    return arguments, steps


def _record(
    name: str, place: int, given: Mapping[str, str], gpu: str, batch: int, milliseconds: float
) -> Record:
    def whole(key: str, default: int | None = None) -> int | None:
        text = given.get(key, "None")
        return int(text) if text.isdigit() else default

    def flag(key: str) -> bool:
        return given.get(key) == "True"

    gpus = whole("world_size")
    return Record(
        id=f"{name}:batch-{batch}",
        source_file=name,
        line=place,
        framework="Megatron-LM",
        notes="",
        source="the run's own log",
        model=_model(given, whole, flag),
        hardware={"gpu": gpu, "gpus": gpus},
        training={
            "seq_len": whole("seq_length"),
            "global_batch": batch,
            "micro_batch": whole("micro_batch_size"),
            "precision": _precision(given, flag),
        },
        layout=_layout(given, whole, flag),
        measured={"step_time_s": milliseconds / 1000},
    )


def _model(given: Mapping[str, str], whole: Any, flag: Any) -> dict[str, Any]:
    heads, experts = whole("num_attention_heads"), whole("num_experts")
    model = {
        "name": "of-the-log",
        "layers": whole("num_layers"),
        "hidden": whole("hidden_size"),
        "heads": heads,
        "kv_heads": whole("num_query_groups") if flag("group_query_attention") else heads,
        "ffn": whole("ffn_hidden_size"),
        "gated_mlp": flag("swiglu"),
        "vocab": whole("padded_vocab_size"),
        "tied_embeddings": not flag("untie_embeddings_and_output_weights"),
    }
    if experts:
        model |= {
            "experts": experts,
            "top_k": whole("moe_router_topk"),
            "expert_ffn": whole("moe_ffn_hidden_size", whole("ffn_hidden_size")),
            "moe_layers": _expert_layers(given.get("moe_layer_freq", "1"), whole("num_layers")),
        }
    return model


def _expert_layers(frequency: str, layers: int) -> int:
    """Layers with experts: a list says each layer, a number N every N-th from the first."""
    if frequency.startswith("["):
        return sum(int(digit) for digit in re.findall(r"\d+", frequency))
    every = int(frequency) if frequency.isdigit() and int(frequency) else 1
    return -(-layers // every)


def _precision(given: Mapping[str, str], flag: Any) -> str:
    for key, precision in _PRECISIONS.items():
        if given.get(key, "None") not in ("None", "False"):
            return "mxfp8" if given.get("fp8_recipe") == "mxfp8" else precision
    return "bf16" if flag("bf16") else "fp16" if flag("fp16") else "fp32"


def _layout(given: Mapping[str, str], whole: Any, flag: Any) -> dict[str, Any]:
    granularity = given.get("recompute_granularity", "None")
    return {
        "tp": whole("tensor_model_parallel_size", 1),
        "cp": whole("context_parallel_size", 1),
        "pp": whole("pipeline_model_parallel_size", 1),
        "dp": whole("data_parallel_size"),
        "ep": whole("expert_model_parallel_size", 1),
        "etp": whole("expert_tensor_parallel_size"),
        "vpp": whole("virtual_pipeline_model_parallel_size", 1),
        "zero_stage": 1 if flag("use_distributed_optimizer") else 0,
        "sequence_parallel": flag("sequence_parallel"),
        "recompute": "none" if granularity == "None" else granularity,
    }
