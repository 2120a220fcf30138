"""How sure a choice is: ties, held-out fits, what to measure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.costmodel import refits as shipped
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.refits import Figures, with_figures
from layoutopt.costmodel.results import Estimate
from layoutopt.report import trials
from layoutopt.report.trials import seconds_by_fit, trial_sentences
from tests.costmodel.cases import job

TP2 = Layout(tp=2, dp=32, microbatches=2)
TP4 = Layout(tp=4, dp=16, microbatches=4)
TP8 = Layout(tp=8, dp=8, microbatches=8)

SLOW_LINK: Figures = {"hopper.scaleup": 0.05, "shared.jitter": 0.0}
FAST_LINK: Figures = {"hopper.scaleup": 1.0, "volta.scaleup": 0.1, "shared.jitter": 0.0}


@pytest.fixture
def question() -> Job:
    return job(efficiency=None)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three fits: one of them finds the scale-up link slow."""
    monkeypatch.setattr(trials, "refits", lambda: (SLOW_LINK, FAST_LINK, FAST_LINK))


def priced(question: Job, *layouts: Layout) -> list[Estimate]:
    return [estimate(question, layout) for layout in layouts]


def test_a_fit_replaces_its_own_owners_figures(question: Job) -> None:
    mine = with_figures(question, FAST_LINK | {"plain.compute_factor": 1.5, "jax.comm_factor": 9.0})
    assert mine.efficiency is not None
    assert (mine.efficiency.scaleup, mine.software.compute_factor) == (1.0, 1.5)
    assert mine.software.comm_factor == question.software.comm_factor


@pytest.mark.usefixtures("fits")
def test_each_layout_is_priced_by_each_fit(question: Job) -> None:
    found = seconds_by_fit(question, [TP2, TP8])
    assert found.shape == (3, 2)
    assert (found[0] > found[1]).all()
    slow = with_figures(question, SLOW_LINK)
    assert found[0, 1] == pytest.approx(estimate(slow, TP8).step.time_s)


@pytest.mark.usefixtures("fits")
def test_the_answer_says_how_often_the_choice_holds(question: Job) -> None:
    plan, *others = priced(question, TP2, TP4, TP8)
    sentence = trial_sentences(question, plan, others)[-1]
    seconds = seconds_by_fit(question, [TP2, TP4, TP8])
    held = int((seconds[:, 0] <= seconds.min(axis=1) * 1.02).sum())
    assert sentence.startswith(f"Sure: in {held} of 3 fits")
    assert "best of the 3 shown" in sentence
    assert "tp=4, dp=16, microbatches=4; tp=8, dp=8, microbatches=8" in sentence


@pytest.mark.usefixtures("fits")
def test_layouts_within_the_noise_are_ties(question: Job) -> None:
    plan, other = priced(question, TP2, TP4)
    near = replace(other, step=replace(other.step, time_s=plan.step.time_s * 1.019))
    far = replace(other, step=replace(other.step, time_s=plan.step.time_s * 1.021))
    assert trial_sentences(question, plan, [near])[0].startswith("Ties: 1 of the next best")
    assert not trial_sentences(question, plan, [far])[0].startswith("Ties")


def test_with_nothing_to_compare_there_is_nothing_to_say(question: Job) -> None:
    plan = priced(question, TP2)[0]
    assert trial_sentences(question, plan, []) == ()


@pytest.mark.usefixtures("fits")
def test_a_sites_own_figures_are_not_drawn_again(question: Job) -> None:
    plan, other = priced(question, TP2, TP8)
    mine = job()
    assert mine.efficiency is not None
    assert all(not words.startswith("Sure") for words in trial_sentences(mine, plan, [other]))


def test_the_shipped_fits_name_fitted_figures() -> None:
    found = shipped.refits()
    assert len(found) >= 10
    for figures in found:
        assert {"shared.jitter", "hopper.gemm16", "ampere.scaleout"} <= set(figures)
