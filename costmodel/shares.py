"""Shares of a model's layers that hold attention, a Mamba mixer, a dense MLP or experts (A1)."""

from __future__ import annotations

from layoutopt.costmodel.model import Model


def dense_share(model: Model) -> float:
    """Share of the layers that have a dense MLP."""
    if model.mamba is None:
        return 1 - model.moe_layers / model.layers
    return model.dense_layers / model.layers


def expert_share(model: Model) -> float:
    """Share of the layers that have experts."""
    if model.mamba is None:
        return 1 - dense_share(model)
    return model.moe_layers / model.layers


def attention_share(model: Model) -> float:
    """Share of the layers that have attention."""
    return model.attention_layers / model.layers


def mamba_share(model: Model) -> float:
    """Share of the layers that have a Mamba-2 mixer."""
    return model.mamba.layers / model.layers if model.mamba else 0.0


def blocks_share(model: Model) -> float:
    """Mixers and MLPs of an average layer: 2, or 1 where a layer is one of them alone."""
    return 1.0 if model.mamba and model.mamba.alone else 2.0
