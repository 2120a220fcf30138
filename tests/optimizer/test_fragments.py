"""Placement on small trees of switches, against trying everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.fragments import best_chunks, best_place, chunks_of, fits, placed
from layoutopt.costmodel.layout import PIPELINE_INSIDE, Layout
from layoutopt.hardware_profiles.schema import Cluster, Level, Switch
from layoutopt.hardware_profiles.switch_file import tiers
from layoutopt.optimizer.choose import search_counts
from layoutopt.optimizer.exhaustive import try_everything
from layoutopt.optimizer.node_map import assign, placement_of
from layoutopt.optimizer.outcome import Status
from layoutopt.optimizer.question import Question
from tests.builders import small_cluster, small_model, small_question
from tests.conftest import FULL
from tests.optimizer.drawn import drawn

EXAMPLES = 220 if FULL else 40
SEARCHED = 220 if FULL else 40
RANDOM = drawn(EXAMPLES)


def tree(sizes: tuple[int, ...], first: int = 0, mark: str = "leaf") -> tuple[Switch, ...]:
    """Leaf switches with so many nodes each."""
    found, start = [], first
    for n, size in enumerate(sizes):
        names = tuple(f"n{k}" for k in range(start, start + size))
        found.append(Switch(name=f"{mark}{n}", nodes=names))
        start += size
    return tuple(found)


def two_tiers(pods: tuple[tuple[int, ...], ...]) -> tuple[Switch, ...]:
    found, start = [], 0
    for n, sizes in enumerate(pods):
        leaves = tree(sizes, start, f"leaf{n}-")
        found.append(Switch(name=f"pod{n}", switches=leaves))
        start += sum(sizes)
    return tuple(found)


def fragment(switches: tuple[Switch, ...], per_node: int = 2, spine: float = 1e9) -> Cluster:
    """Small nodes under those switches: a slower level for each tier, and one over all."""
    cluster = small_cluster(per_node=per_node)
    nodes = sum(len(one.all_nodes) for one in switches)
    count = tiers(switches)
    outer = tuple(
        Level(
            name=f"tier{n}",
            gpus=nodes * per_node,
            bytes_per_s_per_gpu_one_way=max(spine, 4e10 / 4**n) if n < count else spine,
            latency_s=6e-6 * (n + 1),
        )
        for n in range(count + 1)
    )
    levels = (cluster.levels[0], *outer)
    return cluster.model_copy(update={"nodes": nodes, "levels": levels, "switches": switches})


def asked(cluster: Cluster, counts: tuple[int, int] | None = None, **fix: int | str) -> Question:
    gpus = cluster.all_gpus or 0
    model = small_model(layers=4, vocab=4096)
    question = small_question(model, gpus=gpus, batch=12, cluster=cluster)
    return replace(question, fix=fix, counts=counts)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Switch, ...]:
    sizes = st.lists(st.integers(1, 3), min_size=1, max_size=3)
    if draw(st.booleans()):
        found = draw(sizes.filter(lambda some: 2 <= sum(some) <= 6))
        return tree(tuple(found))
    pods = draw(st.lists(sizes, min_size=2, max_size=2).filter(lambda p: sum(map(sum, p)) <= 6))
    return two_tiers(tuple(map(tuple, pods)))


def homes(switches: tuple[Switch, ...], above: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """The switches over each node, from the outside in, a single root left out."""
    found: dict[str, tuple[str, ...]] = {}
    for one in switches:
        path = (*above, one.name)
        found |= dict.fromkeys(one.nodes, path)
        found |= homes(one.switches, path)
    return found


def standing(
    order: tuple[str, ...], over: dict[str, tuple[str, ...]], count: int
) -> set[tuple[int, ...]]:
    """Every chunk size, tier by tier, that neighbours in this order keep to."""
    found = []
    for tier in range(count):
        sizes = [
            size
            for size in range(1, len(order) + 1)
            if len(order) % size == 0
            and all(
                len({over[name][: count - tier] for name in order[first : first + size]}) == 1
                for first in range(0, len(order), size)
            )
        ]
        found.append(sizes)
    return {chunks for chunks in product(*found) if all(b % a == 0 for a, b in pairwise(chunks))}


@RANDOM
@given(trees())
def test_chunks_are_those_that_some_order_of_nodes_has(switches: tuple[Switch, ...]) -> None:
    cluster, count = fragment(switches), tiers(switches)
    over = homes(switches)
    if count == 0:
        assert best_chunks(cluster, len(over)) == ((),)
        return
    for nodes in range(1, len(over) + 1):
        seen: set[tuple[int, ...]] = set()
        for order in permutations(over, nodes):
            seen |= standing(order, over, count)
        best = best_chunks(cluster, nodes)
        assert all(fits(cluster, chunks, nodes) for chunks in best)
        assert set(best) <= seen
        for chunks in seen:
            assert any(
                all(b % a == 0 for a, b in zip(chunks, other, strict=True)) for other in best
            )


@drawn(SEARCHED)
@given(trees(), st.sampled_from((1e7, 1e9, 1e10)), st.sampled_from((1, 3)))
def test_search_on_a_fragment_equals_trying_everything(
    switches: tuple[Switch, ...], spine: float, zero_stage: int
) -> None:
    cluster = fragment(switches, spine=spine)
    nodes, over, count = cluster.nodes or 0, homes(switches), tiers(switches)
    if nodes > 4 and not FULL:
        return
    fix: dict[str, int | str] = {"zero_stage": zero_stage, "recompute": "none", "micro_batch": 1}
    fix["cp"] = 1
    question = asked(cluster, (2, 2 * nodes), **fix)
    walls = []
    for used in range(1, nodes + 1):
        seen: set[tuple[int, ...]] = set()
        for order in permutations(over, used):
            seen |= standing(order, over, count) if count else {()}
        for chunks in seen:
            job = placed(replace(question.job, gpus=2 * used), chunks)
            best = try_everything(replace(question, job=job, counts=None)).plan
            walls += [best.run.wall_time_s] if best else []
    outcome = search_counts(question)
    assert outcome.status == Status.OPTIMAL
    assert outcome.plan is not None
    assert outcome.job is not None
    assert outcome.search.bound is not None
    assert outcome.plan.run.wall_time_s <= min(walls) * (1 + 1e-6)
    assert outcome.search.bound <= min(walls) * (1 + 1e-12)
    job = replace(question.job, gpus=outcome.job.gpus)
    again = estimate(best_place(job, outcome.plan.layout), outcome.plan.layout)
    assert again.step.time_s == pytest.approx(outcome.plan.step.time_s, rel=1e-9)
    assert outcome.placement is not None
    a_map_keeps_its_chunks(outcome.placement.nodes, outcome.placement.chunk_nodes, over)


def a_map_keeps_its_chunks(
    nodes: tuple[str, ...], chunks: tuple[int, ...], over: dict[str, tuple[str, ...]]
) -> None:
    assert len(set(nodes)) == len(nodes)
    if chunks:
        assert chunks in standing(nodes, over, len(chunks))


@RANDOM
@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=3),
    st.integers(2, 3),
    st.integers(1, 3),
)
def test_as_many_blocks_stay_whole_as_can(room: list[int], size: int, count: int) -> None:
    blocks = [size] * min(count, sum(room) // size)
    takes, proved = assign(blocks, room)
    assert [sum(take) for take in takes] == blocks
    assert all(sum(take[n] for take in takes) <= most for n, most in enumerate(room))
    whole = sum(max(take) == size for take in takes)
    assert proved
    assert whole == min(len(blocks), sum(most // size for most in room))


def test_heavy_traffic_stays_under_one_switch() -> None:
    """4 and 3 nodes: four of them under one switch are faster than six on two."""
    outcome = search_counts(asked(fragment(tree((4, 3)), spine=1e6), (2, 14)))
    assert outcome.placement is not None
    assert len({name for one in outcome.placement.stages for name in one.switches}) == 1
    assert any("nodes are left out" in sentence for sentence in outcome.explain)


def test_names_and_order_of_nodes_and_switches_change_nothing() -> None:
    """Equal nodes are interchangeable."""
    first = fragment(tree((3, 1, 2)))
    renamed = tuple(
        Switch(name=f"s{n}", nodes=tuple(f"m{n}-{k}" for k in range(size)))
        for n, size in enumerate((2, 3, 1))
    )
    runs = [search_counts(asked(cluster)).plan for cluster in (first, fragment(renamed))]
    assert runs[0] is not None
    assert runs[1] is not None
    assert runs[0].run == runs[1].run


def test_a_faster_spine_is_never_slower() -> None:
    walls = []
    for spine in (1e6, 1e8, 1e10):
        plan = search_counts(asked(fragment(tree((3, 1, 2)), spine=spine))).plan
        assert plan is not None
        walls.append(plan.run.wall_time_s)
    assert walls == sorted(walls, reverse=True)


def test_a_map_of_pipelines_that_stand_together() -> None:
    """Four nodes of 2 GPUs, pp 4 inside dp 2: n0 and n1 hold a pipeline, n2 and n3 the other."""
    job = placed(asked(fragment(tree((2, 2)))).job, (2,))
    layout = Layout(pp=4, dp=2, axis_order=PIPELINE_INSIDE)
    place = placement_of(job, layout)
    assert chunks_of(job) == (2,)
    assert place.nodes == ("n0", "n1", "n2", "n3")
    assert [stage.nodes for stage in place.stages] == [
        ("n0", "n2"),
        ("n0", "n2"),
        ("n1", "n3"),
        ("n1", "n3"),
    ]
    assert place.stages[0].switches == {"leaf0": 1, "leaf1": 1}
    usual = placement_of(job, replace(layout, axis_order=Layout().axis_order))
    assert [stage.nodes for stage in usual.stages] == [("n0",), ("n1",), ("n2",), ("n3",)]
