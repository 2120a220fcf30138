"""The console blocks of README and docs: read, run, compared, pasted again.

Standard library alone, because scripts/check reads README's commands before anything is installed:

    python3 tests/docblocks.py command README.md use     the command line marked ``use``
    scripts/paste-readme                                 fresh output into every block
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"^```(\S*)[ \t]*([^\n]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- command: (\S+) -->\s*```\S*\n(.*?)```", re.DOTALL)
_VALUE = re.compile(r"<!-- value: (\S+) -->(.*?)<!-- end -->", re.DOTALL)
_PICTURE = re.compile(r"!\[[^]]*\]\((?!https?:)([^)]+)\)")
_CONTINUED = re.compile(r"[ \t]*\n {10,}(?=\S)")
_WALL_SECONDS = re.compile(r"\d+\.\d+ s\)$", re.MULTILINE)
_JOB = re.compile(r"\A\d+$", re.MULTILINE)
"""A job's id, alone on the first line."""
ELISION = "..."
"""A line of an output block that stands for any number of lines."""


@dataclass(frozen=True)
class Call:
    """One command of a console block and the output printed below it."""

    path: Path
    line: int
    """Of the command in its file, from 1."""
    command: str
    output: str

    @property
    def name(self) -> str:
        """Where it stands: file and line."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """README and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def marked_command(text: str, mark: str) -> str:
    """The command line under ``<!-- command: MARK -->``, continuation lines joined."""
    for name, block in _MARK.findall(text):
        if name == mark:
            return re.sub(r"\\\n\s*", " ", block).strip()
    raise LookupError(f"no command is marked {mark!r}")


def calls(path: Path) -> list[Call]:
    """Every command of the page's ``console`` blocks."""
    text = path.read_text(encoding="utf-8")
    return [
        call
        for fence in _FENCE.finditer(text)
        if fence[1] == "console"
        for call in _calls_of(path, fence[3], text.count("\n", 0, fence.start(3)) + 1)
    ]


def _calls_of(path: Path, block: str, first_line: int) -> Iterator[Call]:
    """The commands of one block: lines that start with ``$``, continued by a backslash or &&."""
    command, start, output = "", 0, ""
    for number, line in enumerate(block.splitlines(keepends=True), first_line):
        if line.startswith("$ "):
            if command:
                yield Call(path, start, command.rstrip(), output)
            command, start, output = line[2:], number, ""
        elif command.endswith(("\\\n", "&&\n")):
            command += line
        else:
            output += line
    if command:
        yield Call(path, start, command.rstrip(), output)


def shell_lines(path: Path) -> list[Call]:
    """Every command line of the page's ``sh`` blocks that are no files; nothing is printed."""
    text = path.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        if fence[1] != "sh" or fence[2].startswith("file="):
            continue
        first = text.count("\n", 0, fence.start(3)) + 1
        for number, line in enumerate(re.sub(r"\\\n\s*", " ", fence[3]).splitlines(), first):
            if line.strip() and not line.startswith("#"):
                found.append(Call(path, number, line, ""))
    return found


def files(path: Path) -> dict[str, str]:
    """Files that a page shows: fenced blocks whose info line says ``file=NAME``."""
    text = path.read_text(encoding="utf-8")
    return {
        fence[2].removeprefix("file="): fence[3]
        for fence in _FENCE.finditer(text)
        if fence[2].startswith("file=")
    }


def run(call: Call, folder: Path) -> str:
    """What the command prints (both streams) in ``folder``, with the page's files beside it.

    ``benchmarks/`` of the tree can be named as in the tree. Raises RuntimeError where the command
    fails; a page shows a failure on purpose with ``; echo "exit code $?"``.
    """
    for name, content in files(call.path).items():
        (folder / name).write_text(content, encoding="utf-8")
    link = folder / "benchmarks"
    if not link.exists():
        link.symlink_to(ROOT / "benchmarks")
    environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    environment |= {"LC_ALL": "C.UTF-8", "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", call.command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{call.name}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def needs_slurm(call: Call) -> bool:
    """The command submits: where no Slurm runs (SLURM_CONF) its output is left as it is."""
    return call.command.startswith("layoutopt submit")


def pictures(path: Path) -> list[Path]:
    """Pictures of this tree that the page shows and that one of its commands draws."""
    commands = " ".join(call.command for call in calls(path))
    shown = (path.parent / name for name in _PICTURE.findall(path.read_text(encoding="utf-8")))
    return [picture for picture in shown if picture.name in commands]


def normal(text: str) -> str:
    """``text`` without what differs from run to run: wall seconds, lines they wrap, job ids."""
    joined = _JOB.sub("N", _CONTINUED.sub(" ", text.strip("\n")))
    lines = (line.rstrip() for line in _WALL_SECONDS.sub("N s)", joined).splitlines())
    return "\n".join(lines)


def agrees(printed: str, shown: str) -> bool:
    """Whether ``printed`` is what the page shows; a line of dots stands for any lines."""
    first, *others = (
        part.strip("\n") for part in re.split(rf"(?m)^{re.escape(ELISION)}$", normal(shown))
    )
    text = normal(printed) + "\n"
    if not others:
        return text == first + "\n"
    if first and not text.startswith(first + "\n"):
        return False
    last = others[-1]
    return not last or text[len(first) :].endswith("\n" + last + "\n")


def pasted(path: Path, folder: Path) -> str:
    """The page with fresh output in its blocks, except where the old output still agrees."""
    text = path.read_text(encoding="utf-8")
    for call in calls(path):
        if needs_slurm(call) and "SLURM_CONF" not in os.environ:
            print(f"as it was {call.name}: it needs Slurm", file=sys.stderr)
            continue
        printed = run(call, folder)
        if agrees(printed, call.output):
            continue
        if ELISION in call.output.splitlines():
            printed = _cut_like(printed, call.output)
        old, new = f"$ {call.command}\n{call.output}", f"$ {call.command}\n{printed}"
        if text.count(old) != 1:
            raise LookupError(f"{call.name}: the same command and output stand there twice")
        text = text.replace(old, new)
    return text


def _cut_like(printed: str, shown: str) -> str:
    """``printed`` cut as the old output was: as many paragraphs before the dots.

    Lines below the dots are renewed as so many last lines.
    """
    before, after = (part.strip("\n") for part in re.split(r"(?m)^\.\.\.$", shown, maxsplit=1))
    paragraphs = printed.rstrip("\n").split("\n\n")
    kept = "\n\n".join(paragraphs[: before.count("\n\n") + 1]) if before else ""
    last = after.count("\n") + 1 if after else 0
    tail = printed.rstrip("\n").splitlines()[-last:] if last else []
    return "\n".join([*filter(None, [kept]), ELISION, *tail]) + "\n"


def shown_values(text: str) -> dict[str, str]:
    """Figures and tables that prose marks: ``<!-- value: NAME -->12%<!-- end -->``."""
    return dict(_VALUE.findall(text))


def with_values(text: str, value_of: Callable[[str], str]) -> str:
    """``text`` with what stands between its marks renewed."""
    return _VALUE.sub(
        lambda found: f"<!-- value: {found[1]} -->{value_of(found[1])}<!-- end -->", text
    )


@contextlib.contextmanager
def slurm_running(folder: Path) -> Iterator[None]:
    """The one-machine Slurm of the tests, where Slurm is installed and this is root."""
    place = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if os.geteuid() != 0 or not shutil.which("slurmctld", path=place):
        yield
        return
    scripts, state = ROOT / "tests" / "schedulers" / "one_machine", folder / "slurm"
    env = {**os.environ, "PATH": place, "LUA": "0", "PLUGINS": str(folder), "CTLD_PORT": "26937"}
    subprocess.run(["bash", scripts / "up.sh", state], env=env, check=True, timeout=60)
    os.environ["SLURM_CONF"] = str(state / "etc" / "slurm.conf")
    try:
        yield
    finally:
        del os.environ["SLURM_CONF"]
        subprocess.run(["bash", scripts / "down.sh", state], env=env, check=True, timeout=60)


def paste(paths: list[Path]) -> None:
    """Renews the pages in place and says which changed."""
    sys.path.insert(0, str(ROOT))
    from tests.docvalues import value_of

    for path in paths:
        old = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as open_until:
            if any(map(needs_slurm, calls(path))) and "SLURM_CONF" not in os.environ:
                open_until.enter_context(slurm_running(Path(folder)))
            new = with_values(pasted(path, Path(folder)), value_of)
            for picture in pictures(path):
                shutil.copyfile(Path(folder) / picture.name, picture)
        path.write_text(new, encoding="utf-8")
        print("renewed  " if new != old else "unchanged", path.relative_to(ROOT))


def main(arguments: list[str]) -> None:
    """``command PAGE MARK`` or ``paste [PAGE ...]``."""
    match arguments:
        case ["command", page, mark]:
            print(marked_command(Path(page).read_text(encoding="utf-8"), mark))
        case ["paste", *names]:
            paste([Path(name).resolve() for name in names] or pages())
        case _:
            sys.exit("usage: docblocks.py command PAGE MARK | paste [PAGE ...]")


if __name__ == "__main__":
    main(sys.argv[1:])
