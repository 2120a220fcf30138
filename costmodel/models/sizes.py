"""From a size such as "405B" to an architecture: a table, a near one, or a rule."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from layoutopt.costmodel.counts import count
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.models.catalog import load_model, match_name, model_names, size_table
from layoutopt.costmodel.models.catalog import unknown as unknown_model
from layoutopt.errors import InputError

SMALLEST, LARGEST = 10**6, 10**14
NEAR = 0.02
"""A published dense model within this share of the size asked for stands for it."""

_SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_SIZE = re.compile(r"([+-]?)([0-9]{1,18})(?:\.([0-9]{1,18}))?([kKmMbBtT]?)", re.ASCII)


def parse_size(text: str) -> int | None:
    """Parameters that ``text`` ("405B", "1.5T", "7000000000") asks for; None if no size."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        return None
    sign, whole, fraction, suffix = match.groups()
    scale = _SUFFIX[suffix.lower()]
    digits = fraction or ""
    divisor: int = 10 ** len(digits)
    value, rest = divmod(int(whole + digits) * scale, divisor)
    if rest:
        return None
    return -value if sign == "-" else value


def short(params: int) -> str:
    """A size in the shortest usual form: 405B, 1.5T, 10B."""
    for suffix, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if params >= scale:
            return f"{params / scale:.4g}{suffix}"
    return str(params)


def find_model(text: str) -> tuple[Model, str | None]:
    """The model that ``text`` names or the size it gives, and a note on what was taken.

    A catalogue name is matched loosely; the note is None where the name was exact. A size goes
    through the table, then to the nearest dense catalogue model within 2% (ties: first by
    name), then to ``model_of_size``. Raises InputError with the nearest names or sizes.
    """
    name = match_name(text)
    if name is not None:
        note = None if name == text else f"model {text!r}: catalogue entry {name}"
        return load_model(name), note
    params = parse_size(text)
    if params is None:
        raise unknown_model(text)
    return _of_size(text.strip(), params)


def _of_size(text: str, params: int) -> tuple[Model, str]:
    if not SMALLEST <= params <= LARGEST:
        bound = "1M" if params < SMALLEST else "100T"
        raise InputError(
            f"a model of {text} parameters: sizes go from 1M to 100T",
            field="model",
            value=text,
            nearest=(bound,),
        )
    for size, name in size_table().items():
        if parse_size(size) == params:
            model = load_model(name)
            return model, f"{text}: {name}, {count(model).total:,} parameters (table of sizes)"
    near = _nearest_dense(params)
    if near:
        total = count(near).total
        off = total / params - 1
        return near, (
            f"{text}: {near.name}, {total:,} parameters ({off:+.1%}), the nearest dense model"
        )
    model = model_of_size(params)
    return model, _describe(text, model)


def _nearest_dense(params: int) -> Model | None:
    """The dense catalogue model nearest to ``params``, if within NEAR of it."""
    models = [load_model(name) for name in sorted(model_names())]
    dense = [model for model in models if model.moe is None]
    best = min(dense, key=lambda model: abs(count(model).total - params))
    return best if abs(count(best).total - params) <= NEAR * params else None


def _describe(text: str, model: Model) -> str:
    total = count(model).total
    return (
        f"{text}: no dense model of that size is known within {NEAR:.0%}; built by rule: Llama-3"
        f" style, {model.layers} layers, hidden {model.hidden:,}, {model.heads} heads"
        f" ({model.kv_heads} key/value) of {model.head_dim}, SwiGLU {model.ffn:,},"
        f" vocabulary {model.vocab:,}, {total:,} parameters"
    )


@dataclass(frozen=True)
class _Style:
    """What the rule fixes at a scale, before widths are chosen."""

    vocab: int
    tied: bool
    head_dim: int
    hidden_step: int
    aspect: int


RATIO = 3.5
"""Inner width over hidden size: Llama 3.1 8B and 70B (14,336 / 4,096, 28,672 / 8,192)."""
ASPECT = 128
"""Hidden size over layers: 128 in Llama 3.1 8B, 130 in 405B, 128 in GPT-3."""
SMALL_ASPECT = 64
"""The same below 1B: 64 in GPT-2 small and Pythia 160M, 85 in Pythia 70M."""
KV_HEADS = 8
"""Key/value heads in all of Llama 3.1."""


def _style(params: int) -> _Style:
    """Vocabulary, tying, head size and proportions by scale.

    From 4B on as Llama 3.1; tied below as in Llama 3.2 1B and 3B; smaller vocabularies where
    128,256 tokens would outweigh the layers (32,000: Llama 2). Hidden sizes are whole steps of
    8 heads (4 in the smallest), so that key/value heads and tensor shards divide them.
    """
    if params >= 4 * 10**9:
        return _Style(128_256, False, 128, 1_024, ASPECT)
    if params >= 10**9:
        return _Style(128_256, True, 64, 512, ASPECT)
    if params >= 50 * 10**6:
        return _Style(32_000, True, 64, 256, SMALL_ASPECT)
    return _Style(4_096, True, 16, 64, SMALL_ASPECT)


def model_of_size(params: int) -> Model:
    """A dense model of ``params`` parameters (1M to 100T), within 0.5%, by a stated rule.

    Llama-3 style: hidden size about 128 times the layers (64 below 1B), grouped-query attention
    with 8 key/value heads, SwiGLU about 3.5 times as wide as the hidden size. Hidden sizes are
    whole steps of heads, layer counts have many divisors (so that pipelines divide them), and
    the inner width closes the gap. Of all such shapes, the one whose two ratios are least off.
    """
    style = _style(params)
    guess = (params * style.aspect / (3 * RATIO + 2)) ** (1 / 3)
    low, high = max(1, int(guess / 3 / style.hidden_step)), int(guess * 2 / style.hidden_step) + 2
    shapes = [
        (_oddness(shape, style.aspect), shape)
        for step in range(low, high)
        for shape in _shapes(params, style, step * style.hidden_step)
        if abs(count(shape).total / params - 1) <= 0.005
    ]
    if not shapes:
        raise InputError(
            f"the rule finds no model of {params:,} parameters", field="model", value=params
        )
    return min(shapes, key=lambda pair: (pair[0], pair[1].hidden))[1]


def _oddness(model: Model, aspect: int) -> float:
    """How far a shape is from the two ratios of the rule, in logarithms."""
    narrow = math.log(model.hidden / model.layers / aspect)
    return abs(narrow) + 2 * abs(math.log(model.ffn / model.hidden / RATIO))


def _shapes(params: int, style: _Style, hidden: int) -> list[Model]:
    """Models of one hidden size: the two layer counts that bracket the usual inner width."""
    empty = _shape(params, style, hidden, layers=1, ffn=1)
    counts = count(empty)
    body = params - counts.vocabulary_params
    layer = counts.attention_params + 3 * RATIO * hidden * hidden
    exact = body / layer
    shapes = []
    for layers in _round_counts(exact):
        width = (body / layers - counts.attention_params) / (3 * hidden)
        grain = 256 if hidden >= 2_048 else 32 if hidden >= 512 else 8
        ffn = round(width / grain) * grain
        if ffn >= hidden:
            shapes.append(_shape(params, style, hidden, layers, ffn))
    return shapes


def _round_counts(exact: float) -> list[int]:
    """Layer counts with many divisors next to ``exact``, below and above."""
    grain = 8 if exact >= 64 else 4 if exact >= 12 else 2 if exact >= 4 else 1
    below = int(exact / grain) * grain
    return [layers for layers in (below, below + grain) if layers > 1]


def _shape(params: int, style: _Style, hidden: int, layers: int, ffn: int) -> Model:
    heads = hidden // style.head_dim
    return Model(
        name=f"dense-{short(params).lower()}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=math.gcd(heads, KV_HEADS),
        head_dim=style.head_dim,
        ffn=ffn,
        gated_mlp=True,
        vocab=style.vocab,
        tied_embeddings=style.tied,
        max_seq_len=8_192,
        source="rule: Llama-3 style, hidden = 128 x layers, SwiGLU 3.5 x hidden, 8 kv heads",
    )
