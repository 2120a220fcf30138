"""Frozen values that describe a machine. Names carry unit, "per what" and direction."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0, strict=True)]


class Frozen(BaseModel):
    """Immutable, and refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Gpu(Frozen):
    """One accelerator as its datasheet states it. Sources of each figure: catalog.gpu_sources."""

    name: str
    architecture: str
    """volta, ampere, ada, hopper, blackwell, cdna2, cdna3, cdna4, gaudi, tpu: whose efficiencies
    apply."""
    memory_bytes: Count
    """Bytes a device reports (the datasheet's GB are taken as GiB where HBM is sold that way)."""
    memory_bytes_per_s: Positive
    peak_flops_per_s: dict[str, float]
    """Dense peak by precision; keys bf16, fp16, fp8, fp4, fp32 where the device has them."""
    link_bytes_per_s_one_way: Positive
    """Scale-up link (NVLink, xGMI), per GPU, one direction, all peers together."""
    link_p2p_bytes_per_s_one_way: Positive | None = None
    """To one peer; less than the above on direct-link fabrics."""
    link_domain_gpus: Count
    """GPUs that share the scale-up link."""
    scaleout_bytes_per_s_one_way: Positive | None = None
    """Usual network adapter share, per GPU, one direction."""
    watts: Positive | None = None

    def peak(self, precision: str) -> float:
        """Dense FLOP/s for ``precision``; falls back to the next wider type it has.

        fp8 and mxfp8 share a peak; nvfp4 uses fp4; a device with no fp8 runs it at its 16-bit peak.
        """
        chain = {
            "nvfp4": ("fp4", "fp8", "bf16", "fp16"),
            "fp8": ("fp8", "bf16", "fp16"),
            "mxfp8": ("fp8", "bf16", "fp16"),
            "bf16": ("bf16", "fp16"),
            "fp16": ("fp16", "bf16"),
            "fp32": ("fp32",),
        }[precision]
        for key in chain:
            if key in self.peak_flops_per_s:
                return self.peak_flops_per_s[key]
        # Without a tensor path in the file: a sixteenth of the 16-bit peak is the usual fp32 ratio.
        return self.peak_flops_per_s.get("bf16", next(iter(self.peak_flops_per_s.values()))) / 16


class Level(Frozen):
    """One network level, inner to outer. ``gpus`` is the size of one domain of this level."""

    name: str
    gpus: Count
    bytes_per_s_per_gpu_one_way: Positive
    latency_s: NonNegative
    oversubscription: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0

    @property
    def usable_bytes_per_s(self) -> float:
        """Per GPU, one way, when every GPU of the domain sends at once."""
        return self.bytes_per_s_per_gpu_one_way / self.oversubscription


class Storage(Frozen):
    """Shared checkpoint storage."""

    write_bytes_per_s: Positive
    """All nodes together."""
    write_bytes_per_s_per_node: Positive
    read_bytes_per_s: Positive | None = None


class Cluster(Frozen):
    """A machine to train on. ``levels`` run from inner to outer; the last one spans the cluster."""

    name: str
    gpu: Gpu
    gpus_per_node: Count
    nodes: Count | None = None
    """None: as many as are asked for."""
    levels: tuple[Level, ...]
    storage: Storage
    failures_per_gpu_hour: NonNegative
    usd_per_gpu_hour: NonNegative | None = None
    watts_per_gpu: Positive | None = None
    source: str | None = None
