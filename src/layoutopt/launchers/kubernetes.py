"""Kubernetes manifests: Kubeflow TrainJob v2, JobSet, a plain Job, and the last with Kueue's words.

Sources: Kubeflow Trainer v2 API (trainer.kubeflow.org/v1alpha1), JobSet (jobset.x-k8s.io/v1alpha2),
batch/v1 Job, Kueue's topology-aware scheduling annotations (kueue.x-k8s.io/podset-*).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from layoutopt.errors import InputError
from layoutopt.launchers import megatron, torchtitan
from layoutopt.launchers.plan import Plan
from layoutopt.launchers.shell import Flag

_DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PORT = 29500


@dataclass(frozen=True)
class Cluster:
    """What a manifest needs beside the plan."""

    name: str = "layoutopt"
    image: str = "nvcr.io/nvidia/pytorch:25.10-py3"
    """A stand-in: yours has the framework and your data loader in it."""
    queue: str | None = None
    """Kueue's LocalQueue."""
    topology: str | None = None
    """Node label of the domain that holds one island (tp x cp x ep): a rack, an NVLink block."""
    runtime: str = "torch-distributed"
    """ClusterTrainingRuntime of a TrainJob."""

    def __post_init__(self) -> None:
        for field in ("name", "queue", "runtime"):
            value = getattr(self, field)
            if value is not None and not (_DNS.fullmatch(value) and len(value) <= 63):
                raise InputError(
                    f"{field} {value!r} is no name in Kubernetes: lower-case letters, digits and "
                    "dashes, at most 63, letters or digits at both ends",
                    field=field,
                    value=value,
                )
        if not self.image.strip() or any(char.isspace() for char in self.image):
            raise InputError(f"image {self.image!r} is no image name", field="image")
        if self.topology is not None and not re.fullmatch(r"[\w./-]{1,317}", self.topology):
            raise InputError(f"topology {self.topology!r} is no node label", field="topology")


def trainjob(plan: Plan, cluster: Cluster) -> str:
    """A TrainJob: the runtime starts torchrun with PET_* of its own."""
    program, flags = _program(plan)
    trainer: dict[str, Any] = {
        "image": cluster.image,
        "numNodes": plan.nodes,
        "numProcPerNode": plan.gpus_a_node,
        "command": ["torchrun", *program],
        "args": flags,
        "resourcesPerNode": _resources(plan),
    }
    if environment := megatron_environment(plan):
        trainer["env"] = environment
    spec: dict[str, Any] = {
        "runtimeRef": {
            "name": cluster.runtime,
            "apiGroup": "trainer.kubeflow.org",
            "kind": "ClusterTrainingRuntime",
        },
        "trainer": trainer,
    }
    if cluster.topology:
        pod = {"metadata": {"annotations": _island(plan, cluster)}}
        node = {"name": "node", "template": {"spec": {"template": pod}}}
        patch = {"template": {"spec": {"replicatedJobs": [node]}}}
        spec["runtimePatches"] = [{"manager": "layoutopt", "trainingRuntimeSpec": patch}]
    return _text(plan, "trainer.kubeflow.org/v1alpha1", "TrainJob", cluster, spec)


def jobset(plan: Plan, cluster: Cluster) -> str:
    """A JobSet of one indexed job, a pod a node."""
    host = f"{cluster.name}-node-0-0.{cluster.name}"
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": cluster.name},
        "replicatedJobs": [
            {"name": "node", "replicas": 1, "template": {"spec": _job_spec(plan, cluster, host)}}
        ],
    }
    return _text(plan, "jobset.x-k8s.io/v1alpha2", "JobSet", cluster, spec)


def job(plan: Plan, cluster: Cluster) -> str:
    """A batch/v1 Job; its pods meet at a headless service, which one command makes."""
    spec = _job_spec(plan, cluster, f"{cluster.name}-0.{cluster.name}")
    pod = spec["template"]
    pod["spec"]["subdomain"] = cluster.name
    pod.setdefault("metadata", {})["labels"] = {"app": cluster.name}
    needs = (
        f"# Needs once: kubectl create service clusterip {cluster.name} --clusterip=None\n"
        if plan.nodes > 1
        else ""
    )
    return needs + _text(plan, "batch/v1", "Job", cluster, spec)


def kueue(plan: Plan, cluster: Cluster) -> str:
    """A Job that waits, suspended, in a Kueue queue; raises InputError without --queue."""
    if cluster.queue is None:
        raise InputError("queue is missing: name Kueue's LocalQueue with --queue", field="queue")
    return job(plan, cluster)


def megatron_environment(plan: Plan) -> list[dict[str, str]]:
    """Environment of the framework's own, as Kubernetes writes it."""
    if _framework(plan) == "torchtitan":
        return []
    return [{"name": key, "value": value} for key, value in megatron.environment(plan).items()]


def _framework(plan: Plan) -> str:
    return "torchtitan" if plan.software.framework == "torchtitan" else "megatron"


def _program(plan: Plan) -> tuple[list[str], list[str]]:
    """The script and its flags, for the plan's own framework."""
    flags: list[Flag]
    if _framework(plan) == "torchtitan":
        program, flags = ["-m", "torchtitan.train"], torchtitan.flags(plan)
    else:
        program, flags = ["pretrain_gpt.py"], megatron.flags(plan)
    return program, [word for flag in flags for word in flag]


def _resources(plan: Plan) -> dict[str, Any]:
    """The extended resource that the vendor's device plugin offers, as many as a node has."""
    kinds = {"mi": "amd.com/gpu", "gaudi": "habana.ai/gaudi", "tpu": "google.com/tpu"}
    kind = next((kinds[one] for one in kinds if plan.gpu.startswith(one)), "nvidia.com/gpu")
    count = {kind: str(plan.gpus_a_node)}
    return {"requests": count, "limits": dict(count)}


def _island(plan: Plan, cluster: Cluster) -> dict[str, str]:
    """Pods that exchange data in every layer stay in one domain of the topology."""
    pods = max(1, -(-plan.island // plan.gpus_a_node))
    domain = str(cluster.topology)
    if pods >= plan.nodes:
        return {"kueue.x-k8s.io/podset-required-topology": domain}
    return {
        "kueue.x-k8s.io/podset-slice-required-topology": domain,
        "kueue.x-k8s.io/podset-slice-size": str(pods),
    }


def _job_spec(plan: Plan, cluster: Cluster, host: str) -> dict[str, Any]:
    program, flags = _program(plan)
    torchrun = [
        "torchrun",
        f"--nnodes={plan.nodes}",
        f"--nproc-per-node={plan.gpus_a_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={host}:{_PORT}",
    ]
    container: dict[str, Any] = {
        "name": "train",
        "image": cluster.image,
        "command": [*torchrun, *program],
        "args": flags,
        "resources": _resources(plan),
    }
    if environment := megatron_environment(plan):
        container["env"] = environment
    pod: dict[str, Any] = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    if cluster.topology:
        pod["metadata"] = {"annotations": _island(plan, cluster)}
    spec: dict[str, Any] = {
        "parallelism": plan.nodes,
        "completions": plan.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": pod,
    }
    return spec


def _text(
    plan: Plan,
    version: str,
    kind: str,
    cluster: Cluster,
    spec: dict[str, Any],
) -> str:
    metadata: dict[str, Any] = {"name": cluster.name}
    if cluster.queue:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": cluster.queue}
        spec = {"suspend": True, **spec}
    found = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
    head = f"# {plan.title()}; written by layoutopt.\n"
    return head + yaml.safe_dump(found, sort_keys=False, width=1000)
