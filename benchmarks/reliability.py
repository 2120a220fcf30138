"""Published runs beside the reliability model, into docs/reliability.md, and its pictures.

    python -m benchmarks.reliability

Every figure of a run is one of costmodel/data/failures.jsonl or is said to be assumed; nothing is
fitted. Predictions are the closed form's; the simulated ones come from 2,000 runs each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.results_file import ROOT
from layoutopt.costmodel.checkpoint import PLANNED_PER_FAILURE, Recovery
from layoutopt.costmodel.reliability import best_interval_steps, job_mtbf_s, overheads
from layoutopt.simulation.failures import Failures
from layoutopt.simulation.runs import RunPlan, simulate_runs
from layoutopt.simulation.tiers import Tier
from layoutopt.units import DAY, HOUR

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- published runs -->\n", "<!-- end of published runs -->\n"
LLAMA = "llama3-405b"
RUNS = 2000
CHECKPOINT_BYTES = 14
"""A parameter: 16-bit weights, fp32 master and moments."""
STEP_S = 5.0
"""Of runs whose step time does not matter: the interval is chosen or given."""
USUAL = Recovery()
PICTURES = ("reliability-goodput.png", "reliability-interval.png")


@dataclass(frozen=True)
class Published:
    """A run as it was published, with what had to be assumed."""

    name: str
    record: str
    """Of failures.jsonl."""
    published: str
    """Effective training time as the source gives it."""
    mtbf_s: float
    write_s: float
    restart_s: float
    days: float
    assumed: str
    stall_s: float | None = None
    """None: synchronous saves."""
    interval_s: float | None = None
    """None: the best one."""

    def plan(self) -> tuple[int, int]:
        """Steps of the run and between saves."""
        steps = max(1, round(self.days * DAY / STEP_S))
        if self.interval_s is not None:
            return steps, max(1, round(self.interval_s / STEP_S))
        stall = self.write_s if self.stall_s is None else self.stall_s
        best = best_interval_steps(STEP_S, steps, self.write_s, stall, self.mtbf_s)
        return steps, int(best)

    def predicted(self) -> float:
        """Effective training time by the closed form."""
        steps, k = self.plan()
        stall = self.write_s if self.stall_s is None else self.stall_s
        parts = overheads(
            STEP_S,
            steps,
            k,
            self.write_s,
            stall,
            self.mtbf_s,
            self.restart_s,
            PLANNED_PER_FAILURE,
        )
        return float(parts.ideal_s / parts.wall_s)

    def simulated(self) -> tuple[float, float, float]:
        """Mean, 5th and 95th percentile of simulated runs."""
        steps, k = self.plan()
        stall = self.write_s if self.stall_s is None else self.stall_s
        tier = Tier("shared", k, self.write_s, stall, 0.0)
        failures = Failures(self.mtbf_s)
        plan = RunPlan(
            STEP_S, steps, (tier,), failures, 0.0, self.restart_s, None, 0.0, PLANNED_PER_FAILURE
        )
        goodput = simulate_runs(plan, RUNS).goodput
        return (
            float(np.mean(goodput)),
            float(np.quantile(goodput, 0.05)),
            float(np.quantile(goodput, 0.95)),
        )


def facts() -> dict[str, dict[str, Any]]:
    """The rows of failures.jsonl by name."""
    text = resources.files("layoutopt.costmodel").joinpath("data/failures.jsonl")
    rows = map(json.loads, text.read_text("utf-8").splitlines())
    return {row["id"]: row for row in rows}


def default_restart_s() -> float:
    """Detection and restart of the defaults, loading aside."""
    return USUAL.detect_s + USUAL.restart_s


def published(known: dict[str, dict[str, Any]]) -> list[Published]:
    """The runs of the table (reliability.yaml), with figures of their records in ``known``."""
    rows = yaml.safe_load((ROOT / "benchmarks" / "reliability.yaml").read_text("utf-8"))
    return [_run(row, known) for row in rows]


def _run(row: dict[str, Any], known: dict[str, dict[str, Any]]) -> Published:
    record = known[row["record"]]

    def figures(part: str) -> dict[str, Any]:
        """With words replaced by the record's figures; another record's name stays."""
        told = row.get(part, {})
        return {key: record.get(v, v) if isinstance(v, str) else v for key, v in told.items()}

    save, restart, days = figures("save"), figures("restart"), _days(figures("length"))
    write_s = save.get("seconds")
    if write_s is None:
        write_s = CHECKPOINT_BYTES * save["parameters"] / save["bytes_per_s"]
    restart_s = restart.get("seconds", default_restart_s())
    return Published(
        name=row["name"],
        record=row["record"],
        published=row.get("published") or f"{days / record['period_days']:.0%}",
        mtbf_s=_mtbf_s(figures("mtbf"), known),
        write_s=write_s,
        restart_s=restart_s + (write_s if restart.get("and_load") else 0.0),
        days=days,
        assumed=row["assumed"],
        stall_s=save.get("stall_s"),
        interval_s=save.get("interval_s"),
    )


def _mtbf_s(told: dict[str, Any], known: dict[str, dict[str, Any]]) -> float:
    """Seconds between failures of the job."""
    if "hours" in told:
        return float(told["hours"]) * HOUR
    if "nodes" in told:
        return 1000 * DAY / float(told["per_1000_node_days"]) / float(told["nodes"])
    if "failures" in told:
        return float(told["days"]) * DAY / float(told["failures"])
    other = known[told["like"]]
    gpu_hours = other["period_days"] * 24 * other["gpus"]
    return job_mtbf_s(other["unexpected_interruptions"] / gpu_hours, told["gpus"])


def _days(told: dict[str, Any]) -> float:
    """Ideal time of the run."""
    if "days" in told:
        return float(told["days"])
    if "step_s" in told:
        return float(told["tokens"] / told["batch_tokens"] * told["step_s"]) / DAY
    flops = 6 * told["tokens"] * told["parameters"]
    return float(flops / (told["flops_per_s"] * told["gpus"])) / DAY


def published_table(runs: Sequence[Published]) -> list[str]:
    """Predicted beside published, as Markdown."""
    lines = [
        "| run | published | closed form | simulated, and 5% to 95% of runs | assumed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for run in runs:
        mean, low, high = run.simulated()
        lines.append(
            f"| {run.name} | {run.published} | {run.predicted():.1%} | {mean:.1%}, {low:.1%} to "
            f"{high:.1%} | {run.assumed} |"
        )
    return lines


def saves_table(known: dict[str, dict[str, Any]]) -> list[str]:
    """Sizes and times of saves: what was published, and bytes and bandwidth of the model."""
    megatron, bloom = known["megatron21-1t-ckpt"], known["bloom-176b"]
    rows = [
        (
            "Megatron 1T, bytes",
            f"{megatron['checkpoint_tb']} TB",
            f"{14 * 1008e9 / 1e12:.1f} TB",
            "14 bytes a parameter, 1.008T parameters",
        ),
        (
            "Megatron 1T, save at 273 GB/s",
            f"{megatron['checkpoint_write_s']} s",
            f"{14 * 1008e9 / 273e9:.1f} s",
            "the bandwidth it reached",
        ),
        (
            "Megatron 1T, load at 1 TB/s",
            f"{megatron['checkpoint_load_s']} s",
            f"{14 * 1008e9 / 1e12:.1f} s",
            "the bandwidth it reached",
        ),
        (
            "BLOOM-176B, bytes",
            f"{bloom['checkpoint_tb']} TB",
            f"{14 * 176e9 / 1e12:.2f} TB",
            "14 bytes a parameter",
        ),
    ]
    lines = ["| save | published | model | by |", "| --- | --- | --- | --- |"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def rates_table(known: dict[str, dict[str, Any]]) -> list[str]:
    """Failure rates of fleets, with what they make of a job of 2,048 nodes."""
    rated = [row for row in known.values() if row.get("failures_per_1000_node_days")]
    default = known[LLAMA]["failures_per_1000_node_days"]
    lines = [
        "| fleet or run | failures per 1,000 node-days | over the default | a job of 2,048 nodes "
        "fails every | source |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rated, key=lambda row: float(row["failures_per_1000_node_days"])):
        rate = float(row["failures_per_1000_node_days"])
        hours = 1000 / rate / 2048 * 24
        lines.append(
            f"| {row['id']} | {rate:g} | {rate / default:.2f} | {hours:.1f} h | {row['source']} |"
        )
    return lines


def section() -> str:
    """The generated part of the page."""
    known = facts()
    parts = [
        "## Published runs",
        "",
        "Written by `python -m benchmarks.reliability`; do not edit this part. Effective training "
        "time is ideal over wall time.",
        "",
        *published_table(published(known)),
        "",
        *saves_table(known),
        "",
        f"![Goodput against the time between failures]({PICTURES[0]})",
        "",
        f"![Wall time against the interval]({PICTURES[1]})",
        "",
        "## Failure rates",
        "",
        "The default is Llama 3's, the largest run whose failures are published by cause; "
        "`--failure-rate` takes any of these.",
        "",
        *rates_table(known),
        "",
    ]
    return "\n".join(parts)


def with_section(page: str, text: str) -> str:
    """``page`` with its generated part replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{text}{END}{after}"


def draw(folder: Path) -> list[Path]:
    """Goodput against MTBF for four kinds of save; wall time against the interval."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    paths = [folder / name for name in PICTURES]
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    hours = np.geomspace(0.2, 720, 120)
    for write, stall, words in (
        (1.0, 1.0, "1 s, synchronous"),
        (20.0, 20.0, "20 s, synchronous"),
        (300.0, 300.0, "5 min, synchronous"),
        (300.0, 6.3, "5 min in the background, 6.3 s stall"),
    ):
        shares = [_goodput(hour * HOUR, write, stall) for hour in hours]
        axes.plot(hours, 100 * np.array(shares), label=words)
    for run in published(facts()):
        share = run.published.rstrip("%").removeprefix("> ")
        if share.isdigit() and abs(run.restart_s - default_restart_s()) < 60:
            axes.plot(run.mtbf_s / HOUR, float(share), "k^", markersize=4)
            axes.annotate(f"  {run.name}", (run.mtbf_s / HOUR, float(share)), fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel("hours between failures of the job")
    axes.set_ylabel("effective training time, per cent")
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.legend(fontsize=7)
    figure.savefig(paths[0], dpi=100, metadata={"Software": None})
    pyplot.close(figure)
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    for hour in (0.5, 3.09, 24.0):
        factors = np.geomspace(0.2, 5, 80)
        best = _wall(hour * HOUR, 1.0)
        more = [100 * (_wall(hour * HOUR, float(factor)) / best - 1) for factor in factors]
        axes.plot(factors, more, label=f"one failure in {hour:g} h")
    axes.set_xscale("log")
    axes.set_xlabel("interval over the best one (saves of 20 s, synchronous)")
    axes.set_ylabel("wall time over the best, minus 1, per cent")
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.legend(fontsize=7)
    figure.savefig(paths[1], dpi=100, metadata={"Software": None})
    pyplot.close(figure)
    return paths


def _goodput(mtbf_s: float, write_s: float, stall_s: float) -> float:
    run = Published("", "", "", mtbf_s, write_s, default_restart_s(), 60, "", stall_s)
    return run.predicted()


def _wall(mtbf_s: float, factor: float) -> float:
    """Wall time of a run whose interval is ``factor`` times the best."""
    run = Published("", "", "", mtbf_s, 20.0, default_restart_s(), 60, "")
    k = run.plan()[1]
    off = Published(
        "", "", "", mtbf_s, 20.0, default_restart_s(), 60, "", interval_s=k * factor * STEP_S
    )
    return 1 / off.predicted()


def main() -> None:
    """Writes the page's part and the pictures."""
    PAGE.write_text(with_section(PAGE.read_text("utf-8"), section()), "utf-8")
    for path in draw(PAGE.parent):
        print(f"wrote {path.relative_to(ROOT)}")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
