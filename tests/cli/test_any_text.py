"""Whatever text stands in an option: an answer or exit 2, never a fault of ours."""

from __future__ import annotations

import contextlib
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.cli.main import run as run_command
from layoutopt.errors import InputError
from layoutopt.inputs.layout_text import LAYOUT_KEYS
from layoutopt.inputs.options import JOB_OPTIONS, SOLVE_OPTIONS
from layoutopt.inputs.request import read_solve

NUMBERS = st.one_of(
    st.integers(-5, 10**20).map(str),
    st.floats().map(str),
    st.tuples(st.integers(0, 999), st.sampled_from(["k", "M", "Mi", "T", "G", "e9", "."])).map(
        lambda pair: f"{pair[0]}{pair[1]}"
    ),
)
WORDS = st.one_of(
    NUMBERS, st.text(max_size=12), st.sampled_from(["-", "", "8", "full", "{}", "[]"])
)
KEYS = st.sampled_from([*LAYOUT_KEYS, "x"])
LAYOUTS = st.one_of(
    WORDS,
    st.lists(st.tuples(KEYS, WORDS), max_size=4).map(
        lambda pairs: ",".join(f"{key}={word}" for key, word in pairs)
    ),
    st.dictionaries(
        KEYS, st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    ).map(json.dumps),
    st.dictionaries(KEYS, st.sampled_from([1, 2, 4, 8, 16, True, None])).map(json.dumps),
)
OPTIONS = [f"--{name.replace('_', '-')}" for name in JOB_OPTIONS]
GIVEN = {"--model": "llama-3.1-8b", "--gpus": "64", "--layout": "tp=1"}


def _run(options: dict[str, str]) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    words = [word for option, value in options.items() for word in (option, value)]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(["estimate", *words, "--json"])
    json.loads(out.getvalue(), parse_constant=_refuse)
    return code, err.getvalue()


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} in the output")


@given(option=st.sampled_from(OPTIONS), value=WORDS)
@settings(max_examples=300, deadline=None)
def test_any_text_in_any_option(option: str, value: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO(""))
        code, err = _run({**GIVEN, option: value})
    assert code in (0, 2, 3), err


@given(layout=LAYOUTS, gpus=st.sampled_from(["1", "64", "96", "16384", "10000000"]))
@settings(max_examples=300, deadline=None)
def test_any_text_as_a_layout(layout: str, gpus: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO(""))
        code, err = _run({**GIVEN, "--gpus": gpus, "--layout": layout})
    assert code in (0, 2, 3), err


@given(option=st.sampled_from(SOLVE_OPTIONS), value=st.one_of(WORDS, LAYOUTS))
@settings(max_examples=300, deadline=None)
def test_any_text_in_a_question(option: str, value: str) -> None:
    options = {"model": "llama-3.1-8b", "gpus": "64", option: value}
    with contextlib.suppress(InputError):
        request = read_solve(options, io.StringIO(""))
        json.dumps(request.to_dict(), allow_nan=False)
