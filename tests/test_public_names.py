"""The public surface: listed once, true, documented, typed."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import version

import pytest

import layoutopt
from layoutopt.inputs.options import ESTIMATE_OPTIONS, SOLVE_OPTIONS
from tests.cli.schemas import schema

PUBLIC = {
    "Answer",
    "Cluster",
    "InputError",
    "InternalError",
    "Layout",
    "LayoutoptError",
    "Model",
    "ProfileError",
    "RuleError",
    "ToolError",
    "__version__",
    "estimate",
    "simulate",
    "solve",
    "validate",
}


def test_the_list_is_what_we_promise() -> None:
    assert set(layoutopt.__all__) == PUBLIC
    assert list(layoutopt.__all__) == sorted(layoutopt.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_name_is_there_and_documented(name: str) -> None:
    value = getattr(layoutopt, name)
    assert name in dir(layoutopt)
    if name != "__version__":
        assert inspect.getdoc(value)


def test_the_version_is_the_installed_one() -> None:
    assert layoutopt.__version__ == version("layoutopt")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="frobnicate"):
        layoutopt.frobnicate  # noqa: B018


def test_each_name_loads_alone() -> None:
    """A lazy name that needs another to be loaded first would fail in a fresh process."""
    code = "import sys, layoutopt; getattr(layoutopt, sys.argv[1])"
    for name in ("Answer", "Cluster", "Layout", "Model", "solve"):
        subprocess.run([sys.executable, "-c", code, name], check=True, timeout=60)


def test_the_package_says_that_it_is_typed() -> None:
    from importlib.resources import files

    assert files("layoutopt").joinpath("py.typed").is_file()


def test_errors_carry_what_the_contract_names() -> None:
    with pytest.raises(layoutopt.InputError) as caught:
        layoutopt.estimate(model="8B", gpus=0, layout="tp=1")
    error = caught.value
    assert (error.field, error.value, error.nearest) == ("gpus", 0, (1,))
    assert error.exit_code == 2


def test_python_answers_like_the_command() -> None:
    answer = layoutopt.estimate(
        model="llama-3.1-8b", gpus=64, layout={"tp": 1, "recompute": "full", "zero_stage": 3}
    )
    assert answer.status == "given"
    assert answer.step is not None
    assert answer.to_dict()["step"]["time_s"] == answer.step.time_s
    assert answer.exit_code == (0 if answer.memory is not None and answer.memory.fits else 3)


def test_the_request_schema_has_every_option() -> None:
    described = set(schema("request")["properties"])
    assert described == set(SOLVE_OPTIONS) | set(ESTIMATE_OPTIONS)
