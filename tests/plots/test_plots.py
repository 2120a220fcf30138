"""Pictures: what they show, in which words, and what they refuse."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from layoutopt.errors import InputError, ToolError
from layoutopt.plots.draw import KINDS, draw
from layoutopt.plots.pareto import MOST_LABELS, front_of, knees
from layoutopt.plots.series import Sweep, sweep_of
from layoutopt.plots.style import COLORS
from tests.cli.conftest import Run
from tests.cli.conftest import run as run
from tests.plots.builders import GRID, read, stored

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: bytes) -> list[str]:
    """Every piece of text of an SVG file."""
    tree = ElementTree.fromstring(picture)
    return ["".join(node.itertext()).strip() for node in tree.iter(f"{SVG}text")]


BANDS = {
    "scaling": "band: 80%",
    "mfu": "band: 80%",
    "pareto": "bars: 80%",
    "memory": "usable",
    "breakdown": "±",
}
WORDS: dict[str, set[str]] = {
    "scaling": {"GPUs", "days of the run", "h100-sxm-80gb", "b200-sxm-180gb", "64", "4,096"},
    "mfu": {"GPUs", "MFU, per cent of the dense peak", "h100-sxm-80gb"},
    "pareto": {"days of the run", "cost of the run, US dollars", "front"},
    "memory": {"GPUs", "GiB on a GPU of the worst stage", "usable", "activations", "reserve"},
    "breakdown": {"GPUs", "per cent of a step", "compute", "the pipeline bubble"},
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Two GPU types in four sizes, the largest of which fit nothing."""
    return read(stored(tmp_path_factory.mktemp("sizes")))


@pytest.mark.parametrize("kind", WORDS)
def test_axes_have_units_and_curves_have_names(kind: str, sweep: Sweep) -> None:
    found = texts(draw(sweep, kind, "svg"))
    assert WORDS[kind] <= set(found)
    assert any("8,192 tokens a sequence" in text for text in found)
    assert any(BANDS[kind] in text for text in found)


def test_the_heat_map_shows_days_by_tp_and_pp(tmp_path: Path) -> None:
    sweep = read(stored(tmp_path, axes=GRID))
    found = texts(draw(sweep, "heatmap", "svg"))
    assert {"tensor parallel degree, tp", "pipeline stages, pp", "64 GPUs", "128 GPUs"} <= set(
        found
    )
    days = [f"{row['wall_days']:.3g}" for row in sweep.rows]
    assert len(days) == 12
    assert set(days) <= set(found)


def test_the_same_rows_are_the_same_file(sweep: Sweep) -> None:
    assert draw(sweep, "scaling", "svg") == draw(sweep, "scaling", "svg")


@pytest.mark.parametrize(("file_format", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_other_formats(file_format: str, start: bytes, sweep: Sweep) -> None:
    assert draw(sweep, "mfu", file_format).startswith(start)


def test_what_varies_names_the_curves(tmp_path: Path) -> None:
    """The run's tokens follow from the model, the cluster from the GPU: they tell nothing apart."""
    axes = {"model": ["8B", "70B"], "gpu": ["h100", "b200"], "gpus": [64, 128]}
    sweep = read(stored(tmp_path, axes=axes, fixed={"global_batch": 1024}))
    assert [one.label for one in sweep.series] == [
        "llama-3.1-8b, h100-sxm-80gb",
        "llama-3.1-8b, b200-sxm-180gb",
        "llama-3.1-70b, h100-sxm-80gb",
        "llama-3.1-70b, b200-sxm-180gb",
    ]
    assert "batch 1,024" in sweep.title
    assert "strong scaling" in sweep.title


def test_batches_of_one_cluster_are_curves(tmp_path: Path) -> None:
    axes = {"gpus": [64, 128], "global_batch": [512, 1024]}
    assert [one.label for one in read(stored(tmp_path, axes=axes)).series] == [
        "batch 512",
        "batch 1,024",
    ]


def test_an_option_without_a_column_tells_curves_apart_too(tmp_path: Path) -> None:
    found = read(stored(tmp_path, axes={"gpus": [64, 128], "mtbf": ["3h", "30h"]}))
    assert [one.label for one in found.series] == ["mtbf 3h", "mtbf 30h"]


def test_weak_scaling_is_said(tmp_path: Path) -> None:
    axes = {"gpus": [64, 128], "global_batch": {"per_gpu": 4}}
    sweep = read(stored(tmp_path, axes=axes))
    assert len(sweep.series) == 1
    assert "weak scaling" in sweep.title


def test_points_without_a_layout_are_marked(sweep: Sweep) -> None:
    assert [[row["gpus"] for row in one.misses] for one in sweep.series] == [[4096], [4096]]
    assert any("x: no layout" in text for text in texts(draw(sweep, "scaling", "svg")))


def test_many_curves_go_into_panels_and_too_many_are_refused(tmp_path: Path) -> None:
    axes: dict[str, Any] = {"model": ["8B", "70B"], "gpus": [64, 128]}
    sizes = [2048 * n for n in range(1, 6)]
    sweep = read(stored(tmp_path / "a", axes={**axes, "seq_len": sizes}, fixed={}))
    assert {"llama-3.1-8b", "llama-3.1-70b", "2,048 tokens a sequence"} <= set(
        texts(draw(sweep, "scaling", "svg"))
    )
    more = [512 * n for n in range(1, 30)]
    sweep = read(stored(tmp_path / "b", axes={**axes, "seq_len": more}, fixed={}))
    for kind in ("scaling", "memory"):
        with pytest.raises(InputError, match="--filter"):
            draw(sweep, kind, "svg")


def row(days: float, dollars: float) -> dict[str, Any]:
    return {"wall_days": days, "cost_usd": dollars}


def test_the_front_is_what_nothing_beats() -> None:
    """(2, 6) is beaten by (1, 5); of (3, 4) and (3, 3) the cheaper is left."""
    rows = [row(4, 1), row(2, 6), row(1, 5), row(3, 4), row(3, 3)]
    assert front_of(rows) == [row(1, 5), row(3, 3), row(4, 1)]


def test_knees_are_the_ends_and_the_sharpest_bends() -> None:
    """On logarithmic scales (2^n, 2^-n) is straight; 4 and 64 days are pushed off the line."""
    straight = [row(2.0**n, 2.0**-n) for n in range(12)]
    assert len(knees(straight)) == MOST_LABELS
    straight[2], straight[6] = row(4, 0.16), row(64, 0.01)
    found = [one["wall_days"] for one in knees(straight)]
    assert {1.0, 4.0, 64.0, 2048.0} <= set(found)
    assert found == sorted(found)


def test_a_heat_map_of_ordinary_answers_is_refused(sweep: Sweep) -> None:
    with pytest.raises(InputError, match=r"sweep fix\.tp and fix\.pp"):
        draw(sweep, "heatmap", "svg")


def test_unpriced_machines_have_no_pareto_plot(sweep: Sweep) -> None:
    bare = sweep_of([{**one, "cost_usd": None} for one in sweep.rows])
    with pytest.raises(InputError, match="usd_per_gpu_hour"):
        draw(bare, "pareto", "svg")


def test_nothing_to_show_is_refused() -> None:
    with pytest.raises(InputError, match="nothing to show"):
        sweep_of([])


DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                [-0.011820, 0.042940, 0.968881]]  # fmt: skip
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
              [-0.003882, -0.048116, 1.051998]]  # fmt: skip
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


@pytest.mark.parametrize("seen", [np.eye(3), DEUTERANOPIA, PROTANOPIA])
def test_colour_blind_people_tell_the_curves_apart(seen: Any) -> None:
    """Simulated after Machado et al. 2009 (severity 1), compared in CIE Lab: 2.3 can just be told
    apart, a few times that at a glance."""
    places = [_lab(color, np.array(seen)) for color in COLORS]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(places, 2)) > 7


def _lab(color: str, seen: Any) -> Any:
    rgb = np.array([int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array(TO_XYZ) @ np.clip(seen @ linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_command(run: Run, tmp_path: Path) -> None:
    stored(tmp_path)
    out = tmp_path / "x.svg"
    ran = run("plot", str(tmp_path), "--out", str(out), "--filter", "gpu == 'h100-sxm-80gb'")
    assert (ran.code, ran.out) == (0, f"written: {out}\n")
    assert "b200-sxm-180gb" not in texts(out.read_bytes())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "results are missing"),
        (["R"], "--out is missing"),
        (["R", "--out", "x.gif"], r"\.svg"),
        (["R", "--out", "x.svg", "--kind", "scalling"], "scaling"),
        (["R", "--out", "x.svg", "--filter", "gpuz == 1"], "gpus"),
        (["R", "--out", "x.svg", "--filter", "gpus == 1"], "nothing to show"),
        (["R/none", "--out", "x.svg"], r"results\.sqlite"),
    ],
)
def test_what_the_command_refuses(
    run: Run, tmp_path: Path, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "R")
    ran = run("plot", *arguments)
    assert ran.code == 2
    assert re.search(words, ran.err), ran.err
    assert not (tmp_path / "x.svg").exists()


def test_without_matplotlib_it_says_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    ran = run("plot", str(tmp_path), "--out", str(tmp_path / "x.svg"))
    assert ran.code == ToolError.exit_code
    assert "layoutopt[plot]" in ran.err


def test_every_kind_is_tested() -> None:
    assert set(KINDS) == {*WORDS, "heatmap"}
