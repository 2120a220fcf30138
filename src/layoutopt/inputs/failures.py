"""`--mtbf` and `--failure-rate`: how often the job fails, instead of what its cluster says;
`--planned-stops`: when it is stopped; and `--degraded`: nodes that are gone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from layoutopt.costmodel.job import Job
from layoutopt.errors import InputError
from layoutopt.hardware_profiles.planned import FORM, read_stops
from layoutopt.hardware_profiles.schema import Cluster
from layoutopt.inputs.filled import Notebook
from layoutopt.inputs.numbers import read_count, read_seconds
from layoutopt.units import DAY, HOUR

MOST_RATE = 1e6
"""Failures per 1,000 node-days; published fleets have 0.8 to 21."""
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def with_failures(
    options: Mapping[str, Any], cluster: Cluster, gpus: int, notebook: Notebook
) -> Cluster:
    """``cluster`` with the failure rate that the options state, on each of its pools too; as it is
    where they state none."""
    mtbf, rate = options.get("mtbf"), options.get("failure_rate")
    if mtbf is None and rate is None:
        return cluster
    if mtbf is not None and rate is not None:
        raise InputError(
            "mtbf and failure_rate both say how often the job fails; give one of them",
            field="failure_rate",
            value=str(rate),
        )
    if isinstance(mtbf, str) and ".." in mtbf:
        raise InputError(
            f"mtbf takes one time, not the range {mtbf[:40]!r}; ask for each of its ends by itself",
            field="mtbf",
            value=mtbf[:40],
            nearest=tuple(end for end in mtbf[:40].split("..") if end),
        )

    def per_gpu_hour(nodes_of: Cluster) -> float:
        if mtbf is not None:
            return HOUR / read_seconds(mtbf, "mtbf") / gpus
        return read_rate(rate) / 1000 / (DAY / HOUR) / nodes_of.gpus_per_node

    notebook.filled[:] = [
        entry for entry in notebook.filled if entry.option != "cluster.failures_per_gpu_hour"
    ]
    pools = tuple(
        pool.model_copy(update={"failures_per_gpu_hour": per_gpu_hour(pool)})
        for pool in cluster.pools
    )
    told = {"failures_per_gpu_hour": per_gpu_hour(cluster)}
    return cluster.model_copy(update={**told, "pools": pools} if pools else told)


def with_stops(options: Mapping[str, Any], cluster: Cluster) -> Cluster:
    """``cluster`` with the announced stops that the options state, on each of its pools too."""
    value = options.get("planned_stops")
    if value is None:
        return cluster
    try:
        stops = read_stops(str(value))
    except ValueError as error:
        raise InputError(
            f"planned_stops: {error}; write {FORM}",
            field="planned_stops",
            value=str(value)[:60],
        ) from None
    pools = tuple(pool.model_copy(update={"planned_stops": stops}) for pool in cluster.pools)
    return cluster.model_copy(update={"planned_stops": stops, "pools": pools})


def read_degraded(options: Mapping[str, Any], job: Job) -> int | None:
    """Nodes that are gone; None where nobody asks."""
    value = options.get("degraded")
    if value is None:
        return None
    nodes = -(-job.gpus // job.cluster.gpus_per_node)
    return read_count(value, "degraded", least=1, most=max(1, nodes - 1))


def read_rate(value: object) -> float:
    """Failures per 1,000 node-days, 0 for none."""
    written = isinstance(value, str) and _NUMBER.fullmatch(value.strip())
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    number = float(str(value)) if written or plain else None
    if number is None or not 0 <= number <= MOST_RATE:
        raise InputError(
            f"failure_rate {str(value)[:40]!r} is not a number of failures per 1,000 node-days, "
            f"0 to {MOST_RATE:,.0f}; Llama 3's was 3.79",
            field="failure_rate",
            value=str(value)[:40],
            nearest=(3.79,),
        )
    return number
