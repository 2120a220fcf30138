"""Megatron-LM's command line, as Megatron Core 0.19's own parser reads it."""

from __future__ import annotations

import math

from layoutopt.costmodel.stages import even_split
from layoutopt.inputs.layout_text import stages_text
from layoutopt.launchers.keys import Keys
from layoutopt.launchers.megatron_model import model_flags
from layoutopt.launchers.plan import Plan
from layoutopt.launchers.shell import Flag, Script, torchrun

NAME = "megatron"
_CP_KINDS = {"ring": "p2p", "all_gather": "allgather", "ulysses": "a2a", "hierarchical": "a2a+p2p"}
_ORDERS = {"tp-cp-ep-dp-pp": (), "tp-cp-ep-pp-dp": (("--use-tp-pp-dp-mapping",),)}
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


def script(plan: Plan) -> str:
    """A bash script with one command; raises RuleError for what Megatron cannot say."""
    words, raw = torchrun(plan.nodes, plan.gpus_a_node)
    return Script(
        program=words,
        raw=(*raw, "pretrain_gpt.py"),
        flags=flags(plan),
        environment=environment(plan),
        comments=(
            f"{plan.title()}; written by layoutopt.",
            "Data, tokenizer and learning rate (the last lines) stand in for yours.",
        ),
    ).text()


def environment(plan: Plan) -> dict[str, str]:
    """One queue for kernels keeps tp and cp traffic in order; FSDP refuses it (validate_args)."""
    fsdp = plan.layout.zero_stage > 1
    alone = plan.layout.tp == plan.layout.cp == 1
    return {} if fsdp or alone else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def flags(plan: Plan, *, bridge: bool = False) -> list[Flag]:
    """Every option: layout, batch, recompute, precision, overlap, checkpoints, model, stand-ins.

    ``bridge``: for Megatron Bridge, which says adapters and documents itself.
    """
    keys = Keys(plan, NAME)
    why = "pretrain_gpt.py has neither adapters nor packed documents; Megatron Bridge has both"
    tuning = keys.tuning(why, adapters=bridge, documents=bridge)
    found = [
        *_degrees(keys),
        *_pipeline(keys),
        *_sharding(keys),
        *_batch(keys),
        *_recompute(keys),
        *_offload(keys),
        *_precision(plan),
        *_overlap(plan),
        *_checkpoints(plan),
        *model_flags(plan.model, plan.training.seq_len),
        *_stand_ins(plan),
    ]
    if tuning:
        found += [("--finetune",), ("--pretrained-checkpoint", "pretrained")]
    keys.finish()
    return found


def _degrees(keys: Keys) -> list[Flag]:
    layout = keys.plan.layout
    found: list[Flag] = [
        ("--tensor-model-parallel-size", str(keys.take("tp"))),
        ("--pipeline-model-parallel-size", str(keys.take("pp"))),
        ("--context-parallel-size", str(keys.take("cp"))),
    ]
    keys.take("dp")  # what is left of the world
    if keys.take("sequence_parallel") and layout.tp > 1:
        found.append(("--sequence-parallel",))
    kind = keys.take("cp_kind")
    if layout.cp > 1:
        if kind not in _CP_KINDS:
            raise keys.cannot("cp_kind", "it knows " + ", ".join(_CP_KINDS), *_CP_KINDS)
        found.append(("--cp-comm-type", _CP_KINDS[kind]))
        if kind == "hierarchical":
            found.append(("--hierarchical-context-parallel-sizes", *_levels_of_cp(keys.plan)))
    ep, etp = keys.take("ep"), keys.take("etp")
    if keys.plan.model.moe:
        if layout.tp > 1 and not layout.sequence_parallel:
            raise keys.cannot(
                "sequence_parallel", "experts with tp > 1 need it (training stops without it)", True
            )
        found += [
            ("--expert-model-parallel-size", str(ep)),
            ("--expert-tensor-parallel-size", str(etp)),
        ]
    order = keys.take("axis_order")
    if order not in _ORDERS and layout.pp > 1 and layout.dp > 1:
        raise keys.cannot("axis_order", "it has two orders", *_ORDERS)
    return [*found, *_ORDERS.get(order, ())]


def _pipeline(keys: Keys) -> list[Flag]:
    """Chunks, and where layers stand: even, even with embedding and loss counted, or listed."""
    layout, layers = keys.plan.layout, keys.plan.model.layers
    pp, vpp, schedule = keys.take("pp"), keys.take("vpp"), keys.take("schedule")
    keys.take("layers_per_stage")
    if pp == 1:
        return []
    if schedule not in ("1f1b", "interleaved"):
        raise keys.cannot("schedule", "it runs 1f1b, interleaved where vpp > 1", "1f1b")
    stages, chunks = keys.plan.stages, pp * vpp
    interleaved: list[Flag] = (
        [("--num-virtual-stages-per-pipeline-rank", str(vpp))] if vpp > 1 else []
    )
    if layers % chunks == 0 and len(set(stages)) == 1:
        return interleaved
    counted = (layers + 2) % chunks == 0 and stages == even_split(layers, pp)
    if counted and stages[0] == stages[-1] and len(set(stages[1:-1])) <= 1:
        return [
            *interleaved,
            ("--account-for-embedding-in-pipeline-split",),
            ("--account-for-loss-in-pipeline-split",),
        ]
    return [("--pipeline-model-parallel-layout", _layout_string(keys, layout.vpp))]


def _layout_string(keys: Keys, vpp: int) -> str:
    """``Et*7|t*8|...|t*7L``: chunk c of rank r is part c pp + r, embedding first, loss last.

    A chunk without layers is an empty part, which Megatron's parser takes.
    """
    stages = keys.plan.stages
    if 0 in stages[1:-1]:
        raise keys.cannot("layers_per_stage", f"a stage of {stages_text(stages)} is empty")
    chunks = [even_split(count, vpp) for count in stages]
    parts = [chunks[rank][chunk] for chunk in range(vpp) for rank in range(len(stages))]
    words = ["t" if count == 1 else f"t*{count}" if count else "" for count in parts]
    words[0] = "E" + words[0]
    words[-1] += "m" * keys.plan.model.mtp_layers + "L"
    return "|".join(words)


def _levels_of_cp(plan: Plan) -> tuple[str, str]:
    """Ranks that exchange heads inside a domain, and blocks that go round outside it (Megatron
    Core, parallel_state.py: the first is the inner group)."""
    tp, cp = plan.layout.tp, plan.layout.cp
    room = plan.domain_gpus // tp if plan.domain_gpus % tp == 0 else 1
    inside = math.gcd(room, cp)
    return str(inside), str(cp // inside)


def _sharding(keys: Keys) -> list[Flag]:
    layout = keys.plan.layout
    zero, shard = keys.take("zero_stage"), keys.take("shard_degree")
    reshard = keys.take("reshard")
    instances = layout.dp * layout.cp // (shard or layout.dp * layout.cp)
    found: list[Flag] = []
    if zero >= 1:
        found.append(("--use-distributed-optimizer",))
    if keys.take("offload_optimizer"):
        found += [("--optimizer-cpu-offload",), ("--use-precision-aware-optimizer",)]
    if zero == 1 and instances > 1:
        found.append(("--num-distributed-optimizer-instances", str(instances)))
    if zero >= 2:
        if instances > 1:
            raise keys.cannot("shard_degree", "Megatron-FSDP is given no outer groups here")
        if zero == 3 and not reshard:
            raise keys.cannot("reshard", "Megatron-FSDP always frees gathered weights", True)
        found += [
            ("--use-megatron-fsdp",),
            ("--data-parallel-sharding-strategy", _SHARDING[zero]),
            ("--no-gradient-accumulation-fusion",),
        ]
    return found


def _batch(keys: Keys) -> list[Flag]:
    training = keys.plan.training
    return [
        ("--micro-batch-size", str(keys.take("micro_batch"))),
        ("--global-batch-size", str(training.global_batch)),
    ]


def _recompute(keys: Keys) -> list[Flag]:
    kind, layers = keys.take("recompute"), keys.take("recompute_layers")
    if kind == "selective":
        return [("--recompute-granularity", "selective"), ("--recompute-modules", "core_attn")]
    if kind == "none":
        return []
    if isinstance(layers, tuple):
        if len(set(layers)) > 1:
            raise keys.cannot("recompute_layers", "it recomputes as many layers on every stage")
        layers = layers[0]
    found: list[Flag] = [("--recompute-granularity", "full")]
    if layers is None:
        return [*found, ("--recompute-method", "uniform"), ("--recompute-num-layers", "1")]
    vpp = keys.plan.layout.vpp
    if layers % vpp:
        raise keys.cannot("recompute_layers", f"it counts in each of {vpp} chunks")
    return [
        *found,
        ("--recompute-method", "block"),
        ("--recompute-num-layers", str(layers // vpp)),
    ]


def _offload(keys: Keys) -> list[Flag]:
    """Activations of whole layers, all but the last one, whose backward pass comes at once.

    Megatron's other way, module by module, moves inputs alone that it has names for: not all that a
    dense layer saves. transformer_config.py refuses a pipeline and recomputation beside this one.
    """
    layout, layers = keys.plan.layout, keys.plan.model.layers
    if not keys.take("offload_activations"):
        return []
    if layout.pp > 1 or layout.recompute != "none" or layers < 2:
        raise keys.cannot(
            "offload_activations",
            "it moves whole layers at pp 1 without recomputation alone",
            False,
        )
    return [("--cpu-offloading-num-layers", str(layers - 1))]


def _precision(plan: Plan) -> list[Flag]:
    found: dict[str, list[Flag]] = {
        "fp32": [],
        "fp16": [("--fp16",)],
        "bf16": [("--bf16",)],
        "fp8": [("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")],
        "mxfp8": [("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")],
        "nvfp4": [("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")],
    }
    flags = found[plan.training.precision]
    half = plan.training.precision not in ("fp32", "fp16")
    if half and plan.software.gradient_bytes == 2 and plan.layout.zero_stage < 2:
        flags = [*flags, ("--grad-reduce-in-bf16",)]
    return flags


def _overlap(plan: Plan) -> list[Flag]:
    """The overlaps that the software profile counts on, where Megatron allows them."""
    software, layout, found = plan.software, plan.layout, list[Flag]()
    if software.overlap_grad_reduce > 0 and layout.dp * layout.cp > 1:
        found.append(("--overlap-grad-reduce",))
        if software.overlap_param_gather > 0 and layout.zero_stage >= 1:
            found.append(("--overlap-param-gather",))
    if software.overlap_tp > 0 and layout.tp > 1 and layout.sequence_parallel:
        found.append(("--tp-comm-overlap",))
    if plan.model.moe and software.overlap_ep > 0 and _experts_overlap(plan):
        found.append(("--overlap-moe-expert-parallel-comm",))
    return found


def _experts_overlap(plan: Plan) -> bool:
    """Megatron's conditions (transformer_config.py): interleaved, and nothing fully recomputed."""
    layout = plan.layout
    chunked = layout.pp == 1 or layout.vpp > 1
    return (
        layout.ep > 1
        and chunked
        and layout.recompute != "full"
        and plan.training.precision != "fp32"
        and plan.model.mtp_layers <= 1
    )


def _checkpoints(plan: Plan) -> list[Flag]:
    if not plan.interval_steps:
        return []
    found: list[Flag] = [
        ("--save", "checkpoints"),
        ("--save-interval", str(plan.interval_steps)),
        ("--ckpt-format", "fsdp_dtensor" if plan.layout.zero_stage > 1 else "torch_dist"),
    ]
    if plan.software.async_save and plan.layout.zero_stage <= 1:
        found += [("--async-save",), ("--use-persistent-ckpt-worker",)]
    return found


def _stand_ins(plan: Plan) -> list[Flag]:
    return [
        ("--train-iters", str(plan.training.steps)),
        ("--lr", "1e-4"),
        ("--mock-data",),
        ("--tokenizer-type", "NullTokenizer"),
        ("--vocab-size", str(plan.model.vocab)),
    ]
