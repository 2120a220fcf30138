"""Rows under the column names of NeMo's auto-configurator.

Source: ``result_columns`` of ``calculate_performance.py`` in NVIDIA NeMo's auto-configurator, whose
spelling is kept. Seconds, sequences and TFLOP/s as there; a size is in billions of parameters.
Rows without a layout are left out, as they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]


def _recomputed_layers(row: Row) -> int:
    """Layers of a stage whose activations are recomputed."""
    word, _, layers = str(row["recompute"]).partition(":")
    if word != "full":
        return 0
    return int(layers) if layers else int(-(-row["layers"] // row["pp"]))


def _nodes(row: Row) -> int:
    return int(-(-row["gpus"] // row["gpus_per_node"]))


def _config_name(row: Row) -> str:
    """As the auto-configurator names a run: size, nodes, degrees, micro-batch, recompute."""
    return (
        f"{row['model']}_{_nodes(row)}nodes_tp_{row['tp']}_pp_{row['pp']}_cp_{row['cp']}"
        f"_ep_{row['ep']}_mbs_{row['micro_batch']}_act_ckpt_{_recomputed_layers(row)}"
    )


_MAKERS: dict[str, Callable[[Row], Any]] = {
    "Model Name": lambda row: row["model"],
    "Model Size": lambda row: round(row["parameters"] / 1e9, 3),
    "Seq Length": lambda row: row["seq_len_tokens"],
    "TP": lambda row: row["tp"],
    "PP": lambda row: row["pp"],
    "CP": lambda row: row["cp"],
    "EP": lambda row: row["ep"],
    "MBS": lambda row: row["micro_batch"],
    "Act Ckpt Layers": _recomputed_layers,
    "Act Ckpt Micro Bathes": lambda row: None,
    "Act Ckpt Layers per Pipeline": lambda row: None,
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
    "Config Name": _config_name,
}

NEMO_COLUMNS = tuple(_MAKERS)
NEMO_KINDS = {
    **dict.fromkeys(NEMO_COLUMNS, "INTEGER"),
    **dict.fromkeys(("Model Name", "Config Name"), "TEXT"),
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
