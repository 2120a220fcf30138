"""A range of GPU counts against trying every count and layout, and what follows from any answer."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from layoutopt.costmodel.results import Estimate
from layoutopt.errors import RuleError
from layoutopt.optimizer.choose import at_count, search_counts
from layoutopt.optimizer.counts import Counts, cases_of, counted, run_value
from layoutopt.optimizer.exhaustive import try_every_count
from layoutopt.optimizer.outcome import Outcome, Status
from layoutopt.optimizer.question import Budget, Limit, Question
from layoutopt.optimizer.search import search
from layoutopt.optimizer.verify import broken
from layoutopt.optimizer.work import least_gpu_seconds, least_wall_s
from tests.builders import questions, small_cluster, small_model, small_question
from tests.conftest import FULL

EXAMPLES = 240 if FULL else 10
RESOLUTION = 1e-6

random = settings(
    derandomize=not FULL,
    database=None,
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def ranged(question: Question, least: int, most: int, **changes: object) -> Question:
    """The question over a range of counts."""
    job = replace(question.job, gpus=most)
    return replace(question, job=job, counts=(least, most), **changes)  # type: ignore[arg-type]


def example(least: int = 1, most: int = 8, **changes: object) -> Question:
    """Two layers on nodes of two GPUs."""
    question = small_question(
        small_model(layers=2), cluster=small_cluster(8.0, per_node=2), batch=8
    )
    return ranged(question, least, most, **changes)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[Question, Outcome]:
    """A range of few counts, with limits as tight as what they reach, and every count's best."""
    question = draw(questions())
    least = draw(st.integers(1, 5))
    most = least + draw(st.integers(0, 2))
    objective = draw(st.sampled_from(("time", "cost", "energy", "gpus")))
    question = ranged(question, least, most, objective=objective, pareto=draw(st.booleans()))
    slow = try_every_count(question)
    plans = slow.pareto
    share = draw(st.sampled_from((None, None, 0.97, 1.0, 1.2, 2.0)))
    if plans and share is not None:
        runs = sorted(plan.run.wall_time_s for plan in plans)
        question = replace(question, deadline_s=runs[len(runs) // 2] * share)
        costs = sorted(plan.run.cost_usd or 0.0 for plan in plans)
        if draw(st.booleans()):
            question = replace(question, budget_usd=costs[len(costs) // 2] * share)
    if draw(st.integers(0, 3)) == 0:
        watts = question.job.cluster.watts_per_gpu or 0.0
        question = replace(question, max_power_w=watts * draw(st.integers(least - 1, most)) + 1)
    return question, slow


def test_search_equals_trying_every_count() -> None:
    seen: Counter[str] = Counter()

    @random
    @given(ranges())
    def check(drawn: tuple[Question, Outcome]) -> None:
        question, slow = drawn
        if not slow.search.candidates:
            with pytest.raises(RuleError, match="no count from"):
                search_counts(question)
            return
        fast = search_counts(question)
        compare(question, fast, slow)
        seen[fast.status] += 1
        seen["front"] += question.pareto and len(fast.pareto) > 1

    check()
    assert seen[Status.OPTIMAL] >= EXAMPLES / 8
    assert seen[Status.INFEASIBLE] >= EXAMPLES / 10 or not FULL
    assert seen["front"] > 0 or not FULL


def compare(question: Question, fast: Outcome, slow: Outcome) -> None:
    """At one count the shortest run is best for every objective, so ``slow`` needs no limits."""
    assert fast.search.candidates == slow.search.candidates
    kept = [plan for plan in slow.pareto if keeps_limits(question, plan)]
    assert fast.status == (Status.OPTIMAL if kept else Status.INFEASIBLE)
    if not kept or fast.plan is None:
        assert fast.misses
        return
    gpus = fast.plan.layout.gpus
    value = min(run_value(question, plan.run, plan.layout.gpus) for plan in kept)
    assert run_value(question, fast.plan.run, gpus) <= value * (1 + RESOLUTION)
    assert fast.search.bound is not None
    assert value * (1 - 3 * RESOLUTION) <= fast.search.bound <= value * (1 + 1e-12)
    assert broken(at_count(question, gpus), fast.plan) == []
    if question.pareto:
        compare_fronts(fast, kept)


def keeps_limits(question: Question, plan: Estimate) -> bool:
    gpus, run = plan.layout.gpus, plan.run
    limits = (
        (question.deadline_s, run.wall_time_s),
        (question.budget_usd, run.cost_usd or 0.0),
        (question.max_power_w, gpus * (question.job.cluster.watts_per_gpu or 0.0)),
    )
    return all(most is None or value <= most for most, value in limits)


def compare_fronts(fast: Outcome, plans: list[Estimate]) -> None:
    """Every count that is not beaten, to a millionth, has its point; no point is beaten."""
    every = [(plan.layout.gpus, plan.run.wall_time_s) for plan in plans]
    mine = {plan.layout.gpus: plan.run.wall_time_s for plan in fast.pareto}
    best = dict(every)
    for gpus, wall in mine.items():
        assert wall == pytest.approx(best[gpus], rel=RESOLUTION)
        assert not beaten(gpus, wall * (1 - RESOLUTION), every)
    for gpus, wall in every:
        assert gpus in mine or beaten(gpus, wall * (1 + RESOLUTION), every)


def beaten(gpus: int, wall: float, others: list[tuple[int, float]]) -> bool:
    return any(its <= wall and its * count <= wall * gpus for count, its in others if count != gpus)


def test_each_point_of_a_front_is_the_answer_at_its_count() -> None:
    question = example(pareto=True, objective="cost")
    outcome = search_counts(question)
    assert outcome.search.counts is not None
    assert outcome.search.counts.pareto_proved
    assert len(outcome.pareto) > 1
    for point in outcome.pareto:
        alone = search(at_count(question, point.layout.gpus)).plan
        assert alone is not None
        assert alone.layout == point.layout
        assert alone.run == point.run


def test_a_wider_range_is_never_worse_and_a_looser_deadline_never_dearer() -> None:
    @settings(random, max_examples=40 if FULL else 3)
    @given(questions(), st.sampled_from(("time", "cost")))
    def check(question: Question, objective: str) -> None:
        narrow = ranged(question, 2, 4, objective=objective)
        try:
            inner = search_counts(narrow).plan
        except RuleError:
            return
        if inner is None:
            return
        outer = search_counts(ranged(narrow, 1, 6)).plan
        assert outer is not None
        value = run_value(narrow, inner.run, inner.layout.gpus)
        assert run_value(narrow, outer.run, outer.layout.gpus) <= value * (1 + RESOLUTION)
        cheap = replace(narrow, objective="cost")
        costs = []
        for share in (1.0, 1.5, 3.0):
            plan = search_counts(replace(cheap, deadline_s=inner.run.wall_time_s * share)).plan
            costs.append(math.inf if plan is None else plan.run.cost_usd or 0.0)
        assert costs[1] <= costs[0] * (1 + RESOLUTION)
        assert costs[2] <= costs[1] * (1 + RESOLUTION)

    check()


def test_counts_are_whole_nodes_and_everything_below_one() -> None:
    question = ranged(small_question(cluster=small_cluster(per_node=4)), 2, 13)
    assert list(counted(question)) == [2, 3, 4, 8, 12]


def test_no_legal_count_is_missing_from_the_cases() -> None:
    """A batch of 6 on up to 40 GPUs of one-GPU nodes: what has a layout, found one by one."""
    base = small_question(small_model(layers=5, heads=4), batch=6, cluster=small_cluster(8.0, 1))
    question = ranged(base, 1, 40)
    from layoutopt.optimizer.space import space_of

    legal = [n for n in range(1, 41) if space_of(at_count(question, n)).candidates]
    assert [case.gpus for case in cases_of(question)] == legal
    assert 7 not in legal
    assert 30 in legal


def test_the_floor_of_a_count_is_below_its_best_run() -> None:
    model = small_model(layers=8, vocab=1000)
    base = small_question(model, batch=256, cluster=small_cluster(8.0, per_node=2))
    question = ranged(base, 1, 8)
    work = least_gpu_seconds(question.job)
    for gpus in (1, 2, 4, 8):
        at = at_count(question, gpus)
        plan = search(at).plan
        assert plan is not None
        floor = least_wall_s(at.job, work)
        # A large batch: what an optimizer step takes whatever its size is no part of the floor.
        assert 0.3 * plan.run.ideal_s < floor <= plan.run.wall_time_s


def test_fewest_gpus_that_meet_a_deadline() -> None:
    alone = {gpus: search(at_count(example(), gpus)).plan for gpus in (1, 2, 4)}
    two = alone[2]
    assert two is not None
    question = example(objective="gpus", deadline_s=two.run.wall_time_s)
    outcome = search_counts(question)
    assert outcome.plan is not None
    assert outcome.plan.layout == two.layout
    assert outcome.search.bound == 2


def test_a_power_limit_caps_the_count() -> None:
    outcome = search_counts(example(max_power_w=5000.0))
    assert outcome.plan is not None
    assert outcome.plan.layout.gpus == 4


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"deadline_s": 10.0}, "deadline"),
        ({"budget_usd": 0.01}, "budget"),
        ({"max_power_w": 500.0}, "power"),
    ],
)
def test_a_search_that_finds_nothing_says_which_limit_binds(
    changes: dict[str, float], limit: str
) -> None:
    outcome = search_counts(replace(example(), **changes))  # type: ignore[arg-type]
    assert outcome.status == Status.INFEASIBLE
    (miss,) = outcome.misses
    assert miss.limit == limit
    over = {"deadline": miss.over_s, "budget": miss.over_usd, "power": miss.over_w}[limit]
    assert over is not None
    assert over > 0
    assert miss.changes


def test_a_budget_that_only_slow_runs_keep_to_is_what_binds() -> None:
    """In time alone and in budget alone there are runs; the cheapest in time says what lacks."""
    plans = {gpus: search(at_count(example(), gpus)).plan for gpus in (1, 8)}
    slow, fast = plans[1], plans[8]
    assert slow is not None
    assert fast is not None
    cheap, dear = slow.run.cost_usd or 0.0, fast.run.cost_usd or 0.0
    assert cheap < dear
    question = example(deadline_s=fast.run.wall_time_s, budget_usd=(cheap + dear) / 2)
    (miss,) = search_counts(question).misses
    assert miss.limit == "budget"
    assert miss.layout == fast.layout
    assert miss.over_usd == pytest.approx((dear - cheap) / 2)


def test_nothing_fits_on_any_count() -> None:
    tiny = small_question(small_model(layers=4, heads=16, head_dim=128), cluster=small_cluster(1.0))
    outcome = search_counts(ranged(tiny, 1, 4))
    assert outcome.status == Status.INFEASIBLE
    assert outcome.misses[0].limit == "memory"
    assert outcome.misses[0].layout.gpus == 4


def test_no_time_is_no_proof() -> None:
    outcome = search_counts(example(most=64, objective="cost"), Budget(seconds=1e-9))
    assert outcome.status == Status.UNKNOWN
    assert outcome.plan is None
    assert outcome.search.bound is not None


def test_a_search_that_is_cut_short_has_a_bound_below_the_best() -> None:
    question = example(objective="cost")
    best = search_counts(question).search.bound
    counts = Counts(cases_of(question), Budget(), 0.0)
    counts.ends_at = math.inf
    first = max(counts.cases, key=lambda case: case.gpus)
    counts._note(counts.look(first, math.inf))
    counts._out = True
    assert best is not None
    assert counts.bound / 3600 * (question.job.cluster.usd_per_gpu_hour or 0) < best
    assert not counts.proved


def test_no_legal_count_names_the_nearest() -> None:
    question = example(5, 5, limits=(Limit("dp", "==", 5),))
    with pytest.raises(RuleError, match="no count from 5 to 5"):
        search_counts(question)
    with pytest.raises(RuleError) as caught:
        search_counts(example(7, 7))
    assert caught.value.nearest == (6, 8) or caught.value.nearest == (4, 8)
