"""What a record's notes say: dispatcher, CUDA graphs, overlap, modules run again, memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar, get_args

from layoutopt.costmodel.model import Mamba, Model
from layoutopt.costmodel.training import CudaGraphs, Dispatcher, RecomputeModule
from layoutopt.units import GIB

_DISPATCHERS: dict[Dispatcher, re.Pattern[str]] = {
    "deduplicated": re.compile(r"\b(?:DeepEP|HybridEP)\b", re.IGNORECASE),
    "alltoall": re.compile(r"\balltoall\b|\ball-to-all dispatcher\b|\bDispatcher A2A\b"),
}
_GRAPHS: dict[CudaGraphs, re.Pattern[str]] = {
    # Dropped and padded to capacity, tokens have fixed sizes: such runs are captured whole.
    "full": re.compile(r"\bCUDA graphs: full_iteration\b|\btokendrop\b"),
    "layers": re.compile(
        r"\bCUDA graphs: transformer_engine\b|\bTE CUDA graphs\b"
        r"|\bCUDA graphs (?:moe_router|for attention)\b"
    ),
    "none": re.compile(r"\b(?:CUDA )?graphs off\b"),
}
_OVERLAPS: dict[bool, re.Pattern[str]] = {
    True: re.compile(r"\bEP (?:all-to-all )?overlap(?:: True| on)\b|\b1F1B all-to-all overlap\b"),
    False: re.compile(r"\b(?:EP overlap off|no EP overlap)\b"),
}

Word = TypeVar("Word")


def expert_notes(notes: str) -> tuple[Dispatcher | None, CudaGraphs | None, bool | None]:
    """Dispatcher, CUDA graphs and whether dispatch overlaps; None for what the notes leave out."""
    return _first(_DISPATCHERS, notes), _first(_GRAPHS, notes), _first(_OVERLAPS, notes)


_PATTERN = re.compile(r"\bhybrid pattern: ([M*E-]+)(?:/[M*E-]+)*")
MAMBA_STATE, MAMBA_HEAD, MAMBA_GROUPS = 128, 64, 8
"""Megatron-LM's defaults of --mamba-state-dim, --mamba-head-dim and --mamba-num-groups; a mixer is
twice as wide as the hidden state."""


def hybrid_notes(model: Model, notes: str) -> Model:
    """``model`` with the layers that its notes' pattern says, one block each: M a Mamba-2 mixer, *
    attention, E experts, - a dense MLP. Without a pattern of as many layers, the model itself."""
    found = _PATTERN.search(notes)
    blocks = found[1] if found else ""
    if model.mamba is not None or len(blocks) != model.layers or "M" not in blocks:
        return model
    mixers = Mamba(
        layers=blocks.count("M"),
        attention_layers=blocks.count("*"),
        heads=2 * model.hidden // MAMBA_HEAD,
        head_dim=MAMBA_HEAD,
        state=MAMBA_STATE,
        groups=MAMBA_GROUPS,
    )
    changed: dict[str, object] = {"mamba": mixers, "norms_per_layer": 1}
    if model.moe is not None:
        layers = {"layers": blocks.count("E"), "first_dense_layers": 0}
        changed["moe"] = model.moe.model_copy(update=layers)
    return model.model_copy(update=changed)


_MODULES = re.compile(
    r"\brecompute(?:[_ ]modules[=:]| whole| of|) ?\[?"
    r"((?:[A-Za-z_-]+|MLA up-projections?)(?:(?:, | and |,| )(?:[A-Za-z_-]+|MLA up-projections?))*)"
)
"""What a note lists after "recompute": modules by Megatron's names, or in words."""
_WORDS: dict[str, RecomputeModule] = {
    **{module: module for module in get_args(RecomputeModule)},
    "norm": "layernorm",
    "norms": "layernorm",
    "act": "moe_act",
    "activation": "moe_act",
    "MLA up-projection": "mla_up_proj",
    "MLA up-projections": "mla_up_proj",
}


def recompute_notes(notes: str) -> tuple[RecomputeModule, ...] | None:
    """The modules that selective recompute ran again; None where the notes name none we know."""
    named: set[RecomputeModule] = set()
    for found in _MODULES.finditer(notes):
        words = re.split(r", | and |,| (?!up-)", found[1])
        named.update(_WORDS[word] for word in words if word in _WORDS)
    modules = tuple(module for module in get_args(RecomputeModule) if module in named)
    return modules or None


_MEMORY = re.compile(r"\[gpu as given: [^\]]*\(about (\d+) GiB\)\]")


def memory_notes(notes: str) -> int | None:
    """Bytes of the GPU's memory where the notes say how much it had: a source that shows peaks as
    shares of it, and names no part."""
    found = _MEMORY.search(notes)
    return int(found[1]) * GIB if found else None


def _first(patterns: Mapping[Word, re.Pattern[str]], notes: str) -> Word | None:
    return next((word for word, pattern in patterns.items() if pattern.search(notes)), None)
