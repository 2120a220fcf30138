"""What a cluster is taken to be where nobody says: levels, storage, failures, price, power."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from layoutopt.hardware_profiles import reading
from layoutopt.hardware_profiles.reading import Fields
from layoutopt.hardware_profiles.schema import Figure, Filled, Gpu, Level, Storage

_PATH = Path(__file__).parent / "data" / "defaults.yaml"


@dataclass(frozen=True)
class Defaults:
    """The figures of data/defaults.yaml, in SI units, and where each is from."""

    latency_s: dict[str, float]
    scaleout_bytes_per_s: float
    storage: Storage
    failures_per_gpu_hour: float
    figures: dict[str, Figure]

    def filled(self, option: str, figure: str, value: str | None = None) -> Filled:
        """That ``figure`` was taken for ``option``, with its source."""
        one = self.figures[figure]
        return Filled(option=option, value=value or one.value, reason=one.source or "")


@lru_cache(maxsize=1)
def defaults() -> Defaults:
    """The shipped defaults, read once."""
    data = reading.parse_yaml(_PATH.read_text(encoding="utf-8"), _PATH.name)
    fields = Fields(data, _PATH.name, must_have_source=True)
    latency = fields.nested(fields.take("latency", required=True), "latency")
    latencies = {key: float(latency.figure(key, reading.LATENCY) or 0.0) for key in latency.data}
    scaleout = fields.figure("scaleout_bandwidth_one_way", reading.ADAPTER, required=True)
    storage = read_storage(fields.nested(fields.take("storage", required=True), "storage"))
    failures = fields.figure("failures_per_gpu_hour", reading.FAILURES, required=True)
    fields.done()
    return Defaults(
        latency_s=latencies,
        scaleout_bytes_per_s=float(scaleout or 0.0),
        storage=storage,
        failures_per_gpu_hour=float(failures or 0.0),
        figures={figure.field: figure for figure in fields.figures},
    )


def read_storage(fields: Fields, write_per_node: float | None = None) -> Storage:
    """``write``, ``write_per_node`` (else the argument's), ``read``, ``host``."""
    per_node = fields.figure(
        "write_per_node", reading.NODE_STORAGE, required=write_per_node is None
    )
    storage = Storage.model_validate(
        {
            "write_bytes_per_s": fields.figure("write", reading.STORAGE, required=True),
            "write_bytes_per_s_per_node": per_node or write_per_node,
            "read_bytes_per_s": fields.figure("read", reading.STORAGE),
            "host_bytes_per_s_per_gpu": fields.figure("host", reading.HOST_COPY),
        }
    )
    fields.done()
    return storage


def latency_key(link_kind: str) -> str:
    """The row of the latency table for a link named in words (``NVLink 4``, ``PCIe 5 x16``)."""
    words = link_kind.lower()
    return next((key for key in defaults().latency_s if words.startswith(key.lower())), "other")


def scale_up_levels(gpu: Gpu, gpus_per_node: int, domain: int) -> list[Level]:
    """The levels inside the scale-up domain and the server, inner to outer.

    Where one peer is faster than all together (a bridge between two PCIe cards) the pair is a
    level of its own. ``domain`` is cut to the server unless the link leaves it.
    """
    size = domain if gpu.rack_scale else min(domain, gpus_per_node)
    latency = defaults().latency_s[latency_key(gpu.link_kind)]
    name = gpu.link_kind.split()[0].lower()
    rate, pair = gpu.link_bytes_per_s_one_way, gpu.link_p2p_bytes_per_s_one_way

    def level(name: str, gpus: int, rate: float) -> Level:
        return Level(name=name, gpus=gpus, bytes_per_s_per_gpu_one_way=rate, latency_s=latency)

    if pair is not None and pair > rate and size < gpus_per_node:
        return [level("bridge", size, pair), level(name, gpus_per_node, rate)]
    if gpu.link_domain_gpus == 1:
        # Without a scale-up link the server's bus joins its cards.
        return [level(name, gpus_per_node, rate)]
    return [level(name, size, pair if pair is not None and pair > rate else rate)]


def scale_out_level(gpu: Gpu, gpus: int, bytes_per_s: float | None = None) -> Level:
    """The network between servers (or racks), ``gpus`` wide."""
    known = defaults()
    rate = bytes_per_s or gpu.scaleout_bytes_per_s_one_way or known.scaleout_bytes_per_s
    return Level(
        name="network",
        gpus=gpus,
        bytes_per_s_per_gpu_one_way=rate,
        latency_s=known.latency_s["network"],
    )


def watts_of(gpu: Gpu) -> tuple[float | None, Filled | None]:
    """Watts per GPU of a running cluster: the server's rated maximum, else the device alone."""
    if gpu.node_watts_per_gpu is not None:
        reason = "rated maximum of the usual server, per GPU"
    elif gpu.watts is not None:
        reason = "thermal design power of the device alone: no server figure is known"
    else:
        return None, None
    watts = gpu.node_watts_per_gpu or gpu.watts
    return watts, Filled(option="watts_per_gpu", value=f"{watts:g} W", reason=reason)


def price_of(gpu: Gpu) -> tuple[float | None, Filled | None]:
    """USD per GPU-hour: the median of on-demand prices, where there are any."""
    price = gpu.usd_per_gpu_hour
    if price is None:
        return None, None
    reason = f"median of the on-demand prices of {gpu.name}"
    return price, Filled(option="usd_per_gpu_hour", value=f"{price:g}", reason=reason)
