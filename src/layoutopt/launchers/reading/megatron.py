"""Megatron-LM's flags, read back into a layout and a model."""

from __future__ import annotations

from typing import Any

from layoutopt.costmodel.model import Mla, Model, Moe
from layoutopt.costmodel.stages import even_split
from layoutopt.errors import InputError
from layoutopt.launchers.reading.layout_string import layers_of, pattern_of
from layoutopt.launchers.reading.words import Flags, read_flags
from layoutopt.launchers.reading.world import gpus

_CP_KINDS = {"p2p": "ring", "allgather": "all_gather", "a2a": "ulysses", "a2a+p2p": "hierarchical"}
_STRATEGY = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def options(text: str) -> dict[str, Any]:
    """Options of ``estimate``; what the flags do not say is left out."""
    flags = read_flags(text)
    layout = _layout(flags)
    found: dict[str, Any] = {"framework": "megatron", "layout": layout}
    if (world := gpus(flags)) is not None:
        found["gpus"] = world
    instances = flags.count("--num-distributed-optimizer-instances", 1) or 1
    if instances > 1:
        if world is None:
            raise InputError(
                "--num-distributed-optimizer-instances needs the world's size: the launch has no "
                "--nnodes and --nproc-per-node",
                field="--num-distributed-optimizer-instances",
                value=instances,
            )
        layout["shard_degree"] = world // (layout["tp"] * layout["pp"] * instances)
    for name, flag in (("seq_len", "--seq-length"), ("global_batch", "--global-batch-size")):
        if (value := flags.count(flag)) is not None:
            found[name] = value
    found["precision"] = _precision(flags)
    if flags.has("--finetune"):
        found["finetune"] = "full"
    if flags.has("--num-layers"):
        found["model"] = _model(flags)
    return found


def _layout(flags: Flags) -> dict[str, Any]:
    degrees = {
        "tp": "--tensor-model-parallel-size",
        "pp": "--pipeline-model-parallel-size",
        "cp": "--context-parallel-size",
        "ep": "--expert-model-parallel-size",
        "micro_batch": "--micro-batch-size",
    }
    layout: dict[str, Any] = {"tp": 1, "pp": 1, "cp": 1}
    layout |= {
        key: value for key, flag in degrees.items() if (value := flags.count(flag)) is not None
    }
    tp = int(layout["tp"])
    if flags.has("--num-experts"):
        layout["etp"] = flags.count("--expert-tensor-parallel-size", tp)
    layout["sequence_parallel"] = flags.has("--sequence-parallel") and tp > 1
    kind = flags.text("--cp-comm-type")
    if kind is not None and layout["cp"] > 1:
        if kind not in _CP_KINDS:
            raise _unread("--cp-comm-type", kind, *_CP_KINDS)
        layout["cp_kind"] = _CP_KINDS[kind]
    layout |= _pipeline(flags, int(layout["pp"]))
    layout |= _sharding(flags)
    layout["recompute"] = _recompute(flags, int(layout.get("vpp", 1)))
    layout |= _offload(flags)
    if flags.has("--use-tp-pp-dp-mapping"):
        layout["axis_order"] = "tp-cp-ep-pp-dp"
    return layout


def _pipeline(flags: Flags, pp: int) -> dict[str, Any]:
    layers = flags.count("--num-layers")
    found: dict[str, Any] = {}
    chunks = flags.count("--num-virtual-stages-per-pipeline-rank")
    a_chunk = flags.count("--num-layers-per-virtual-pipeline-stage")
    if chunks:
        found["vpp"] = chunks
    elif a_chunk and layers:
        found["vpp"] = layers // (pp * a_chunk)
    if (text := flags.text("--pipeline-model-parallel-layout")) is not None:
        found = layers_of(text, pp)
    first = flags.count("--decoder-first-pipeline-num-layers")
    last = flags.count("--decoder-last-pipeline-num-layers")
    if layers and (first is not None or last is not None):
        found["layers_per_stage"] = _ends(layers, pp, first, last)
    counted = [
        flags.has(f"--account-for-{part}-in-pipeline-split") for part in ("embedding", "loss")
    ]
    if layers and any(counted):
        each = (layers + sum(counted)) // pp
        found["layers_per_stage"] = [
            each - (counted[0] and stage == 0) - (counted[1] and stage == pp - 1)
            for stage in range(pp)
        ]
    if layers and found.get("layers_per_stage") == list(even_split(layers, pp)):
        del found["layers_per_stage"]  # what stages hold unless something else is said
    return found


def _ends(layers: int, pp: int, first: int | None, last: int | None) -> list[int]:
    """First and last stage as given, the rest even."""
    ends = (first is not None) + (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if pp <= ends or rest % (pp - ends):
        raise InputError(
            f"{rest} layers between the ends do not divide over {pp - ends} stages",
            field="--decoder-first-pipeline-num-layers",
            value=first if first is not None else last,
        )
    middle = list(even_split(rest, pp - ends))
    return [*([first] if first is not None else []), *middle, *([last] if last is not None else [])]


def _sharding(flags: Flags) -> dict[str, Any]:
    if flags.has("--use-torch-fsdp2"):
        return {"zero_stage": 3, "reshard": not flags.has("--torch-fsdp2-no-reshard-after-forward")}
    if flags.has("--use-megatron-fsdp"):
        strategy = flags.text("--data-parallel-sharding-strategy") or "optim_grads_params"
        if strategy not in _STRATEGY:
            raise _unread("--data-parallel-sharding-strategy", strategy, *_STRATEGY)
        return {"zero_stage": _STRATEGY[strategy]}
    return {"zero_stage": int(flags.has("--use-distributed-optimizer"))}


def _recompute(flags: Flags, vpp: int) -> str:
    kind = flags.text("--recompute-granularity")
    if kind is None:
        return "selective" if flags.has("--recompute-activations") else "none"
    if kind != "full":
        return kind
    if flags.text("--recompute-method") == "block":
        return f"full:{(flags.count('--recompute-num-layers', 1) or 1) * vpp}"
    return "full"


def _offload(flags: Flags) -> dict[str, Any]:
    """What stands in host memory; activations of all layers, or of none."""
    if flags.has("--fine-grained-activation-offloading"):
        raise _unread("--fine-grained-activation-offloading", "", "--cpu-offloading-num-layers")
    found = {"offload_optimizer": True} if flags.has("--optimizer-cpu-offload") else {}
    moved = flags.count("--cpu-offloading-num-layers") or 0
    if moved:
        layers = flags.count("--num-layers")
        if layers is not None and moved < layers - 1:
            raise _unread("--cpu-offloading-num-layers", str(moved), str(layers - 1))
        found["offload_activations"] = True
    return found


def _precision(flags: Flags) -> str:
    if flags.has("--fp4-format"):
        return "nvfp4"
    if flags.has("--fp8-format"):
        return "mxfp8" if flags.text("--fp8-recipe") == "mxfp8" else "fp8"
    return "bf16" if flags.has("--bf16") else "fp16" if flags.has("--fp16") else "fp32"


def _model(flags: Flags) -> Model:
    """The architecture that the flags build; Megatron's defaults where they are silent."""

    def must(name: str) -> int:
        value = flags.count(name)
        if value is None:
            raise InputError(f"{name} is missing beside --num-layers", field=name)
        return value

    layers, hidden = must("--num-layers"), must("--hidden-size")
    heads = must("--num-attention-heads")
    positions = flags.text("--position-embedding-type") or "learned_absolute"
    most = flags.count("--max-position-embeddings") or flags.count("--seq-length")
    grouped = flags.has("--group-query-attention")
    biased = not flags.has("--disable-bias-linear")
    mla = _mla(flags)
    usual_head = mla.v_head_dim if mla else hidden // heads
    layer_norm = (flags.text("--normalization") or "LayerNorm") == "LayerNorm"
    return Model(
        name=f"{layers} layers of {hidden}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=(flags.count("--num-query-groups") or heads) if grouped else heads,
        head_dim=flags.count("--kv-channels") or usual_head,
        ffn=flags.count("--ffn-hidden-size") or 4 * hidden,
        gated_mlp=flags.has("--swiglu"),
        vocab=must("--vocab-size"),
        tied_embeddings=not flags.has("--untie-embeddings-and-output-weights"),
        max_seq_len=most,
        learned_positions=(most or 0) if positions == "learned_absolute" else 0,
        norm="layernorm" if layer_norm else "rmsnorm",
        qk_norm="head" if flags.has("--qk-layernorm") and not mla else "none",
        qkv_bias=biased or flags.has("--add-qkv-bias"),
        attention_out_bias=biased,
        mlp_bias=biased,
        moe=_moe(flags, layers),
        mla=mla,
        attention_sinks=flags.text("--softmax-type") == "learnable",
        **_windows(flags, layers),
        mtp_layers=flags.count("--mtp-num-layers") or 0,
    )


def _windows(flags: Flags, layers: int) -> dict[str, Any]:
    """Sliding window, in tokens, and how many layers see everything."""
    size = flags.text("--window-size")
    if size is None:
        return {}
    first = size.strip("() ").split(",")[0].strip()
    if not first.isdigit():
        raise _unread("--window-size", size, "127,0")
    found = {"sliding_window": int(first) + 1}
    every = flags.text("--window-attn-skip-freq")
    if every is not None:
        whole = layers // int(every) if every.isdigit() else pattern_of(every).count(0)
        found["global_layers"] = whole
    return found


def _moe(flags: Flags, layers: int) -> Moe | None:
    experts = flags.count("--num-experts")
    if not experts:
        return None
    pattern = _expert_pattern(flags.text("--moe-layer-freq") or "1", layers)
    return Moe(
        experts=experts,
        top_k=flags.count("--moe-router-topk", 2) or 2,
        expert_ffn=flags.count("--moe-ffn-hidden-size") or flags.count("--ffn-hidden-size") or 0,
        shared_ffn=flags.count("--moe-shared-expert-intermediate-size") or 0,
        layers=sum(pattern),
        first_dense_layers=pattern.index(1) if 1 in pattern else layers,
        router_bias=flags.has("--moe-router-enable-expert-bias"),
        shared_gate=flags.has("--moe-shared-expert-gate"),
    )


def _expert_pattern(text: str, layers: int) -> list[int]:
    """1 for each layer with experts: an interval, or a list as in ``([0]*3+[1]*58)``."""
    if text.isdigit():
        return [1 if layer % int(text) == 0 else 0 for layer in range(layers)]
    pattern = pattern_of(text)
    if len(pattern) != layers:
        raise InputError(
            f"--moe-layer-freq {text} lists {len(pattern)} layers, the model has {layers}",
            field="--moe-layer-freq",
            value=text,
        )
    return pattern


def _mla(flags: Flags) -> Mla | None:
    if not flags.has("--multi-latent-attention"):
        return None
    return Mla(
        q_lora_rank=flags.count("--q-lora-rank"),
        kv_lora_rank=flags.count("--kv-lora-rank", 32) or 32,
        qk_nope_head_dim=flags.count("--qk-head-dim", 128) or 128,
        qk_rope_head_dim=flags.count("--qk-pos-emb-head-dim", 64) or 64,
        v_head_dim=flags.count("--v-head-dim", 128) or 128,
    )


def _unread(name: str, value: str, *known: str) -> InputError:
    return InputError(
        f"{name} {value} has no word here; known: {', '.join(known)}",
        field=name,
        value=value,
        nearest=known,
    )
