"""``--planned-stops`` and ``planned_stops:``: from words to the run's overhead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from layoutopt.errors import ProfileError
from layoutopt.hardware_profiles.cluster_file import read_cluster
from layoutopt.hardware_profiles.planned import read_stops
from layoutopt.hardware_profiles.schema import PlannedStops
from layoutopt.optimizer.exhaustive import try_everything
from layoutopt.optimizer.search import search
from tests.builders import small_cluster, small_question
from tests.cli.conftest import Run
from tests.cli.schemas import check

ASKED = ("estimate", "--model", "8B", "--gpus", "8", "--layout", "tp=2", "--tokens", "400B")
LINK = {"bandwidth_per_gpu_one_way": "12.5GB/s"}
POOLS = [{"name": "a", "gpu": "h100", "nodes": 2}, {"name": "b", "gpu": "a100", "nodes": 2}]


def test_stops_are_in_the_run_and_in_the_request(run: Run) -> None:
    usual, asked = run(*ASKED, "--json"), run(*ASKED, "--json", "--planned-stops", "3 x 4h")
    check(asked.json, "plan")
    answer = asked.json["run"]
    assert answer["planned_stops"] == 3
    assert sum(answer["planned_s"].values()) == pytest.approx(answer["overhead_s"]["planned"])
    assert answer["planned_s"]["stops"] > 3 * 4 * 3600
    share = usual.json["run"]
    gone = share["wall_time_s"] - share["overhead_s"]["planned"]
    assert answer["wall_time_s"] - answer["planned_s"]["stops"] == pytest.approx(gone)
    told = asked.json["request"]["machine"]["planned_stops"]
    assert told == {"lasts_s": 14400.0, "every_s": None, "count": 3}


def test_the_table_has_a_row_for_them(run: Run) -> None:
    pauses = ("--eval-every", "1000", "--eval-time", "5min")
    text = " ".join(run(*ASKED, "--planned-stops", "4h every 30d", *pauses).out.split())
    assert "announced stops of 4 h every 30 days take" in text
    assert "pauses for evaluation take" in text
    assert "Planned" not in run(*ASKED).out


def test_what_is_no_stop_is_refused(run: Run) -> None:
    ran = run(*ASKED, "--json", "--planned-stops", "soon")
    assert ran.code == 2
    assert ran.json["field"] == "planned_stops"
    assert "4h every 30d" in ran.json["message"]


def test_a_cluster_file_says_when_it_stops(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text("gpu: h100\nnodes: 1\nplanned_stops: 2h every 7d\n", "utf-8")
    answer = run("estimate", "--cluster", str(path), *ASKED[1:3], *ASKED[5:], "--json").json
    assert answer["request"]["machine"]["planned_stops"]["every_s"] == 7 * 86400
    assert answer["run"]["planned_stops"] > 1


def test_a_cluster_file_of_pools_says_it_for_all() -> None:
    data = {"pools": POOLS, "pool_link": LINK, "planned_stops": "3 x 4h"}
    cluster = read_cluster(data, "mixed.yaml")
    stops = PlannedStops(count=3, lasts_s=14400.0)
    assert [cluster.planned_stops, *(pool.planned_stops for pool in cluster.pools)] == [stops] * 3
    own = [{**POOLS[0], "planned_stops": "none"}, POOLS[1]]
    with pytest.raises(ProfileError, match="shared"):
        read_cluster({**data, "pools": own}, "mixed.yaml")
    with pytest.raises(ProfileError, match="planned_stops is wrong"):
        read_cluster({**data, "planned_stops": "often"}, "mixed.yaml")


@pytest.mark.parametrize("text", ["2h every 1d", "5 x 1h"])
def test_the_search_makes_the_run_with_its_stops_shortest(text: str) -> None:
    cluster = small_cluster(8.0, network_bytes_per_s=3e9)
    cluster = cluster.model_copy(update={"planned_stops": read_stops(text)})
    fix: dict[str, int | str | bool] = {"cp": 1, "pp": 2, "offload_optimizer": False}
    fix |= {"offload_activations": False, "micro_batch": 1}
    question = replace(small_question(gpus=4, batch=8, cluster=cluster), fix=fix)
    fast, slow = search(question), try_everything(question)
    assert fast.plan is not None
    assert slow.plan is not None
    assert fast.plan.run.wall_time_s <= slow.plan.run.wall_time_s * (1 + 1e-6)
    assert fast.search.bound is not None
    assert fast.search.bound <= slow.plan.run.wall_time_s * (1 + 1e-9)
