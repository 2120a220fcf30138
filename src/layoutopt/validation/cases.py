"""Turns a record into what ``estimate`` takes: a job and a complete layout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from layoutopt.costmodel.defaults import default_layout_values, likely_chunks
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.models.records import record_model
from layoutopt.costmodel.software import Software, software_for_record
from layoutopt.costmodel.training import CudaGraphs, Dispatcher, RecomputeModule, Training
from layoutopt.errors import InputError
from layoutopt.hardware_profiles.catalog import find_gpu
from layoutopt.hardware_profiles.cluster import cluster_for
from layoutopt.hardware_profiles.schema import PRECISIONS, Cluster, Gpu
from layoutopt.units import GBIT
from layoutopt.validation.gaps import likely_recompute, tuned
from layoutopt.validation.notes import expert_notes, hybrid_notes, memory_notes, recompute_notes
from layoutopt.validation.records import Record

Figure = Literal["time", "memory", "fit"]
FIGURES: tuple[Figure, ...] = ("time", "memory", "fit")

Calibration = Callable[[Job], Job]
"""Replaces the shipped figures of a record's job, say by a site's own."""

_DEGREES = ("tp", "cp", "pp", "dp")
_LINKS = ("gpus_per_node", "nvlink_domain", "internode_gbps_per_gpu")

_KERNELS = {
    "torch": "unfused",
    "megatron_fused_softmax": "fused_softmax",
    "flash_attention_1": "flash1",
    "flash_attention_2": "flash2",
    "flash_attention_3": "flash3",
}
"""Attention kernels by the start of ``training.kernel``; the longest match counts."""

_SCHEDULES: dict[str, Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-2p", "zbv"]] = {
    "1F1B": "1f1b",
    "1F1B-I": "interleaved",
    "GPipe": "gpipe",
    "ZB-1p": "zb-h1",
    "ZB-2p": "zb-2p",
    "ZB-H1": "zb-h1",
    "ZB-V": "zbv",
}

_EXPERT_TP_NOTE = re.compile(r"(?:\bexpert TP:?|\bETP|\bexpert tensor parallel) (\d+)")
_ALLOCATED_NOTE = re.compile(r"\b(?:peak|max) allocated\b|max_memory_allocated", re.IGNORECASE)
_RESERVED_NOTE = re.compile(r"\b(?:peak|max) reserved\b", re.IGNORECASE)
_INTERLEAVED_NOTE = re.compile(r"\binterleaved pipeline\b", re.IGNORECASE)
_ATTENTION_NOTE = re.compile(
    r"\battention backend: (?P<backend>unfused|flash|fused)\b|\bimplementation: (?P<local>local)\b"
)
_PREDICTION_NOTE = re.compile(r"\bMTP layers: (\d)")
_LAST_RANK_NOTE = re.compile(r"memory of the rank that writes the log \(the last one\)")


@dataclass(frozen=True)
class Case:
    """A record that can be predicted."""

    record: Record
    job: Job
    layout: Layout
    filled: tuple[str, ...]
    """What the record does not say and was filled in: ``layout.vpp = 5: why``."""
    left_out: dict[Figure, str]
    """Figures that the summaries leave out, with the reason."""
    memory_kind: str | None
    """allocated, reserved or nvidia-smi; None: the record does not say."""
    memory_of_last_stage: bool
    """The measured memory is that of the last pipeline stage, not of the fullest one."""


class Incomplete(Exception):
    """A record cannot be predicted; the message says what is missing."""


def case_of(record: Record, calibration: Calibration | None = None) -> Case:
    """The job and layout of ``record``, with the gaps filled.

    Raises Incomplete where model shape, GPU, GPU count, seq_len, global_batch or the layout is
    missing or does not multiply out.
    """
    filled: list[str] = []
    job = _job(record, calibration, filled)
    layout = _layout(record, job, filled)
    return Case(
        record=record,
        job=job,
        layout=layout,
        filled=tuple(filled),
        left_out=_left_out(record),
        memory_kind=_memory_kind(record),
        memory_of_last_stage=bool(_LAST_RANK_NOTE.search(record.notes)),
    )


def _job(record: Record, calibration: Calibration | None, filled: list[str]) -> Job:
    _require(record, "hardware", "gpus")
    _require(record, "training", "seq_len", "global_batch")
    cluster = _cluster_of(record)
    software = software_for_record(record.framework)
    gpus: int = record.hardware["gpus"]
    model = _model(record, filled)
    training = _training(record, cluster.gpu, software, filled)
    job = Job(
        model=model,
        cluster=cluster,
        training=tuned(training, record, model, software, filled),
        software=software,
        gpus=gpus,
    )
    return calibration(job) if calibration else job


def _require(record: Record, section: str, *keys: str) -> None:
    values = getattr(record, section)
    lacking = [f"{section}.{key}" for key in keys if values.get(key) is None]
    if lacking:
        raise Incomplete(f"{', '.join(lacking)} not given")


def _model(record: Record, filled: list[str]) -> Model:
    model, words = _model_of(json.dumps(dict(record.model), sort_keys=True))
    if model is None:
        raise Incomplete("; ".join(words) or "model shape not given")
    filled.extend(f"model: {word}" for word in words)
    model = hybrid_notes(model, record.notes)
    note = _PREDICTION_NOTE.search(record.notes)
    if note and not model.mtp_layers:
        return model.model_copy(update={"mtp_layers": int(note[1])})
    return model


@lru_cache(maxsize=1024)
def _model_of(text: str) -> tuple[Model | None, tuple[str, ...]]:
    model, words = record_model(json.loads(text))
    return model, tuple(words)


def _cluster_of(record: Record) -> Cluster:
    hardware = record.hardware
    name = hardware.get("gpu")
    if not isinstance(name, str) or not name:
        raise Incomplete("hardware.gpu not given")
    try:
        return _cluster(name, *map(hardware.get, _LINKS), memory_notes(record.notes))
    except InputError as error:
        raise Incomplete(error.message) from None


@lru_cache(maxsize=1024)
def _cluster(
    gpu: str,
    gpus_per_node: int | None,
    nvlink_domain: int | None,
    gbps: float | None,
    memory_bytes: int | None,
) -> Cluster:
    found, _ = find_gpu(gpu)
    if memory_bytes is not None:
        found = found.model_copy(update={"memory_bytes": memory_bytes})
    bytes_per_s = None if gbps is None else gbps * GBIT
    return cluster_for(found, gpus_per_node, nvlink_domain, bytes_per_s)


def _training(record: Record, gpu: Gpu, software: Software, filled: list[str]) -> Training:
    given = record.training
    precision = given.get("precision")
    if precision is None:
        precision = "bf16" if "bf16" in gpu.peak_flops_per_s else "fp16"
        filled.append(f"training.precision = {precision}: the 16-bit type of {gpu.name}")
    if precision not in PRECISIONS:
        raise Incomplete(f"training.precision {precision!r} is none of {', '.join(PRECISIONS)}")
    kernel = given.get("kernel")
    return _cached_training(
        given["seq_len"],
        given["global_batch"],
        precision,
        attention_kernel(kernel, _flash(record), software),
        None if kernel is None else "+rmsnorm_kernel" in kernel,
        *expert_notes(record.notes),
        recompute_notes(record.notes),
    )


@lru_cache(maxsize=4096)
def _cached_training(
    seq_len: int,
    global_batch: int,
    precision: Any,
    kernel: Any,
    fused_norm: bool | None,
    dispatcher: Dispatcher | None,
    cuda_graphs: CudaGraphs | None,
    expert_overlap: bool | None,
    recompute_modules: tuple[RecomputeModule, ...] | None,
) -> Training:
    return Training(
        seq_len=seq_len,
        global_batch=global_batch,
        tokens=seq_len * global_batch,
        precision=precision,
        attention_kernel=kernel,
        fused_norm=fused_norm,
        dispatcher=dispatcher,
        cuda_graphs=cuda_graphs,
        expert_overlap=expert_overlap,
        recompute_modules=recompute_modules,
    )


def _flash(record: Record) -> bool | None:
    """layout.flash_attention; else what the notes say of Megatron's attention.

    Its backend "unfused", and its "local" implementation, keep the scores of the fused softmax.
    """
    given: bool | None = record.layout.get("flash_attention")
    note = _ATTENTION_NOTE.search(record.notes)
    if given is not None or note is None:
        return given
    return note["backend"] in ("flash", "fused")


def attention_kernel(kernel: object, flash: bool | None, software: Software) -> str | None:
    """Training.attention_kernel of a record; None leaves it to the software profile.

    ``flash`` is layout.flash_attention: a run without it used the fused softmax of its time.
    """
    if isinstance(kernel, str):
        found = [name for start, name in _KERNELS.items() if kernel.startswith(start)]
        if found:
            return found[-1]
        flash = True if kernel.startswith("flash") else flash
    if flash is None or flash == software.attention_kernel.startswith("flash"):
        return None
    return "flash2" if flash else "fused_softmax"


def _layout(record: Record, job: Job, filled: list[str]) -> Layout:
    degrees = _degrees(record, job.gpus, filled)
    micro_batch = _micro_batch(record, degrees["dp"], filled)
    layout = Layout(
        tp=degrees["tp"],
        cp=degrees["cp"],
        pp=degrees["pp"],
        dp=degrees["dp"],
        micro_batch=micro_batch,
        microbatches=job.training.global_batch // (degrees["dp"] * micro_batch),
        ep=_experts_split(record, job.model, filled),
        shard_degree=record.layout.get("shard_degree"),
        schedule=_schedule(record),
    )
    layout = _with_defaults(layout, record, job.software, filled)
    if record.layout.get("vpp") is None and layout.pp > 1:
        vpp = likely_chunks(
            job.software,
            layers=job.model.layers,
            pp=layout.pp,
            microbatches=layout.microbatches,
            interleaves=bool(_INTERLEAVED_NOTE.search(record.notes)),
        )
        filled.append(f"layout.vpp = {vpp}: not given with pp {layout.pp}")
    else:
        vpp = record.layout.get("vpp") or 1
    layout = replace(layout, vpp=vpp, etp=_expert_tp(record, layout, filled))
    return layout if record.layout.get("recompute") else _recompute(layout, job, filled)


def _recompute(layout: Layout, job: Job, filled: list[str]) -> Layout:
    """The framework's usual recompute, or what it takes to fit."""
    likely = likely_recompute(job, layout)
    if likely.recompute != layout.recompute:
        filled[:] = [word for word in filled if not word.startswith("layout.recompute =")]
        filled.append(
            f"layout.recompute = {likely.recompute}: the least of it with which the run fits"
        )
    return likely


def _degrees(record: Record, gpus: int, filled: list[str]) -> dict[str, int]:
    given = {axis: record.layout.get(axis) for axis in _DEGREES}
    missing = [axis for axis, value in given.items() if value is None]
    if len(missing) > 1:
        raise Incomplete(f"layout.{', layout.'.join(missing)} not given")
    known = {axis: value for axis, value in given.items() if value is not None}
    product = 1
    for value in known.values():
        product *= value
    if missing and gpus % product == 0:
        known[missing[0]] = gpus // product
        filled.append(f"layout.{missing[0]} = {gpus // product}: {gpus} GPUs over the others")
        product = gpus
    if product != gpus:
        words = " x ".join(f"{axis} {value}" for axis, value in known.items())
        raise Incomplete(f"{words} = {product} GPUs, but the run had {gpus}")
    return known


def _micro_batch(record: Record, dp: int, filled: list[str]) -> int:
    global_batch = record.training["global_batch"]
    given: int | None = record.training.get("micro_batch")
    micro_batch = given or 1
    if given is None:
        filled.append("training.micro_batch = 1: large runs mostly take one sequence")
    if global_batch % (dp * micro_batch):
        raise Incomplete(
            f"global_batch {global_batch} is not a multiple of dp {dp} x micro_batch {micro_batch}"
        )
    return micro_batch


def _experts_split(record: Record, model: Model, filled: list[str]) -> int:
    ep: int | None = record.layout.get("ep")
    if ep is None and model.moe is not None:
        raise Incomplete("layout.ep not given for a mixture of experts")
    if ep is None:
        filled.append("layout.ep = 1: the model has no experts")
    return ep or 1


def _expert_tp(record: Record, layout: Layout, filled: list[str]) -> int:
    """Expert tensor parallelism: the record's field, else its notes, else 1."""
    given: int | None = record.layout.get("etp")
    if given is not None or layout.ep == 1:
        return given or 1
    note = _EXPERT_TP_NOTE.search(record.notes)
    if note:
        filled.append(f"layout.etp = {note[1]}: from the record's notes")
        return int(note[1])
    filled.append("layout.etp = 1: not given")
    return 1


def _schedule(record: Record) -> Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-2p", "zbv"]:
    given = record.layout.get("schedule")
    if given is None:
        return "1f1b"
    if given not in _SCHEDULES:
        raise Incomplete(f"layout.schedule {given!r} is none of {', '.join(_SCHEDULES)}")
    return _SCHEDULES[given]


def _with_defaults(layout: Layout, record: Record, software: Software, filled: list[str]) -> Layout:
    defaults = default_layout_values(software, tp=layout.tp, pp=layout.pp)
    values: dict[str, Any] = {"reshard": defaults.reshard, "cp_kind": defaults.cp_kind}
    if layout.cp > 1 and defaults.cp_kind != layout.cp_kind:
        filled.append(f"layout.cp_kind = {defaults.cp_kind}: {defaults.reasons['cp_kind']}")
    for key in ("zero_stage", "recompute", "sequence_parallel"):
        values[key] = record.layout.get(key)
        if values[key] is None:
            values[key] = getattr(defaults, key)
            filled.append(f"layout.{key} = {_word(values[key])}: {defaults.reasons[key]}")
    return replace(layout, **values)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _memory_kind(record: Record) -> str | None:
    """The record's field, else what its notes call the figure."""
    given: str | None = record.measured.get("memory_kind")
    if given is not None:
        return given
    if _ALLOCATED_NOTE.search(record.notes):
        return "allocated"
    return "reserved" if _RESERVED_NOTE.search(record.notes) else None


def _left_out(record: Record) -> dict[Figure, str]:
    """Why a figure of a predictable record stays out of the summaries, by figure."""
    reasons: dict[Figure, str] = {}
    optimizer = record.training.get("optimizer")
    if optimizer is not None and "adam" not in str(optimizer).lower():
        reasons |= dict.fromkeys(FIGURES, f"optimizer {optimizer}: other states than Adam's")
    offload = record.layout.get("offload")
    if offload not in (None, "none"):
        why = f"offloads {offload} to the host, which no layout of ours says"
        reasons |= dict.fromkeys(FIGURES, why)
    reasons |= _unused(record.measured.get("use"))
    return reasons


def _unused(use: Mapping[str, Any] | None) -> dict[Figure, str]:
    """Figures that the record itself says are not to be scored."""
    use = use or {}
    why = str(use.get("why") or "the record says so")
    return {figure: why for figure in FIGURES if use.get(figure) is False}
