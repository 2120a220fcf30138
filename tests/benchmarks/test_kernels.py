"""Kernel benchmark: sizes and factors by hand; what measures needs torch (a CPU will do)."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.kernels import Kernel, Timed, factors, jobs, kernels, measure, site_of, table
from layoutopt.calibration.site import load_site
from layoutopt.errors import InputError

JOBS = jobs("h100", "generic")


def timed(scale: float, streams: float = 1.0) -> list[Timed]:
    return [
        Timed(one, one.predicted_s * (streams if one.kind == "stream" else scale))
        for one in kernels(JOBS[0])
    ]


def test_products_of_llama_8b() -> None:
    found = [one for one in kernels(JOBS[0]) if one.kind == "gemm"]
    # Llama 3.1 8B: hidden 4096, 32 + 2 x 8 heads of 128, ffn 14336, two products up.
    assert found[0].sizes == (8192, 4096, 6144)
    assert found[0].flops == 2 * 8192 * 4096 * 6144
    assert found[2].sizes == (4096, 8192, 6144)
    assert {one.sizes for one in found} >= {(8192, 4096, 2 * 14336 // 8), (8192, 14336 // 8, 4096)}
    assert len(found) == 4 * 4 * 3


def test_attention_counts_causal_flops() -> None:
    forward, backward = [one for one in kernels(JOBS[0]) if one.kind == "attention"][:2]
    assert forward.flops == pytest.approx(2 * 32 * 8192 * 8192 * 128, rel=1e-3)
    assert backward.flops == 2.5 * forward.flops


def test_factors_of_kernels_as_predicted_are_one() -> None:
    found = factors(timed(1.0))
    assert (found.compute_time, found.memory_rate) == (1.0, 1.0)


def test_factors_of_slower_kernels() -> None:
    # compute_time slows streaming kernels too, so their rate is taken relative to it.
    found = factors(timed(1.25, streams=2.5))
    assert found.compute_time == pytest.approx(1.25)
    assert found.memory_rate == pytest.approx(0.5)


def test_another_gpu_is_refused() -> None:
    with pytest.raises(InputError, match=r"kernel time is 7 times .* is this the GPU"):
        factors(timed(7.0))


def test_file_is_a_calibration(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(site_of(JOBS[0], timed(1.1), "a card").text())
    site = load_site(path)
    assert site.factors.compute_time == pytest.approx(1.1)
    assert site.applies_to(JOBS[0])
    before = kernels(JOBS[0])[0].predicted_s
    assert kernels(site.apply(JOBS[0]))[0].predicted_s > before


def test_table_has_a_line_a_kernel() -> None:
    lines = table(timed(2.0)).splitlines()
    assert len(lines) == 1 + len(kernels(JOBS[0]))
    assert lines[1].endswith("-50%")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_every_kind_runs_on_a_cpu() -> None:
    small = [
        Kernel("gemm", "forward", (16, 8, 4), 1.0, 1.0, 1.0),
        Kernel("attention", "forward", (2, 16, 8), 1.0, 1.0, 1.0),
        Kernel("attention", "backward", (2, 16, 8), 1.0, 1.0, 1.0),
        Kernel("stream", "rms_norm", (4, 8), 0.0, 1.0, 1.0),
        Kernel("stream", "copy", (4, 8), 0.0, 1.0, 1.0),
    ]
    found = measure(small, "cpu", 3)
    assert [replace(one.kernel) for one in found] == small
    assert all(one.seconds > 0 for one in found)
