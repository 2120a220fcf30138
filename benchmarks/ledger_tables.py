"""The tables of docs/accuracy.md, a function each; figures come from scored records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.accuracy import napkin_errors
from benchmarks.headline import (
    balanced_accuracy,
    by_source,
    has_experts,
    is_dense,
    memory_errors,
    of_file,
    step_errors,
)
from benchmarks.peers import PEERS, Peer, llama3_rates
from benchmarks.residuals import group_of
from layoutopt.validation import Scored
from layoutopt.validation.statistics import median
from layoutopt.validation.summary import fit
from layoutopt.validation.sweeps import sweeps

WORST = 20
"""Rows of the table of largest misses."""

Entries = Sequence[Scored]
Unseen = Mapping[str, Entries]
"""The same entries with the predictions of fits that never saw them, by kind of split."""


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every column but the first is aligned right."""
    lines = [list(header), ["---", *["---:"] * (len(header) - 1)], *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(value: float | None, sign: str = "") -> str:
    """A share as per cent with one decimal; ``-`` for None."""
    return "-" if value is None else f"{value:{sign}.1%}"


def source_table(entries: Entries, unseen: Unseen) -> str:
    """Step times by source: fitted, unseen, and the napkin."""

    def row(name: str, which: Callable[[Scored], bool]) -> tuple[str, ...]:
        mine = [entry for entry in entries if which(entry)]
        found, napkin = step_errors(mine), napkin_errors(mine)
        held = {
            kind: step_errors([entry for entry in rows if which(entry)])
            for kind, rows in unseen.items()
        }
        away = [
            percent(figure)
            for kind in ("source", "group")
            for figure in ((held[kind].mape, held[kind].median) if kind in held else (None, None))
        ]
        return (
            name,
            f"{len(mine):,}",
            f"{sum(entry.scored for entry in mine):,}",
            f"{found.n:,}",
            percent(found.mape),
            percent(found.median),
            percent(found.p90),
            percent(found.bias, "+"),
            *away,
            percent(napkin.mape),
            percent(napkin.median),
        )

    rows = [row(file.removesuffix(".jsonl"), of_file(_stem(file))) for file in by_source(entries)]
    rows += [
        row("**all**", lambda _: True),
        row("**dense**", is_dense),
        row("**experts**", has_experts),
    ]
    header = (
        "source",
        "records",
        "scored",
        "times",
        "mean",
        "median",
        "p90",
        "bias",
        "source unseen: mean",
        "median",
        "group unseen: mean",
        "median",
        "napkin: mean",
        "median",
    )
    return markdown(header, rows)


def _stem(file: str) -> str:
    return file.removesuffix(".jsonl")


def memory_table(entries: Entries) -> str:
    """Peak memory, and "fits or not", by source."""

    def row(name: str, mine: Entries) -> tuple[str, ...]:
        found, fits = memory_errors(mine), fit(mine)
        return (
            name,
            f"{found.n:,}",
            percent(found.mape),
            percent(found.median),
            percent(found.bias, "+"),
            f"{fits.n:,}",
            percent(fits.accuracy),
            f"{sum(bool(e.measured_oom) for e in mine if e.counts('fit')):,}",
            f"{fits.oom_missed:,}",
            f"{fits.fits_refused:,}",
        )

    rows = [row(_stem(file), mine) for file, mine in by_source(entries).items()]
    rows.append(row("**all**", entries))
    header = (
        "source",
        "peaks",
        "mean",
        "median",
        "bias",
        "fits or not",
        "right",
        "died",
        "deaths missed",
        "runs refused",
    )
    words = f"Balanced accuracy over all: {percent(balanced_accuracy(entries))}."
    return f"{markdown(header, rows)}\n\n{words}\n\n{_refused(entries)}"


def _refused(entries: Entries) -> str:
    """The Hagemann runs that ran and are predicted not to fit, by name."""
    runs = [
        entry.record.id
        for entry in entries
        if of_file("hagemann2023")(entry)
        and entry.counts("fit")
        and not entry.measured_oom
        and entry.predicted_oom
    ]
    if not runs:
        return "No run of Hagemann 2023 that ran is refused."
    return f"Runs of Hagemann 2023 that ran and are refused: {', '.join(runs)}."


def sweep_table(entries: Entries, unseen: Unseen) -> str:
    """Regret, rank correlation and rank of the best of every sweep."""
    held = {(sweep.name, sweep.framework): sweep for sweep in sweeps(unseen.get("source", []))}
    rows = []
    for sweep in sweeps(entries):
        away = held.get((sweep.name, sweep.framework))
        rows.append(
            (
                sweep.name,
                f"{sweep.n}",
                percent(sweep.regret),
                "-" if sweep.spearman is None else f"{sweep.spearman:.2f}",
                f"{sweep.rank_of_best}",
                percent(away.regret if away else None),
                "-" if away is None or away.spearman is None else f"{away.spearman:.2f}",
            )
        )
    header = (
        "sweep",
        "layouts",
        "regret",
        "Spearman",
        "rank of the best",
        "source unseen: regret",
        "Spearman",
    )
    words = (
        "Regret: the measured time of the layout that the model ranks first, over the best "
        "measured, minus 1. Rank of the best: the model's place for the layout measured fastest."
    )
    return f"{words}\n\n{markdown(header, rows)}"


def peer_table(entries: Entries, unseen: Unseen) -> str:
    """Errors beside those that other planners publish on the same runs."""

    def ours(peer: Peer, rows: Entries) -> str:
        off = [
            abs(entry.time_ratio - 1)
            for entry in rows
            if peer.which(entry) and entry.counts("time") and entry.time_ratio is not None
        ]
        if not off:
            return "-"
        return f"mean {sum(off) / len(off):.1%}, worst {max(off):.1%} ({len(off)} runs)"

    rows = [
        (
            peer.runs,
            ours(peer, entries),
            ours(peer, unseen.get("source", [])),
            f"{peer.published} ({peer.source})",
        )
        for peer in PEERS
    ]
    words = (
        "The others' figures are as published, some of them after tuning to these very runs; none "
        "was run again here. Fitted figures of ours are on runs that the fit saw, too."
    )
    return f"{words}\n\n{markdown(('runs', 'fitted', 'source unseen', 'published'), rows)}"


def llama_table(entries: Entries) -> str:
    """Predicted rates beside Llama 3's, which say nothing of how FLOPs are counted."""
    rates = llama3_rates(entries)
    rows = [
        (
            rate.name,
            f"{rate.step_s:.2f}",
            f"{rate.published:.0f}",
            *(
                f"{value:.0f} ({value / rate.published - 1:+.0%})"
                for value in (rate.by_6nd, rate.by_causal, rate.by_full)
            ),
        )
        for rate in rates
    ]
    header = ("run", "predicted step, s", "published", "6ND", "6ND + causal", "6ND + full")
    words = (
        "The paper prints TFLOP/s per GPU and does not say how it counts FLOPs, so these three are "
        "never scored or fitted: predicted rates with no attention, with causal attention and with "
        "the whole square of scores counted."
    )
    return f"{words}\n\n{markdown(header, rows)}"


def worst_table(entries: Entries) -> str:
    """Groups of like runs that are off most, where the model is wrong or the records disagree."""
    groups: dict[tuple[object, ...], list[float]] = {}
    for entry in entries:
        if entry.case and entry.counts("time") and entry.time_ratio is not None:
            groups.setdefault(group_of(entry.case), []).append(entry.time_ratio)
    middles = {key: median(ratios) or 1.0 for key, ratios in groups.items() if len(ratios) > 1}
    order = sorted(middles, key=lambda key: -abs(math.log(middles[key])))
    rows = []
    for key in order[:WORST]:
        source, framework, model, gpu, precision, kernel = map(str, key)
        name = f"{_stem(source)}: {model}, {gpu}, {precision}, {framework}"
        name += "" if kernel == "None" else f", {kernel}"
        rows.append((name, f"{len(groups[key])}", percent(middles[key] - 1, "+")))
    words = (
        f"The {WORST} groups of two runs or more of one source, framework, model, GPU, precision "
        "and kernel that are off most: above 0, predicted too slow."
    )
    return f"{words}\n\n{markdown(('group', 'times', 'bias'), rows)}"


def filled_table(entries: Entries) -> str:
    """Errors of the records that leave something out."""

    def row(name: str, which: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
        mine = [entry for entry in entries if entry.case and which(entry.case.filled)]
        found = step_errors(mine)
        shares = (percent(found.median), percent(found.mape), percent(found.p90))
        return (name, f"{found.n:,}", *shares)

    def says(*keys: str) -> Callable[[tuple[str, ...]], bool]:
        return lambda filled: any(key in word for key in keys for word in filled)

    keys = ("training.micro_batch", "layout.recompute", "layout.vpp")
    nothing = says(*keys)
    rows = [
        row("none of the three", lambda filled: not nothing(filled)),
        *(row(key.rpartition(".")[2], says(key)) for key in keys),
    ]
    words = (
        "Records that leave micro_batch, recompute or vpp out are predicted with the most likely "
        "value of their framework, and counted above."
    )
    return f"{words}\n\n{markdown(('filled in', 'times', 'median', 'mean', 'p90'), rows)}"
