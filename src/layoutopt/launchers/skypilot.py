"""A SkyPilot task (skypilot 0.14): the same command, on nodes that SkyPilot finds."""

from __future__ import annotations

import shlex

import yaml

from layoutopt.errors import InputError
from layoutopt.launchers import megatron, torchtitan
from layoutopt.launchers.plan import Plan

_NAMES = ("H100", "H200", "H800", "H20", "A100", "A800", "B200", "B300", "GB200", "GB300", "V100")
_RENDEZVOUS = '"$(echo "$SKYPILOT_NODE_IPS" | head -n 1):29500"'


def task(plan: Plan) -> str:
    """The YAML task; its run section is the framework's own command, one option a line."""
    titan = plan.software.framework == "torchtitan"
    flags = torchtitan.flags(plan) if titan else megatron.flags(plan)
    program = "-m torchtitan.train" if titan else "pretrain_gpt.py"
    start = (
        f"torchrun --nnodes={plan.nodes} --nproc-per-node={plan.gpus_a_node} "
        f"--rdzv-backend=c10d --rdzv-endpoint={_RENDEZVOUS} {program}"
    )
    lines = [start, *(" ".join(map(shlex.quote, flag)) for flag in flags)]
    found = {
        "name": "layoutopt",
        "num_nodes": plan.nodes,
        "resources": {
            "accelerators": f"{_accelerator(plan)}:{plan.gpus_a_node}",
            "network_tier": "best",
        },
        "envs": {} if titan else megatron.environment(plan),
        "run": " \\\n  ".join(lines) + "\n",
    }
    if not found["envs"]:
        del found["envs"]
    head = f"# {plan.title()}; written by layoutopt.\n"
    return head + yaml.safe_dump(found, sort_keys=False, width=1000)


def _accelerator(plan: Plan) -> str:
    """SkyPilot's name of the GPU: the part before the first dash, A100-80GB apart."""
    name = plan.gpu.split("-")[0].upper()
    if name not in _NAMES:
        raise InputError(
            f"skypilot has no accelerator for {plan.gpu}; it has {', '.join(_NAMES)}",
            field="gpu",
            value=plan.gpu,
            nearest=_NAMES,
        )
    return "A100-80GB" if name == "A100" and "80gb" in plan.gpu else name
