"""torchtitan's command line, as torchtitan 0.3.0's own parser reads it; it takes no TOML."""

from __future__ import annotations

from itertools import product

from layoutopt.inputs.layout_text import stages_text
from layoutopt.launchers.keys import Keys
from layoutopt.launchers.named import known_as
from layoutopt.launchers.plan import Plan
from layoutopt.launchers.shell import Flag, Script, torchrun

NAME = "torchtitan"
_SCHEDULES = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "gpipe": "GPipe",
    "zbv": "ZBVZeroBubble",
}
_MOST_WEIGHT = 8
"""Layers that embedding or loss head may stand for."""


def script(plan: Plan) -> str:
    """A bash script with one command; raises RuleError for what torchtitan cannot say."""
    words, raw = torchrun(plan.nodes, plan.gpus_a_node)
    return Script(
        program=words,
        raw=(*raw, "-m torchtitan.train"),
        flags=flags(plan),
        comments=(f"{plan.title()}; written by layoutopt.",),
    ).text()


def flags(plan: Plan) -> list[Flag]:
    """Every option; the activation-checkpoint subcommand comes last."""
    keys = Keys(plan, NAME)
    known = known_as(plan, NAME)
    config = _with_precision(keys, known)
    found: list[Flag] = [("--module", known["module"]), ("--config", config)]
    found += _degrees(keys)
    found += _sharding(keys)
    found += _pipeline(keys)
    found += _batch(keys)
    if plan.layout.pp > 1 or plan.layout.ep > 1:
        # Neither a pipeline nor the usual dispatcher of tokens can be captured.
        found.append(("--training.disable_cuda_graphs",))
    if plan.interval_steps:
        found += [
            ("--checkpoint.enable",),
            ("--checkpoint.interval", str(plan.interval_steps)),
            ("--checkpoint.async_mode", "async" if plan.software.async_save else "disabled"),
        ]
    # Asynchronous tp is a pass of the compiler, which its expert models leave out.
    sequence = plan.layout.sequence_parallel and plan.layout.tp > 1
    if plan.software.overlap_tp > 0 and sequence and not plan.model.moe:
        found += [("--compile.enable",), ("--compile.enable_async_tensor_parallel",)]
    why = "it has no adapters, and masks between documents are part of a model's own configuration"
    if keys.tuning(why):
        found.append(("--checkpoint.initial_load_path", "pretrained"))
    recompute = _recompute(keys)
    keys.finish()
    return [*found, recompute]


def _with_precision(keys: Keys, known: dict[str, str]) -> str:
    """torchtitan quantises by configuration: its registry has some models in some precisions."""
    precision = keys.plan.training.precision
    if precision in known:
        return known[precision]
    there = [name for name in known if name != "module"]
    raise keys.cannot(
        "precision", f"its registry has this model in {', '.join(there)}, not {precision}", *there
    )


def _degrees(keys: Keys) -> list[Flag]:
    layout = keys.plan.layout
    found: list[Flag] = [
        ("--parallelism.tensor_parallel_degree", str(keys.take("tp"))),
        ("--parallelism.context_parallel_degree", str(keys.take("cp"))),
        ("--parallelism.pipeline_parallel_degree", str(keys.take("pp"))),
    ]
    if not keys.take("sequence_parallel") and layout.tp > 1:
        found.append(("--parallelism.no-enable_sequence_parallel",))
    if keys.take("cp_kind") == "ulysses" and layout.cp > 1:
        raise keys.cannot("cp_kind", "it gathers keys and values", "all_gather", "ring")
    seq, parts = keys.plan.training.seq_len, 2 * layout.tp * layout.cp
    if seq % parts:
        raise keys.cannot("cp", f"seq_len {seq:,} does not divide by 2 x tp x cp = {parts}")
    if keys.plan.model.moe:
        ep = keys.take("ep")
        if keys.take("etp") > 1:
            raise keys.cannot("etp", "it does not cut experts over tp", 1)
        ranks = _shard(keys) * layout.cp * layout.tp
        if ranks % ep:
            raise keys.cannot("ep", f"it has to divide dp_shard x cp x tp = {ranks}")
        found.append(("--parallelism.expert_parallel_degree", str(ep)))
    return found


def _shard(keys: Keys) -> int:
    """Replicas that a copy of the weights is cut over: dp, or fewer in HSDP; 1 without FSDP."""
    layout = keys.plan.layout
    if layout.zero_stage == 0:
        return 1
    ranks = layout.shard_degree or layout.dp * layout.cp
    if ranks % layout.cp:
        raise keys.cannot("shard_degree", f"it has to be a multiple of cp {layout.cp}")
    return ranks // layout.cp


def _sharding(keys: Keys) -> list[Flag]:
    layout = keys.plan.layout
    zero, shard = keys.take("zero_stage"), _shard(keys)
    keys.take("shard_degree")
    keys.take("dp")
    if zero == 1:
        raise keys.cannot("zero_stage", "FSDP2 shards weights and gradients as well", 2, 3)
    found: list[Flag] = [
        ("--parallelism.data_parallel_replicate_degree", str(layout.dp // shard)),
        ("--parallelism.data_parallel_shard_degree", str(shard)),
    ]
    if zero >= 2:
        always = keys.take("reshard") and zero == 3
        found.append(("--parallelism.fsdp_reshard_after_forward", "always" if always else "never"))
    return found


def _pipeline(keys: Keys) -> list[Flag]:
    layout, pp = keys.plan.layout, keys.plan.layout.pp
    vpp, schedule = keys.take("vpp"), keys.take("schedule")
    keys.take("layers_per_stage")
    if pp == 1:
        return []
    if schedule not in _SCHEDULES:
        raise keys.cannot("schedule", "PyTorch has no such schedule", *_SCHEDULES)
    chunks = 2 if schedule == "zbv" else vpp
    first, last, each = _weights(keys, chunks)
    return [
        ("--parallelism.pipeline_parallel_schedule", _SCHEDULES[schedule]),
        ("--parallelism.pipeline_parallel_microbatch_size", str(layout.micro_batch)),
        ("--parallelism.pipeline_parallel_layers_per_stage", str(each)),
        ("--parallelism.pipeline_parallel_first_stage_less_layers", str(first)),
        ("--parallelism.pipeline_parallel_last_stage_less_layers", str(last)),
    ]


def _weights(keys: Keys, chunks: int) -> tuple[int, int, int]:
    """Layers that embedding and loss head stand for, and layers a chunk, that give these stages."""
    stages, layers = keys.plan.stages, keys.plan.model.layers
    pp = len(stages)
    v_shape = keys.plan.layout.schedule == "zbv"
    pairs = sorted(product(range(_MOST_WEIGHT + 1), repeat=2), key=lambda pair: (sum(pair), pair))
    for first, last in pairs:
        split = split_of_parts(layers, pp * chunks, first, last)
        if split and on_ranks(split, pp, v_shape) == stages:
            return first, last, -(-(layers + first + last) // (pp * chunks))
    raise keys.cannot(
        "layers_per_stage",
        f"none of its splits of {layers} layers gives {stages_text(stages)}; it evens out layers, "
        "embedding and loss head, longer stages first",
    )


def split_of_parts(layers: int, parts: int, first: int, last: int) -> tuple[int, ...] | None:
    """Layers of each part (pipeline_parallel.py, _generate_llm_fqn_per_model_part)."""
    base, spare = divmod(layers + first + last, parts)
    each = -(-(layers + first + last) // parts)
    # The count of parts is worked out again from the layers a part: it has to come out the same.
    if base == 0 or max(first, last) > base or -(-(layers + first + last) // each) != parts:
        return None
    split = [base + (part < spare) for part in range(parts)]
    split[0] -= first
    split[-1] -= last
    return tuple(split) if min(split) >= 0 else None


def on_ranks(split: tuple[int, ...], pp: int, v_shape: bool) -> tuple[int, ...]:
    """Layers of each rank: part c pp + r stands on rank r; in a V every second row runs back."""
    found = [0] * pp
    for part, count in enumerate(split):
        row, rank = divmod(part, pp)
        found[pp - 1 - rank if v_shape and row % 2 else rank] += count
    return tuple(found)


def _batch(keys: Keys) -> list[Flag]:
    """With a pipeline the local batch is all of a replica's microbatches."""
    layout, training = keys.plan.layout, keys.plan.training
    micro = keys.take("micro_batch")
    local = micro * layout.microbatches if layout.pp > 1 else micro
    return [
        ("--training.local_batch_size", str(local)),
        ("--training.global_batch_size", str(training.global_batch)),
        ("--training.seq_len", str(training.seq_len)),
        ("--training.steps", str(training.steps)),
    ]


def _recompute(keys: Keys) -> Flag:
    kind = keys.take("recompute")
    if keys.take("recompute_layers") is not None:
        raise keys.cannot("recompute_layers", "it checkpoints all layers or none", "full")
    return (f"activation-checkpoint:{kind}",)
