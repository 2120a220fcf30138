"""How a search ends: proved, out of time, nothing legal, nothing that meets a limit."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from layoutopt.errors import InputError, InternalError, RuleError
from layoutopt.optimizer.choices import experts_code, mode_code, sharding_code
from layoutopt.optimizer.exhaustive import try_everything
from layoutopt.optimizer.outcome import Status
from layoutopt.optimizer.program import build
from layoutopt.optimizer.question import AXES, Budget, Limit
from layoutopt.optimizer.search import search
from layoutopt.optimizer.solver import Solved, solve
from layoutopt.optimizer.space import space_of
from layoutopt.optimizer.tables import tables_of
from layoutopt.optimizer.verify import broken
from tests.builders import small_cluster, small_model, small_question
from tests.optimizer.large import large

PLAIN = small_question(gpus=4, batch=8)


def test_the_whole_answer() -> None:
    outcome = search(PLAIN)
    assert outcome.status == Status.OPTIMAL
    assert outcome.plan is not None
    assert outcome.search.candidates == try_everything(PLAIN).search.candidates
    assert outcome.explain
    assert 0 < len(outcome.alternatives) <= PLAIN.top
    assert not outcome.misses


@pytest.mark.parametrize(
    ("objective", "per_second"), [("cost", 2.5 * 4 / 3600), ("energy", 1 / 900)]
)
def test_dollars_and_kilowatt_hours_are_wall_time_times_a_constant(
    objective: str, per_second: float
) -> None:
    """4 GPUs at $2.50 an hour; 4 GPUs of 1 kW: 1/900 kWh a second."""
    by_time = search(PLAIN)
    other = search(replace(PLAIN, objective=objective))  # type: ignore[arg-type]
    assert other.plan == by_time.plan
    assert other.search.objective == objective
    assert other.search.bound == pytest.approx((by_time.search.bound or 0) * per_second)


def test_fix_and_limits_are_kept() -> None:
    question = replace(
        PLAIN, fix={"tp": 2, "recompute": "full"}, limits=(Limit("zero_stage", "<=", 1),)
    )
    plan = search(question).plan
    assert plan is not None
    assert (plan.layout.tp, plan.layout.recompute) == (2, "full")
    assert plan.layout.zero_stage <= 1
    assert broken(question, plan) == []


def test_no_time_is_said_and_not_called_infeasible() -> None:
    outcome = search(large("1T on 16,384"), Budget(seconds=0.0, use_hints=False))
    assert outcome.status == Status.UNKNOWN
    assert outcome.plan is None


def test_little_time_gives_the_warm_start_without_a_proof() -> None:
    outcome = search(large("1T on 16,384"), Budget(seconds=0.0))
    assert outcome.status == Status.FEASIBLE
    assert outcome.plan is not None
    assert broken(large("1T on 16,384"), outcome.plan) == []


def test_a_deadline_that_no_layout_meets() -> None:
    free = search(PLAIN)
    assert free.plan is not None
    wall = free.plan.run.wall_time_s
    assert search(replace(PLAIN, deadline_s=wall * 1.001)).plan == free.plan
    late = search(replace(PLAIN, deadline_s=wall * 0.999))
    assert late.status == Status.INFEASIBLE
    assert late.plan is None
    assert late.misses[0].limit == "deadline"
    assert late.misses[0].over_s == pytest.approx(wall * 0.001, rel=1e-6)


def test_nothing_fits() -> None:
    question = small_question(
        small_model(heads=16, head_dim=128), gpus=2, batch=4, cluster=small_cluster(2.0)
    )
    outcome = search(question)
    assert outcome.status == Status.INFEASIBLE
    assert outcome.search.bound is None
    assert outcome.misses[0].limit == "memory"
    assert (outcome.misses[0].over_bytes or 0) > 0


def test_no_layout_divides() -> None:
    """7 GPUs, 8 heads, 6 layers, a batch of 8: nothing but dp could take 7, and 7 is not in 8."""
    with pytest.raises(RuleError, match="GPU counts that work") as raised:
        search(small_question(gpus=7, batch=8, seq_len=1024))
    assert {"gpus=6", "gpus=8", "global_batch=7"} <= set(raised.value.nearest)


def test_a_large_prime_is_answered_within_a_second() -> None:
    asked = large("1T on 16,384")
    asked = replace(asked, job=replace(asked.job, gpus=16381))
    began = time.process_time()
    with pytest.raises(InputError):
        search(asked)
    assert time.process_time() - began < 1.0


def test_what_is_fixed_to_an_illegal_value_is_named() -> None:
    with pytest.raises(RuleError, match="tp=3") as raised:
        search(replace(PLAIN, fix={"tp": 3}))
    assert raised.value.field == "fix.tp"
    assert raised.value.nearest == ("tp=1", "tp=2", "tp=4")


def test_one_gpu_one_layer_one_sequence() -> None:
    question = small_question(small_model(layers=1), gpus=1, batch=1)
    plan = search(question).plan
    assert plan is not None
    assert plan.layout.gpus == 1
    assert broken(question, plan) == []


def test_equal_layouts_are_told_apart_by_the_order_of_axes() -> None:
    """One GPU: no ZeRO stage changes anything, and the smallest is taken."""
    plan = search(small_question(gpus=1, batch=2)).plan
    slow = try_everything(small_question(gpus=1, batch=2)).plan
    assert plan is not None
    assert slow is not None
    assert plan.layout == slow.layout
    assert plan.layout.zero_stage == 0


def test_ties_beyond_counting_go_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no tie priced one by one, the first in the order of axes comes from one more solve."""
    question = small_question(gpus=1, batch=2)
    expected = search(question).plan
    monkeypatch.setattr("layoutopt.optimizer.rounds.MOST_TIES", 0)
    assert search(question).plan == expected


@pytest.mark.parametrize("brief", [False, True])
def test_a_proof_that_a_second_way_refutes_is_our_fault(
    monkeypatch: pytest.MonkeyPatch, brief: bool
) -> None:
    """A solver that proves too much must not pass unseen."""
    codes = {"experts": experts_code(1), "sharding": sharding_code(1), "mode": mode_code(2)}
    slow = {**dict.fromkeys(AXES, 1), **codes, "tp": 4, "microbatches": 8}
    nothing_else = Solved(proved=True, chosen=None, value=None, bound=None)
    monkeypatch.setattr("layoutopt.optimizer.rounds.start_from", lambda space, floors, **how: slow)
    monkeypatch.setattr("layoutopt.optimizer.rounds.solve", lambda *args: nothing_else)
    with pytest.raises(InternalError, match="proved"):
        search(replace(PLAIN, fix={"axis_order": "tp-cp-ep-dp-pp"}), Budget(brief=brief))


def test_an_invalid_model_is_our_fault() -> None:
    space = space_of(PLAIN)
    program = build(space, tables_of(space))
    program.model.new_int_var(0, 2**63 - 1, "too large")
    program.model.add(sum(program.model.new_int_var(0, 2**62, "") for _ in range(3)) >= 0)
    with pytest.raises(InternalError, match="invalid"):
        solve(program.model, program.degrees, Budget(), 1.0)


def test_a_longer_pass_that_hides_more_than_it_takes_is_not_left_out() -> None:
    """ZeRO-3 over a slow network: Ulysses computes longer than a ring and ends sooner."""
    model = small_model(8, 8, 128, 128256, kv_heads=4, ffn=3072, gated_mlp=True)
    cluster = small_cluster(64.0, per_node=2, network_bytes_per_s=3e9)
    fix: dict[str, int | str | bool] = {"recompute": "full", "vpp": 1, "zero_stage": 3}
    fix |= {"tp": 2, "cp": 2, "pp": 1, "micro_batch": 1, "offload_optimizer": False}
    question = replace(small_question(model, 8, 8, 8192, cluster), fix=fix)
    slow = try_everything(question).plan
    fast = search(question, Budget(use_hints=False)).plan
    assert slow is not None
    assert fast is not None
    assert fast.run.wall_time_s <= slow.run.wall_time_s * (1 + 1e-6)
