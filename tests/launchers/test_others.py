"""The other launchers: what a layout becomes, and what is refused."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from layoutopt.errors import InputError, RuleError
from layoutopt.launchers import FORMATS, emit
from layoutopt.launchers.torchtitan import on_ranks, split_of_parts
from tests.launchers.plans import plan_of


def test_torchtitan_shards_and_replicates() -> None:
    plan = plan_of("tp=2,cp=2,pp=1,dp=16,zero_stage=3,shard_degree=8,cp_kind=all_gather",
                   framework="torchtitan")  # fmt: skip
    text = emit(plan, "torchtitan")
    assert "--parallelism.data_parallel_shard_degree 4" in text
    assert "--parallelism.data_parallel_replicate_degree 4" in text
    assert "--parallelism.fsdp_reshard_after_forward always" in text
    assert "--training.local_batch_size 1" in text


def test_torchtitan_splits_layers_as_it_does_itself() -> None:
    # 126 layers, embedding and loss head as one each: 128 / 16 = 8, so 7, 14 x 8, 7.
    assert split_of_parts(126, 16, 1, 1) == (7, *[8] * 14, 7)
    assert split_of_parts(61, 8, 0, 0) == (*[8] * 5, *[7] * 3)
    assert split_of_parts(4, 8, 0, 0) is None
    assert on_ranks((1, 2, 3, 4), 2, v_shape=False) == (4, 6)
    assert on_ranks((1, 2, 3, 4), 2, v_shape=True) == (5, 5)


def test_torchtitan_pipeline_of_405b() -> None:
    plan = plan_of(
        "tp=8,pp=16,dp=8,zero_stage=3,reshard=false",
        model="405B", gpus=1024, framework="torchtitan", precision="fp8", global_batch=512,
    )  # fmt: skip
    text = emit(plan, "torchtitan")
    assert "--parallelism.pipeline_parallel_layers_per_stage 8" in text
    assert "--parallelism.pipeline_parallel_first_stage_less_layers 1" in text
    assert "--training.disable_cuda_graphs" in text
    assert "--training.local_batch_size 64" in text


def test_pods_ask_for_the_vendor_s_resource() -> None:
    for gpu, resource in (("mi300x", "amd.com/gpu"), ("h100", "nvidia.com/gpu")):
        found = yaml.safe_load(emit(plan_of("tp=8,pp=1", gpu=gpu), "job"))
        pod = found["spec"]["template"]["spec"]
        assert pod["containers"][0]["resources"]["limits"] == {resource: "8"}


def test_deepspeed_file() -> None:
    plan = plan_of("tp=1,cp=2,cp_kind=ulysses,zero_stage=3", model="8B", framework="deepspeed")
    found = json.loads(emit(plan, "deepspeed"))
    assert found["zero_optimization"]["stage"] == 3
    assert found["sequence_parallel_size"] == 2
    micro, times = found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]
    assert found["train_batch_size"] == micro * times * 32 == 256


def test_deepspeed_leaves_the_batch_out_with_tensor_parallel() -> None:
    found = json.loads(emit(plan_of("tp=4,pp=1,zero_stage=1", framework="deepspeed"), "deepspeed"))
    assert "train_batch_size" not in found
    assert found["tensor_parallel"] == {"autotp_size": 4}


def test_accelerate_file() -> None:
    plan = plan_of("tp=4,cp=2,pp=1,zero_stage=3,recompute=full", framework="generic")
    found = yaml.safe_load(emit(plan, "accelerate"))
    assert found["num_processes"] == 64
    assert found["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 1,
        "parallelism_config_dp_shard_size": 8,
        "parallelism_config_tp_size": 4,
        "parallelism_config_cp_size": 2,
        "parallelism_config_cp_comm_strategy": "alltoall",
    }
    assert found["fsdp_config"]["fsdp_activation_checkpointing"] is True


def test_bridge_and_nanotron_files() -> None:
    plan = plan_of("tp=4,pp=4,dp=4,zero_stage=1")
    bridge = yaml.safe_load(emit(plan, "megatron-bridge"))
    assert bridge["model"]["tensor_model_parallel_size"] == 4
    assert bridge["ddp"]["use_distributed_optimizer"] is True
    nanotron = yaml.safe_load(emit(plan, "nanotron"))
    assert nanotron["parallelism"]["tp_mode"] == "REDUCE_SCATTER"
    assert nanotron["tokens"]["batch_accumulation_per_replica"] == 64


def test_maxtext_axes_inside_and_across_nodes() -> None:
    text = emit(plan_of("tp=4,pp=1,dp=16,zero_stage=3", framework="generic"), "maxtext")
    found = dict(re.findall(r"(\w+)=(\S+)", text))
    assert (found["ici_tensor_parallelism"], found["dcn_tensor_parallelism"]) == ("4", "1")
    assert (found["ici_fsdp_parallelism"], found["dcn_fsdp_parallelism"]) == ("2", "8")
    assert found["per_device_batch_size"] == "0.25"
    assert found["gradient_accumulation_steps"] == "16"


@pytest.mark.parametrize(
    ("format", "layout", "options", "why"),
    [
        ("torchtitan", "tp=8,pp=1,zero_stage=1", {}, "zero_stage 1"),
        ("torchtitan", "tp=8,pp=1,zero_stage=3", {"model": "bloom-176b"}, "no configuration"),
        ("deepspeed", "tp=8,pp=4", {}, "pp 4"),
        ("deepspeed", "tp=4,cp=2,zero_stage=1,pp=1", {}, "cp_kind ring"),
        ("accelerate", "tp=8,pp=4", {}, "pp 4"),
        ("accelerate", "tp=8,pp=1,zero_stage=1", {}, "zero_stage 1"),
        ("nanotron", "tp=8,pp=4,vpp=5", {}, "vpp 5"),
        ("maxtext", "tp=8,pp=1,zero_stage=1", {}, "zero_stage 1"),
    ],
)
def test_refusals_name_the_key(format: str, layout: str, options: dict[str, str], why: str) -> None:
    plan = plan_of(layout, **{"framework": "generic", **options})  # type: ignore[arg-type]
    with pytest.raises(RuleError, match=re.escape(why)):
        emit(plan, format)


def test_kubernetes_islands_and_queues() -> None:
    plan = plan_of("tp=8,cp=2,pp=2,dp=2")
    found = yaml.safe_load(emit(plan, "job", queue="gpu", topology="rack", name="run-1"))
    assert found["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "gpu"}
    assert found["spec"]["suspend"] is True
    assert (found["spec"]["parallelism"], found["spec"]["completions"]) == (8, 8)
    notes = found["spec"]["template"]["metadata"]["annotations"]
    # tp x cp = 16 GPUs: two pods exchange data in every layer.
    assert notes["kueue.x-k8s.io/podset-slice-size"] == "2"
    trainer = yaml.safe_load(emit(plan, "trainjob"))["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (8, 8)
    assert trainer["args"][:2] == ["--tensor-model-parallel-size", "8"]
    replicated = yaml.safe_load(emit(plan, "jobset"))["spec"]["replicatedJobs"]
    assert replicated[0]["template"]["spec"]["completionMode"] == "Indexed"


@pytest.mark.parametrize("name", ["Run", "a_b", "-a", "a" * 64, "a;b", "a\nb"])
def test_kubernetes_names_are_checked(name: str) -> None:
    with pytest.raises(InputError, match="is no name in Kubernetes"):
        emit(plan_of("tp=8,pp=4"), "job", name=name)


def test_kueue_needs_its_queue() -> None:
    with pytest.raises(InputError, match="queue is missing"):
        emit(plan_of("tp=8,pp=4"), "kueue")


def test_skypilot_task() -> None:
    task = yaml.safe_load(emit(plan_of("tp=8,pp=4"), "skypilot"))
    assert task["num_nodes"] == 8
    assert task["resources"]["accelerators"] == "H100:8"
    assert "--pipeline-model-parallel-size 4" in task["run"]


def test_formats_are_twelve_and_nothing_else() -> None:
    with pytest.raises(InputError, match="nearest: megatron"):
        emit(plan_of("tp=8,pp=4"), "megatrom")
    assert len(FORMATS) == 12
