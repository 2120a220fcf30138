"""What a layout on a cluster of several pools has to keep to."""

from __future__ import annotations

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import PIPELINE_LAST, Layout
from layoutopt.costmodel.mixed import stages_on, whole_pool

Found = tuple[str, str, object, str, tuple[object, ...]]
"""rules.Broken's fields: rule, field, value, message, nearest."""

_FIELD = "pools_per_stage"


def broken_pool_rules(job: Job, layout: Layout) -> list[Found]:
    """The rules that ``layout`` breaks; empty where the cluster has one GPU type and it says so."""
    pools = {pool.name: pool.all_gpus or 0 for pool in job.cluster.pools}
    stages = layout.pools_per_stage
    if not pools:
        if stages is None:
            return []
        message = f"pools_per_stage, but the cluster {job.cluster.name} has no pools"
        return [("stages_stand_on_pools", _FIELD, stages, message, ())]
    names = tuple(pools)
    if stages is None or len(stages) != layout.pp:
        listed = 0 if stages is None else len(stages)
        message = (
            f"pools_per_stage lists {listed} stages, pp is {layout.pp}: say on which pool each "
            f"stage stands, as in {layout.pp}*{names[0]}; pools are {', '.join(names)}"
        )
        return [("stages_stand_on_pools", _FIELD, stages, message, names)]
    unknown = [name for name in stages if name not in pools]
    if unknown:
        message = f"no pool is called {unknown[0][:40]!r}; pools are {', '.join(names)}"
        return [("stages_stand_on_pools", _FIELD, unknown[0], message, names)]
    return _sizes(layout, pools) + _not_priced(job, layout)


def _sizes(layout: Layout, pools: dict[str, int]) -> list[Found]:
    """A stage takes tp * cp * dp GPUs of its pool."""
    a_stage = layout.tp * layout.cp * layout.dp
    return [
        (
            "stages_fit_their_pool",
            _FIELD,
            name,
            f"{count} stages of tp x cp x dp = {a_stage} GPUs are {count * a_stage}, but the pool "
            f"{name} has {pools[name]}",
            (pools[name] // a_stage,),
        )
        for name, count in stages_on(layout).items()
        if count * a_stage > pools[name]
    ]


def _not_priced(job: Job, layout: Layout) -> list[Found]:
    """Several pools, or a part of one, run plain 1F1B of dense models: nothing else has a price
    there."""
    if whole_pool(job, layout) is not None:
        return []
    told = (
        ("vpp", layout.vpp, 1),
        ("schedule", layout.schedule, "1f1b"),
        ("axis_order", layout.axis_order, PIPELINE_LAST),
        ("recompute_layers", layout.recompute_layers, None),
        ("shard_degree", layout.shard_degree, None),
        ("offload_optimizer", layout.offload_optimizer, False),
        ("offload_activations", layout.offload_activations, False),
        ("experts", job.model.moe.experts if job.model.moe else 0, 0),
    )
    return [
        (
            "pools_run_plain_pipelines",
            name,
            value,
            f"{name} {value} has no price on several pools, or on a part of one; {only} has",
            (only,),
        )
        for name, value, only in told
        if value != only
    ]
