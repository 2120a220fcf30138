"""What ``--cluster`` names: a file, a list of nodes, a cloud machine, a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from layoutopt.errors import InputError, ProfileError
from layoutopt.hardware_profiles import catalog, reading
from layoutopt.hardware_profiles.cluster import default_cluster, instance_cluster
from layoutopt.hardware_profiles.cluster_file import read_cluster
from layoutopt.hardware_profiles.node_list import MAX_BYTES, node_list, read_node_list
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.nearest import did_you_mean, nearest_names


def load_cluster(text: str, stdin: TextIO | None = None, gpu: str | None = None) -> Cluster:
    """A cluster from a YAML or JSON file, ``-`` (standard input), a cloud machine or a GPU's name.

    A file is what exists as one, ends in .yaml, .yml or .json, or holds a path separator; it
    describes a cluster, or lists nodes as ``kubectl get nodes -o json`` does. Of several types of
    GPU in a list, that of ``gpu`` is taken.
    """
    if text == "-":
        where = "standard input"
        return _read(reading.read_stream(stdin or sys.stdin, MAX_BYTES), where, gpu)
    path = Path(text)
    if "\0" not in text and (_looks_like_file(text) or _exists(path)):
        return _read(reading.read_file(path, MAX_BYTES), str(path), gpu)
    # A GPU's own name wins over a price list that sells it under that name.
    if text not in catalog.gpu_names() and catalog.find_instance_name(text):
        return instance_cluster(catalog.load_instance(text))
    try:
        found, _ = catalog.find_gpu(text)
    except InputError:
        raise _unknown_cluster(text) from None
    return default_cluster(found)


def _read(content: str, where: str, gpu: str | None) -> Cluster:
    listed = node_list(content)
    if listed is not None:
        return read_node_list(listed, where, gpu)
    reading.refuse_long(content, where)
    return read_cluster(reading.parse_yaml(content, where), where)


def _looks_like_file(text: str) -> bool:
    return text.endswith((".yaml", ".yml", ".json")) or "/" in text


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for the file system
        return False


def _unknown_cluster(text: str) -> ProfileError:
    shown = text if len(text) <= 60 else text[:60] + "..."
    short = {name.split("-", 1)[1]: name for name in catalog.instance_names()}
    near = nearest_names(text, [*short, *catalog.instance_names(), *catalog.gpu_names()])
    return ProfileError(
        f"cluster {shown!r} is neither a file nor a machine or GPU that is known"
        f"{did_you_mean(near)}",
        field="cluster",
        value=text[:200],
        nearest=near,
    )
