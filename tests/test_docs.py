"""README and docs are executed: what they show is what the commands print."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import click
import pytest

from layoutopt.cli.group import COMMANDS, cli
from tests.docblocks import (
    ROOT,
    Call,
    agrees,
    calls,
    files,
    marked_command,
    needs_slurm,
    normal,
    pages,
    pictures,
    run,
    shown_values,
)
from tests.docvalues import value_of

pytestmark = pytest.mark.tree

CALLS = [call for page in pages() for call in calls(page)]
CLI_PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "call", [call for call in CALLS if not needs_slurm(call)], ids=lambda call: call.name
)
def test_a_page_shows_what_its_command_prints(call: Call, tmp_path: Path) -> None:
    printed = run(call, tmp_path)
    assert agrees(printed, call.output), (
        f"{call.name}: `{call.command}` prints something else (scripts/paste-readme renews it):\n"
        f"{normal(printed)}"
    )


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_python_of_a_page_runs(page: Path) -> None:
    """Interpreter sessions, as doctest reads them."""
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    text = page.read_text(encoding="utf-8")
    runner.run(parser.get_doctest(text.replace("```", ""), {}, page.name, str(page), 0))
    assert runner.failures == 0


def test_readme_is_executed() -> None:
    """The first console block of README is the main job, and there are others."""
    mine = [call.command for call in CALLS if call.path.name == "README.md"]
    assert mine[0] == "layoutopt solve --model 1T --gpus 16384"
    assert len(mine) >= 4


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_figures_that_prose_marks_are_computed(page: Path) -> None:
    """Measured accuracy and defaults are quoted from the program, never typed."""
    shown = shown_values(page.read_text(encoding="utf-8"))
    assert {name: value_of(name) for name in shown} == shown


def test_readme_quotes_the_measured_accuracy() -> None:
    assert {"dense.n", "dense.median", "unseen.dense.median"} <= set(shown_values(README))


@pytest.mark.parametrize("mark", ["use", "test"])
def test_the_setup_is_one_command_line(mark: str) -> None:
    command = marked_command(README, mark)
    assert "\n" not in command
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")


def command_named(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name: str) -> None:
    assert re.search(rf"^## `layoutopt {name}\b", CLI_PAGE, re.MULTILINE)
    assert command_named(name).help


def section(name: str) -> str:
    """The part of docs/cli.md under the heading of one command, and the common part."""
    parts = re.split(r"(?m)^## ", CLI_PAGE)
    return "".join(part for part in parts if part.startswith((f"`layoutopt {name}", "Common")))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name: str) -> None:
    text = section(name)
    missing = [
        option
        for parameter in command_named(name).params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
        if option.startswith("--") and f"`{option}" not in text
    ]
    assert not missing


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_invented(name: str) -> None:
    """Options that the section's own rows name exist."""
    known = {option for parameter in command_named(name).params for option in parameter.opts}
    common = set(re.findall(r"(?m)^\| `(--[a-z-]+)", section("Common")))
    rows = set(re.findall(r"(?m)^\| `(--[a-z-]+)", section(name))) - common
    assert rows <= known


LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("page", [*pages(), ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_pictures_of_commands_are_shown() -> None:
    """What a page's command draws into a file is in the tree, and the page shows it."""
    for page in pages():
        drawn = re.findall(r"--out (\S+\.(?:png|svg))", " ".join(c.command for c in calls(page)))
        assert sorted(drawn) == sorted(path.name for path in pictures(page)), page.name
        assert all(path.stat().st_size < 200_000 for path in pictures(page))


def test_console_blocks_hold_only_what_is_executed() -> None:
    """Commands that are not run by the tests stand in ``sh`` blocks."""
    for call in CALLS:
        assert call.command.startswith("layoutopt "), f"{call.name}: {call.command}"


def test_no_page_shows_a_fault_of_ours() -> None:
    assert not [call.name for call in CALLS if "a fault in layoutopt" in call.output]


def test_files_shown_are_used() -> None:
    """A file that a page shows is named by a command of the same page."""
    for page in pages():
        commands = " ".join(call.command for call in calls(page))
        assert all(name in commands for name in files(page)), page.name


@pytest.mark.parametrize(
    ("printed", "shown", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\n", False),
        ("a\n\nb\nc\n", "a\n...\n", True),
        ("ab\nb\n", "a\n...\n", False),
        ("x\na\nc\n", "x\n...\nc\n", True),
        ("x\nac\n", "x\n...\nc\n", False),
        ("Step  2.00 s, 8\n", "Step  3.00 s, 8\n", False),
        (
            "Proof  optimal (9 layouts, 3.21 s)\n",
            "Proof  optimal (9\n             layouts, 12.1 s)\n",
            True,
        ),
    ],
)
def test_comparison_of_pages_sees_what_it_should(printed: str, shown: str, same: bool) -> None:
    """Only wall seconds, and what stands for dots, may differ."""
    assert agrees(printed, shown) is same
