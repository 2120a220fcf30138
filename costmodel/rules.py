"""Which layouts are legal: arithmetic and the frameworks' own rules, memory ignored."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.costmodel.broken import Broken as Broken
from layoutopt.costmodel.broken import divisors as divisors
from layoutopt.costmodel.broken import nearest_of as nearest_of
from layoutopt.costmodel.framework_rules import (
    axis_is_run,
    framework_broken,
    uneven_chunks_fit,
    zero_is_run,
)
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import PIPELINE_LAST, Layout
from layoutopt.costmodel.mixed import whole_pool
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.pipelines import (
    SPLIT_BACKWARD,
    USUAL_SCHEDULES,
    partial_recompute,
    pipelines_of,
)
from layoutopt.costmodel.placement import order_is_accepted, order_keeps_stages_whole
from layoutopt.costmodel.pool_rules import broken_pool_rules
from layoutopt.costmodel.spreading import broken_context, broken_spreading
from layoutopt.costmodel.stages import even_split


def tensor_parallel_fits(job: Job, tp: int) -> bool:
    """tp divides the heads, the MLP width and (or is divided by) the key-value heads; of Mamba-2
    mixers the heads and their groups (Megatron Core, ssm/mamba_mixer.py); and the rank of adapters,
    which are cut by it (Megatron Bridge 0.3.1, peft/utils.py, linear_in)."""
    model, lora = job.model, job.training.lora
    kv, mamba = model.kv_heads, model.mamba
    if lora is not None and lora.rank % tp:
        return False
    if mamba is not None and (mamba.heads % tp or mamba.groups % tp):
        return False
    return model.heads % tp == 0 and model.ffn % tp == 0 and (kv % tp == 0 or tp % kv == 0)


def sequence_splits(job: Job, tp: int, cp: int) -> bool:
    """With sequence parallelism each rank holds seq_len / (tp * cp) whole positions."""
    return job.training.seq_len % (tp * cp) == 0


def pipeline_fits(job: Job, pp: int, vpp: int) -> bool:
    """Every stage holds a layer; interleaving cuts layers into even chunks.

    Even chunks, or even when embedding and loss head count as a layer each (Megatron's
    --account-for-embedding/loss-in-pipeline-split); a chunk may then hold one of these alone
    (Llama 3, section 3.3.2: 126 layers on 16 stages of 8 chunks).
    """
    layers = job.model.layers
    if vpp == 1:
        return layers >= pp
    chunks = pp * vpp
    if pp == 1 or layers < pp:
        return False
    return (layers >= chunks and layers % chunks == 0) or (layers + 2) % chunks == 0


def _chunks_fit(job: Job, pp: int, vpp: int) -> bool:
    """Even chunks, or uneven ones where the framework takes them."""
    return pipeline_fits(job, pp, vpp) or uneven_chunks_fit(job, pp, vpp)


def interleaving_fits(pp: int, vpp: int, microbatches: int) -> bool:
    """Interleaving works on groups of pp microbatches (Narayanan 2021, section 2.2)."""
    return vpp == 1 or microbatches % pp == 0


def expert_parallel_fits(job: Job, ep: int, etp: int, pp: int) -> bool:
    """Experts divide over ep, their width over etp, and ep * etp * pp divides the GPUs (Megatron's
    parallel_state)."""
    moe = job.model.moe
    if moe is None:
        return ep == 1 and etp == 1
    divided = moe.experts % ep == 0 and moe.expert_ffn % etp == 0
    return divided and job.gpus % (ep * etp * pp) == 0


def sharding_fits(job: Job, zero_stage: int, pp: int) -> bool:
    """The framework shards state this far, with this pipeline (data/framework_rules.yaml)."""
    return zero_is_run(job, zero_stage, pp)


def schedules_run(job: Job) -> tuple[str, ...]:
    """The schedules that the framework runs, the interleaved one where it has chunks."""
    usual = USUAL_SCHEDULES if axis_is_run(job, "vpp", 2) else ("1f1b",)
    return (*usual, *pipelines_of(job.software.framework).schedules)


def broken_rules(job: Job, layout: Layout) -> list[Broken]:
    """Every rule that ``layout`` breaks, products first; empty for a legal layout."""
    on_pools = [Broken(*one) for one in broken_pool_rules(job, layout)]
    alone = None if on_pools else whole_pool(job, layout)
    if alone is not None:
        return broken_rules(replace(alone, gpus=job.gpus), replace(layout, pools_per_stage=None))
    found = _products(job, layout)
    found += _divisions(job, layout)
    found += broken_spreading(job, layout)
    found += _pipeline(job, layout)
    found += _framework_pipeline(job, layout)
    found += _experts_and_sharding(job, layout)
    found += framework_broken(job, layout)
    found += _order(job, layout)
    return found + on_pools


def _products(job: Job, layout: Layout) -> list[Broken]:
    found = []
    used = layout.gpus
    if used != job.gpus:
        factors = f"tp {layout.tp} x cp {layout.cp} x pp {layout.pp} x dp {layout.dp}"
        found.append(
            Broken(
                "use_every_gpu",
                "layout",
                used,
                f"{factors} = {used} GPUs, but the job has {job.gpus}",
                _nearest_dp(job, layout),
            )
        )
    batch = layout.dp * layout.micro_batch * layout.microbatches
    if batch != job.training.global_batch:
        factors = (
            f"dp {layout.dp} x micro_batch {layout.micro_batch} x "
            f"microbatches {layout.microbatches}"
        )
        whole = layout.dp * layout.micro_batch
        below = job.training.global_batch // whole * whole
        nearest = tuple(b for b in (below, below + whole) if b > 0)
        message = f"{factors} = {batch} sequences, but the global batch is "
        found.append(
            Broken(
                "use_the_batch",
                "global_batch",
                job.training.global_batch,
                f"{message}{job.training.global_batch}; batches that work: "
                + ", ".join(map(str, nearest)),
                nearest,
            )
        )
    return found


def _nearest_dp(job: Job, layout: Layout) -> tuple[object, ...]:
    rest = layout.tp * layout.cp * layout.pp
    return (f"dp={job.gpus // rest}",) if rest and job.gpus % rest == 0 else ()


def _divisions(job: Job, layout: Layout) -> list[Broken]:
    found, model, seq = [], job.model, job.training.seq_len
    if not tensor_parallel_fits(job, layout.tp):
        legal = [d for d in divisors(model.heads) if tensor_parallel_fits(job, d)]
        found.append(
            Broken(
                "tensor_divides_heads",
                "tp",
                layout.tp,
                f"tp {layout.tp} does not divide {model.heads} heads, {model.kv_heads} key-value "
                f"heads and an MLP of {model.ffn}{_mamba_words(model)}{_rank_words(job)}",
                nearest_of(legal, layout.tp),
            )
        )
    found += broken_context(job, layout)
    if (
        not found
        and layout.tp > 1
        and layout.sequence_parallel
        and not sequence_splits(job, layout.tp, layout.cp)
    ):
        legal = [d for d in divisors(seq // layout.cp) if tensor_parallel_fits(job, d)]
        found.append(
            Broken(
                "sequence_parallel_splits",
                "tp",
                layout.tp,
                f"sequence parallelism needs seq_len {seq} to divide by tp x cp = "
                f"{layout.tp * layout.cp}",
                nearest_of(legal, layout.tp),
            )
        )
    return found


def _mamba_words(model: Model) -> str:
    mamba = model.mamba
    return f", or {mamba.heads} Mamba heads in {mamba.groups} groups" if mamba else ""


def _rank_words(job: Job) -> str:
    lora = job.training.lora
    return f", with adapters of rank {lora.rank}" if lora else ""


def _pipeline(job: Job, layout: Layout) -> list[Broken]:
    found, layers = [], job.model.layers
    split = layout.layers_per_stage
    if split is not None and (len(split) != layout.pp or sum(split) != layers or min(split) < 0):
        found.append(
            Broken(
                "stages_hold_every_layer",
                "layers_per_stage",
                split,
                f"layers_per_stage lists {len(split)} stages with {sum(split)} layers; pp is "
                f"{layout.pp} and the model has {layers} layers",
            )
        )
    again = layout.recompute_layers
    if isinstance(again, tuple) and len(again) != layout.pp:
        found.append(
            Broken(
                "recompute_every_stage",
                "recompute",
                again,
                f"recompute full: lists {len(again)} stages; pp is {layout.pp}",
            )
        )
    if layout.pp > layers:
        found.append(
            Broken(
                "a_layer_per_stage",
                "pp",
                layout.pp,
                f"pp {layout.pp} is more than the model's {layers} layers",
                (layers,),
            )
        )
    elif split is None and not _chunks_fit(job, layout.pp, layout.vpp):
        legal = [
            v for v in range(1, (layers + 2) // layout.pp + 1) if pipeline_fits(job, layout.pp, v)
        ]
        found.append(
            Broken(
                "even_chunks",
                "vpp",
                layout.vpp,
                f"vpp {layout.vpp} on pp {layout.pp} does not cut {layers} layers evenly",
                nearest_of(legal, layout.vpp),
            )
        )
    if not interleaving_fits(layout.pp, layout.vpp, layout.microbatches):
        below = layout.microbatches // layout.pp * layout.pp
        found.append(
            Broken(
                "interleave_whole_groups",
                "microbatches",
                layout.microbatches,
                f"interleaving (vpp {layout.vpp}) needs microbatches in groups of pp "
                f"{layout.pp}, not {layout.microbatches}",
                tuple(m for m in (below, below + layout.pp) if m > 0),
            )
        )
    return found


def v_shape_fits(job: Job, pp: int, vpp: int = 1) -> bool:
    """In a V every stage holds two chunks, each of them a layer or more."""
    return pp > 1 and vpp <= 2 and job.model.layers >= 2 * pp


def _adapters_leave_bubbles(layout: Layout) -> Broken:
    message = (
        f"schedule {layout.schedule} fills its bubble with the weight gradients of frozen "
        "weights, which adapters leave none of"
    )
    return Broken("adapters_leave_bubbles", "schedule", layout.schedule, message, USUAL_SCHEDULES)


def _framework_pipeline(job: Job, layout: Layout) -> list[Broken]:
    """What the framework's pipeline runs (data/pipelines.yaml), and the arithmetic of a V."""
    found = []
    able = pipelines_of(job.software.framework)
    name, schedules = job.software.framework, schedules_run(job)
    if job.training.lora and layout.schedule in SPLIT_BACKWARD:
        found.append(_adapters_leave_bubbles(layout))
    if layout.schedule not in schedules:
        found.append(
            Broken(
                "framework_schedules",
                "schedule",
                layout.schedule,
                f"{name} does not run schedule {layout.schedule}; it runs {', '.join(schedules)}",
                schedules,
            )
        )
    elif layout.schedule == "zbv" and not v_shape_fits(job, layout.pp, layout.vpp):
        found.append(
            Broken(
                "two_chunks_in_a_v",
                "schedule",
                layout.schedule,
                f"schedule zbv puts two chunks of layers on each stage: pp 2 to "
                f"{job.model.layers // 2} for {job.model.layers} layers and vpp up to 2, not pp "
                f"{layout.pp} and vpp {layout.vpp}",
                ("1f1b",),
            )
        )
    split = layout.layers_per_stage
    even = split is None or split == even_split(job.model.layers, layout.pp)
    if not even and able.splits == "even":
        found.append(
            Broken(
                "framework_splits",
                "layers_per_stage",
                split,
                f"{name} does not take a number of layers for each stage",
            )
        )
    kinds = ("whole", "same", "each")
    if kinds.index(partial_recompute(layout)) > kinds.index(able.recompute):
        says = "full recompute of all layers or none"
        if able.recompute == "same":
            says = "full recompute of one number of layers on all stages"
        found.append(
            Broken(
                "framework_recomputes",
                "recompute",
                str(layout.recompute_layers),
                f"{name} takes {says}",
                ("full",),
            )
        )
    return found


def _experts_and_sharding(job: Job, layout: Layout) -> list[Broken]:
    found = []
    if not expert_parallel_fits(job, layout.ep, layout.etp, layout.pp):
        experts = job.model.moe.experts if job.model.moe else 0
        message = (
            f"ep {layout.ep} x etp {layout.etp} x pp {layout.pp} must divide {job.gpus} GPUs "
            f"and ep must divide {experts} experts"
        )
        if not experts:
            message = f"ep {layout.ep} x etp {layout.etp}, but the model has no experts"
        legal = [
            d
            for d in divisors(max(1, experts))
            if expert_parallel_fits(job, d, layout.etp, layout.pp)
        ]
        found.append(
            Broken(
                "experts_divide",
                "ep",
                layout.ep,
                message,
                nearest_of(legal, layout.ep),
            )
        )
    return found


def _order(job: Job, layout: Layout) -> list[Broken]:
    found, name, order = [], job.software.framework, layout.axis_order
    if not order_is_accepted(job, order):
        orders = job.software.axis_orders
        message = f"{job.software.name} numbers its ranks {' or '.join(orders)}, not {order}"
        found.append(Broken("framework_orders", "axis_order", order, message, orders))
    elif not order_keeps_stages_whole(job, layout):
        found.append(
            Broken(
                "order_keeps_stages_whole",
                "axis_order",
                order,
                f"{name} runs {order} with pp {layout.pp} only where attention and experts have "
                "equally many replicas: "
                + ("cp 1" if job.model.moe is None else f"ep x etp = {layout.tp * layout.cp}"),
                (PIPELINE_LAST,),
            )
        )
    return found
