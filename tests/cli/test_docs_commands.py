"""Commands of README's and docs' ``sh`` blocks: each is accepted, and what need not search is run.

Console blocks are run whole by tests/test_docs.py. Here the search is replaced by the first layout
that is legal; submit, serve and sweeps on dask are read alone, and run by tests of their own.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import click
import pytest

from layoutopt import api
from layoutopt.calibration import Factors
from layoutopt.cli.group import cli
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.rules import broken_rules
from layoutopt.inputs.request import SolveRequest
from layoutopt.optimizer.outcome import Outcome, SearchReport, Status
from tests.calibration.test_fit import site_rows
from tests.cli.conftest import Run
from tests.docblocks import Call, files, pages, shell_lines
from tests.hardware_profiles.test_node_list import node
from tests.validation.builders import write

pytestmark = pytest.mark.tree

READ_ALONE = ("submit", "serve", "sweep")
"""They need Slurm, a port, or a dask cluster."""
OURS = re.compile(r"^(eval \"\$\()?layoutopt ")
LINES = [line for page in pages() for line in shell_lines(page) if OURS.search(line.command)]
CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip


def first_legal(request: SolveRequest) -> Outcome:
    """An outcome without a search, of the largest batch and count of a range."""
    question = request.question
    job = question.job
    if question.batches:
        training = job.training.model_copy(update={"global_batch": question.batches[1]})
        job = replace(job, training=training)
    for pp in (1, 2, 4, 8, 16, 32):
        dp = job.gpus // (8 * pp)
        if dp * 8 * pp == job.gpus and job.training.global_batch % dp == 0:
            layout = Layout(
                tp=8,
                pp=pp,
                dp=dp,
                microbatches=job.training.global_batch // dp,
                zero_stage=3 if job.software.framework == "torchtitan" else 1,
            )
            if not broken_rules(job, layout):
                report = SearchReport("time", 1.0, 0.0, 0.0, 1, 1)
                return Outcome(Status.OPTIMAL, estimate(job, layout), report)
    raise AssertionError("no layout of tp 8 is legal")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages' commands name: files that a reader has."""
    place = tmp_path_factory.mktemp("reader")
    for page in pages():
        for name, text in files(page).items():
            if name.endswith(".yaml"):
                (place / name).write_text(text, "utf-8")
    (place / "config.json").write_text(json.dumps(CONFIG))
    (place / "nodes.json").write_text(
        json.dumps({"kind": "List", "items": [node(f"n{n}") for n in range(128)]})
    )
    write(place / "ours.jsonl", *site_rows(place, Factors(compute_time=1.15), 3))
    return place


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_a_command_of_a_page_is_accepted(
    line: Call, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(api, "_search", first_legal)
    monkeypatch.setenv("SLURM_NNODES", "4")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "8")
    text = re.sub(r'^eval "\$\((.*)\)"$', r"\1", line.command)
    printed = ""
    for part in text.split(" | "):
        words, _, target = part.partition(" > ")
        name, *rest = shlex.split(words, comments=True)[1:]
        if name in READ_ALONE or "run1.log" in rest:
            command = cli.get_command(click.Context(cli), name)
            assert command is not None
            command.make_context(name, rest)
            return
        ran = run(name, *rest, stdin=printed)
        assert ran.code == 0, ran.err
        printed = ran.out
        if target and not target.startswith("/"):
            Path(target.split()[0]).write_text(printed, "utf-8")


def test_there_are_commands_to_run() -> None:
    assert len(LINES) > 20
