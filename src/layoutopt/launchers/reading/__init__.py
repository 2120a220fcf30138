"""A launch that exists, read back: the layout, and what else it says of the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import yaml

from layoutopt.errors import InputError

MOST_BYTES = 2**22


def read_launch(source: str, stdin: TextIO | None) -> dict[str, Any]:
    """Options of ``estimate`` (layout, and model, gpus, batch, ... where said) of a launch file.

    Megatron flags (a script, or a line of arguments), a torchtitan command, a DeepSpeed or an
    accelerate configuration. Raises InputError for what is none of them.
    """
    return read_launch_text(_text(source, stdin), source)


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


def _text(source: str, stdin: TextIO | None) -> str:
    try:
        if source == "-":
            text = stdin.read(MOST_BYTES + 1) if stdin else ""
        else:
            with Path(source).open(encoding="utf-8") as file:
                text = file.read(MOST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"from_launch: cannot read {source}: {reason}", field="from_launch", value=source
        ) from error
    if not text.strip() or len(text) > MOST_BYTES:
        size = "is empty" if not text.strip() else f"has more than {MOST_BYTES:,} characters"
        raise InputError(f"from_launch: {source} {size}", field="from_launch", value=source)
    return text
