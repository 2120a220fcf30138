"""What a model's figures may be, and how a wrong one is reported."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NoReturn

from layoutopt.costmodel.model import Model
from layoutopt.errors import ProfileError

LIMITS: dict[str, int] = {
    "layers": 10_000,
    "hidden": 1_000_000,
    "heads": 100_000,
    "kv_heads": 100_000,
    "head_dim": 100_000,
    "ffn": 10_000_000,
    "vocab": 100_000_000,
    "experts": 100_000,
    "positions": 10**9,
}
"""Largest figure taken seriously, one or two orders above anything published."""


def refuse(
    file: str, field: str, value: object, why: str, nearest: Iterable[object] = ()
) -> NoReturn:
    """Raises ProfileError: the file, the field, the value, what is wrong with it."""
    raise ProfileError(
        f"{file}: {field} is {brief(value)}, {why}",
        field=field,
        value=plain(value),
        nearest=tuple(nearest),
    )


def plain(value: object) -> object:
    """``value`` as an error may carry it into JSON: short, flat and finite, else its text."""
    flat = isinstance(value, bool | int | str | None) or (
        isinstance(value, float) and math.isfinite(value)
    )
    return value if flat and len(str(value)) <= 80 else brief(value)


def brief(value: object) -> str:
    """``value`` in at most 80 characters, however large or nested it is."""
    text = "null" if value is None else reprlib.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def missing(file: str, field: str, known: Collection[str], also: Iterable[str] = ()) -> NoReturn:
    """Raises ProfileError for a key that has to be there; names look-alikes among ``known``."""
    if field in known:
        refuse(file, field, None, "but a model cannot do without it")
    close = difflib.get_close_matches(field, list(known), n=3, cutoff=0.75)
    others = [name for name in also if name != field]
    hint = f" (or {', '.join(others)})" if others else ""
    seen = f"; the file has {', '.join(close)}" if close else ""
    raise ProfileError(f"{file}: no key {field}{hint}{seen}", field=field, nearest=tuple(close))


def a_count(file: str, field: str, value: Any, low: int, high: int) -> int:
    """``value`` if it is a whole number within low..high (no boolean, no text)."""
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(file, field, value, f"not a whole number ({low:,} to {high:,})", (low,))
    if value < low:
        refuse(file, field, value, f"below the least, {low:,}", (low,))
    if value > high:
        refuse(file, field, value, f"above the most that is taken, {high:,}", (high,))
    return value


def check_model(model: Model, file: str, names: Mapping[str, str] | None = None) -> Model:
    """``model`` itself if its figures are possible and belong together, else ProfileError.

    ``names`` maps our field names to those of the file, for the message.
    """
    called = names or {}
    for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab"):
        low = 0 if field == "ffn" and not model.dense_layers else 1
        a_count(file, called.get(field, field), getattr(model, field), low, LIMITS[field])
    for field in ("learned_positions", "norms_per_layer", "mtp_layers"):
        a_count(file, called.get(field, field), getattr(model, field), 0, LIMITS["positions"])
    for field in ("max_seq_len", "sliding_window"):
        if getattr(model, field) is not None:
            a_count(file, called.get(field, field), getattr(model, field), 1, LIMITS["positions"])
    if model.heads % model.kv_heads:
        field = called.get("kv_heads", "kv_heads")
        why = f"which does not divide the {model.heads} heads"
        refuse(file, field, model.kv_heads, why, divisors_near(model.heads, model.kv_heads))
    if model.global_layers is not None:
        a_count(
            file, called.get("global_layers", "global_layers"), model.global_layers, 0, model.layers
        )
    _check_experts(model, file)
    _check_latent(model, file)
    _check_mamba(model, file)
    return model


def _check_experts(model: Model, file: str) -> None:
    moe = model.moe
    if not moe:
        return
    a_count(file, "moe.experts", moe.experts, 1, LIMITS["experts"])
    a_count(file, "moe.top_k", moe.top_k, 1, moe.experts)
    a_count(file, "moe.expert_ffn", moe.expert_ffn, 1, LIMITS["ffn"])
    a_count(file, "moe.shared_ffn", moe.shared_ffn, 0, LIMITS["ffn"])
    a_count(file, "moe.layers", moe.layers, 1, model.layers)
    a_count(file, "moe.first_dense_layers", moe.first_dense_layers, 0, model.layers - moe.layers)


def _check_latent(model: Model, file: str) -> None:
    if not model.mla:
        return
    for field, value in model.mla:
        if value is not None:
            low = 0 if field == "qk_rope_head_dim" else 1
            a_count(file, f"mla.{field}", value, low, LIMITS["hidden"])


def _check_mamba(model: Model, file: str) -> None:
    mamba = model.mamba
    if not mamba:
        return
    left = model.layers - (model.moe_layers if mamba.alone else 0)
    a_count(file, "mamba.layers", mamba.layers, 1, left)
    low = 0 if mamba.alone else left - mamba.layers
    a_count(file, "mamba.attention_layers", mamba.attention_layers, low, left - mamba.layers)
    for field in ("heads", "head_dim", "state", "groups", "conv", "chunk"):
        a_count(file, f"mamba.{field}", getattr(mamba, field), 1, LIMITS["heads"])
    if mamba.heads % mamba.groups:
        why = f"which does not divide the {mamba.heads} Mamba heads"
        near = divisors_near(mamba.heads, mamba.groups)
        refuse(file, "mamba.groups", mamba.groups, why, near)


def divisors_near(number: int, wanted: int) -> list[int]:
    """The nearest divisors of ``number`` (at most a million) below and above ``wanted``."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    below = [d for d in divisors if d < wanted][-1:]
    return below + [d for d in divisors if d > wanted][:1]
