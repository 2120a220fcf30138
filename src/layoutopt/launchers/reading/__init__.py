"""A launch that exists, read back: the layout, and what else it says of the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TextIO

import yaml

from layoutopt.errors import InputError
from layoutopt.inputs.text import read_text

MOST_BYTES = 2**22


def read_launch(source: str, stdin: TextIO | None) -> dict[str, Any]:
    """Options of ``estimate`` (layout, and model, gpus, batch, ... where said) of a launch file.

    Megatron flags (a script, or a line of arguments), a torchtitan command, a DeepSpeed or an
    accelerate configuration. Raises InputError for what is none of them.
    """
    return read_launch_text(read_text(source, "from_launch", stdin, MOST_BYTES), source)


def read_launch_text(text: str, source: str = "launch") -> dict[str, Any]:
    """The same, of text."""
    kind, content = _kind(text, source)
    module = import_module(f"layoutopt.launchers.reading.{kind}")
    options: dict[str, Any] = module.options(content)
    return options


def _kind(text: str, source: str) -> tuple[str, Any]:
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _unknown(source, f"it is not JSON: {error}") from error
        if isinstance(value, dict) and _DEEPSPEED & set(value):
            return "deepspeed", value
        raise _unknown(source, "its JSON has none of DeepSpeed's keys")
    if "torchtitan.train" in text or "--parallelism." in text:
        return "torchtitan", text
    if "--tensor-model-parallel-size" in text or "pretrain_" in text:
        return "megatron", text
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise _unknown(
            source, "it is no YAML, and has no flag of Megatron or torchtitan"
        ) from error
    if isinstance(value, Mapping) and "distributed_type" in value:
        return "accelerate", value
    raise _unknown(source, "it has no flag of Megatron or torchtitan, no key of accelerate")


_DEEPSPEED = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "zero_optimization",
    "gradient_accumulation_steps",
}


def _unknown(source: str, why: str) -> InputError:
    return InputError(
        f"{source} is no launch that is known here: {why}; read are Megatron flags, torchtitan "
        "commands, DeepSpeed's JSON and accelerate's YAML",
        field="from_launch",
        value=source,
    )
