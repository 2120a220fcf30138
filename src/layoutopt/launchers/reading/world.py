"""GPUs of a launch, from torchrun's words."""

from __future__ import annotations

from layoutopt.launchers.reading.words import Flags


def gpus(flags: Flags) -> int | None:
    """nnodes x nproc-per-node where both are plain numbers; None where they are not said."""
    nodes = (
        _plain(flags, "--nnodes") or _plain(flags, "--num-nodes") or _plain(flags, "--num_nodes")
    )
    each = (
        _plain(flags, "--nproc-per-node")
        or _plain(flags, "--nproc_per_node")
        or _plain(flags, "--num_gpus")
    )
    return nodes * each if nodes and each else None


def _plain(flags: Flags, name: str) -> int | None:
    values = flags.values.get(name, ())
    return int(values[0]) if values and values[0].isdigit() else None
