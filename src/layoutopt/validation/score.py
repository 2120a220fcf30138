"""Predictions against measurements, record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.results import Estimate
from layoutopt.errors import InputError
from layoutopt.units import GIB
from layoutopt.validation.cases import Calibration, Case, Figure, Incomplete, case_of
from layoutopt.validation.records import Record

Estimator = Callable[[Job, Layout], Estimate]


@dataclass(frozen=True)
class Scored:
    """One record with what was measured and what is predicted. Seconds and GiB."""

    record: Record
    case: Case | None
    """None where the record is incomplete."""
    why_not: str | None
    """Why the record is not scored (None: it is)."""
    measured_s: float | None = None
    predicted_s: float | None = None
    measured_gib: float | None = None
    predicted_gib: float | None = None
    measured_oom: bool | None = None
    predicted_oom: bool | None = None
    estimate: Estimate | None = field(default=None, repr=False)

    @property
    def scored(self) -> bool:
        """True where there is a prediction and something measured to hold it against."""
        return self.why_not is None

    @property
    def time_ratio(self) -> float | None:
        """Predicted over measured step time."""
        return _ratio(self.predicted_s, self.measured_s)

    @property
    def memory_ratio(self) -> float | None:
        """Predicted over measured peak memory."""
        return _ratio(self.predicted_gib, self.measured_gib)

    def counts(self, figure: Figure) -> bool:
        """Whether the summaries count ``figure`` of this record."""
        if self.case is None or not self.scored or figure in self.case.left_out:
            return False
        measured = {
            "time": self.measured_s,
            "memory": self.measured_gib,
            "fit": self.measured_oom,
        }
        return measured[figure] is not None

    def to_dict(self) -> dict[str, Any]:
        """The record's entry in layoutopt.validation/1."""
        case = self.case
        return {
            "id": self.record.id,
            "source_file": self.record.source_file,
            "framework": self.record.framework,
            "software": case.job.software.name if case else None,
            "gpu": case.job.cluster.gpu.name if case else self.record.hardware.get("gpu"),
            "scored": self.scored,
            "why_not": self.why_not,
            "filled": list(case.filled) if case else [],
            "left_out": dict(case.left_out) if case else {},
            "time": {
                "measured_s": self.measured_s,
                "predicted_s": self.predicted_s,
                "error": _error(self.time_ratio),
            },
            "memory": {
                "measured_gib": self.measured_gib,
                "predicted_gib": self.predicted_gib,
                "error": _error(self.memory_ratio),
            },
            "fit": {"measured_oom": self.measured_oom, "predicted_oom": self.predicted_oom},
        }


def score(
    records: Iterable[Record], estimator: Estimator, calibration: Calibration | None = None
) -> list[Scored]:
    """Every record with its prediction, or the reason why there is none; in order."""
    estimate_once = _Memory(estimator)
    return [_score(record, estimate_once, calibration) for record in records]


class _Memory:
    """Asks the cost model once for runs that were measured more than once."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        # Jobs are kept: an id is a key only as long as what it names is alive.
        self._known: dict[tuple[object, ...], tuple[Job, Estimate]] = {}

    def __call__(self, job: Job, layout: Layout) -> Estimate:
        parts = (job.model, job.cluster, job.training, job.software, job.efficiency)
        key = (*map(id, parts), job.gpus, layout)
        if key not in self._known:
            self._known[key] = (job, self._estimator(job, layout))
        return self._known[key][1]


def _score(record: Record, estimator: Estimator, calibration: Calibration | None) -> Scored:
    try:
        case = case_of(record, calibration)
        estimate = estimator(case.job, case.layout)
    except Incomplete as reason:
        return Scored(record, None, str(reason))
    except InputError as error:
        return Scored(record, None, error.message)
    measured_s = measured_step_s(record)
    measured_gib = record.measured.get("peak_memory_gib")
    measured_oom = _measured_oom(record, measured_s, measured_gib)
    nothing = measured_s is None and measured_gib is None and measured_oom is None
    return Scored(
        record,
        case,
        "no step time, tokens/s, memory or out-of-memory to compare with" if nothing else None,
        measured_s=measured_s,
        predicted_s=estimate.step.time_s,
        measured_gib=measured_gib,
        predicted_gib=predicted_bytes(case, estimate) / GIB,
        measured_oom=measured_oom,
        predicted_oom=not estimate.memory.fits,
        estimate=estimate,
    )


def measured_step_s(record: Record) -> float | None:
    """Seconds a step took: as stated, else from tokens/s per GPU; never from TFLOP/s."""
    stated: float | None = record.measured.get("step_time_s")
    if stated is not None:
        return float(stated)
    tokens_per_s: float | None = record.measured.get("tokens_per_s_per_gpu")
    if tokens_per_s is None:
        return None
    tokens: int = record.training["seq_len"] * record.training["global_batch"]
    gpus: int = record.hardware["gpus"]
    return tokens / (tokens_per_s * gpus)


def _measured_oom(
    record: Record, measured_s: float | None, measured_gib: float | None
) -> bool | None:
    """Whether the run died of memory; a run with a step time or a peak did not."""
    stated: bool | None = record.measured.get("oom")
    if stated is not None:
        return stated
    return None if measured_s is None and measured_gib is None else False


def predicted_bytes(case: Case, estimate: Estimate) -> int:
    """Peak bytes of the kind, and on the stage, that the record measured.

    ``allocated`` is what tensors hold, ``reserved`` (or a kind that is not named) what the
    allocator holds, ``nvidia-smi`` all that the device does not have left: context and
    communication buffers too.
    """
    stages = estimate.memory.stages
    if case.memory_of_last_stage:
        stages = (max(stages, key=lambda stage: stage.stage),)
    outside = estimate.memory.capacity_bytes - estimate.memory.usable_bytes
    if case.memory_kind == "allocated":
        return max(stage.allocated for stage in stages)
    return max(stage.reserved for stage in stages) + (
        outside if case.memory_kind == "nvidia-smi" else 0
    )


def _ratio(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or measured is None else predicted / measured


def _error(ratio: float | None) -> float | None:
    return None if ratio is None else abs(ratio - 1)
