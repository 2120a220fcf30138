"""What a GPU gets of its host: the link to host memory, a share of it and of its bandwidth."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from layoutopt.hardware_profiles import reading
from layoutopt.hardware_profiles.reading import Fields
from layoutopt.hardware_profiles.schema import Cluster, Gpu, Host

_PATH = Path(__file__).parent / "data" / "hosts.yaml"
_OTHER = "other"


def host_of(cluster: Cluster) -> Host:
    """The cluster's own figures, else those of the usual server around its GPU."""
    return cluster.host or usual_host(cluster.gpu)


def usual_host(gpu: Gpu) -> Host:
    """The host of a GPU's usual server, from data/hosts.yaml."""
    for architecture, rack_scale, host in _usual():
        known = architecture in (gpu.architecture, _OTHER)
        if known and (gpu.rack_scale or not rack_scale):
            return host
    raise LookupError(f"{_PATH.name} has no row {_OTHER}")


@lru_cache(maxsize=1)
def _usual() -> tuple[tuple[str, bool, Host], ...]:
    data = reading.parse_yaml(_PATH.read_text(encoding="utf-8"), _PATH.name)
    fields = Fields(data, _PATH.name, must_have_source=True)
    found = []
    for row in fields.items("hosts"):
        architecture = row.text("architecture", required=True) or ""
        rack_scale = bool(row.take("rack_scale"))
        found.append((architecture, rack_scale, read_host(row)))
    fields.done()
    return tuple(found)


def read_host(fields: Fields) -> Host:
    """``link`` (to host memory, one direction), ``memory``, ``memory_bandwidth``: per GPU."""
    host = Host.model_validate(
        {
            "link_bytes_per_s_one_way": fields.figure("link", reading.ADAPTER, required=True),
            "memory_bytes": fields.figure("memory", reading.BYTES, required=True),
            "memory_bytes_per_s": fields.figure(
                "memory_bandwidth", reading.MEMORY_BANDWIDTH, required=True
            ),
        }
    )
    fields.done()
    return host
