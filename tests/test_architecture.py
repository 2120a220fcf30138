"""The arrows between rooms point down; only the optimizer knows the solver; nothing below prints.

The budgets of the code stand here too: lines of a file, lines of a function.
"""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FRONT_DOOR = "src/layoutopt"
LEAVES = {"errors", "units", "nearest"}
"""Modules of src/layoutopt that every room may import and that import no room."""
MAY_IMPORT = {
    "hardware_profiles": {"hardware_profiles"} | LEAVES,
    "costmodel": {"costmodel", "hardware_profiles"} | LEAVES,
    "optimizer": {"optimizer", "costmodel", "hardware_profiles"} | LEAVES,
}
SOLVER = "optimizer/cp_sat.py"
"""The one file that imports ortools; nothing imports it but inside functions."""
MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 60
MOST_MEDIAN_FUNCTION_LINES = 10
MOST_MEDIAN_FILE_LINES = 150


def _files(room: str) -> list[Path]:
    """A room's Python files; the front door without the links to the other rooms."""
    root = ROOT / room
    found = sorted(path for path in root.rglob("*.py") if "__pycache__" not in path.parts)
    if room != FRONT_DOOR:
        return found
    return [path for path in found if path.relative_to(root).parts[0] not in MAY_IMPORT]


ROOM_FILES = [path for room in MAY_IMPORT for path in _files(room)]
PRODUCT_FILES = [*ROOM_FILES, *_files(FRONT_DOOR)]


@lru_cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of everything imported anywhere below ``tree``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _rooms_imported(path: Path) -> set[str]:
    names = (name.split(".") for name in _imports(_tree(path)))
    return {parts[1] for parts in names if parts[0] == "layoutopt" and len(parts) > 1}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_down(room: str) -> None:
    assert _files(room)
    for path in _files(room):
        strays = _rooms_imported(path) - MAY_IMPORT[room]
        assert not strays, f"{_name(path)} imports {sorted(strays)}"


@pytest.mark.parametrize("leaf", sorted(LEAVES))
def test_leaves_import_no_room(leaf: str) -> None:
    path = ROOT / FRONT_DOOR / f"{leaf}.py"
    assert _rooms_imported(path) <= LEAVES


def test_the_rooms_are_links_to_the_top_level() -> None:
    """A checkout without symbolic links (Windows without developer mode) does not work."""
    for room in MAY_IMPORT:
        link = ROOT / FRONT_DOOR / room
        assert link.is_symlink(), f"{link} has to be a link to ../../{room}"
        assert link.resolve() == ROOT / room


def _packages(names: Iterator[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def _top_level_imports(path: Path) -> set[str]:
    """Packages that importing ``path`` imports at once: not those inside functions."""
    return _packages(iter(_imports_at_once(path)))


def _imports_at_work(path: Path) -> Iterator[str]:
    """Dotted names of what ``path`` imports at any time, but for types alone."""
    typing = {
        child
        for node in ast.walk(_tree(path))
        if _is_type_checking(node)
        for child in ast.walk(node)
    }
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in typing:
            yield from _imports(node)


def _imports_at_once(path: Path) -> set[str]:
    """Dotted names of what importing ``path`` imports at once."""
    late = {
        child
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_type_checking(node)
        for child in ast.walk(node)
    }
    at_once = (
        node
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in late
    )
    return {name for node in at_once for name in _imports(node)}


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def test_only_the_optimizer_knows_the_solver() -> None:
    knows = {path for path in PRODUCT_FILES if "ortools" in _packages(_imports(_tree(path)))}
    strays = [_name(path) for path in knows if ROOT / "optimizer" not in path.parents]
    assert not strays
    assert knows


@pytest.mark.parametrize("package", ["ortools", "scipy"])
def test_heavy_packages_are_loaded_late(package: str) -> None:
    early = {_name(path) for path in PRODUCT_FILES if package in _top_level_imports(path)}
    assert early <= {SOLVER}


def test_the_solver_is_loaded_in_one_place_and_late() -> None:
    """All else takes it from there, inside functions; types aside."""
    for path in PRODUCT_FILES:
        if _name(path) != SOLVER:
            assert "ortools" not in _packages(_imports_at_work(path)), _name(path)
            assert "layoutopt.optimizer.cp_sat.cp_model" not in _imports_at_once(path), _name(path)


def test_nothing_below_the_front_door_prints() -> None:
    printing = {"print", "click.echo", "sys.stdout.write", "sys.stderr.write"}
    for path in ROOM_FILES:
        nodes = list(ast.walk(_tree(path)))
        called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        assert not called & printing, _name(path)
        assert not {"click", "rich"} & _packages(_imports(_tree(path))), _name(path)


def test_nothing_is_checked_by_assert() -> None:
    """``python -O`` drops asserts."""
    asserts = {
        f"{_name(path)}:{node.lineno}"
        for path in PRODUCT_FILES
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Assert)
    }
    assert not asserts


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    """(name, lines of its body without the docstring) of each function."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            yield node.name, lines


def test_files_and_functions_stay_short() -> None:
    lengths = {_name(path): len(path.read_text("utf-8").splitlines()) for path in PRODUCT_FILES}
    assert not {name: n for name, n in lengths.items() if n > MOST_FILE_LINES}
    functions = {
        f"{_name(path)}:{name}": lines for path in PRODUCT_FILES for name, lines in _functions(path)
    }
    assert not {name: n for name, n in functions.items() if n > MOST_FUNCTION_LINES}


def test_the_usual_file_and_function_are_short() -> None:
    functions = [length for path in PRODUCT_FILES for _, length in _functions(path)]
    assert statistics.median(functions) <= MOST_MEDIAN_FUNCTION_LINES
    files = [len(path.read_text("utf-8").splitlines()) for path in PRODUCT_FILES]
    assert statistics.median(files) <= MOST_MEDIAN_FILE_LINES


def test_public_names_are_documented() -> None:
    bare = [
        f"{_name(path)}:{getattr(node, 'name', 'module')}"
        for path in PRODUCT_FILES
        for node in (_tree(path), *_tree(path).body)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and not getattr(node, "name", "").startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not bare


def test_the_product_names_no_place_of_ours() -> None:
    """What ships works on any machine: no absolute paths into somebody's checkout."""
    for path in PRODUCT_FILES:
        text = path.read_text("utf-8")
        assert not [place for place in ("/home/", "/root/", "../shared") if place in text], path
