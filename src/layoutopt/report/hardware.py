"""What is known of machines, with sources: a list, or one of them in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layoutopt.errors import InputError
from layoutopt.hardware_profiles import catalog
from layoutopt.hardware_profiles.schema import Curve, Figure, GpuFacts, Instance
from layoutopt.report.console import heading, render, table
from layoutopt.units import GB, GIB, TERA, format_bandwidth, format_seconds

SCHEMA = "layoutopt.hardware/1"


def hardware_list(*, color: bool = False) -> str:
    """Every accelerator and every cloud machine, one line each."""
    gpus = [_gpu_row(catalog.gpu_facts(name)) for name in catalog.gpu_names()]
    machines = [_machine_row(catalog.load_instance(name)) for name in catalog.instance_names()]
    header = ("GPU", "memory GiB", "bf16 TFLOP/s", "memory GB/s", "link GB/s", "domain", "net GB/s")
    items: list[Any] = [
        table(gpus, header, right=range(1, 7)),
        "\nPeaks are dense; links are per GPU, one direction. Sources: layoutopt hardware NAME.",
        "",
        table(machines, ("Machine", "GPU", "GPUs", "net GB/s", "USD/GPU/h"), right=range(2, 5)),
        "\nnet: per GPU, one direction. USD: on demand.",
    ]
    return render(items, color=color)


def find_hardware(text: str) -> tuple[GpuFacts | Instance, str | None]:
    """The GPU or cloud machine that ``text`` names, and a note where it fitted several GPUs."""
    if text in catalog.gpu_names():
        return catalog.gpu_facts(text), None
    if catalog.find_instance_name(text):
        return catalog.load_instance(text), None
    try:
        gpu, note = catalog.find_gpu(text)
    except InputError as error:
        raise InputError(
            error.message, field="name", value=error.value, nearest=error.nearest
        ) from error
    return catalog.gpu_facts(gpu.name), note


def hardware_page(found: GpuFacts | Instance, *, color: bool = False) -> str:
    """One GPU or machine: each figure with its unit, its owner and its source."""
    if isinstance(found, GpuFacts):
        return render(_gpu_items(found), color=color)
    title = f"{found.name}: {found.gpus_per_node} x {found.gpu}, {found.provider}"
    network = [f"network: {found.network}"] if found.network else []
    notes = [found.notes] if found.notes else []
    return render([title, *network, "", *_figures(found.figures), *notes], color=color)


def hardware_json(found: GpuFacts | Instance) -> dict[str, Any]:
    """One GPU or machine as plain values in SI units."""
    kind = "gpu" if isinstance(found, GpuFacts) else "machine"
    return {"schema": SCHEMA, "kind": kind, **found.model_dump(mode="json")}


def hardware_list_json() -> dict[str, Any]:
    """Names of everything."""
    return {
        "schema": SCHEMA,
        "kind": "list",
        "gpus": list(catalog.gpu_names()),
        "machines": list(catalog.instance_names()),
    }


def _gpu_row(facts: GpuFacts) -> tuple[str, ...]:
    gpu = facts.gpu
    network = gpu.scaleout_bytes_per_s_one_way
    return (
        gpu.name,
        f"{gpu.memory_bytes / GIB:.1f}",
        f"{gpu.peak('bf16') / TERA:,.1f}",
        f"{gpu.memory_bytes_per_s / GB:,.0f}",
        f"{gpu.link_bytes_per_s_one_way / GB:,.0f}",
        f"{gpu.link_domain_gpus}",
        f"{network / GB:,.1f}" if network else "-",
    )


def _machine_row(machine: Instance) -> tuple[str, ...]:
    network, price = machine.node_bytes_per_s_one_way, machine.usd_per_gpu_hour
    return (
        machine.name,
        machine.gpu,
        f"{machine.gpus_per_node}",
        f"{network / machine.gpus_per_node / GB:,.1f}" if network else "-",
        f"{price:.2f}" if price is not None else "-",
    )


def _gpu_items(facts: GpuFacts) -> list[Any]:
    items: list[Any] = [f"{facts.gpu.name}: {facts.title}", "", *_figures(facts.figures)]
    for curve in facts.curves:
        items += [heading(f"Measured: {curve.what}"), _curve(curve), f"source: {curve.source}"]
    return [*items, *([heading("Notes"), facts.notes] if facts.notes else [])]


def _figures(figures: Sequence[Figure]) -> list[Any]:
    """Each figure with the number of its source, then the sources, each once."""
    sources = list(dict.fromkeys(one.source or "yours" for one in figures))
    rows = [
        (one.field, one.value, one.per, f"[{sources.index(one.source or 'yours') + 1}]")
        for one in figures
    ]
    listed = [(f"[{number}]", source) for number, source in enumerate(sources, 1)]
    figures_table = table(rows, ("figure", "value", "of what", "source"), right=(1,))
    return [figures_table, heading("Sources"), table(listed)]


def _curve(curve: Curve) -> Any:
    """Bus bandwidth by message size, and the time of the collective where it was written down."""
    times = dict(curve.seconds)
    rows = []
    for size, rate in curve.bus_bytes_per_s:
        time = times.pop(size, None) if size is not None else None
        rows.append((_size(size), format_bandwidth(rate), format_seconds(time) if time else ""))
    short = [(_size(size), "", format_seconds(time)) for size, time in times.items()]
    return table([*short, *rows], ("message", "bus bandwidth", "time"), right=(0, 1, 2))


def _size(size: int | None) -> str:
    if size is None:
        return "large"
    for unit, name in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"
