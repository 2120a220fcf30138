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
    """The runs of the table."""
    usual = default_restart_s()
    llama, bloom = known[LLAMA], known["bloom-176b"]
    log, rsc = known["opt-175b-logbook"], known["meta-rsc1"]
    huge = known["fthsdp-100k"]
    llama_write = 405e9 * 14 / 2e12
    opt_ideal = 300e9 * 6 * 175e9 / (147e12 * 992) / DAY
    bloom_ideal = 366e9 / (2048 * 2048) * 105 / DAY
    rsc_mtbf = 1000 / rsc["failures_per_1000_node_days"] * DAY
    nodes_12k = 12_000 / 8
    return [
        Published(
            "Llama 3 405B, 16,384 GPUs",
            LLAMA,
            "> 90%",
            llama["mtbf_hours"] * HOUR,
            llama_write,
            usual + llama_write,
            llama["period_days"],
            "14 bytes a parameter at the stated 2 TB/s; synchronous saves; default restart",
        ),
        Published(
            "MegaScale, over 10,000 GPUs",
            "megascale-10k",
            "> 90%",
            21 * DAY / 100,
            10.0,
            900.0,
            21,
            '"several weeks" as three; the stated bound of 15 minutes to recover; saves of 10 s',
        ),
        Published(
            "OPT-175B, final run",
            "opt-175b-logbook",
            f"{opt_ideal / log['period_days']:.0%}",
            log["mtbf_hours"] * HOUR,
            175e9 * 14 / 256e9,
            usual,
            opt_ideal,
            "ideal time: 300B tokens at the paper's 147 TFLOP/s on 992 GPUs; default storage and "
            "restart, though many restarts were made by hand",
        ),
        Published(
            "the same, 2 h to restart",
            "opt-175b-logbook",
            f"{opt_ideal / log['period_days']:.0%}",
            log["mtbf_hours"] * HOUR,
            175e9 * 14 / 256e9,
            2 * HOUR,
            opt_ideal,
            "as above; two hours, until a person has noticed, are chosen to agree",
        ),
        Published(
            "BLOOM-176B, 384 GPUs",
            "bloom-176b",
            f"{bloom_ideal / bloom['period_days']:.0%}",
            bloom["mtbf_hours"] * HOUR,
            bloom["checkpoint_write_s"],
            usual,
            bloom_ideal,
            "ideal time: 366B tokens in steps of 105 s; default restart. The 118 days also hold "
            "the batch ramp, a time on half the nodes, and three hangs of 6 to 18 h",
            interval_s=bloom["checkpoint_interval_s"],
        ),
        Published(
            "ByteRobust, dense job, 9,600 GPUs",
            "byterobust-9600",
            "97%",
            job_mtbf_s(419 / (54 * 24 * 16384), 9600),
            10.0,
            180.0,
            known["byterobust-9600"]["period_days"],
            "Llama 3's failure rate; background saves with a stall of 0.04 s; 3 minutes to recover "
            "on warm stand-bys",
            stall_s=0.04,
        ),
        Published(
            "100,000 GPUs, full restarts",
            "fthsdp-100k",
            "44%",
            huge["mtbf_hours"] * HOUR,
            10.0,
            usual,
            30,
            "saves of 10 s; default restart; published figure second-hand",
        ),
        Published(
            "Meta RSC-1, 12,000 GPUs",
            "meta-rsc1",
            "not good",
            rsc_mtbf / nodes_12k,
            rsc["checkpoint_write_s"],
            usual,
            60,
            "the paper's 300 s to save; it says that a good ratio takes one of the next two rows, "
            "without a figure for good",
        ),
        Published(
            "the same, saves of 10 s",
            "meta-rsc1",
            "good",
            rsc_mtbf / nodes_12k,
            10.0,
            usual,
            60,
            "as the paper asks",
        ),
        Published(
            "the same, 1 failure per 1,000 node-days",
            "meta-rsc1",
            "good",
            1000 * DAY / nodes_12k,
            rsc["checkpoint_write_s"],
            usual,
            60,
            "as the paper asks",
        ),
    ]


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
