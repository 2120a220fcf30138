"""Rows under the column names of NeMo's auto-configurator.

Source: ``result_columns`` of calculate_performance.py (nemo_toolkit 2.5.0,
nemo/collections/llm/tools/auto_configurator/core), in that order and spelling; nemo_toolkit 3 has
it no more. Seconds, sequences and TFLOP/s as there, but not rounded; a size is in billions of
parameters. Rows without a layout are left out, as they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]


def _nodes(row: Row) -> int:
    return int(-(-row["gpus"] // row["gpus_per_node"]))


_MAKERS: dict[str, Callable[[Row], Any]] = {
    "Model Name": lambda row: row["model"],
    "Model Size": lambda row: round(row["parameters"] / 1e9, 3),
    "Seq Length": lambda row: row["seq_len_tokens"],
    "TP": lambda row: row["tp"],
    "PP": lambda row: row["pp"],
    "CP": lambda row: row["cp"],
    "EP": lambda row: row["ep"],
    "MBS": lambda row: row["micro_batch"],
    "VP": lambda row: row["vpp"],
    "Num Layers": lambda row: row["layers"],
    "Hidden Size": lambda row: row["hidden"],
    "FFN Hidden Size": lambda row: row["ffn_hidden"],
    "GBS": lambda row: row["global_batch_sequences"],
    "Nodes": _nodes,
    "GPUs per Node": lambda row: row["gpus_per_node"],
    "Time per Step": lambda row: row["step_time_s"],
    "Samples per Second": lambda row: row["global_batch_sequences"] / row["step_time_s"],
    "Model TFLOPS / GPU": lambda row: row["tflops_per_gpu"],
    "Model TFLOPS Aggregate": lambda row: row["tflops_per_gpu"] * row["gpus"],
}

NEMO_COLUMNS = tuple(_MAKERS)
NEMO_KINDS = {
    **dict.fromkeys(NEMO_COLUMNS, "INTEGER"),
    "Model Name": "TEXT",
    **dict.fromkeys(
        (
            "Model Size",
            "Time per Step",
            "Samples per Second",
            "Model TFLOPS / GPU",
            "Model TFLOPS Aggregate",
        ),
        "REAL",
    ),
}


def nemo_row(row: Row) -> tuple[Any, ...] | None:
    """The values of NEMO_COLUMNS; None for a row without a layout."""
    if row["layout"] is None:
        return None
    return tuple(make(row) for make in _MAKERS.values())
