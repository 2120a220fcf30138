"""Assumptions and their numbers: none cited that is not listed, none listed that nobody cites."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from layoutopt.costmodel.assumptions import ALL, cited_for
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.extrapolation import MEASURED_GPUS, warnings_for
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.hardware_profiles.catalog import load_gpu
from layoutopt.hardware_profiles.cluster import default_cluster
from tests.costmodel.cases import CLUSTER, EXPERTS, SMALL, job, soft

ROOT = Path(__file__).parents[2]
CITED = re.compile(r"[(;,]\s*(A[1-9][0-9]*)\)")
LAYOUT = Layout(tp=2, pp=2, dp=16, microbatches=4)


def cited(*folders: str) -> dict[str, list[str]]:
    """Numbers cited in a folder's code or text, with the files that cite them."""
    found: dict[str, list[str]] = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.*")):
            if path.suffix not in (".py", ".md", ".yaml") or path.name == "assumptions.py":
                continue
            for number in CITED.findall(path.read_text("utf-8")):
                found.setdefault(number, []).append(str(path.relative_to(ROOT)))
    return found


def test_every_cited_number_is_listed() -> None:
    everywhere = cited(
        "costmodel", "hardware_profiles", "optimizer", "src/layoutopt/report", "docs"
    )
    unknown = {number: files for number, files in everywhere.items() if number not in ALL}
    assert not unknown


@pytest.mark.parametrize("number", ALL)
def test_every_listed_number_is_cited_by_code_and_by_the_documentation(number: str) -> None:
    assert number in cited("costmodel"), f"no formula says that it leans on {number}"
    text = (ROOT / "docs" / "cost-model.md").read_text("utf-8")
    assert number in CITED.findall(text), f"docs/cost-model.md never leans on {number}"


def test_the_documentation_lists_the_same_assumptions() -> None:
    """The last table of docs/cost-model.md, row by row."""
    text = (ROOT / "docs" / "cost-model.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| A\d+ \|", line)]
    assert rows == [
        f"| {one.id} | {one.text} | {one.breaks} | {one.checked_by} |" for one in ALL.values()
    ]


def test_numbers_rise_and_every_field_says_something() -> None:
    assert list(ALL) == [f"A{number}" for number in range(1, len(ALL) + 1)]
    for number, assumption in ALL.items():
        assert assumption.id == number
        assert assumption.text.endswith(".")
        assert assumption.breaks
        assert assumption.checked_by


@pytest.mark.parametrize("number", ALL)
def test_what_checks_an_assumption_exists(number: str) -> None:
    for path in re.findall(
        r"(?:tests|benchmarks|hardware_profiles)/[\w/]+(?:\.py)?", ALL[number].checked_by
    ):
        assert (ROOT / path).exists(), path


def with_gpu(**changes: object) -> Job:
    """The round job on a changed accelerator."""
    gpu = CLUSTER.gpu.model_copy(update=changes)
    return job(cluster=CLUSTER.model_copy(update={"gpu": gpu}))


def test_an_answer_leans_on_what_it_uses() -> None:
    assert set(cited_for(job(gpus=1), Layout())) == {"A10", "A11", "A16", "A17", "A19"}
    assert {"A3", "A7"} <= set(cited_for(job(), LAYOUT))
    assert "A8" not in cited_for(job(gpus=8), Layout(dp=8))


@pytest.mark.parametrize(
    ("asked", "layout", "number"),
    [
        (job(EXPERTS), LAYOUT, "A2"),
        (job(SMALL.model_copy(update={"sliding_window": 64, "global_layers": 6})), LAYOUT, "A1"),
        (with_gpu(architecture="abacus"), LAYOUT, "A9"),
        (with_gpu(watts=350.0), LAYOUT, "A12"),
        (job(software=soft(fused_norm=False)), LAYOUT, "A13"),
        (job(), replace(LAYOUT, zero_stage=3), "A15"),
        (job(), replace(LAYOUT, axis_order="cp-tp-ep-dp-pp"), "A18"),
    ],
)
def test_an_assumption_is_named_where_it_bears_and_not_elsewhere(
    asked: Job, layout: Layout, number: str
) -> None:
    assert number in cited_for(asked, layout)
    assert number not in cited_for(job(), LAYOUT)


def test_parts_of_racks_are_named() -> None:
    """16,384 GPUs on racks of 72: 64 of each; 144 GPUs: two whole racks."""
    rack = load_gpu("gb200-nvl72")
    asked = job(gpus=16_384, cluster=default_cluster(rack, 16_384))
    assert "A14" in cited_for(asked, Layout(dp=16_384))
    whole = job(gpus=144, cluster=default_cluster(rack, 144))
    assert "A14" not in cited_for(whole, Layout(dp=144))


def test_estimates_carry_both() -> None:
    got = estimate(job(), LAYOUT)
    assert got.assumptions == cited_for(job(), LAYOUT)
    assert got.warnings == ()


@pytest.mark.parametrize(
    ("asked", "layout", "words"),
    [
        (job(gpus=16_384), Layout(dp=16_384), "16,384 GPUs: nearly no measured run"),
        (with_gpu(architecture="abacus"), LAYOUT, "architecture 'abacus'"),
        (job(), replace(LAYOUT, tp=16), "tp 16 leaves the scale-up domain of 8 GPUs"),
        (job(precision="fp32"), LAYOUT, "activations are counted in 2 bytes"),
        (job(), replace(LAYOUT, axis_order="cp-tp-ep-dp-pp"), "axis_order cp-tp-ep-dp-pp"),
        (job(), replace(LAYOUT, schedule="zbv"), "schedule zbv: the mean stage's passes"),
    ],
)
def test_what_goes_beyond_is_said(asked: Job, layout: Layout, words: str) -> None:
    assert any(words in warning for warning in warnings_for(asked, layout))
    assert not any(words in warning for warning in warnings_for(job(), LAYOUT))


def test_nearly_no_measured_run_is_larger() -> None:
    """Step times or throughputs of more than 10,000 GPUs: 3 of over 1,500."""
    sizes = []
    for path in (ROOT / "benchmarks" / "measured").glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            record = json.loads(line)
            timed = record["measured"].get("step_time_s") or record["measured"].get(
                "tokens_per_s_per_gpu"
            )
            if timed and record["hardware"].get("gpus"):
                sizes.append(record["hardware"]["gpus"])
    assert len(sizes) > 1500
    assert sum(size > MEASURED_GPUS for size in sizes) == 3
