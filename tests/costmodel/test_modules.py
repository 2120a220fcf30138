"""Selective recompute by Megatron Core's named modules: what each drops and repeats, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from layoutopt.costmodel import activations, compute, terms
from layoutopt.costmodel.axes import SELECTIVE
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.model import Model
from layoutopt.validation.notes import hybrid_notes, recompute_notes
from tests.costmodel.cases import EXPERTS, LATENT, SMALL, job, one


def naming(model: Model, *modules: str) -> Job:
    """A job of 1,024 tokens that recomputes ``modules``."""
    chosen: Any = modules
    return job(model, seq_len=1024, recompute_modules=chosen)


def saved(asked: Job, recompute: int = SELECTIVE) -> float:
    """Bytes a token of one layer on one GPU."""
    axes = (one(1), one(1), one(1), one(1), one(recompute))
    return float(activations.activation_kib(asked, *axes)[0])


def again(asked: Job) -> float:
    """Seconds that one layer's backward pass repeats."""
    axes = (one(1), one(1), one(1), one(1), one(SELECTIVE))
    return float(terms.layer_terms(asked, *axes).recompute[0])


@pytest.mark.parametrize(
    ("model", "module", "dropped"),
    [
        (SMALL, "core_attn", 0),
        (SMALL, "layernorm", 2 * 2 * 64),
        (SMALL, "mlp", 6 * 256),
        (LATENT, "mla_up_proj", 2 * 8 * (2 * 12 + 8)),
        (EXPERTS, "moe_act", 2 * 2 * 128),
        (EXPERTS, "moe", 2 * (4 * 64 + 6 * 128)),
    ],
)
def test_what_a_module_drops(model: Model, module: str, dropped: int) -> None:
    """Bytes a token: two norms' outputs, an MLP's inner tensors, heads of 12 + 12 + 8, what two
    experts put out behind their activation, or all that two copies keep."""
    kept = saved(naming(model, "core_attn"))
    assert saved(naming(model, module)) == kept - dropped
    assert saved(naming(model, "core_attn", module)) == kept - dropped


def test_what_modules_repeat() -> None:
    """A norm's 4 bytes twice over 64 elements; an MLP's products; attention's core."""
    rates, tokens = machine(job(seq_len=1024)), np.array([1024.0])
    norms = 1024 * 2 * 4 * 64 / 1e12
    assert again(naming(SMALL, "layernorm")) == pytest.approx(norms)
    mlp = compute.dense_mlp(job(), rates, tokens, one(1)).forward[0]
    assert again(naming(SMALL, "mlp")) == pytest.approx(mlp)
    wide = job(seq_len=1024)
    core = compute.attention_core(wide, rates, np.array([1.0]), one(1), one(1)).forward[0]
    assert again(naming(SMALL, "core_attn")) == pytest.approx(core)
    assert again(naming(SMALL, "core_attn", "mlp")) == pytest.approx(core + mlp)


def test_what_modules_of_experts_and_latents_repeat() -> None:
    """The activation's 6 bytes of two copies of 128; all of the experts; the expansions."""
    rates, tokens = machine(job(EXPERTS, seq_len=1024)), np.array([1024.0])
    assert again(naming(EXPERTS, "moe_act")) == pytest.approx(1024 * 6 * 2 * 128 / 1e12)
    asked = naming(EXPERTS, "moe")
    experts = compute.expert_layers(asked, rates, tokens, one(1), one(1), one(1)).forward[0]
    assert again(asked) == pytest.approx(experts), "alone on its GPU: no dispatch"
    up = compute.latent_expansions(job(LATENT), rates, tokens, one(1)).forward[0]
    assert again(naming(LATENT, "mla_up_proj")) == pytest.approx(up)


def test_a_job_that_names_none_follows_its_profile() -> None:
    for model in (SMALL, LATENT, EXPERTS):
        usual = naming(model, "core_attn", "mla_up_proj", "moe_act")
        assert saved(job(model, seq_len=1024)) == saved(usual)


@pytest.mark.parametrize(
    ("notes", "modules"),
    [
        ("CUDA graphs off; recompute_modules=[moe,layernorm]; x", ("layernorm", "moe")),
        ("recompute modules: [layernorm mla_up_proj mlp moe_act]; y",
         ("mla_up_proj", "moe_act", "layernorm", "mlp")),
        ("recompute_modules=mla_up_proj", ("mla_up_proj",)),
        ("recompute modules: norm, act. main branch", ("moe_act", "layernorm")),
        ("balance unless said. recompute whole moe and layernorm [gpu as given: h800-80gb]",
         ("layernorm", "moe")),
        ("recompute of mlp, MLA up-projection, activation and norms; DeepEP",
         ("mla_up_proj", "moe_act", "layernorm", "mlp")),
        ("recompute modules: full. main branch", None),
        ("Uneven pipeline split and per-stage recomputation", None),
        ("recompute_modules=[]", None),
        ("nothing of the kind", None),
    ],
)  # fmt: skip
def test_notes_name_modules(notes: str, modules: tuple[str, ...] | None) -> None:
    assert recompute_notes(notes) == modules


def test_notes_name_the_blocks_of_a_hybrid() -> None:
    """Six mixers of twice the width, two attentions and four MLPs of experts; what predicts the
    next tokens stands behind a slash."""
    wide = EXPERTS.model_copy(update={"hidden": 256, "mtp_layers": 1})
    got = hybrid_notes(wide, "MTP layers: 1; hybrid pattern: MEMEM*EMMEM*/*E; x")
    assert got.mamba is not None
    assert got.moe is not None
    assert (got.mamba.layers, got.attention_layers, got.moe.layers) == (6, 2, 4)
    assert (got.mamba.heads, got.mamba.inner, got.dense_layers) == (8, 512, 0)
    for notes in ("hybrid pattern: ME", "no pattern"):
        assert hybrid_notes(wide, notes) is wide, "of another depth, or none"
