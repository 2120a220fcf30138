"""Figures and tables that README and docs quote, computed: VALUE's names stand in the pages' marks.

``<!-- value: time.median -->12.3%<!-- end -->`` is renewed by scripts/paste-readme and compared by
tests/test_docs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from benchmarks.accuracy import default_files, napkin_errors
from benchmarks.headline import Figure, headline, is_dense, step_errors
from benchmarks.results_file import newest
from layoutopt.costmodel import checkpoint
from layoutopt.costmodel import defaults as layout_defaults
from layoutopt.costmodel.linears import USUAL_RANK
from layoutopt.costmodel.software import Software, software, software_names
from layoutopt.hardware_profiles.defaults import defaults as cluster_defaults
from layoutopt.inputs import defaults
from layoutopt.optimizer.question import Budget, Question
from layoutopt.validation import Validation, validate
from layoutopt.validation.summary import Errors, fit


def value_of(name: str) -> str:
    """What a page shows for the mark ``name``; raises KeyError for an unknown one."""
    return VALUES[name]()


@lru_cache(maxsize=1)
def _measured() -> Validation:
    """The shipped records, scored by the tree's own parameters."""
    return validate(default_files())


@lru_cache(maxsize=1)
def _fitted() -> dict[str, Figure]:
    return {figure.name: figure for figure in headline(_measured().records)}


@lru_cache(maxsize=1)
def _unseen() -> dict[str, float]:
    """The newest cross-validation: each source predicted by a fit that saw nothing of it."""
    record = newest("cross-validation")
    if record is None:
        raise LookupError("no cross-validation lies in benchmarks/results")
    return {figure["name"]: figure["value"] for figure in record["by_source"]}


def _dense_napkin() -> Errors:
    return napkin_errors([entry for entry in _measured().records if is_dense(entry)])


def _share(value: float | None) -> str:
    return f"{value:.1%}" if value is not None else "-"


def _rows(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table on lines of its own."""
    lines = [list(header), *([str(cell) for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


def _cluster_table() -> str:
    """Every figure of hardware_profiles/data/defaults.yaml, with its source."""
    return _rows(
        ("figure", "value", "source"),
        (
            (f"`{figure.field}`", figure.value, figure.source)
            for figure in cluster_defaults().figures.values()
        ),
    )


def _framework_table() -> str:
    """What a layout that leaves a key out gets from each software profile."""
    return _rows(
        ("`--framework`", "stands for", "ZeRO stage", "recompute", "sequence parallel"),
        (_framework_row(software(name)) for name in software_names()),
    )


def _framework_row(profile: Software) -> tuple[object, ...]:
    return (
        f"`{profile.name}`",
        profile.describes,
        profile.default_zero_stage,
        profile.default_recompute,
        "where tp > 1" if profile.default_sequence_parallel else "no",
    )


def _overlap_table() -> str:
    """The efficiencies and byte counts of each software profile."""
    return _rows(
        (
            "`--framework`",
            "bytes of a weight + gradient + optimizer state",
            "attention kernel",
            "gradient reduction hidden",
            "ZeRO-1/2 gather hidden",
            "ZeRO-3 traffic hidden",
            "kernel time factor",
            "network time factor",
        ),
        (_overlap_row(software(name)) for name in software_names()),
    )


def _overlap_row(profile: Software) -> tuple[object, ...]:
    return (
        f"`{profile.name}`",
        f"{profile.weight_bytes} + {profile.gradient_bytes} + {profile.optimizer_bytes}",
        profile.attention_kernel,
        f"{profile.overlap_grad_reduce:.0%}",
        f"{profile.overlap_param_gather:.0%}",
        f"{profile.overlap_fsdp:.0%}",
        f"{profile.compute_factor:g}",
        f"{profile.comm_factor:g}",
    )


def _batch_rule() -> str:
    steps = sorted(defaults.BATCH_TOKENS, reverse=True)
    words = [
        f"{tokens / 1e6:.1f}M tokens from {least / 1e9:,.0f}B parameters up"
        if least
        else f"{tokens / 1e6:.1f}M below"
        for least, tokens in steps
    ]
    return ", ".join(words)


def _tuned_table() -> str:
    """Measured fine-tuning runs: what they train, and how far the step times are off."""
    rows = []
    for task, words in (("sft", "every weight (`full`)"), ("lora", "adapters (`lora`)")):
        mine = [e for e in _measured().records if e.record.training.get("task") == task]
        off = step_errors(mine)
        rows.append((words, off.n, _share(off.mape), _share(off.median), f"{off.bias or 0:+.1%}"))
    return _rows(
        ("trained", "runs", "mean error", "median", "predicted over measured, middle"), rows
    )


VALUES: dict[str, Callable[[], str]] = {
    "records": lambda: f"{len(_measured().records):,}",
    "dense.n": lambda: f"{_fitted()['dense, step time: median'].n:,}",
    "dense.median": lambda: _share(_fitted()["dense, step time: median"].value),
    "dense.mean": lambda: _share(_fitted()["dense, step time: mean"].value),
    "experts.n": lambda: f"{_fitted()['experts, step time: median'].n:,}",
    "experts.median": lambda: _share(_fitted()["experts, step time: median"].value),
    "unseen.dense.median": lambda: _share(_unseen()["dense, step time: median"]),
    "unseen.dense.mean": lambda: _share(_unseen()["dense, step time: mean"]),
    "unseen.experts.median": lambda: _share(_unseen()["experts, step time: median"]),
    "napkin.dense.median": lambda: _share(_dense_napkin().median),
    "napkin.dense.mean": lambda: _share(_dense_napkin().mape),
    "fit.n": lambda: f"{fit(_measured().records).n:,}",
    "fit.accuracy": lambda: _share(fit(_measured().records).accuracy),
    "default.gpu": lambda: f"`{defaults.GPU}`",
    "default.framework": lambda: f"`{defaults.FRAMEWORK}`",
    "default.precision": lambda: f"`{defaults.PRECISION}`",
    "default.seq_len": lambda: f"{defaults.SEQ_LEN:,}",
    "default.batch": _batch_rule,
    "default.finetune_seq_len": lambda: f"{defaults.FINETUNE_SEQ_LEN:,}",
    "default.finetune_batch": lambda: f"{defaults.FINETUNE_BATCH}",
    "default.finetune_steps": lambda: f"{defaults.FINETUNE_STEPS:,}",
    "default.lora_rank": lambda: f"{USUAL_RANK}",
    "default.gpus_per_sequence": lambda: f"{defaults.GPUS_PER_SEQUENCE}",
    "default.tokens": lambda: f"{defaults.TOKENS_PER_PARAMETER}",
    "default.micro_batch": lambda: f"{layout_defaults.MICRO_BATCH}",
    "default.objective": lambda: f"`{Question.objective}`",
    "default.top": lambda: f"{Question.top}",
    "default.time_limit": lambda: f"{Budget.seconds:g} s",
    "default.workers": lambda: f"{Budget.workers}",
    "default.restart": lambda: f"{checkpoint.RESTART_S:g} s",
    "default.detect": lambda: f"{checkpoint.DEFAULT_RECOVERY.detect_s:.0f} s",
    "default.hang_share": lambda: f"{checkpoint.JOB_HANG_SHARE:.1%}",
    "default.hang_detect": lambda: f"{checkpoint.HANG_DETECT_S:g} s",
    "default.error_detect": lambda: f"{checkpoint.ERROR_DETECT_S:g} s",
    "default.planned": lambda: f"{checkpoint.PLANNED_PER_FAILURE:.3f}",
    "default.async_stall": lambda: f"{checkpoint.ASYNC_STALL_S:g} s",
    "table.cluster": _cluster_table,
    "table.frameworks": _framework_table,
    "table.overlap": _overlap_table,
    "table.tuned": _tuned_table,
}
