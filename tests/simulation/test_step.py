"""One step, event by event: sums, disturbances, overlap, trace and drawing."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.models.catalog import load_model
from layoutopt.costmodel.training import Training
from layoutopt.hardware_profiles.catalog import load_gpu
from layoutopt.hardware_profiles.cluster import default_cluster
from layoutopt.simulation.disturbance import Disturbance
from layoutopt.simulation.picture import write_picture
from layoutopt.simulation.pieces import chunk_layers, model_pieces
from layoutopt.simulation.schedules import Unit
from layoutopt.simulation.step import simulate_step, unit_times
from layoutopt.simulation.trace import write_trace
from tests.costmodel.cases import PLAIN, job
from tests.simulation.drawn import draw

CALM = Disturbance()
FOUR = Layout(pp=4, dp=1, microbatches=8, zero_stage=0)


def with_software(**changes: object) -> Job:
    """Four stages of three small layers: messages are felt."""
    return replace(job(gpus=4), software=PLAIN.model_copy(update=changes))


def real() -> Job:
    """Four stages of ten large layers: messages are not."""
    return Job(
        model=load_model("llama-2-13b"),
        cluster=default_cluster(load_gpu("h100-sxm-80gb")),
        training=Training(seq_len=4096, global_batch=8, tokens=10**9),
        software=PLAIN,
        gpus=4,
    )


@pytest.mark.parametrize("kind", ["1f1b", "interleaved", "zb-h1", "zbv", "uneven"])
def test_parts_of_every_stage_add_up_to_the_step(kind: str) -> None:
    drawn = draw(Random(7), kind)
    seen = simulate_step(drawn.job, drawn.layout)
    for stage in seen.stages:
        assert sum(stage.parts.values()) == pytest.approx(seen.step_s)
        assert min(stage.parts.values()) >= 0


def test_units_of_a_stage_do_not_overlap() -> None:
    drawn = draw(Random(3), "zbv")
    seen = simulate_step(drawn.job, drawn.layout)
    for stage in range(drawn.layout.pp):
        rows = [(start, end) for done, start, end in unit_times(seen) if done.stage == stage]
        assert all(end <= start * (1 + 1e-12) for (_, end), (start, _) in pairwise(rows))


def test_a_forward_starts_after_the_one_before_it_has_been_sent() -> None:
    seen = simulate_step(with_software(), FOUR, CALM)
    times = {(done.stage, done.unit): (start, end) for done, start, end in unit_times(seen)}
    for stage in range(3):
        ended, started = times[stage, Unit("F", 0, 0)][1], times[stage + 1, Unit("F", 0, 0)][0]
        assert started > ended


def test_messages_that_hide_do_not_hold_the_sender_up() -> None:
    """Two stages: the first one's two forwards follow each other where sends hide."""
    shown = simulate_step(with_software(overlap_pp=0.0), FOUR, CALM)
    hidden = simulate_step(with_software(overlap_pp=1.0), FOUR, CALM)
    assert shown.stages[1].parts["pp_comm"] > 0
    assert hidden.step_s < shown.step_s
    rows = [times for times in unit_times(hidden) if times[0].stage == 0]
    assert rows[1][1] == pytest.approx(rows[0][2])


def test_reduction_hides_behind_the_last_backward_pass() -> None:
    layout, many = replace(FOUR, dp=2, microbatches=4), replace(job(gpus=8), software=PLAIN)
    shown = simulate_step(many, layout, CALM)
    eager = PLAIN.model_copy(update={"overlap_grad_reduce": 1.0})
    hidden = simulate_step(replace(many, software=eager), layout, CALM)
    assert hidden.step_s < shown.step_s
    assert hidden.stages[0].parts["dp_comm"] > 0  # the embedding's bucket is ready last


def test_zero_3_gathers_behind_the_layer_before() -> None:
    layout = Layout(dp=8, microbatches=2, zero_stage=3)
    many = replace(job(gpus=8), software=PLAIN)
    shown = simulate_step(many, layout, CALM)
    eager = PLAIN.model_copy(update={"overlap_fsdp": 1.0})
    hidden = simulate_step(replace(many, software=eager), layout, CALM)
    assert hidden.step_s < shown.step_s
    kinds = {label.kind for label in hidden.step.graph.labels if label.stream == "dp"}
    assert kinds >= {"gather", "scatter"}


def test_a_straggler_sets_the_pace() -> None:
    """Stage 2 at half speed: its compute doubles, and the others wait for it."""
    calm = simulate_step(real(), FOUR, CALM)
    slow = simulate_step(real(), FOUR, Disturbance(slow={2: 2.0}))
    own = calm.stages[2].parts["compute"]
    assert slow.stages[2].parts["compute"] == pytest.approx(2 * own)
    assert slow.step_s > calm.step_s + 0.5 * own
    assert slow.busiest.stage == 2


def test_jitter_is_seeded_and_costs_time() -> None:
    def run(seed: int) -> float:
        return simulate_step(real(), FOUR, Disturbance(jitter=0.2, seed=seed)).step_s

    calm = simulate_step(real(), FOUR, CALM).step_s
    assert run(1) == run(1) != run(2)
    # a pipeline waits for the slowest at every turn: the mean of many seeds is above calm
    assert sum(run(seed) for seed in range(20)) / 20 > 1.02 * calm


def test_chunks_of_uneven_stages() -> None:
    """Spare layers stand where the embedding and the head do not."""
    assert chunk_layers(7, 8, 0) == [0, 1, 1, 1, 1, 1, 1, 1]
    assert chunk_layers(7, 8, 15) == [1, 1, 1, 1, 1, 1, 1, 0]
    assert chunk_layers(8, 2, 3) == [4, 4]


def test_full_recompute_of_the_first_layers_of_a_stage() -> None:
    layout = replace(FOUR, recompute="full", recompute_layers=1)
    pieces = model_pieces(job(gpus=4), layout)[1][0].pieces
    parts = [dict(piece.backward).get("recompute", 0.0) for piece in pieces]
    assert parts[0] > 0
    assert parts[1:] == [0, 0]
    assert pieces[0].saved_kib < pieces[1].saved_kib


def test_memory_rises_and_falls() -> None:
    held = simulate_step(with_software(), FOUR, CALM).stages[0].held
    assert held.bytes[-1] == held.state_bytes
    assert max(held.bytes) == held.peak_bytes > held.state_bytes
    assert held.most_units == 4
    assert list(held.times_s) == sorted(held.times_s)


def test_the_trace_is_what_was_simulated(tmp_path: Path) -> None:
    """One process for each stage, one row for each stream, slices that do not overlap in a row."""
    seen = simulate_step(with_software(), FOUR, CALM)
    write_trace(seen, tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text("utf-8"))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["stage 0", "stage 1", "stage 2", "stage 3"]
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            row = rows.setdefault((event["pid"], event["tid"]), [])
            row.append((event["ts"], event["ts"] + event["dur"]))
    last = max(end for row in rows.values() for _, end in row)
    assert last == pytest.approx(seen.step_s * 1e6, rel=1e-6)
    for row in rows.values():
        ordered = sorted(row)
        pairs = pairwise(ordered)
        assert all(end <= start + 0.01 for (_, end), (start, _) in pairs)
    assert {event["name"] for event in events if event["ph"] == "C"} == {"memory"}


def test_the_drawing_shows_every_unit(tmp_path: Path) -> None:
    """4 stages x 8 microbatches x 2 passes, and titles that are text, whatever is in them."""
    seen = simulate_step(with_software(), FOUR, CALM)
    write_picture(seen, tmp_path / "step.svg", "a < b & c")
    root = ElementTree.parse(tmp_path / "step.svg").getroot()
    boxes = [one for one in root if one.get("stroke") == "#555" and one.tag.endswith("rect")]
    assert len(boxes) == 4 * 8 * 2
    assert any(one.text == "a < b & c" for one in root)
