"""Link rates out of nccl-tests' text output, and what a fit makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from layoutopt.calibration import Factors, calibrate
from layoutopt.calibration.nccl_log import is_nccl_log, link_rate
from layoutopt.costmodel.efficiency import efficiency_of
from layoutopt.errors import InputError
from layoutopt.units import GB
from layoutopt.validation.cases import case_of
from tests.calibration.test_fit import site_rows
from tests.validation.builders import record, row, write

A100 = "NVIDIA A100-SXM4-80GB"
ROWS = ((1 << 20, 50.0, 55.0), (1 << 30, 228.0, 231.0), (8 << 30, 234.0, 233.5))
"""Bytes, bus bandwidth out of place and in place, GB/s."""


def log(
    path: Path,
    rows: Sequence[tuple[int, float, float]] = ROWS,
    hosts: int = 1,
    ranks: int = 8,
    gpu: str = A100,
) -> Path:
    """What all_reduce_perf prints."""
    lines = ["# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor)", "#"]
    for rank in range(ranks):
        host, device = f"node{rank * hosts // ranks}", rank % 8
        lines.append(
            f"#  Rank {rank:2} Group  0 Pid {400 + rank} on {host:>8} device {device:2} "
            f"[0000:0{device}:00] {gpu}"
        )
    lines.append("#       size    count  type redop root  time  algbw  busbw #wrong  time  algbw")
    for size, out, inside in rows:
        lines.append(
            f"{size:12} {size // 4:12}     float     sum      -1   98765.4   133.7   {out:.2f}"
            f"      0   98760.1   133.4   {inside:.2f}      0"
        )
    lines.append("# Avg bus bandwidth    : 171.3")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_largest_message_counts(tmp_path: Path) -> None:
    path = log(tmp_path / "ar.txt")
    rate = link_rate(path)
    assert is_nccl_log(path)
    assert (rate.ranks, rate.hosts, rate.gpu) == (8, 1, A100)
    assert rate.bus_bytes_per_s == 234.0 * GB


def test_one_server_measures_the_scale_up_link(tmp_path: Path) -> None:
    """An A100's link carries 300 GB/s one way: 234 are 0.78 of it."""
    job = case_of(record(tmp_path, row())).job
    factor = link_rate(log(tmp_path / "ar.txt")).rate_factor(job)
    assert factor == pytest.approx(0.78 / efficiency_of("ampere").scaleup)


def test_several_servers_measure_the_network(tmp_path: Path) -> None:
    """150 GB/s over 8 adapters a server: 18.75 GB/s each, of 25."""
    job = case_of(record(tmp_path, row())).job
    rows = [(8 << 30, 150.0, 149.0)]
    factor = link_rate(log(tmp_path / "ar.txt", rows, hosts=2, ranks=16)).rate_factor(job)
    assert factor == pytest.approx(0.75 / efficiency_of("ampere").scaleout)


def test_a_fit_takes_the_link_from_the_log(tmp_path: Path) -> None:
    """Runs as shipped, and a log that finds the links 20% slower: the factor follows the log."""
    runs = write(tmp_path / "runs.jsonl", *site_rows(tmp_path, Factors(scaleup_rate=0.8), 4))
    reached = 300 * efficiency_of("ampere").scaleup * 0.8
    with_log = calibrate([runs, log(tmp_path / "ar.txt", [(8 << 30, reached, reached)])])
    assert with_log.site.factors.scaleup_rate == pytest.approx(0.8, abs=0.02)
    alone = calibrate([runs]).site.factors.scaleup_rate
    assert abs(with_log.site.factors.scaleup_rate - 0.8) <= abs(alone - 0.8) + 1e-3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": ROWS[:1]}, "largest message has 1,048,576 bytes"),
        ({"ranks": 0}, "no line says which GPU"),
    ],
)
def test_what_a_log_lacks_is_said(tmp_path: Path, changes: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        link_rate(log(tmp_path / "ar.txt", **changes))  # type: ignore[arg-type]


def test_another_gpus_log_is_refused(tmp_path: Path) -> None:
    runs = write(tmp_path / "runs.jsonl", *site_rows(tmp_path, Factors(), 3))
    foreign = log(tmp_path / "ar.txt", gpu="NVIDIA H100 80GB HBM3")
    with pytest.raises(InputError, match=r"ar\.txt ran on h100-sxm-80gb, but the runs on a100"):
        calibrate([runs, foreign])
