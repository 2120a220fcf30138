"""From the model of a measured run, as its source describes it, to a whole architecture.

Sources leave figures out. What is missing comes from a catalogue entry of the same width and
kind, else from the stated parameter count, else from a default that is said. Which entry is
decided by shape; a name only breaks ties between entries of the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from layoutopt.costmodel.counts import count
from layoutopt.costmodel.model import Mamba, Mla, Model, Moe
from layoutopt.costmodel.models.catalog import load_model, match_name, model_names, simplify
from layoutopt.costmodel.models.checks import LIMITS, check_model
from layoutopt.errors import InputError

GPT_VOCAB = 51_200
"""GPT-2's 50,257 tokens padded to 128 x 8 (Narayanan et al. 2021, section 5.1)."""
LLAMA_VOCAB = 32_000
"""Touvron et al. 2023, Llama 2, section 2.2."""
DEFAULT_TOP_K = 2
"""The default of Megatron-LM's --moe-router-topk; Mixtral's and Grok's too."""
DEFAULT_MLA = Mla(
    q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
)
"""DeepSeek-V2-Lite's latent attention (DeepSeek-AI 2024, arXiv 2405.04434, appendix B)."""

_TRAITS = (
    "norm",
    "norms_per_layer",
    "qk_norm",
    "embedding_norm",
    "qkv_bias",
    "attention_out_bias",
    "attention_sinks",
    "mlp_bias",
    "parallel_block",
    "learned_positions",
    "max_seq_len",
    "sliding_window",
    "local_kind",
)
"""What a record never states and a catalogue entry of the same shape does."""

_GPT_TRAITS: dict[str, Any] = {
    "norm": "layernorm",
    "qkv_bias": True,
    "attention_out_bias": True,
    "mlp_bias": True,
}


class _Given:
    """What a record's ``model`` states, and the list of what had to be filled in."""

    def __init__(self, stated: Mapping[str, Any]) -> None:
        self.stated, self.filled = stated, list[str]()

    def whole(self, key: str) -> int | None:
        """A stated positive whole number, or None."""
        value = self.stated.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return int(value) if math.isfinite(value) and value >= 1 else None

    def flag(self, key: str) -> bool | None:
        """A stated yes or no, or None."""
        value = self.stated.get(key)
        return value if isinstance(value, bool) else None

    def fill(self, key: str, value: Any, why: str) -> Any:
        """``value``, noted as filled in."""
        self.filled.append(f"{key} {value}: {why}")
        return value


def record_model(stated: Mapping[str, Any]) -> tuple[Model | None, list[str]]:
    """The architecture of a record's ``model`` object, and what was filled in, in words.

    (None, reasons) where layers, hidden size or heads are not stated, or the figures contradict
    each other: such a record cannot be predicted.
    """
    given = _Given(stated)
    gaps = [key for key in ("layers", "hidden", "heads") if given.whole(key) is None]
    if gaps:
        return None, [f"{key} is not stated" for key in gaps]
    try:
        model = check_model(_assemble(given), "record")
    except InputError as error:
        return None, [error.message]
    return _with_mtp(_with_positions(model, given), given), given.filled


def _assemble(given: _Given) -> Model:
    layers, hidden = given.whole("layers") or 0, given.whole("hidden") or 0
    heads = given.whole("heads") or 0
    gated = given.flag("gated_mlp")
    if gated is None:
        gated = bool(given.fill("gated_mlp", bool(given.whole("experts")), "not stated"))
    kv_heads = given.whole("kv_heads")
    if kv_heads is None:
        kv_heads = int(given.fill("kv_heads", heads, "as many as heads"))
    base = _twin(given, heads, kv_heads, gated)
    moe = _experts(given, layers, hidden, base)
    mla = _latent(given, base)
    tied = given.flag("tied_embeddings")
    if tied is None:
        value, why = (base.tied_embeddings, f"as {base.name}") if base else (not gated, "default")
        tied = bool(given.fill("tied_embeddings", value, why))
    model = Model(
        name=str(given.stated.get("name") or "unnamed"),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(given, hidden, heads, mla, base),
        ffn=_dense_ffn(given, hidden, gated, base, moe),
        gated_mlp=gated,
        vocab=1,
        tied_embeddings=tied,
        moe=moe,
        mla=mla,
        **_traits(given, layers, gated, base),
    )
    return model.model_copy(update={"vocab": _vocab(given, model, base)})


@lru_cache(maxsize=1)
def _catalogue() -> tuple[Model, ...]:
    return tuple(load_model(name) for name in model_names())


def _twin(given: _Given, heads: int, kv_heads: int, gated: bool) -> Model | None:
    """The catalogue entry with the record's widths; of several, the one most like it.

    Widths are hidden size, heads, MLP kind, inner width and the experts' width; key/value heads
    may differ (some builds copy them). A dense entry of another depth counts only under its own
    name: widths alone are too common to tell GPTs apart.
    """
    spelt = simplify(str(given.stated.get("name") or ""))
    named = match_name(spelt)

    def is_named(model: Model) -> bool:
        return model.name == named or simplify(model.name) in spelt

    wide = [
        model
        for model in _catalogue()
        if model.hidden == given.whole("hidden")
        and model.heads == heads
        and model.gated_mlp == gated
        and _same_mlp(given, model)
        and bool(model.mla) == bool(given.stated.get("mla"))
        and (model.moe or model.layers == given.whole("layers") or is_named(model))
    ]
    if not wide:
        return None

    def likeness(model: Model) -> tuple[bool, ...]:
        return (
            model.kv_heads == kv_heads,
            model.layers == given.whole("layers"),
            model.vocab == given.whole("vocab"),
            is_named(model),
            model.moe is not None and model.moe.experts == given.whole("experts"),
        )

    return max(wide, key=likeness)


def _same_mlp(given: _Given, model: Model) -> bool:
    """Dense and dense of one inner width, or experts and experts of one inner width."""
    experts, width = given.whole("experts"), given.whole("expert_ffn") or given.whole("ffn")
    if bool(experts) != bool(model.moe):
        return False
    own = model.moe.expert_ffn if model.moe else model.ffn
    return width is None or width == own


def _head_dim(given: _Given, hidden: int, heads: int, mla: Mla | None, base: Model | None) -> int:
    if mla:
        return mla.qk_nope_head_dim
    if base and base.head_dim * heads != hidden:
        return int(given.fill("head_dim", base.head_dim, f"as {base.name}"))
    if hidden % heads:
        raise InputError(
            f"{heads} heads do not divide hidden {hidden}", field="model.heads", value=heads
        )
    return hidden // heads


def _dense_ffn(given: _Given, hidden: int, gated: bool, base: Model | None, moe: Moe | None) -> int:
    """The stated inner width; else the twin's, the experts', or the usual multiple of hidden."""
    stated = given.whole("ffn")
    if stated:
        return stated
    if base:
        return int(given.fill("ffn", base.ffn, f"as {base.name}"))
    if moe:
        return moe.expert_ffn
    if gated:
        width = -(-8 * hidden // 3 // 256) * 256
        return int(given.fill("ffn", width, "8/3 of hidden, rounded up to 256"))
    return int(given.fill("ffn", 4 * hidden, "4 times hidden"))


def _experts(given: _Given, layers: int, hidden: int, base: Model | None) -> Moe | None:
    experts = given.whole("experts")
    if not experts:
        return None
    twin = base.moe if base else None
    width = given.whole("expert_ffn") or given.whole("ffn")
    if width is None:
        width = given.fill("expert_ffn", twin.expert_ffn if twin else 4 * hidden, "not stated")
    top_k = given.whole("top_k")
    if top_k is None:
        value, why = (twin.top_k, f"as {base.name}") if base and twin else (DEFAULT_TOP_K, "usual")
        top_k = int(given.fill("top_k", min(value, experts), why))
    count_, first = _expert_layers(given, layers, base)
    return Moe(
        experts=experts,
        top_k=top_k,
        expert_ffn=width,
        shared_ffn=_shared(given, width, twin),
        layers=count_,
        first_dense_layers=first,
        router_bias=twin.router_bias if twin else False,
        expert_bias=twin.expert_bias if twin else False,
        shared_gate=twin.shared_gate if twin else False,
    )


def _expert_layers(given: _Given, layers: int, base: Model | None) -> tuple[int, int]:
    """MoE layers and the dense ones before them: stated, else as the twin, else all."""
    twin = base.moe if base else None
    stated = given.whole("moe_layers")
    if stated is None:
        dense = twin.first_dense_layers if twin and twin.first_dense_layers < layers else 0
        likely, why = layers - dense, "not stated"
        if base and twin and base.mamba:
            likely, why = round(twin.layers * layers / base.layers), f"as {base.name}"
        stated = int(given.fill("moe_layers", likely, why))
    first = twin.first_dense_layers if twin else layers - stated
    return stated, min(first, max(layers - stated, 0))


def _shared(given: _Given, width: int, twin: Moe | None) -> int:
    """Inner width of the shared experts; a record counts them in widths of a routed one."""
    stated = given.stated.get("shared_experts")
    if isinstance(stated, int) and not isinstance(stated, bool):
        return stated * width
    if twin:
        return int(given.fill("shared_ffn", twin.shared_ffn, "as the model of that shape"))
    return 0


def _latent(given: _Given, base: Model | None) -> Mla | None:
    """Multi-head latent attention: stated ranks, else the twin's, else DeepSeek-V2-Lite's."""
    stated = given.stated.get("mla")
    if not stated:
        return None
    default = base.mla if base and base.mla else DEFAULT_MLA
    if not isinstance(stated, Mapping):
        return given.fill("mla", default, f"as {base.name if base else 'deepseek-v2-lite'}")  # type: ignore[no-any-return]
    ranks = {key: value for key, value in stated.items() if key in Mla.model_fields}
    if "qk_head_dim" in stated:
        ranks["qk_nope_head_dim"] = stated["qk_head_dim"]
    return Mla(**{**default.model_dump(), **ranks})


def _traits(given: _Given, layers: int, gated: bool, base: Model | None) -> dict[str, Any]:
    """Norms, biases and windows: the twin's, else a GPT's or a Llama's by the kind of MLP."""
    if base is None:
        return {} if gated else dict(_GPT_TRAITS)
    traits = {key: getattr(base, key) for key in _TRAITS}
    if base.global_layers is not None:
        traits["global_layers"] = round(base.global_layers * layers / base.layers)
    if base.mamba is not None and given.whole("moe_layers") in (None, base.moe_layers):
        traits["mamba"] = _mixers(given, layers, base, base.mamba)
    return traits


def _mixers(given: _Given, layers: int, base: Model, mamba: Mamba) -> Mamba:
    """The twin's Mamba and attention layers, as many of a stack of another depth."""
    share = layers / base.layers
    counts = {key: round(getattr(mamba, key) * share) for key in ("layers", "attention_layers")}
    given.fill("mamba", f"{counts['layers']} layers", f"as {base.name}")
    return mamba.model_copy(update=counts)


def _vocab(given: _Given, model: Model, base: Model | None) -> int:
    """The stated vocabulary; else the twin's of equal depth; else what the count leaves."""
    stated = given.whole("vocab")
    if stated:
        return stated
    if base and base.layers == model.layers:
        return int(given.fill("vocab", base.vocab, f"as {base.name}"))
    solved = _vocab_from_params(given, model)
    if solved:
        return int(given.fill("vocab", solved, "what the stated parameters leave"))
    if base:
        return int(given.fill("vocab", base.vocab, f"as {base.name}"))
    value, why = (LLAMA_VOCAB, "Llama's") if model.gated_mlp else (GPT_VOCAB, "GPT-2's, padded")
    return int(given.fill("vocab", value, why))


def _vocab_from_params(given: _Given, model: Model) -> int | None:
    """Vocabulary that makes the count come out, where the stated count is sharp enough."""
    params = given.whole("params")
    if params is None:
        return None
    row = model.hidden * (1 if model.tied_embeddings else 2)
    vocab = round((params - count(model).total) / row) + 1
    return vocab if _rounding(params) < 2_000 * row and 10_000 <= vocab <= 300_000 else None


def _rounding(params: int) -> float:
    """How far off a stated count may be: half a unit of its last digit that is not zero."""
    digits = str(params)
    unit: int = 10 ** (len(digits) - len(digits.rstrip("0")))
    return unit / 2


def _with_positions(model: Model, given: _Given) -> Model:
    """A position table as long as the stated count says, where it says so to the row.

    llm-foundry sizes the table by the run's sequence length.
    """
    params = given.whole("params")
    if params is None or not model.learned_positions:
        return model
    rows, rest = divmod(params - count(model).total, model.hidden)
    positions = model.learned_positions + rows
    if rest or rows == 0 or _rounding(params) > model.hidden:
        return model
    if not 0 <= positions <= LIMITS["positions"]:
        return model
    given.fill("learned_positions", positions, "what the stated parameters leave")
    return model.model_copy(update={"learned_positions": positions})


def _with_mtp(model: Model, given: _Given) -> Model:
    """Counts the twin's prediction layers only where the stated parameters include them."""
    params = given.whole("params")
    if params is None or not (model.mla and model.moe):
        return model
    trial = model.model_copy(update={"mtp_layers": 1})
    counts = count(trial)
    if abs(counts.total_with_mtp - params) >= abs(counts.total - params):
        return model
    if params < 1.01 * counts.total:
        return model
    given.fill("mtp_layers", 1, "the stated parameters include one")
    return trial
