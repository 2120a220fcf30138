"""Small records, and a cost model simple enough to work out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.results import (
    Checkpoint,
    Estimate,
    Memory,
    Run,
    StageMemory,
    StepTime,
)
from layoutopt.units import GIB
from layoutopt.validation.records import Record, read_records

CAPACITY_GIB = 81
USABLE_GIB = 80


def row(run: str = "run-1", **sections: dict[str, Any]) -> dict[str, Any]:
    """A complete record of Llama 2 7B on 8 A100, with ``sections`` changed key by key."""
    record: dict[str, Any] = {
        "id": run,
        "source": "made up for a test",
        "framework": "Megatron-LM (2023)",
        "model": {
            "name": "llama-2-7b",
            "layers": 32,
            "hidden": 4096,
            "heads": 32,
            "kv_heads": 32,
            "ffn": 11008,
            "gated_mlp": True,
            "vocab": 32000,
            "tied_embeddings": False,
            "params": 6738415616,
        },
        "hardware": {
            "gpu": "a100-sxm-80gb",
            "gpus": 8,
            "gpus_per_node": 8,
            "nvlink_domain": 8,
            "internode": None,
            "internode_gbps_per_gpu": 200,
        },
        "training": {
            "task": "pretrain",
            "seq_len": 4096,
            "global_batch": 64,
            "micro_batch": 1,
            "precision": "bf16",
        },
        "layout": {
            "tp": 2,
            "cp": 1,
            "pp": 2,
            "dp": 2,
            "ep": 1,
            "vpp": 1,
            "zero_stage": 1,
            "sequence_parallel": True,
            "recompute": "none",
            "flash_attention": None,
            "offload": None,
        },
        "measured": {"step_time_s": 10.0},
        "inferred": [],
        "notes": None,
    }
    for name, changes in sections.items():
        record[name] = record[name] | changes
    return record


def write(path: Path, *rows: dict[str, Any]) -> Path:
    """``rows`` as JSON lines in ``path``."""
    path.write_text("".join(json.dumps(entry) + "\n" for entry in rows), encoding="utf-8")
    return path


def record(tmp_path: Path, entry: dict[str, Any]) -> Record:
    """``entry`` as it is read."""
    return read_records([write(tmp_path / "one.jsonl", entry)])[0]


def estimate_of(
    layout: Layout, step_s: float, stages_gib: tuple[float, ...] = (10.0,), reserve_gib: float = 2.0
) -> Estimate:
    """An estimate with the given step time and allocated GiB per stage."""
    stages = tuple(
        StageMemory(
            stage=stage,
            layers=1,
            weights=int(gib * GIB),
            gradients=0,
            optimizer=0,
            activations=0,
            logits=0,
            buffers=0,
            reserve=int(reserve_gib * GIB),
            peak_moment="backward",
        )
        for stage, gib in enumerate(stages_gib)
    )
    usable = USABLE_GIB * GIB
    fits = max(stage.reserved for stage in stages) <= usable
    return Estimate(
        layout=layout,
        memory=Memory(CAPACITY_GIB * GIB, usable, stages, fits),
        step=StepTime(step_s, {}, 0, 0, 0, 0, 0, 0, 0, 0),
        checkpoint=Checkpoint(1, step_s, 0, 0, 0, 0, 0),
        run=Run(0, 1, step_s, step_s, {}, 0, 0, None, None),
    )


def tp_is_slow(job: Job, layout: Layout) -> Estimate:
    """Predicts as many seconds, and as many GiB, as the layout has tensor-parallel ranks."""
    return estimate_of(layout, float(layout.tp), (float(layout.tp),))
