"""How many parameters a model has, part by part, and how many FLOPs a token costs.

Closed forms over the architecture: a model of a million layers costs as much as one of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from layoutopt.costmodel.documents import Documents
from layoutopt.costmodel.model import Mamba, Mla, Model, Moe


@dataclass(frozen=True)
class Counts:
    """Parameters of a model by part. ``*_params`` of a layer are of one layer."""

    layers: int
    moe_layers: int
    experts: int
    """Routed experts of one MoE layer (0: none)."""
    top_k: int
    attention_params: int
    """Projections (and their biases, and attention sinks) of one layer; no norms."""
    dense_mlp_params: int
    expert_params: int
    """ONE routed expert."""
    router_params: int
    shared_expert_params: int
    """All shared experts of one MoE layer, with their gate."""
    norm_params: int
    """All norms of one layer: block norms, q/k norms, latent norms."""
    embedding_params: int
    """Input table, learned positions and the norm after the embedding."""
    head_params: int
    """Output matrix; 0 where it is the input table."""
    final_norm_params: int
    vocabulary_params: int
    """Token tables alone, input and output, a shared table once (no positions, no norm)."""
    mtp_params: int
    """ONE multi-token-prediction block; not in ``total``."""
    mtp_layers: int
    attention_layers: int
    dense_layers: int
    """Layers with a dense MLP."""
    mamba_layers: int = 0
    mamba_params: int = 0
    """ONE Mamba-2 mixer, with its convolution and gated norm."""

    @property
    def shared_layer_params(self) -> float:
        """One layer on average without its routed experts: what data parallelism replicates."""
        body = (
            self.attention_layers * self.attention_params
            + self.mamba_layers * self.mamba_params
            + self.dense_layers * self.dense_mlp_params
            + self.moe_layers * (self.router_params + self.shared_expert_params)
        )
        return self.norm_params + body / self.layers

    @property
    def dense_layer_params(self) -> int:
        """One layer with a dense MLP."""
        return self.attention_params + self.norm_params + self.dense_mlp_params

    def moe_layer_params(self, experts_held: int) -> int:
        """One MoE layer of which ``experts_held`` routed experts are held."""
        return self.moe_layer_base_params + experts_held * self.expert_params

    @property
    def moe_layer_base_params(self) -> int:
        """One MoE layer without its routed experts: what every data-parallel rank holds."""
        return (
            self.attention_params
            + self.norm_params
            + self.router_params
            + self.shared_expert_params
        )

    @property
    def total(self) -> int:
        """Every parameter once, multi-token prediction aside."""
        return self._sum(self.experts)

    @property
    def active(self) -> int:
        """Parameters a token meets: ``top_k`` experts of each MoE layer and everything else.

        The input table counts in full, although a token reads one row of it: the definition of
        the published figures, and the one that MFU uses here.
        """
        return self._sum(self.top_k)

    @property
    def expert_total(self) -> int:
        """All routed experts of all layers: what expert parallelism divides."""
        return self.moe_layers * self.experts * self.expert_params

    @property
    def total_with_mtp(self) -> int:
        """``total`` and the multi-token-prediction blocks that train with it."""
        return self.total + self.mtp_layers * self.mtp_params

    def _sum(self, experts: int) -> int:
        return (
            self.embedding_params
            + self.head_params
            + self.final_norm_params
            + self.layers * self.norm_params
            + self.attention_layers * self.attention_params
            + self.mamba_layers * self.mamba_params
            + self.dense_layers * self.dense_mlp_params
            + self.moe_layers
            * (self.router_params + self.shared_expert_params + experts * self.expert_params)
        )


@lru_cache(maxsize=4096)
def count(model: Model) -> Counts:
    """The parameters of ``model`` by part; exact.

    Equal to the unique parameters of the published implementations (transformers 5.24 on the
    meta device) for every catalogue entry that states such a count; a test compares them.
    """
    moe = model.moe
    norm = _norm_params(model)
    vocabulary = model.vocab * model.hidden
    without_mtp = Counts(
        layers=model.layers,
        moe_layers=model.moe_layers,
        experts=moe.experts if moe else 0,
        top_k=moe.top_k if moe else 0,
        attention_params=_attention_params(model),
        dense_mlp_params=_mlp_params(model, model.ffn, model.mlp_bias),
        expert_params=_mlp_params(model, moe.expert_ffn, moe.expert_bias) if moe else 0,
        router_params=_router_params(model.hidden, moe) if moe else 0,
        shared_expert_params=_shared_params(model, moe) if moe else 0,
        norm_params=model.norms_per_layer * norm + _inner_norm_params(model),
        embedding_params=vocabulary
        + model.learned_positions * model.hidden
        + (norm if model.embedding_norm else 0),
        head_params=0 if model.tied_embeddings else vocabulary,
        final_norm_params=norm,
        vocabulary_params=vocabulary if model.tied_embeddings else 2 * vocabulary,
        mtp_params=0,
        mtp_layers=model.mtp_layers,
        attention_layers=model.attention_layers,
        dense_layers=model.dense_layers,
        mamba_layers=model.mamba.layers if model.mamba else 0,
        mamba_params=_mamba_params(model.hidden, model.mamba) if model.mamba else 0,
    )
    return _with_mtp(model, without_mtp)


def _with_mtp(model: Model, counts: Counts) -> Counts:
    """Adds one MTP block: a layer, a 2h x h projection and three norms.

    Source: DeepSeek-V3 technical report (2024), section 2.2; embedding and head are shared with
    the main model.
    """
    if not model.mtp_layers:
        return counts
    layer = counts.moe_layer_params(counts.experts) if model.moe else counts.dense_layer_params
    block = layer + 2 * model.hidden**2 + 3 * counts.final_norm_params
    return Counts(**{**counts.__dict__, "mtp_params": block})


def _norm_params(model: Model) -> int:
    return 2 * model.hidden if model.norm == "layernorm" else model.hidden


def _inner_norm_params(model: Model) -> int:
    """Norms inside attention: of queries and keys, and of the latents of MLA."""
    latent = (model.mla.q_lora_rank or 0) + model.mla.kv_lora_rank if model.mla else 0
    if model.qk_norm == "none":
        return latent
    if model.qk_norm == "head":
        return latent + 2 * model.head_dim
    return latent + model.q_width + model.kv_width  # per_head and width: as many numbers


def _attention_params(model: Model) -> int:
    sinks = model.heads if model.attention_sinks else 0
    out_bias = model.hidden if model.attention_out_bias else 0
    if model.mla:
        return _mla_params(model, model.mla) + out_bias + sinks
    qkv_width = model.q_width + 2 * model.kv_width
    qkv_bias = qkv_width if model.qkv_bias else 0
    return model.hidden * (qkv_width + model.q_width) + qkv_bias + out_bias + sinks


def _mla_params(model: Model, mla: Mla) -> int:
    """Weights of multi-head latent attention (DeepSeek-V2, 2024, section 2.1)."""
    if mla.q_lora_rank is None:
        query = model.hidden * model.q_width
    else:
        query = mla.q_lora_rank * (model.hidden + model.q_width)
    down = model.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim)
    up = mla.kv_lora_rank * model.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    out = model.heads * mla.v_head_dim * model.hidden
    bias = (mla.q_lora_rank or model.q_width) + mla.kv_lora_rank + mla.qk_rope_head_dim
    return query + down + up + out + (bias if model.qkv_bias else 0)


def _mamba_params(hidden: int, mamba: Mamba) -> int:
    """In- and out-projection, convolution with bias over x, B and C, decay, step and skip of each
    head, gated norm (Dao and Gu 2024, section 7; transformers, Mamba2Mixer)."""
    mixed = mamba.inner + 2 * mamba.groups * mamba.state
    products = hidden * (mamba.projected + mamba.inner)
    return products + mixed * (mamba.conv + 1) + 3 * mamba.heads + mamba.inner


def _mlp_params(model: Model, width: int, bias: bool) -> int:
    into = 2 * width if model.gated_mlp else width
    return model.hidden * (into + width) + (into + model.hidden if bias else 0)


def _router_params(hidden: int, moe: Moe) -> int:
    return moe.experts * (hidden + (1 if moe.router_bias else 0))


def _shared_params(model: Model, moe: Moe) -> int:
    if not moe.shared_ffn:
        return 0
    gate = model.hidden if moe.shared_gate else 0
    return _mlp_params(model, moe.shared_ffn, model.mlp_bias) + gate


def matmul_flops_per_token_forward(model: Model) -> int:
    """FLOPs of the weight matrices for one token, forward, loss head included.

    2 per weight that a token is multiplied with: projections, MLP or ``top_k`` experts, router,
    shared experts and the output matrix (a shared table is multiplied as well). Biases, norms
    and the look-up of the input table count as nothing.
    """
    moe, hidden = model.moe, model.hidden
    bare = _without_biases(model)
    parts = count(bare)
    layer = parts.attention_params * model.attention_layers
    layer += parts.dense_mlp_params * model.dense_layers
    if model.mamba:
        mixer = hidden * (model.mamba.projected + model.mamba.inner)
        layer += mixer * model.mamba.layers
    if moe:
        layer += model.moe_layers * (
            parts.router_params + parts.shared_expert_params + moe.top_k * parts.expert_params
        )
    return 2 * (layer + model.vocab * hidden)


@lru_cache(maxsize=1024)
def _without_biases(model: Model) -> Model:
    moe = model.moe
    if moe:
        moe = moe.model_copy(update={"router_bias": False, "expert_bias": False})
    none = dict.fromkeys(("qkv_bias", "attention_out_bias", "attention_sinks", "mlp_bias"), False)
    return model.model_copy(update={**none, "moe": moe})


def mean_context_tokens(model: Model, seq_len: int, documents: Documents | None = None) -> float:
    """Tokens that a token attends to, mean over positions and layers, causal.

    Full attention: s / 2. A window of w < s tokens: w - w^2 / 2s, the mean of min(i, w) over
    positions i. A chunk of c tokens: c / 2. Layers are weighted by how many there are. With
    ``documents`` packed into the sequence a token sees no further than its own (documents.py).
    """
    full = _context(seq_len, seq_len, documents)
    if model.sliding_window is None:
        return full
    reach = min(model.sliding_window, seq_len)
    if model.local_kind == "chunk":
        local = _context(reach, reach, documents)
    else:
        local = _context(seq_len, reach, documents)
    full_layers = min(model.global_layers or 0, model.layers)
    return (full_layers * full + (model.layers - full_layers) * local) / model.layers


def _context(seq_len: int, reach: int, documents: Documents | None) -> float:
    if documents is not None and documents.packed:
        return documents.mean_reach(seq_len, reach)
    return reach - reach * reach / (2 * seq_len) if reach < seq_len else seq_len / 2


def attention_flops_per_token_forward(
    model: Model, seq_len: int, documents: Documents | None = None
) -> float:
    """FLOPs of QK^T and AV for one token through all layers, forward, causal half only.

    2 * context * heads * (d_qk + d_v) a layer, which is 2*2*(s/2)*heads*head_dim for a plain
    layer. MLA: d_qk = nope + rope, d_v its own. See mean_context_tokens for the context.
    """
    if model.mla:
        score, value = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim, model.mla.v_head_dim
    else:
        score = value = model.head_dim
    context = mean_context_tokens(model, seq_len, documents)
    per_layer = 2 * context * model.heads * (score + value)
    return model.attention_layers * per_layer


def scan_flops(mamba: Mamba) -> float:
    """FLOPs of the scan for one token and layer, forward.

    Within a chunk of Q tokens: scores of C and B, 2 Q N for each group, and their sum over the
    inputs, 2 Q P for each head; into a chunk's state and out of it 2 N P each for each head (Dao
    and Gu 2024, section 6, with state N and heads P wide). Chunks are computed whole, as the
    published kernels do.
    """
    inside = 2 * mamba.chunk * (mamba.groups * mamba.state + mamba.inner)
    return inside + 4.0 * mamba.state * mamba.inner


def scan_flops_per_token_forward(model: Model) -> float:
    """FLOPs of the Mamba-2 scans for one token through all layers, forward."""
    return model.mamba.layers * scan_flops(model.mamba) if model.mamba else 0.0


def flops_6nd_per_token(model: Model) -> int:
    """6 FLOPs per active parameter, forward and backward (Kaplan 2020, section 2.1)."""
    return 6 * count(model).active


def model_flops_per_token(model: Model, seq_len: int, documents: Documents | None = None) -> float:
    """FLOPs of one trained token, recompute not counted: 6 * active + 3 * causal attention, and as
    much of scans.

    Forward and backward; the backward pass of attention is twice its forward. ``active`` holds
    the input table, although a look-up is no arithmetic: that is the convention of ``mfu`` here.
    """
    attention = attention_flops_per_token_forward(model, seq_len, documents)
    mixing = attention + scan_flops_per_token_forward(model)
    return flops_6nd_per_token(model) + 3 * mixing
