"""What the cost model takes for granted: numbered, with what breaks it and what checks it.

Code and documentation cite the numbers as (A1); an estimate lists those that it leans on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from layoutopt.costmodel.efficiency import efficiencies
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.machine import fused_norm, machine, power_share, used_gpus
from layoutopt.costmodel.placement import PRICED


@dataclass(frozen=True)
class Assumption:
    """One thing that the formulas take as true."""

    id: str
    text: str
    breaks: str
    """Where it is known, or likely, to be false."""
    checked_by: str
    """The test, fit or rule that bounds the damage."""


def _always(job: Job, layout: Layout) -> bool:
    return True


def _shards(job: Job, layout: Layout) -> bool:
    return layout.zero_stage >= 2


def _unlike_layers(job: Job, layout: Layout) -> bool:
    model = job.model
    return 0 < model.moe_layers < model.layers or model.sliding_window is not None


def _unread(job: Job, layout: Layout) -> bool:
    return layout.axis_order not in PRICED


def _offloads(job: Job, layout: Layout) -> bool:
    return layout.offload_optimizer or layout.offload_activations


def _under_limit(job: Job, layout: Layout) -> bool:
    return power_share(job.cluster.gpu, machine(job).reach) < 1


def _part_of_a_domain(job: Job, layout: Layout) -> bool:
    per_node = job.cluster.gpus_per_node
    wide = [level.gpus for level in job.cluster.levels if per_node < level.gpus < job.gpus]
    return any(used_gpus(gpus, per_node, job.gpus) < gpus for gpus in wide)


_LISTED: tuple[tuple[Assumption, Callable[[Job, Layout], bool]], ...] = (
    (
        Assumption(
            "A1",
            "Every layer costs what the model's average layer costs.",
            breaks="stages that hold more of the dense first layers of a mixture of experts, or "
            "more of the layers with full attention, than others",
            checked_by="tests/costmodel/test_terms.py, averages by hand",
        ),
        _unlike_layers,
    ),
    (
        Assumption(
            "A2",
            "Tokens spread evenly over the experts.",
            breaks="routers without a balancing loss, and the first thousands of steps",
            checked_by="benchmarks/accuracy.py on measured mixtures of experts",
        ),
        lambda job, layout: job.model.moe is not None,
    ),
    (
        Assumption(
            "A3",
            "The first stage ends last; of an uneven split a later one that has more traffic left "
            "than its head start may: its gradient reduction, weight gather and optimizer step end "
            "the step.",
            breaks="steps that are nearly all traffic, in which a later stage hides more than its "
            "head start",
            checked_by="benchmarks/accuracy.py on measured pipelines",
        ),
        lambda job, layout: layout.pp > 1,
    ),
    (
        Assumption(
            "A4",
            "Communication hides behind compute up to a share that the software sets, and never "
            "longer than the compute beside it; neither slows the other down.",
            breaks="collectives that take compute units or memory bandwidth from the kernels they "
            "hide behind",
            checked_by="benchmarks/fit_time.py fits the shares by framework",
        ),
        lambda job, layout: job.gpus > 1,
    ),
    (
        Assumption(
            "A5",
            "Ranks are numbered tp, cp, ep, dp, pp from the inside out, or with pp inside dp where "
            "axis_order says so, over neighbouring GPUs.",
            breaks="schedulers that scatter a job's nodes, other axis orders",
            checked_by="tests/costmodel/test_placement.py; extrapolation.warnings_for, where an "
            "axis_order without a price is asked for",
        ),
        lambda job, layout: job.gpus > 1,
    ),
    (
        Assumption(
            "A6",
            "A collective takes a latency and its bytes over a bandwidth, level by level; groups "
            "that run at the same time do not disturb one another beyond the stated "
            "oversubscription.",
            breaks="protocol changes at middle message sizes, hashing collisions on Ethernet, "
            "in-network reduction",
            checked_by="tests/costmodel/test_collectives.py, and the measured curves in "
            "hardware_profiles/data",
        ),
        lambda job, layout: job.gpus > 1,
    ),
    (
        Assumption(
            "A7",
            "A chunk takes as long on every stage that holds as many layers, forward or backward.",
            breaks="zero-bubble schedules whose first and last stages take longer, interleaved "
            "chunks of unequal layers",
            checked_by="tests/costmodel/test_pipeline.py, schedules drawn by hand",
        ),
        lambda job, layout: layout.pp > 1,
    ),
    (
        Assumption(
            "A8",
            "Stragglers and jitter take the same small share of the step for every doubling of "
            "GPUs beyond eight.",
            breaks="a site with one slow node, synchronised pauses",
            checked_by="benchmarks/fit_time.py",
        ),
        lambda job, layout: job.gpus > 8,
    ),
    (
        Assumption(
            "A9",
            "An accelerator of an unknown architecture reaches the shares of peak that Hopper "
            "reaches.",
            breaks="every accelerator with another software stack",
            checked_by="extrapolation.warnings_for says so in the answer",
        ),
        lambda job, layout: job.cluster.gpu.architecture not in efficiencies(),
    ),
    (
        Assumption(
            "A10",
            "The allocator caches a fixed share of what was freed, and gives it back before it "
            "fails but for a fixed share that is split too finely to use.",
            breaks="allocations of changing size, such as unbalanced experts; a run has died with "
            "55 of 80 GiB allocated",
            checked_by="benchmarks/accuracy.py on measured peaks and out-of-memory runs",
        ),
        _always,
    ),
    (
        Assumption(
            "A11",
            "The driver's context, kernels, workspaces and communication buffers take a fixed "
            "size.",
            breaks="hundreds of communicators in one process",
            checked_by="benchmarks/accuracy.py on out-of-memory runs",
        ),
        _always,
    ),
    (
        Assumption(
            "A12",
            "Rates of compute follow the device's power limit, for each FLOP/s of its peak, to a "
            "fixed power, and no further up than the part that was measured.",
            breaks="work that never reaches the limit",
            checked_by="benchmarks/fit_time.py on parts of one architecture with unlike limits",
        ),
        _under_limit,
    ),
    (
        Assumption(
            "A13",
            "Norms and rotary embeddings that are written in a framework's own operators keep fp32 "
            "tensors for the backward pass.",
            breaks="frameworks that compile norms into one kernel",
            checked_by="benchmarks/accuracy.py on measured peaks",
        ),
        lambda job, layout: not fused_norm(job),
    ),
    (
        Assumption(
            "A14",
            "A job stands on all GPUs of a server, and on as many servers of a larger domain as "
            "fill every domain alike.",
            breaks="schedulers that hand out parts of racks",
            checked_by="tests/costmodel/test_machine.py",
        ),
        _part_of_a_domain,
    ),
    (
        Assumption(
            "A15",
            "Under ZeRO-2 and 3 the gradients of embedding and loss head are reduced, and their "
            "weights gathered, once a step.",
            breaks="many microbatches without gradient accumulation across them, large vocabularies"
            " on small models",
            checked_by="benchmarks/accuracy.py on measured FSDP runs",
        ),
        _shards,
    ),
    (
        Assumption(
            "A16",
            "Failures arrive at random, at a constant rate per GPU-hour.",
            breaks="the first days of a new cluster; repeated failures of one bad node",
            checked_by="tests/costmodel/test_reliability.py, by lot",
        ),
        lambda job, layout: job.cluster.failures_per_gpu_hour > 0,
    ),
    (
        Assumption(
            "A17",
            "Checkpoint storage reads as fast as it writes where no read bandwidth is given.",
            breaks="tiered storage",
            checked_by="tests/costmodel/test_checkpoint.py",
        ),
        lambda job, layout: job.cluster.storage.read_bytes_per_s is None,
    ),
    (
        Assumption(
            "A18",
            "Axis orders other than two are priced as the usual one.",
            breaks="exactly those layouts",
            checked_by="extrapolation.warnings_for says so in the answer",
        ),
        _unread,
    ),
    (
        Assumption(
            "A19",
            "Matrix products of one precision run at one share of the peak (a smaller one where a "
            "width is not a multiple of 64), less the time that their operands take.",
            breaks="shapes whose last wave of tiles leaves most of the device idle",
            checked_by="benchmarks/fit_time.py",
        ),
        _always,
    ),
    (
        Assumption(
            "A20",
            "On several pools of GPUs a stage beside two of them is held up by the slower of its "
            "boundaries alone, and any stage may be the last to have done its traffic, of an even "
            "split too.",
            breaks="a stage that sends both ways over one adapter",
            checked_by="tests/costmodel/test_mixed.py, by hand; equal pools against one cluster in "
            "tests/optimizer/test_equal_pools.py",
        ),
        lambda job, layout: layout.pools_per_stage is not None,
    ),
    (
        Assumption(
            "A21",
            "Copies between device and host reach four fifths of their link and disturb nothing "
            "else; offload may fill four fifths of the host's memory.",
            breaks="network adapters behind the same switch as the device, busy data loaders",
            checked_by="tests/costmodel/test_offload.py, by hand; no measured run offloads",
        ),
        _offloads,
    ),
    (
        Assumption(
            "A22",
            "Adapters are cut over tensor ranks, and talk, as Megatron Bridge's are, each routed "
            "expert with its own; none of their kernels is fused with another.",
            breaks="fused adapter kernels, adapters that experts share",
            checked_by="the measured runs of adapters in docs/fine-tuning.md",
        ),
        lambda job, layout: job.training.lora is not None,
    ),
    (
        Assumption(
            "A23",
            "Every packed sequence holds documents of the mean lengths, and every context-parallel "
            "rank an equal part of each document.",
            breaks="ranks that wait for the one with the longest documents; documents shorter than "
            "2 x cp tokens, which are padded",
            checked_by="tests/costmodel/test_documents.py, by sums over tokens",
        ),
        lambda job, layout: job.training.documents is not None,
    ),
)

ALL: dict[str, Assumption] = {assumption.id: assumption for assumption, _ in _LISTED}
"""Every assumption by its number, in rising order."""


def cited_for(job: Job, layout: Layout) -> tuple[str, ...]:
    """Numbers of the assumptions that an estimate of ``layout`` leans on, in rising order."""
    return tuple(assumption.id for assumption, leans in _LISTED if leans(job, layout))
