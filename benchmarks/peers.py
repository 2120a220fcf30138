"""What other planners publish about runs that are also among the records here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.headline import of_source
from layoutopt.costmodel.counts import flops_6nd_per_token, model_flops_per_token
from layoutopt.costmodel.results import Estimate
from layoutopt.units import TERA
from layoutopt.validation import Scored
from layoutopt.validation.cases import Case


@dataclass(frozen=True)
class Peer:
    """A published error, and which of the records here it was stated on."""

    runs: str
    which: Callable[[Scored], bool]
    published: str
    source: str


def _on_b200(entry: Scored) -> bool:
    in_file = entry.record.source_file == "simumax.jsonl"
    return in_file and "b200" in str(entry.record.hardware.get("gpu"))


PEERS = (
    Peer(
        "Korthikanti 2022, table 5: 8 runs of 22B to 1T on 8 to 512 A100",
        of_source("Korthikanti", "Tables 3 and 5"),
        "Calculon: mean 3.65%, worst 8.87%",
        "Isaev et al. 2023, Calculon (SC23)",
    ),
    Peer(
        "vTrain's multi-node runs: 18.4B on 256 and 39.1B on 512 A100 (62 of its 109 validation "
        "runs have a complete layout here)",
        of_source("vTrain"),
        "vTrain: mean 14.7% on its 109; Calculon: mean 15.3% on the 109, regret up to 4.5%",
        "Bang et al. 2024, vTrain (MICRO-57, arXiv 2312.12391)",
    ),
    Peer(
        "SimuMax's own runs on 8 B200",
        _on_b200,
        "SimuMax: mean 5.6%",
        "MooreThreads, SimuMax v1.2 (docs/b200)",
    ),
)


@dataclass(frozen=True)
class Rate:
    """A published TFLOP/s per GPU beside the predicted one, however FLOPs are counted."""

    name: str
    published: float
    step_s: float
    by_6nd: float
    """6 FLOPs a parameter and token."""
    by_causal: float
    """And attention over the scores below the diagonal: the convention of this project's MFU."""
    by_full: float
    """And attention over the whole square of scores, as Megatron's formula has it."""


def llama3_rates(entries: Sequence[Scored]) -> list[Rate]:
    """Llama 3, table 4: the paper states rates alone and does not say how it counts FLOPs."""
    return [
        _rate(entry.record.id, case, estimate)
        for entry in entries
        if (case := entry.case) and (estimate := entry.estimate)
        if of_source("Llama Team", "Table 4")(entry)
    ]


def _rate(name: str, case: Case, estimate: Estimate) -> Rate:
    job, seconds = case.job, estimate.step.time_s
    tokens = job.training.tokens_per_step
    plain = flops_6nd_per_token(job.model)
    causal = model_flops_per_token(job.model, job.training.seq_len)

    def rate(flops_per_token: float) -> float:
        return flops_per_token * tokens / seconds / job.gpus / TERA

    return Rate(
        name=name,
        published=float(case.record.measured["tflops_per_gpu"]),
        step_s=seconds,
        by_6nd=rate(plain),
        by_causal=rate(causal),
        by_full=rate(2 * causal - plain),
    )
