"""``--gpu``, ``--cluster`` and ``--gpus`` as a Cluster and a count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from layoutopt.errors import InputError
from layoutopt.hardware_profiles.catalog import find_gpu
from layoutopt.hardware_profiles.cluster import default_cluster
from layoutopt.hardware_profiles.loading import load_cluster
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.inputs import defaults
from layoutopt.inputs.filled import Notebook
from layoutopt.inputs.numbers import MOST_GPUS, read_count


def read_machine(
    options: Mapping[str, Any], notebook: Notebook, stdin: TextIO | None
) -> tuple[Cluster, int]:
    """The cluster, and how many of its GPUs are used."""
    gpus = _read_gpus(options.get("gpus"))
    given = options.get("cluster")
    if given is None:
        gpus = _needed(gpus)
        cluster = _cluster_of_gpu(options.get("gpu"), gpus, notebook)
    else:
        gpu = None if options.get("gpu") is None else str(options["gpu"])
        cluster = given if isinstance(given, Cluster) else load_cluster(str(given), stdin, gpu)
        _refuse_other_gpu(options.get("gpu"), cluster)
        gpus = _fitting(gpus, cluster, notebook)
    for entry in cluster.filled:
        notebook.fill(f"cluster.{entry.option}", entry.value, entry.reason)
    return cluster, gpus


def read_range(value: object, field: str, most_of_all: int) -> tuple[int, int] | None:
    """``64..4096`` as a range of counts; None for anything that is no range."""
    if not isinstance(value, str) or ".." not in value:
        return None
    least, _, most = value.partition("..")
    ends = (
        read_count(least.strip(), field, most=most_of_all),
        read_count(most.strip(), field, most=most_of_all),
    )
    if ends[0] > ends[1]:
        raise InputError(
            f"{field} {value[:60]} runs from the larger count to the smaller",
            field=field,
            value=value[:60],
            nearest=(f"{ends[1]}..{ends[0]}",),
        )
    return ends


def _read_gpus(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and ".." in value:
        raise InputError(
            f"gpus takes one count here, not the range {value[:60]!r}",
            field="gpus",
            value=value[:60],
            nearest=tuple(end for end in value.split("..") if end.isdigit())[:2],
        )
    return read_count(value, "gpus", most=MOST_GPUS)


def _needed(gpus: int | None) -> int:
    if gpus is None:
        raise InputError("gpus is missing: say how many to use, as in --gpus 1024", field="gpus")
    return gpus


def _cluster_of_gpu(text: object, gpus: int, notebook: Notebook) -> Cluster:
    """Usual nodes of the named GPU, or of the default one."""
    gpu, note = find_gpu(str(text) if text is not None else defaults.GPU)
    if text is None:
        notebook.fill("gpu", gpu.name, defaults.GPU_REASON)
    elif note:
        notebook.fill("gpu", gpu.name, note)
    cluster = default_cluster(gpu, gpus)
    reason = "the usual node and network of this GPU; describe yours with --cluster FILE"
    notebook.fill("cluster", cluster.name, reason)
    return cluster


def _refuse_other_gpu(text: object, cluster: Cluster) -> None:
    """--gpu beside --cluster has to name the cluster's own GPU."""
    if text is None:
        return
    gpu, _ = find_gpu(str(text))
    if gpu.name != cluster.gpu.name:
        raise InputError(
            f"--gpu {text} contradicts --cluster {cluster.name}, whose GPU is {cluster.gpu.name}; "
            "give one of them",
            field="gpu",
            value=text,
            nearest=(cluster.gpu.name,),
        )


def _fitting(gpus: int | None, cluster: Cluster, notebook: Notebook) -> int:
    """``gpus`` if the cluster has so many; all of them when no count is given."""
    most = cluster.all_gpus
    if most is None:
        return _needed(gpus)
    if gpus is None:
        notebook.fill("gpus", most, f"all of {cluster.name}")
        return most
    if gpus > most:
        parts = cluster.pools or (cluster,)
        nodes = " + ".join(f"{part.nodes:,} nodes x {part.gpus_per_node}" for part in parts)
        raise InputError(
            f"--gpus {gpus:,} is more than --cluster {cluster.name} has: {nodes} = {most:,} GPUs",
            field="gpus",
            value=gpus,
            nearest=(most,),
        )
    return gpus


def shown_path(value: object) -> str:
    """How the request echoes an option that may be a path or an object with a name."""
    if isinstance(value, str | Path):
        return str(value)
    return str(getattr(value, "name", value))
