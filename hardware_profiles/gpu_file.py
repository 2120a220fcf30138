"""One GPU, from a shipped file or from the ``gpu:`` key of a user's cluster file."""

from __future__ import annotations

from typing import Any

from layoutopt.hardware_profiles import reading
from layoutopt.hardware_profiles.reading import Fields
from layoutopt.hardware_profiles.schema import ARCHITECTURES, Curve, Gpu, GpuFacts
from layoutopt.nearest import did_you_mean, nearest_names
from layoutopt.units import parse_bandwidth, parse_bytes, parse_seconds

PEAKS = ("bf16", "fp16", "fp8", "fp4", "fp32")


def read_gpu(fields: Fields, *, inner_level: tuple[int, float] | None = None) -> GpuFacts:
    """A GPU and every figure of it. ``inner_level`` is (GPUs, bytes/s) of a cluster's first level,
    which stands in for the link where a user's own GPU leaves it out.
    """
    fields.sources = read_sources(fields)
    name = fields.text("name", required=True) or ""
    title = fields.text("title") or name
    gpu = Gpu.model_validate({"name": name, **_figures(fields, inner_level)})
    for gemm in filter(None, [fields.mapping("measured_gemm")]):
        for precision in PEAKS:
            gemm.figure(precision, reading.MEASURED_FLOPS)
        gemm.done()
    curves = tuple(_curve(one) for one in fields.items("measured_all_reduce"))
    notes = fields.text("notes")
    fields.done()
    return GpuFacts(gpu=gpu, title=title, figures=tuple(fields.figures), curves=curves, notes=notes)


def _figures(fields: Fields, inner_level: tuple[int, float] | None) -> dict[str, Any]:
    domain, bandwidth = inner_level or (None, None)
    needs_link = inner_level is None
    found: dict[str, Any] = {
        "architecture": _architecture(fields),
        "link_kind": fields.text("link"),
        "memory_bytes": fields.figure("memory", reading.BYTES, required=True),
        "memory_bytes_per_s": fields.figure(
            "memory_bandwidth", reading.MEMORY_BANDWIDTH, required=True
        ),
        "peak_flops_per_s": _peaks(fields),
        "link_bytes_per_s_one_way": fields.figure(
            "link_bandwidth_one_way", reading.LINK, required=needs_link
        )
        or bandwidth,
        "link_p2p_bytes_per_s_one_way": fields.figure(
            "link_bandwidth_one_way_to_one_peer", reading.PEER
        ),
        "link_domain_gpus": fields.figure("link_domain_gpus", reading.COUNT, required=needs_link)
        or domain,
        "gpus_per_node": fields.figure("gpus_per_node", reading.COUNT, required=needs_link),
        "scaleout_bytes_per_s_one_way": fields.figure(
            "scaleout_bandwidth_one_way", reading.ADAPTER
        ),
        "watts": fields.figure("power", reading.WATTS),
        "node_watts_per_gpu": fields.figure("node_power_per_gpu", reading.WATTS),
        "usd_per_gpu_hour": fields.figure("usd_per_gpu_hour", reading.GPU_PRICE),
    }
    return {key: value for key, value in found.items() if value is not None}


def _architecture(fields: Fields) -> str:
    name = fields.text("architecture", required=True) or ""
    if name not in ARCHITECTURES:
        near = nearest_names(name, ARCHITECTURES) or ARCHITECTURES
        raise fields.error(
            "architecture",
            f"{name} is not known{did_you_mean(tuple(near))} (it decides whose efficiencies apply)",
            near,
            name,
        )
    return name


def _peaks(fields: Fields) -> dict[str, float]:
    inner = fields.mapping("peak", required=True)
    found = {key: inner.figure(key, reading.FLOPS) for key in PEAKS} if inner else {}
    if inner:
        inner.done()
    peaks = {key: float(value) for key, value in found.items() if value is not None}
    if "bf16" not in peaks and "fp16" not in peaks:
        raise fields.error("peak", "holds neither bf16 nor fp16", ("bf16", "fp16"))
    return peaks


def _curve(fields: Fields) -> Curve:
    what = fields.text("what", required=True) or ""
    named = fields.text("source", required=True) or ""
    rates = fields.take("bus_bandwidth", required=True)
    times = fields.take("time") or {}
    fields.done()
    try:
        return Curve(
            what=what,
            bus_bytes_per_s=tuple((_message(k), parse_bandwidth(v)) for k, v in rates.items()),
            seconds=tuple((parse_bytes(k), parse_seconds(v)) for k, v in times.items()),
            source=fields.sources.get(named, named),
        )
    except (ValueError, AttributeError) as error:
        raise fields.error("bus_bandwidth", f"is wrong: {error}") from None


def _message(text: str) -> int | None:
    return None if text == "large" else parse_bytes(text)


def read_sources(fields: Fields) -> dict[str, str]:
    """Short names of sources, written once at the head of a file."""
    inner = fields.mapping("sources")
    return {} if inner is None else {key: inner.text(key) or "" for key in inner.data}
