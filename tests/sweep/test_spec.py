"""Specs: values of axes, crossed and zipped, and how wrong ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layoutopt.errors import InputError
from layoutopt.sweep.points import points_of
from layoutopt.sweep.spec import load_spec, read_spec
from layoutopt.sweep.values import PerGpu, read_values
from tests.sweep.builders import points, spec_of


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ([64, 128], (64, 128)),
        ([64, 64, 8], (64, 8)),
        (64, (64,)),
        ({"range": [8, 30, 8]}, (8, 16, 24)),
        ({"range": ["1k", "1k", 1]}, (1000,)),
        ({"pow2": [64, 512]}, (64, 128, 256, 512)),
        ({"pow2": [65, 511]}, (128, 256)),
        ({"logspace": [1, 1000, 4]}, (1, 10, 100, 1000)),
        ({"logspace": [8, 800, 3], "multiple": 8}, (8, 80, 800)),
        ({"logspace": [8, 8, 1]}, (8,)),
    ],
)
def test_values_of_an_axis(given: Any, values: tuple[int, ...]) -> None:
    assert read_values(given, "gpus") == values


@pytest.mark.parametrize(
    "given",
    [
        [],
        {"range": [8, 16]},
        {"range": [16, 8, 1]},
        {"range": [8, 16, 0]},
        {"pow2": [65, 127]},
        {"pow3": [1, 9]},
        {"range": [1, 9, 1], "pow2": [1, 8]},
        {"range": [1, 9, 1], "multiple": 2},
        {"range": [1, 10**12, 1]},
        {"per_gpu": 0.5},
        [[1]],
        [None],
        {"pow2": [8, "x"]},
        {},
    ],
)
def test_bad_values_name_the_axis(given: Any) -> None:
    with pytest.raises(InputError, match="gpus"):
        read_values(given, "gpus")


def test_axes_are_crossed_and_zipped_lists_advance_together() -> None:
    spec = spec_of(
        axes={"gpus": [8, 16]},
        zip=[{"model": ["8B", "70B"], "seq-len": [4096, 8192]}],
        fixed={"precision": "bf16"},
    )
    assert [(v["gpus"], v["model"], v["seq_len"]) for v in spec.combinations()] == [
        (8, "8B", 4096),
        (8, "70B", 8192),
        (16, "8B", 4096),
        (16, "70B", 8192),
    ]
    assert spec.axes == ("gpus", "model", "seq_len")


def test_a_filter_keeps_what_it_holds_for() -> None:
    spec = spec_of(
        axes={"gpus": {"pow2": [8, 64]}, "model": ["8B", "70B"]},
        fixed={},
        filter="gpus >= 32 and model != '8B'",
    )
    assert [v["gpus"] for v in spec.combinations()] == [32, 64]


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"axs": {}}, "axs"),
        ({"axes": ["gpus"]}, "axes"),
        ({"axes": {"gpuss": [8]}}, "gpuss"),
        ({"axes": {"workers": [8]}}, "workers"),
        ({"axes": {"gpus": [8]}, "fixed": {"gpus": 8}}, "gpus"),
        ({"axes": {"fix.tp": [8]}, "fixed": {"fix": "pp=2"}}, "fix"),
        ({"zip": [{"gpus": [8, 16], "model": ["8B"]}]}, "gpus"),
        ({"zip": [{}]}, "zip"),
        ({"filter": "model == '8B'"}, None),
        ({"filter": "seq_len > 8"}, "filter"),
        ({"filter": 3}, "filter"),
        ({"axes": {f"fix.{a}": {"range": [1, 999, 1]} for a in ("tp", "pp", "dp")}}, "axes"),
    ],
)
def test_bad_specs_are_refused_by_name(keys: dict[str, Any], field: str | None) -> None:
    if field is None:
        assert points(**keys)
        return
    with pytest.raises(InputError) as caught:
        spec_of(**keys)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"gpus": [8, 0]}, "axis gpus: gpus 0 is below 1"),
        ({"gpus": [8], "gpu": ["h100", "h999"]}, "axis gpu: .*h999"),
        ({"gpus": [8], "precision": ["bf61"]}, "axis precision: .*bf61.*bf16"),
        ({"gpus": [8], "seq_len": ["1.5k5"]}, "axis seq_len: "),
        ({"gpus": [8], "objective": ["speed"]}, "axis objective: "),
        ({"gpus": [8], "fix.tp": ["two"]}, r"axis fix\.tp: "),
        ({"gpus": [9], "global_batch": {"per_gpu": 0.5}}, "axis global_batch: .*4.5"),
        ({"gpus": [8], "cluster": ["-"]}, "axis cluster: .*standard input"),
    ],
)
def test_values_are_refused_as_solve_does_naming_the_axis(axes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        points(axes=axes)


def test_a_filter_that_nothing_passes_is_refused() -> None:
    with pytest.raises(InputError, match="no point passes"):
        points(filter="gpus > 100")


def test_arithmetic_refuses_a_point_not_the_sweep() -> None:
    eight, ten = points(axes={"gpus": [8, 10], "fix.tp": [8]})
    assert eight.refused is None
    assert ten.refused is not None
    assert "does not divide the 10 GPUs" in ten.refused


def test_weak_scaling_gives_each_gpu_its_share() -> None:
    found = points(axes={"gpus": [8, 64], "global_batch": {"per_gpu": [0.5, 2]}})
    assert [point.options["global_batch"] for point in found] == [4, 16, 32, 128]
    assert {point.scaling for point in found} == {"weak"}
    assert {point.scaling for point in points()} == {"strong"}


def test_fix_of_a_point_is_that_of_solve() -> None:
    (point,) = points(axes={"gpus": [8], "fix.tp": [2]}, fixed={"model": "8B", "fix.pp": 2})
    assert point.options["fix"] == {"tp": 2, "pp": 2}


def test_the_same_question_is_one_point() -> None:
    spec = spec_of(axes={"gpus": [8, "8"], "model": ["8B", "llama-3.1-8b"]}, fixed={})
    found = points_of(spec)
    assert len(found.points) == 1
    assert found.twice == 3


def test_keys_follow_the_question_and_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = points(axes={"gpus": [8]})
    assert points(axes={"gpus": [8]}, fixed={"model": "8B", "time_limit": 5})[0].key == one.key
    assert points(axes={"gpus": [8]}, fixed={"model": "8B", "seq_len": 4096})[0].key != one.key
    assert points(axes={"gpus": [8]}, fixed={"model": "8B", "gpu": "b200"})[0].key != one.key
    monkeypatch.setattr("layoutopt.sweep.points.model_version", lambda: "another")
    assert points(axes={"gpus": [8]})[0].key != one.key


CLUSTER = "name: {name}\ngpu: h100\nnodes: 4\nusd_per_gpu_hour: {price}\n"


def test_files_are_read_once_and_travel_with_their_content(tmp_path: Path) -> None:
    for price in (2, 3):
        text = CLUSTER.format(name=f"c{price}", price=price)
        (tmp_path / f"c{price}.yaml").write_text(text)
    files = [str(tmp_path / f"c{price}.yaml") for price in (2, 3)]
    found = points(axes={"cluster": files, "gpus": [8, 16]})
    prices = [point.options["cluster"].usd_per_gpu_hour for point in found]
    assert prices == [2, 2, 3, 3]
    assert found[0].options["cluster"] is found[1].options["cluster"]
    assert len({point.key for point in found}) == 4


def test_settings_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("axes: {gpus: [8]}\nfixed: {model: 8B, gpu: h100}\n")
    spec = load_spec(file, ["gpus=16,32", "gpu=b200"])
    assert [(v["gpus"], v["gpu"]) for v in spec.combinations()] == [("16", "b200"), ("32", "b200")]
    alone = load_spec(None, ["model=8B", "seq-len=4k,8k"])
    assert [v["seq_len"] for v in alone.combinations()] == ["4k", "8k"]


@pytest.mark.parametrize("setting", ["gpus", "gpus=", "=8", "frob=3"])
def test_bad_settings_are_refused(setting: str) -> None:
    with pytest.raises(InputError):
        load_spec(None, [setting])


def test_no_spec_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="sweep is missing"):
        load_spec(None)


def test_a_spec_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    for text in ("axes: [", "axes: {gpus: [8]}\naxes: {gpus: [16]}\n", "[1]", ""):
        file.write_text(text)
        with pytest.raises(InputError, match=r"spec\.yaml"):
            load_spec(file)
    with pytest.raises(InputError, match="cannot be read"):
        load_spec(tmp_path / "none.yaml")


def test_a_batch_per_gpu_needs_gpus() -> None:
    with pytest.raises(InputError, match="needs gpus"):
        points(axes={"global_batch": {"per_gpu": 1}}, fixed={"model": "8B"})
    assert PerGpu(0.5).batch(64) == 32
    assert read_spec({"axes": {"gpus": [8]}, "fixed": {"global_batch": {"per_gpu": 1}}}).fixed == {
        "global_batch": PerGpu(1)
    }
