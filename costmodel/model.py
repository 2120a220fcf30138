"""The architecture of a transformer, as far as memory and time depend on it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Immutable, and refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Moe(Frozen):
    """Mixture-of-experts layers."""

    experts: int
    top_k: int
    expert_ffn: int
    """Inner width of one routed expert."""
    shared_ffn: int = 0
    """Inner width of all shared experts of a layer together (0: none)."""
    layers: int
    """How many of the model's layers are MoE layers; the rest are dense."""
    first_dense_layers: int = 0
    """Dense layers at the bottom, before the first MoE layer."""
    router_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False


class Mla(Frozen):
    """Multi-head latent attention (DeepSeek-V2, section 2.1)."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


class Mamba(Frozen):
    """Mamba-2 layers of a hybrid stack (Dao and Gu 2024, arXiv 2405.21060)."""

    layers: int
    """Layers with a Mamba-2 mixer."""
    attention_layers: int
    """Layers with attention."""
    heads: int
    head_dim: int
    state: int
    """Width of the state, for each head element."""
    groups: int
    """Groups of heads that share B and C."""
    conv: int = 4
    """Tokens that the convolution sees."""
    chunk: int = 256
    """Tokens of a chunk of the scan."""
    alone: bool = True
    """A layer is a mixer or an MLP and never both (Nemotron-H); False: each has an MLP too."""

    @property
    def inner(self) -> int:
        """Width of the mixer, all heads."""
        return self.heads * self.head_dim

    @property
    def projected(self) -> int:
        """Output width of the in-projection: gate, input, B and C of every group, step sizes."""
        return 2 * self.inner + 2 * self.groups * self.state + self.heads


class Model(Frozen):
    """A decoder-only transformer. Widths in elements; counts are exact."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Inner width of the dense MLP (of dense layers, in a mixture of experts)."""
    gated_mlp: bool
    """True for SwiGLU / GeGLU: three matrices; False: two."""
    vocab: int
    tied_embeddings: bool
    max_seq_len: int | None = None
    learned_positions: int = 0
    """Rows of a learned position table (0: rotary, ALiBi)."""
    norm: Literal["rmsnorm", "layernorm", "layernorm_no_bias"] = "rmsnorm"
    norms_per_layer: int = 2
    qk_norm: Literal["none", "head", "per_head", "width"] = "none"
    """head: one vector of head_dim each for q and k; per_head: one per head; width: full width."""
    embedding_norm: bool = False
    qkv_bias: bool = False
    attention_out_bias: bool = False
    attention_sinks: bool = False
    """One learned scalar a head (gpt-oss)."""
    mlp_bias: bool = False
    parallel_block: bool = False
    """Attention and MLP read the same normed input (Cohere, Falcon)."""
    sliding_window: int | None = None
    """Window in tokens of the layers that are local."""
    global_layers: int | None = None
    """Layers with full attention when sliding_window is set (None: all layers are local)."""
    local_kind: Literal["window", "chunk"] = "window"
    """window: a token sees the last sliding_window tokens; chunk: its own block of as many."""
    moe: Moe | None = None
    mla: Mla | None = None
    mamba: Mamba | None = None
    mtp_layers: int = 0
    """Multi-token-prediction layers, not in `layers` and not in the published count."""
    source: str | None = None

    @property
    def moe_layers(self) -> int:
        """Layers that hold experts."""
        return self.moe.layers if self.moe else 0

    @property
    def dense_layers(self) -> int:
        """Layers with a dense MLP."""
        mixers = self.mamba.layers + self.mamba.attention_layers if self.mamba else 0
        return self.layers - self.moe_layers - (mixers if self.mamba and self.mamba.alone else 0)

    @property
    def attention_layers(self) -> int:
        """Layers with attention."""
        return self.mamba.attention_layers if self.mamba else self.layers

    @property
    def q_width(self) -> int:
        """Output width of the query projection, all heads."""
        if self.mla:
            return self.heads * (self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim)
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Output width of the key projection, all kv heads (values are as wide, MLA aside)."""
        return self.kv_heads * self.head_dim
