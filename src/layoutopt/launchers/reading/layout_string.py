"""Megatron's small languages: pipeline layout strings and layer patterns."""

from __future__ import annotations

import ast
import re
from typing import Any

from layoutopt.errors import InputError

_PART = re.compile(r"([EtmL])(?:\*(\d+))?|\(([EtmL]+)\)\*(\d+)")
MOST_LAYERS = 100_000


def layers_of(text: str, pp: int) -> dict[str, Any]:
    """``Et*7|t*8|...|t*7L`` as vpp and layers_per_stage; part c pp + r stands on rank r."""
    counts = []
    for part in text.split("|"):
        if _PART.sub("", part.replace(",", "")):
            raise InputError(
                f"--pipeline-model-parallel-layout: {part[:40]!r} is not made of E, t, m, L and "
                "*count",
                field="--pipeline-model-parallel-layout",
                value=part[:40],
            )
        counts.append(
            sum(
                (int(one[1] or 1) if one[0] == "t" else 0)
                + (one[2].count("t") * int(one[3]) if one[2] else 0)
                for one in _PART.findall(part)
            )
        )
    if len(counts) % pp:
        raise InputError(
            f"--pipeline-model-parallel-layout has {len(counts)} parts, no multiple of pp {pp}",
            field="--pipeline-model-parallel-layout",
            value=len(counts),
        )
    chunks = len(counts) // pp
    stages = [sum(counts[rank::pp]) for rank in range(pp)]
    return {"layers_per_stage": stages, **({"vpp": chunks} if chunks > 1 else {})}


def pattern_of(text: str) -> list[int]:
    """A list of 0 and 1 written with + and *, as in ``([0]*3+[1]*58)``; parsed, never evaluated."""
    try:
        pattern = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InputError(
            f"--moe-layer-freq {text[:60]!r} is no interval and no list", field="--moe-layer-freq"
        ) from error
    if not isinstance(pattern, list):
        raise InputError(f"--moe-layer-freq {text[:60]!r} is no list", field="--moe-layer-freq")
    return pattern


def _value(node: ast.expr) -> list[int] | int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        items = [_value(item) for item in node.elts]
        return [item for item in items if isinstance(item, int)]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            if len(left) * right > MOST_LAYERS:
                raise ValueError("too long")
            return left * right
    raise ValueError("not a list of layers")
