"""A user's own machine, from about twenty lines of YAML (hardware_profiles/README.md)."""

from __future__ import annotations

from typing import Any

from layoutopt.errors import InputError
from layoutopt.hardware_profiles import catalog, reading
from layoutopt.hardware_profiles.defaults import (
    defaults,
    latency_key,
    price_of,
    read_storage,
    scale_out_level,
    scale_up_levels,
    watts_of,
)
from layoutopt.hardware_profiles.gpu_file import read_gpu
from layoutopt.hardware_profiles.hosts import read_host
from layoutopt.hardware_profiles.planned import FORM, read_stops
from layoutopt.hardware_profiles.reading import Fields
from layoutopt.hardware_profiles.schema import (
    MAX_GPUS,
    Cluster,
    Filled,
    Gpu,
    Level,
    PlannedStops,
    Storage,
)
from layoutopt.hardware_profiles.switch_file import check_levels, read_switches, tiers


def read_cluster(data: dict[str, Any], where: str) -> Cluster:
    """The cluster that ``data`` describes; figures it leaves out are listed in ``filled``."""
    fields = Fields(data, where)
    return _mixed(fields) if "pools" in data else _uniform(fields, fields.text("name") or where)


def _mixed(fields: Fields) -> Cluster:
    """Pools of one GPU type each, and the link between them; storage is shared."""
    name = fields.text("name") or fields.where
    given = fields.items("pools")
    if len(given) < 2:
        raise fields.error("pools", "needs two pools or more; without it a cluster is one")
    filled: list[Filled] = []
    storage = _storage(fields, filled)
    failures = fields.figure("failures_per_gpu_hour", reading.FAILURES)
    stops = {"planned_stops": _planned_stops(fields)}
    pools = [_pool(one, storage, failures).model_copy(update=stops) for one in given]
    names = [pool.name for pool in pools]
    for n, (one, pool) in enumerate(zip(given, pools, strict=True)):
        if names.index(pool.name) < n:
            raise one.error("name", f"{pool.name} is the name of two pools", value=pool.name)
        filled += [
            each.model_copy(update={"option": f"pools.{pool.name}.{each.option}"})
            for each in pool.filled
        ]
    link = fields.mapping("pool_link", required=True)
    if link is None:
        raise fields.error("pool_link", "is missing")
    cluster = pools[0].model_copy(
        update={
            "name": name,
            "source": fields.text("source"),
            "filled": tuple(filled),
            "pools": tuple(pools),
            "pool_link": _pool_link(link, sum(pool.all_gpus or 0 for pool in pools), filled),
        }
    )
    fields.done()
    return cluster.model_copy(update={"filled": tuple(filled)})


def _pool(fields: Fields, storage: Storage, failures: float | None) -> Cluster:
    """One pool: a cluster with a name and a number of nodes; storage and, where the pool does not
    state its own, the failure rate are everybody's."""
    name = fields.text("name", required=True) or ""
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name.isdigit():
        raise fields.error("name", f"{name[:40]!r} is not letters, digits, -, _ and .", value=name)
    for key in ("nodes", "gpu"):
        fields.take(key, required=True)
    if fields.has("switches"):
        raise fields.error("switches", "are not read in a pool: its nodes are neighbours")
    for key in ("storage", "planned_stops"):
        if fields.has(key):
            raise fields.error(key, "is shared: it stands beside pools, not in one of them")
    shared: dict[str, object] = {"storage": storage}
    if failures is not None and not fields.has("failures_per_gpu_hour"):
        shared["failures_per_gpu_hour"] = failures
    pool = _uniform(fields, name)
    filled = tuple(one for one in pool.filled if one.option.partition(".")[0] not in shared)
    return pool.model_copy(update={**shared, "filled": filled})


def _pool_link(fields: Fields, gpus: int, filled: list[Filled]) -> Level:
    """The link between pools: a network level over all of them."""
    rate = fields.figure("bandwidth_per_gpu_one_way", reading.ADAPTER, required=True)
    latency = fields.figure("latency", reading.LATENCY)
    if latency is None:
        latency = defaults().latency_s["network"]
        filled.append(defaults().filled("pool_link.latency", "latency.network"))
    factor = fields.figure("oversubscription", reading.OVERSUBSCRIPTION)
    fields.done()
    return Level(
        name="pool_link",
        gpus=gpus,
        bytes_per_s_per_gpu_one_way=float(rate or 0.0),
        latency_s=float(latency),
        oversubscription=float(factor or 1.0),
    )


def _uniform(fields: Fields, name: str) -> Cluster:
    """A cluster of one GPU type."""
    data = fields.data
    filled: list[Filled] = []
    levels = fields.items("levels")
    gpu = _gpu(fields, levels)
    per_node = _gpus_per_node(fields, gpu, filled)
    nodes = _count(fields, "nodes")
    switches = read_switches(fields) if "switches" in data else ()
    if switches:
        listed = sum(len(one.all_nodes) for one in switches)
        if nodes not in (None, listed):
            raise fields.error(
                "nodes", f"is {nodes}, but the switches list {listed}", (listed,), nodes
            )
        nodes = listed
    source = fields.text("source")
    if isinstance(data.get("gpu"), dict):
        gpu = gpu.model_copy(update={"gpus_per_node": per_node})
    wired = _levels(fields, levels, gpu, per_node, nodes, filled, one_size=bool(switches))
    if switches:
        check_levels(fields, wired, per_node, tiers(switches))
        # Until a job is placed (costmodel.fragments) no two of its nodes share a switch.
        inner = len(wired) - tiers(switches) - 1
        apart = [one.model_copy(update={"gpus": per_node}) for one in wired[inner:-1]]
        wired = (*wired[:inner], *apart, wired[-1])
    cluster = Cluster(
        name=name,
        gpu=gpu,
        gpus_per_node=per_node,
        nodes=nodes,
        levels=wired,
        switches=switches,
        storage=_storage(fields, filled),
        failures_per_gpu_hour=_failures(fields, filled),
        detect_s=fields.figure("detection", reading.RECOVERY),
        restart_s=fields.figure("restart", reading.RECOVERY),
        planned_stops=_planned_stops(fields),
        host=None if (host := fields.mapping("host")) is None else read_host(host),
        usd_per_gpu_hour=_own_or(
            fields, "usd_per_gpu_hour", reading.GPU_PRICE, price_of(gpu), filled
        ),
        watts_per_gpu=_own_or(fields, "watts_per_gpu", reading.PLAIN_WATTS, watts_of(gpu), filled),
        source=source,
        filled=tuple(filled),
    )
    fields.done()
    return cluster


def _gpu(fields: Fields, levels: list[Fields]) -> Gpu:
    """A GPU of the catalogue by name, or a new one whose link is the innermost level's."""
    given = fields.take("gpu", required=True)
    if isinstance(given, str):
        try:
            return catalog.find_gpu(given)[0]
        except InputError as error:
            raise fields.error("gpu", error.message, error.nearest, given) from None
    inner = fields.mapping("gpu")
    if inner is None:
        raise fields.error("gpu", "is missing")
    return read_gpu(inner, inner_level=_innermost(levels)).gpu


def _innermost(levels: list[Fields]) -> tuple[int, float] | None:
    """Size and bandwidth of the first level, read ahead of the levels themselves."""
    if not levels:
        return None
    first = Fields(levels[0].data, levels[0].where, levels[0].path)
    size = first.figure("gpus", reading.COUNT, required=len(levels) > 1)
    rate = first.figure("bandwidth_per_gpu_one_way", reading.ADAPTER, required=True)
    return int(size or 1), float(rate or 0.0)


def _gpus_per_node(fields: Fields, gpu: Gpu, filled: list[Filled]) -> int:
    given = _count(fields, "gpus_per_node")
    if given is not None:
        return given
    reason = f"usual server of {gpu.name}"
    filled.append(Filled(option="gpus_per_node", value=str(gpu.gpus_per_node), reason=reason))
    return gpu.gpus_per_node


def _count(fields: Fields, key: str) -> int | None:
    value = fields.figure(key, reading.COUNT)
    return None if value is None else int(value)


def _levels(
    fields: Fields,
    given: list[Fields],
    gpu: Gpu,
    per_node: int,
    nodes: int | None,
    filled: list[Filled],
    *,
    one_size: bool = False,
) -> tuple[Level, ...]:
    """``one_size``: levels beyond the innermost may leave out ``gpus``: switches tell."""
    total = nodes * per_node if nodes else MAX_GPUS
    if not given:
        inner = scale_up_levels(gpu, per_node, gpu.link_domain_gpus)
        outer = scale_out_level(gpu, max(total, inner[-1].gpus))
        value = ", ".join(level.name for level in (*inner, outer))
        reason = f"usual links of {gpu.name}"
        filled.append(Filled(option="levels", value=value, reason=reason))
        return (*inner, outer)
    levels = [
        _level(one, n, _spanned(n, len(given), total, one_size), gpu, filled)
        for n, one in enumerate(given)
    ]
    _check_sizes(fields, levels, per_node, nodes)
    return tuple(levels)


def _spanned(n: int, count: int, total: int, one_size: bool) -> int | None:
    """What a level spans that does not say, in GPUs; None where it has to say."""
    return total if n == count - 1 or (one_size and n) else None


def _level(fields: Fields, n: int, spans: int | None, gpu: Gpu, filled: list[Filled]) -> Level:
    """One level; ``spans`` is the size of the last one where the file leaves it out."""
    name = fields.text("name") or f"level{n}"
    size = fields.figure("gpus", reading.COUNT, required=spans is None)
    rate = fields.figure("bandwidth_per_gpu_one_way", reading.ADAPTER, required=True)
    latency = fields.figure("latency", reading.LATENCY)
    if latency is None:
        key = "network" if n else _latency_row(gpu)
        latency = defaults().latency_s[key]
        filled.append(defaults().filled(f"levels.{name}.latency", f"latency.{key}"))
    factor = fields.figure("oversubscription", reading.OVERSUBSCRIPTION)
    fields.done()
    return Level(
        name=name,
        gpus=int(size or spans or 1),
        bytes_per_s_per_gpu_one_way=float(rate or 0.0),
        latency_s=float(latency),
        oversubscription=float(factor or 1.0),
    )


def _latency_row(gpu: Gpu) -> str:
    """The row of the latency table for the innermost level."""
    return "network" if gpu.link_domain_gpus == 1 else latency_key(gpu.link_kind)


def _check_sizes(fields: Fields, levels: list[Level], per_node: int, nodes: int | None) -> None:
    """Levels grow outwards, hold whole inner ones, agree with the node, and span the cluster."""
    _check_node(fields, levels, per_node)
    for n in range(1, len(levels)):
        inner, outer = levels[n - 1], levels[n]
        if outer.gpus < inner.gpus:
            raise fields.error(
                f"levels[{n}].gpus",
                f"is {outer.gpus}, less than the {inner.gpus} of {inner.name}: "
                "levels run from inner to outer",
                value=outer.gpus,
            )
        # The last level may end in a part of an inner one (a cluster of odd size).
        if n < len(levels) - 1 and outer.gpus % inner.gpus:
            low = outer.gpus // inner.gpus * inner.gpus
            raise fields.error(
                f"levels[{n}].gpus",
                f"is {outer.gpus}, not a multiple of the {inner.gpus} of {inner.name}; "
                f"nearest: {low}, {low + inner.gpus}",
                (low, low + inner.gpus),
                outer.gpus,
            )
    total = nodes * per_node if nodes else None
    if total is not None and levels[-1].gpus < total:
        raise fields.error(
            f"levels[{len(levels) - 1}].gpus",
            f"is {levels[-1].gpus}, but {nodes} nodes x {per_node} GPUs = {total}: "
            "the last level spans the cluster",
            (total,),
            levels[-1].gpus,
        )


def _check_node(fields: Fields, levels: list[Level], per_node: int) -> None:
    """A node is whole inside a level, or whole levels are inside a node."""
    for n, level in enumerate(levels[:-1]):
        if level.gpus % per_node and per_node % level.gpus:
            low = level.gpus // per_node * per_node or per_node
            near = tuple(sorted({low, low + per_node}))
            raise fields.error(
                f"levels[{n}].gpus",
                f"is {level.gpus}, which neither divides nor is a multiple of "
                f"gpus_per_node {per_node}; nearest: {', '.join(map(str, near))}",
                near,
                level.gpus,
            )


def _storage(fields: Fields, filled: list[Filled]) -> Storage:
    known = defaults()
    given = fields.mapping("storage")
    if given is None:
        filled.append(known.filled("storage.write", "storage.write"))
    if given is None or not given.has("write_per_node"):
        filled.append(known.filled("storage.write_per_node", "storage.write_per_node"))
    if given is None:
        return known.storage
    return read_storage(given, known.storage.write_bytes_per_s_per_node)


def _failures(fields: Fields, filled: list[Filled]) -> float:
    given = fields.figure("failures_per_gpu_hour", reading.FAILURES)
    if given is not None:
        return float(given)
    filled.append(defaults().filled("failures_per_gpu_hour", "failures_per_gpu_hour"))
    return defaults().failures_per_gpu_hour


def _planned_stops(fields: Fields) -> PlannedStops | None:
    text = fields.text("planned_stops")
    try:
        return None if text is None else read_stops(text)
    except ValueError as error:
        raise fields.error(
            "planned_stops", f"is wrong: {error}; write {FORM}", value=text
        ) from None


def _own_or(
    fields: Fields,
    key: str,
    kind: reading.Kind,
    usual: tuple[float | None, Filled | None],
    filled: list[Filled],
) -> float | None:
    """The file's own figure, else the GPU's usual one, which is listed as filled in."""
    given = fields.figure(key, kind)
    if given is not None:
        return float(given)
    value, note = usual
    if note is not None:
        filled.append(note)
    return value
