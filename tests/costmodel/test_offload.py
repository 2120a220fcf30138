"""Offload by hand: a host with a link of 10 GB/s and 100 GB/s of memory bandwidth, 64 GiB a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layoutopt.costmodel import offload
from layoutopt.costmodel.activations import activation_kib
from layoutopt.costmodel.estimate import estimate
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import Layout
from layoutopt.costmodel.rules import broken_rules
from layoutopt.costmodel.software import software
from layoutopt.hardware_profiles.schema import Host
from layoutopt.units import GIB, KIB
from tests.costmodel.cases import CLUSTER, job, one

HOST = Host(link_bytes_per_s_one_way=10e9, memory_bytes=64 * GIB, memory_bytes_per_s=100e9)
PLAIN = Layout(dp=64, zero_stage=1)


def hosted(**changes: object) -> Job:
    """The job of the other tests on that host."""
    host = HOST.model_copy(update=changes)
    return job(cluster=CLUSTER.model_copy(update={"host": host}))


def test_adam_on_the_host() -> None:
    """A million parameters: gradients out over 8 GB/s; 12 bytes of state read and written, the
    gradient read and 2 bytes written at 45 GB/s, longer than 2 bytes' way back."""
    asked = hosted()
    gradient = asked.software.gradient_bytes
    out = 1e6 * gradient / 8e9
    step = 1e6 * (24 + gradient + 2) / 45e9
    assert offload.adam_seconds(asked, np.array([1e6]))[0] == pytest.approx(out + step)
    slow = hosted(memory_bytes_per_s=1e15)
    assert offload.adam_seconds(slow, np.array([1e6]))[0] == pytest.approx(out + 1e6 * 2 / 8e9)


def test_an_offloaded_optimizer_leaves_the_device_and_fills_the_host() -> None:
    here, away = (
        estimate(hosted(), replace(PLAIN, offload_optimizer=flag)) for flag in (False, True)
    )
    state = here.memory.stages[0].optimizer
    assert away.memory.stages[0].optimizer == 0
    assert away.memory.host_bytes == state
    assert away.memory.host_usable_bytes == int(0.8 * 64 * GIB) // KIB * KIB
    assert away.step.breakdown_s["optimizer"] > here.step.breakdown_s["optimizer"]
    assert here.memory.host_bytes == 0


def test_offloaded_activations_leave_two_layers_behind() -> None:
    here, away = (
        estimate(hosted(), replace(PLAIN, offload_activations=flag)) for flag in (False, True)
    )
    asked = hosted()
    saved = int(activation_kib(asked, one(1), one(1), one(1), one(1), one(0), sp=False)[0]) * KIB
    layers = asked.model.layers
    gone = here.memory.stages[0].activations - away.memory.stages[0].activations
    assert gone == (layers - 2) * saved
    assert away.memory.host_bytes == layers * saved


def test_what_the_passes_do_not_hide_is_seen() -> None:
    """A link of 1 byte a second hides nothing; one without limit everything."""
    slow, fast = (
        estimate(
            hosted(link_bytes_per_s_one_way=rate), replace(PLAIN, offload_activations=True)
        ).step
        for rate in (1.0, 1e30)
    )
    plain = estimate(hosted(), PLAIN).step
    assert fast.breakdown_s["offload"] == 0
    assert fast.time_s == plain.time_s
    asked = hosted()
    saved = int(activation_kib(asked, one(1), one(1), one(1), one(1), one(0), sp=False)[0]) * KIB
    wires = 2 * asked.model.layers * saved / 0.8
    assert slow.breakdown_s["offload"] == pytest.approx(wires, rel=1e-6)


def test_a_full_host_is_no_fit() -> None:
    tight = hosted(memory_bytes=16 * KIB)
    away = estimate(tight, replace(PLAIN, offload_optimizer=True)).memory
    assert not away.fits
    assert away.host_bytes > away.host_usable_bytes


@pytest.mark.parametrize(
    ("framework", "changes", "legal"),
    [
        ("generic", {"offload_optimizer": True, "zero_stage": 0}, True),
        ("megatron-core", {"offload_optimizer": True}, True),
        ("megatron-core", {"offload_optimizer": True, "zero_stage": 0}, False),
        ("torchtitan", {"offload_optimizer": True}, False),
        ("deepspeed", {"offload_activations": True, "recompute": "full"}, True),
        ("deepspeed", {"offload_activations": True}, False),
    ],
)
def test_what_frameworks_offload(framework: str, changes: dict[str, object], legal: bool) -> None:
    asked = replace(job(), software=software(framework))
    layout = Layout(**{**vars(PLAIN), "microbatches": 1, **changes})
    broken = [rule.rule for rule in broken_rules(asked, layout)]
    assert ("framework_offloads" not in broken) == legal
