"""Frozen values that describe a machine. Names carry unit, "per what" and direction."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32")
ARCHITECTURES = (
    "volta",
    "ampere",
    "ada",
    "hopper",
    "blackwell",
    "cdna2",
    "cdna3",
    "cdna4",
    "gaudi",
    "tpu",
)
"""Whose efficiency curves apply to a device."""
MAX_GPUS = 10_000_000
"""More than any machine has; the size of a level that spans a cluster of open size."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0, strict=True)]


class Frozen(BaseModel):
    """Immutable, and refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Gpu(Frozen):
    """One accelerator as its datasheet states it. Sources of each figure: catalog.gpu_facts."""

    name: str
    architecture: str
    """One of ARCHITECTURES: whose efficiencies apply."""
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
    """Thermal design power of the device."""
    link_kind: str = "link"
    """Scale-up link in words: NVLink 4, xGMI, PCIe 5 x16, ICI 3D torus."""
    gpus_per_node: Count = 8
    """GPUs in the usual server (host)."""
    node_watts_per_gpu: Positive | None = None
    """Rated maximum of the usual server, divided by its GPUs."""
    usd_per_gpu_hour: NonNegative | None = None
    """Median of the on-demand prices in data/instances."""

    @property
    def rack_scale(self) -> bool:
        """The scale-up link leaves the server, as in an NVL72 rack or a TPU pod."""
        return self.link_domain_gpus > self.gpus_per_node

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
    host_bytes_per_s_per_gpu: Positive | None = None
    """Copy of a GPU's memory to its host's; None: the usual link (costmodel.checkpoint_plan)."""


class Host(Frozen):
    """What one GPU gets of its server's host."""

    link_bytes_per_s_one_way: Positive
    """Between device and host memory (PCIe, NVLink-C2C), one direction."""
    memory_bytes: Count
    """The GPU's share of the host's memory."""
    memory_bytes_per_s: Positive
    """Its share of that memory's bandwidth."""


class Filled(Frozen):
    """A figure of a cluster that nobody gave: what was taken, and why."""

    option: str
    value: str
    reason: str


class Switch(Frozen):
    """A switch of a scheduler's fragment: what hangs on it is listed, nodes or other switches."""

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[Switch, ...] = ()

    @property
    def all_nodes(self) -> tuple[str, ...]:
        """Every node below it, in order."""
        return self.nodes + tuple(n for one in self.switches for n in one.all_nodes)


class PlannedStops(Frozen):
    """Announced stops of a run: so many, or one every so often on the calendar."""

    lasts_s: NonNegative
    """How long the machine is away; the save before it and the restart after it come on top."""
    every_s: Positive | None = None
    """From the beginning of one to that of the next; None: ``count`` of them in the run."""
    count: int = 0


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
    detect_s: NonNegative | None = None
    """Until a failure is noticed; None: the usual mean (costmodel.checkpoint)."""
    restart_s: NonNegative | None = None
    """From there to loading a checkpoint on replaced nodes; None: the usual figure."""
    planned_stops: PlannedStops | None = None
    """Maintenance windows and the like; None: the usual share (costmodel.checkpoint)."""
    host: Host | None = None
    """None: the usual host of the GPU (hosts.host_of)."""
    usd_per_gpu_hour: NonNegative | None = None
    watts_per_gpu: Positive | None = None
    source: str | None = None
    filled: tuple[Filled, ...] = ()
    """Defaults that were taken, in the order of the fields."""
    pools: tuple[Cluster, ...] = ()
    """Parts with a GPU type each; the fields above are then those of the first one."""
    switches: tuple[Switch, ...] = ()
    """The nodes that there are, under the switches that they hang on; () where any will do."""
    pool_link: Level | None = None
    """Between pools, per GPU; where there are several."""

    @property
    def all_gpus(self) -> int | None:
        """GPUs of all nodes, of all pools; None where there are as many as are asked for."""
        if self.pools:
            return sum(pool.all_gpus or 0 for pool in self.pools)
        return None if self.nodes is None else self.nodes * self.gpus_per_node


class Figure(Frozen):
    """One figure of a profile as it is shown: ``number`` is in SI units, ``value`` as written."""

    field: str
    value: str
    number: float
    unit: str
    per: str
    """Owner and direction: "per GPU, one direction"."""
    source: str | None
    """None in a user's own file alone."""


class Curve(Frozen):
    """A measured collective, as the file holds it."""

    what: str
    bus_bytes_per_s: tuple[tuple[int | None, float], ...]
    """(message bytes, bus bandwidth); None: a large message of unstated size."""
    seconds: tuple[tuple[int, float], ...] = ()
    """(message bytes, time of the whole collective)."""
    source: str


class GpuFacts(Frozen):
    """All that is known of a GPU, for display."""

    gpu: Gpu
    title: str
    figures: tuple[Figure, ...]
    curves: tuple[Curve, ...] = ()
    notes: str | None = None


class Instance(Frozen):
    """A cloud machine, or a provider's price of one GPU where it names no machine."""

    name: str
    provider: str
    instance: str | None
    """As the provider calls it; None: a price per GPU."""
    gpu: str
    gpus_per_node: Count
    network: str | None = None
    node_bytes_per_s_one_way: Positive | None = None
    """All adapters of a node together, one direction."""
    usd_per_hour: NonNegative | None = None
    usd_per_gpu_hour: NonNegative | None = None
    figures: tuple[Figure, ...] = ()
    notes: str | None = None
