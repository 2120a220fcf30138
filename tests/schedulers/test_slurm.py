"""Real Slurm on this machine: four nodes of eight GPUs, jobs through all three doors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.docblocks import Call, agrees, calls, needs_slurm, pages, run

pytestmark = [pytest.mark.tree, pytest.mark.slurm]

HERE = Path(__file__).parent / "one_machine"
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "sinfo", "scontrol")
BIN = Path(sys.executable).with_name("layoutopt")
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=train
env | grep ^LAYOUT_ | sort
eval "$("$LAYOUTOPT_BIN" env --model 8B --framework megatron --cache "$PWD/cache")"
echo "again=$LAYOUT_GPUS"
"""


class Slurm:
    """A running Slurm, and where its jobs write."""

    def __init__(self, state: Path) -> None:
        self.out = state / "out"
        self.env = {
            **os.environ,
            "SLURM_CONF": str(state / "etc" / "slurm.conf"),
            "LAYOUTOPT_BIN": str(BIN),
            "LAYOUTOPT_TIMEOUT": "100",
            "PATH": f"{BIN.parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
        }
        (self.out / "train.sbatch").write_text(SCRIPT)

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        done = subprocess.run(
            words,
            cwd=self.out,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def printed(self, job: str) -> str:
        """What a job printed, when it has ended."""
        file = self.out / f"slurm-{job}.out"
        for _ in range(600):
            if file.exists() and "again=" in file.read_text():
                break
            time.sleep(0.1)
        return file.read_text()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if os.geteuid() != 0 or not all(shutil.which(name, path=_path()) for name in PROGRAMS):
        why = f"Slurm is not installed ({', '.join(PROGRAMS)}), or this is not root"
        if os.environ.get("LAYOUTOPT_REQUIRE_SLURM") == "1":
            pytest.fail(why)
        pytest.skip(why)
    state, plugins = tmp_path_factory.mktemp("slurm") / "state", tmp_path_factory.mktemp("plugins")
    for name in ("cli_filter", "job_submit"):
        text = subprocess.run([BIN, "slurm-plugin", name], capture_output=True, check=True).stdout
        (plugins / f"{name}.lua").write_bytes(text)
    env = {**os.environ, "PLUGINS": str(plugins), "CTLD_PORT": "26917", "PATH": _path()}
    subprocess.run(["bash", HERE / "up.sh", state], env=env, check=True, timeout=60)
    try:
        yield Slurm(state)
    finally:
        subprocess.run(["bash", HERE / "down.sh", state], check=True, timeout=60)


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


SUBMIT = (str(BIN), "submit", "--model", "8B", "--framework", "megatron")


def test_submit_reads_nodes_solves_and_the_job_sees_its_layout(slurm: Slurm) -> None:
    code, out, err = slurm.run(*SUBMIT, "--nodes", "2", "train.sbatch")
    assert (code, err) == (0, "")
    job, line = out.splitlines()[:2]
    assert line.startswith("2 x 8 h100-sxm-80gb: tp=")
    printed = slurm.printed(job)
    assert "LAYOUT_GPUS=16" in printed
    assert "LAYOUT_NODES=2" in printed
    assert "again=16" in printed  # layoutopt env, inside the job


def test_the_switches_over_the_nodes_are_levels(slurm: Slurm) -> None:
    """Two leaves of two nodes each, as topology.conf has them."""
    words = ("submit", "--dry-run", "--json", "--model", "8B", "--nodes", "4", "train.sbatch")
    code, out, said = slurm.run("layoutopt", *words)
    assert code == 0, said
    machine = json.loads(out)["plan"]["request"]["machine"]
    assert [level["name"] for level in machine["levels"]] == ["nvlink", "leaf", "network"]
    assert sorted(len(switch["nodes"]) for switch in machine["switches"]) == [2, 2]


@pytest.mark.parametrize(
    "call",
    [call for page in pages() for call in calls(page) if needs_slurm(call)],
    ids=lambda call: call.name,
)
def test_a_page_shows_what_submit_prints(
    slurm: Slurm, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm.env[name])
    printed = run(call, tmp_path)
    assert agrees(printed, call.output), f"{call.name} prints something else:\n{printed}"
    slurm.run("scancel", printed.split()[0])


def test_a_dry_run_prints_the_command_and_submits_nothing(slurm: Slurm) -> None:
    _, before, _ = slurm.run("squeue", "-h", "-t", "all")
    code, out, _ = slurm.run(*SUBMIT, "--dry-run", "--json", "train.sbatch", "--", "--exclusive")
    assert code == 0
    answer = json.loads(out)
    assert answer["job"] is None
    assert answer["command"][:2] == ["sbatch", "--parsable"]
    assert "--exclusive" in answer["command"]
    assert answer["plan"]["status"] == "optimal"
    _, after, _ = slurm.run("squeue", "-h", "-t", "all")
    assert after.count("\n") == before.count("\n")


def test_when_asks_slurm_for_each_size(slurm: Slurm) -> None:
    code, out, err = slurm.run(*SUBMIT, "--when", "--dry-run", "--json", "train.sbatch")
    assert (code, err) == (0, "")
    assert json.loads(out)["waits_s"].keys() >= {"1", "2", "4"}


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("--nodes", "5"), 2, "5 nodes are asked for, but there are 4 of 8 GPUs"),
        (("--gpus", "12"), 2, "12 GPUs are no whole nodes of 8"),
        (("--gpu", "v100"), 2, "no node has GPUs of type v100"),
        (("--partition", "cpu"), 2, "partition cpu has no nodes"),
    ],
)
def test_what_the_cluster_has_not_is_said(
    slurm: Slurm, words: tuple[str, ...], code: int, why: str
) -> None:
    found, out, err = slurm.run(*SUBMIT, *words, "train.sbatch")
    assert (found, out) == (code, "")
    assert why in err


def test_sbatch_s_own_words_are_passed_on(slurm: Slurm) -> None:
    code, _, err = slurm.run(*SUBMIT, "--nodes", "1", "train.sbatch", "--", "--nodelist=none such")
    assert code == 69
    assert "sbatch fails" in err


def test_slurm_that_is_missing_is_exit_69(slurm: Slurm) -> None:
    code, _, err = slurm.run(*SUBMIT, "train.sbatch", env={"PATH": "/nonexistent"})
    assert code == 69
    assert "scontrol is not installed" in err


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ({"LAYOUT_TP": "16"}, "tp 16 spans nodes: 8 GPUs are joined by NVLink"),
        ({"LAYOUT_TP": "8", "LAYOUT_PP": "3"}, "16 GPUs are not a multiple of tp 8 x cp 1 x pp 3"),
        ({"LAYOUT_TP": "8", "LAYOUT_DP": "4"}, "= 32 GPUs, but the job has 16"),
        ({"LAYOUT_TP": "8; touch x"}, "not a whole number above 0"),
        ({"LAYOUT_TP": "1", "LAYOUT_DP": "16", "LAYOUT_MICRO_BATCH": "1",
          "LAYOUT_MICROBATCHES": "3", "LAYOUT_GLOBAL_BATCH": "64"}, "not the global batch of 64"),
    ],
)  # fmt: skip
def test_job_submit_rejects_what_cannot_run(slurm: Slurm, layout: dict[str, str], why: str) -> None:
    code, _, err = slurm.run("sbatch", "-N2", "--gpus-per-node=8", "train.sbatch", env=layout)
    assert code != 0
    assert f"layoutopt: {why}" in err or why in err


def test_fifty_submissions_in_a_row_are_checked_in_time(slurm: Slurm) -> None:
    words = ("sbatch", "--parsable", "-N2", "--gpus-per-node=8", "--hold", "train.sbatch")
    began = time.monotonic()
    for number in range(50):
        good = number % 2 == 0
        layout = {"LAYOUT_TP": "8", "LAYOUT_PP": "2" if good else "3"}
        code, out, _ = slurm.run(*words, env=layout)
        assert (code == 0) is good
        assert out.strip().isdigit() is good
    assert time.monotonic() - began < 60
    slurm.run("scancel", "--state=PENDING", "--me")


def test_cli_filter_solves_on_the_client(slurm: Slurm) -> None:
    size = ("-N2", "--gpus-per-node=8")
    code, out, err = slurm.run(
        "sbatch", "--parsable", *size, "--comment=layoutopt:8B", "train.sbatch"
    )
    assert code == 0
    assert "8B on 2 x 8 GPUs: LAYOUT_GPUS=16" in err
    assert "LAYOUT_DP=" in slurm.printed(out.strip())


@pytest.mark.parametrize("binary", ["/nonexistent/layoutopt", "/bin/false", "x'; touch made #"])
def test_cli_filter_fails_open(slurm: Slurm, binary: str) -> None:
    code, out, err = slurm.run(
        "sbatch", "--parsable", "-N1", "--gpus-per-node=8", "--comment=layoutopt:8B", "--hold",
        "train.sbatch", env={"LAYOUTOPT_BIN": binary},
    )  # fmt: skip
    assert (code, out.strip().isdigit()) == (0, True)
    assert "the job goes on without" in err
    assert not (slurm.out / "made").exists()
    slurm.run("scancel", out.strip())
