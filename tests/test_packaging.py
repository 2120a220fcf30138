"""What an installation holds, and what a checkout needs to hold.

scripts/check runs this file twice: in the tree, and against the built wheel in an environment that
never saw the tree (LAYOUTOPT_EXPECT=site-packages, LAYOUTOPT_SOURCE=the folder it was built from).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, version
from pathlib import Path

import pytest

import layoutopt

ROOT = Path(os.environ.get("LAYOUTOPT_SOURCE", Path(__file__).resolve().parents[1]))
PACKAGE = Path(layoutopt.__file__).parent
ROOMS = ("costmodel", "hardware_profiles", "optimizer")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.tree
@pytest.mark.parametrize("room", ROOMS)
def test_the_rooms_are_linked_into_the_package(room: str) -> None:
    link = ROOT / "src" / "layoutopt" / room
    assert link.is_symlink(), (
        f"{link.relative_to(ROOT)} is no symbolic link. This checkout was made without them: on "
        "Windows clone inside WSL, or with `git clone -c core.symlinks=true`; an unpacked archive "
        f"needs `ln -s ../../{room} src/layoutopt/{room}`"
    )
    assert link.readlink() == Path("..", "..", room), "the link has to be relative"
    assert (link / "__init__.py").is_file(), f"{link} leads nowhere"


@pytest.mark.skipif("LAYOUTOPT_EXPECT" not in os.environ, reason="an installed wheel alone")
def test_the_installed_package_is_the_one_that_is_tested() -> None:
    assert os.environ["LAYOUTOPT_EXPECT"] in PACKAGE.parts
    assert not any((PACKAGE / room).is_symlink() for room in ROOMS)


@pytest.mark.skipif("LAYOUTOPT_EXPECT" not in os.environ, reason="an installed wheel alone")
def test_the_wheel_takes_no_other_name_in_site_packages() -> None:
    """A training repository often has an ``optimizer`` of its own."""
    files = distribution("layoutopt").files or []
    folders = {file.parts[0] for file in files if file.parts[0] != ".."}
    assert folders == {"layoutopt", f"layoutopt-{layoutopt.__version__}.dist-info"}


def shipped(folder: Path) -> set[str]:
    """Files below a folder, as text relative to it, without what Python leaves behind."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("room", ROOMS)
def test_every_file_of_a_room_is_installed(room: str) -> None:
    """YAML, JSON and JSON lines too: hatch obeys .gitignore, so a line there can lose them."""
    wanted = shipped(ROOT / room)
    assert wanted
    assert wanted - shipped(PACKAGE / room) == set()


def test_every_file_of_the_front_door_is_installed() -> None:
    wanted = {
        name
        for name in shipped(ROOT / "src" / "layoutopt")
        if not name.startswith(tuple(f"{room}/" for room in ROOMS))
    }
    assert {"py.typed", "__main__.py"} <= wanted
    assert wanted - shipped(PACKAGE) == set()


def test_there_is_data_to_lose() -> None:
    """Thirty-odd GPUs and instances, the models, the fitted figures."""
    names = [f"{room}/{name}" for room in ROOMS for name in shipped(PACKAGE / room)]
    data = [name for name in names if name.endswith((".yaml", ".json", ".jsonl"))]
    assert sum(name.startswith("hardware_profiles/data/gpus/") for name in data) >= 33
    assert sum(name.startswith("hardware_profiles/data/instances/") for name in data) >= 38
    assert any(name.startswith("costmodel/models/") for name in data)
    assert any(name.startswith("costmodel/data/") for name in data)


def test_one_version() -> None:
    assert layoutopt.__version__ == version("layoutopt") == PROJECT["project"]["version"]


def test_the_command_and_the_module_are_the_same() -> None:
    (entry,) = distribution("layoutopt").entry_points
    assert (entry.name, entry.value) == ("layoutopt", "layoutopt.__main__:main")
    command = [str(Path(sys.executable).parent / "layoutopt"), "--version"]
    module = [sys.executable, "-m", "layoutopt", "--version"]
    printed = {
        subprocess.run(way, capture_output=True, text=True, check=True).stdout
        for way in (command, module)
    }
    assert len(printed) == 1
    assert layoutopt.__version__ in printed.pop()


def test_heavy_packages_are_no_runtime_dependency() -> None:
    """Anything heavier is an extra."""
    names = {line.split(">=")[0].lower() for line in PROJECT["project"]["dependencies"]}
    assert names == {"ortools", "numpy", "scipy", "pydantic", "click", "rich", "pyyaml"}
