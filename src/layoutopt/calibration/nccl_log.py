"""Link rates from nccl-tests' text output (all_reduce_perf, all_gather_perf, ...).

    #  Rank  0 Group  0 Pid  12 on node1 device  0 [0x1b] NVIDIA H100 80GB HBM3
    #       size     count   type  redop  root   time   algbw   busbw #wrong  time  algbw  busbw ...
      8589934592 2147483648 float    sum    -1  34565  248.51  434.90      0 34570 248.48 434.84 0

Bus bandwidth is what the busiest link of a ring carries (nccl-tests, doc/PERFORMANCE.md). In one
server that is a GPU's scale-up link; over several servers, where as many rings run as a server has
GPUs, it is that many network adapters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from layoutopt.costmodel.efficiency import efficiency_of
from layoutopt.costmodel.job import Job
from layoutopt.errors import InputError
from layoutopt.hardware_profiles.catalog import find_gpu
from layoutopt.units import GB, MIB

SMALLEST = 64 * MIB
"""Largest message that a log has at least: below it latency decides, not the rate."""

_RANK = re.compile(r"#\s+Rank\s+\d+\s+.*?\bon\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s+(.+?)\s*$")
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_ROW = re.compile(
    rf"^\s*(\d+)\s+\d+\s+\S+\s+\S+\s+-?\d+\s+{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\s+\S+"
    rf"(?:\s+{_NUMBER}\s+{_NUMBER}\s+{_NUMBER})?"
)


@dataclass(frozen=True)
class LinkRate:
    """What a collective reached with its largest message."""

    name: str
    gpu: str
    """As the driver names it."""
    ranks: int
    hosts: int
    bus_bytes_per_s: float

    def rate_factor(self, job: Job) -> float:
        """The link's rate over that of the shipped figures, for ``job``'s cluster and framework."""
        shipped = efficiency_of(job.cluster.gpu.architecture)
        inner, outer = job.cluster.levels[0], job.cluster.levels[-1]
        if self.hosts == 1:
            return self.bus_bytes_per_s / (inner.usable_bytes_per_s * shipped.scaleup)
        per_adapter = self.bus_bytes_per_s / (self.ranks / self.hosts)
        return per_adapter / (outer.usable_bytes_per_s * shipped.scaleout)


def is_nccl_log(path: str | Path) -> bool:
    """Whether the start of a file has nccl-tests' column headings."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return "busbw" in file.read(2**20)
    except OSError:
        return False


def link_rate(path: str | Path) -> LinkRate:
    """The bus bandwidth at the largest message; raises InputError that says what is missing."""
    ranks: list[tuple[str, str]] = []
    largest, busbw = 0, 0.0
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if found := _RANK.search(line):
                ranks.append((found[1], found[2]))
            elif found := _ROW.search(line):
                size = int(found[1])
                best = max(float(found[4]), float(found[7] or 0))
                if size >= largest:
                    largest, busbw = size, max(best, busbw if size == largest else 0.0)
    name = Path(path).name
    if not ranks:
        raise InputError(
            f"{path}: no line says which GPU a rank ran on (# Rank 0 ... on HOST device 0 ...)",
            field="records",
            value=str(path),
        )
    if largest < SMALLEST or busbw <= 0:
        raise InputError(
            f"{path}: the largest message has {largest:,} bytes; {SMALLEST:,} or more are needed "
            "for a rate (all_reduce_perf -b 8 -e 8G -f 2)",
            field="records",
            value=largest,
            nearest=(SMALLEST,),
        )
    hosts = len({host for host, _ in ranks})
    return LinkRate(name, ranks[0][1], len(ranks), hosts, busbw * GB)


def refuse_other_gpu(rate: LinkRate, job: Job) -> None:
    """Raises InputError where the log is of another GPU type than the runs, or of one GPU."""
    found, _ = find_gpu(rate.gpu)
    if found.name != job.cluster.gpu.name:
        raise InputError(
            f"{rate.name} ran on {found.name}, but the runs on {job.cluster.gpu.name}",
            field="records",
            value=found.name,
            nearest=(job.cluster.gpu.name,),
        )
    if rate.ranks < 2:
        raise InputError(
            f"{rate.name} ran on one GPU: there is no link in it", field="records", value=rate.ranks
        )
