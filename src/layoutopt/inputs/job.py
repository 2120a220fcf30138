"""Options as a Job: the model, the machine and the training run, defaults filled in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TextIO, cast

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.models import resolve_model
from layoutopt.costmodel.software import Software, software, software_names
from layoutopt.costmodel.training import Precision, Training
from layoutopt.errors import InputError
from layoutopt.hardware_profiles.schema import PRECISIONS, Cluster, Gpu
from layoutopt.inputs import defaults
from layoutopt.inputs.failures import with_failures, with_stops
from layoutopt.inputs.filled import Notebook
from layoutopt.inputs.machine import read_machine
from layoutopt.inputs.numbers import MOST_BATCH, MOST_SEQ_LEN, MOST_TOKENS, read_count, read_seconds
from layoutopt.inputs.tuning import Tuning, read_tuning
from layoutopt.inputs.words import choice
from layoutopt.nearest import did_you_mean, nearest_names

_EIGHT_BIT = ("fp8", "mxfp8")


def read_job(
    options: Mapping[str, Any],
    notebook: Notebook,
    stdin: TextIO | None,
    layout: Mapping[str, Any] | None = None,
) -> Job:
    """The job that ``options`` describe; ``layout`` may imply its GPU count and its batch."""
    refuse_two_on_stdin(options)
    layout = layout or {}
    model = _read_model(options.get("model"), notebook, stdin)
    cluster, gpus = read_machine(_with_layout_gpus(options, layout, notebook), notebook, stdin)
    cluster = with_stops(options, with_failures(options, cluster, gpus, notebook))
    profile = _read_software(options.get("framework"), notebook)
    tuning = read_tuning(options, model, profile, notebook)
    if tuning.lora and model.mtp_layers:
        notebook.warn(
            f"the {model.mtp_layers} multi-token-prediction layers of {model.name} are left out: "
            "adapters are trained by the next token alone"
        )
        model = model.model_copy(update={"mtp_layers": 0})
    training = _read_training(options, layout, model, cluster, gpus, notebook, tuning)
    return Job(model=model, cluster=cluster, training=training, software=profile, gpus=gpus)


def refuse_two_on_stdin(options: Mapping[str, Any]) -> None:
    """Raises InputError where two options want standard input."""
    asking = [
        name
        for name in ("model", "cluster", "layout", "why_not", "phases")
        if options.get(name) == "-"
    ]
    if len(asking) > 1:
        names = " and ".join(f"--{name.replace('_', '-')} -" for name in asking)
        raise InputError(
            f"{names} both read standard input; give one of them as a file",
            field=asking[1],
            value="-",
        )


def _read_model(value: object, notebook: Notebook, stdin: TextIO | None) -> Model:
    if value is None:
        raise InputError(
            "model is missing: a catalogue name, a size as in 405B, or a config.json", field="model"
        )
    if isinstance(value, Model):
        return value
    model, note = resolve_model(str(value), stdin)
    if note:
        notebook.fill("model", model.name, note)
    return model


def _with_layout_gpus(
    options: Mapping[str, Any], layout: Mapping[str, Any], notebook: Notebook
) -> Mapping[str, Any]:
    """``options`` with the layout's own GPU count where no other was given."""
    gpus = layout.get("gpus")
    if gpus is None and layout.get("pools_per_stage"):
        # Stages on pools need not use every GPU of them.
        degrees = [int(layout.get(axis, 1)) for axis in ("tp", "cp", "pp")]
        gpus = math.prod(degrees) * int(layout["dp"]) if "dp" in layout else None
    if gpus is None or options.get("gpus") is not None:
        return options
    notebook.fill("gpus", gpus, "the layout's own count")
    return {**options, "gpus": gpus}


def _read_software(value: object, notebook: Notebook) -> Software:
    if value is None:
        notebook.fill("framework", defaults.FRAMEWORK, defaults.FRAMEWORK_REASON)
        return software(defaults.FRAMEWORK)
    name = str(value).strip().lower()
    try:
        return software(name)
    except InputError as error:
        close = nearest_names(name, software_names()) or software_names()
        message = f"{error.message}{did_you_mean(close)}"
        raise InputError(message, field="framework", value=value, nearest=close) from error


def _read_training(
    options: Mapping[str, Any],
    layout: Mapping[str, Any],
    model: Model,
    cluster: Cluster,
    gpus: int,
    notebook: Notebook,
    tuning: Tuning,
) -> Training:
    finetune = tuning.finetune is not None
    seq_len = _read_seq_len(options.get("seq_len"), model, notebook, finetune=finetune)
    batch = options.get("global_batch")
    if batch is not None:
        global_batch = read_count(batch, "global_batch", most=MOST_BATCH)
    elif (implied := _implied_batch(layout, gpus)) is not None:
        global_batch = implied
        notebook.fill("global_batch", implied, "what the layout's own numbers multiply to")
    else:
        global_batch, reason = defaults.default_global_batch(
            model, gpus, seq_len, finetune=finetune
        )
        notebook.fill("global_batch", global_batch, reason)
    return Training(
        seq_len=seq_len,
        global_batch=global_batch,
        tokens=_read_tokens(
            options.get("tokens"), model, seq_len * global_batch, notebook, finetune=finetune
        ),
        precision=_read_precision(options.get("precision"), cluster.gpu, notebook),
        **tuning.fields(),
        **_read_pauses(options),
    )


def _read_pauses(options: Mapping[str, Any]) -> dict[str, Any]:
    """How often training stands still for evaluation, and for how long; both or neither."""
    given = {name: options.get(name) for name in ("eval_every", "eval_time")}
    lacking = [name for name, value in given.items() if value is None]
    if len(lacking) == 2:
        return {}
    if lacking:
        there = next(name for name in given if name not in lacking)
        raise InputError(
            f"{there} needs {lacking[0]}: pauses for evaluation are every so many steps, and last "
            "so long",
            field=lacking[0],
        )
    every = read_count(given["eval_every"], "eval_every", most=MOST_TOKENS)
    return {
        "eval_interval_steps": every,
        "eval_s": read_seconds(given["eval_time"], "eval_time"),
    }


def _read_seq_len(value: object, model: Model, notebook: Notebook, *, finetune: bool) -> int:
    if value is None:
        seq_len, reason = defaults.default_seq_len(model, finetune=finetune)
        notebook.fill("seq_len", seq_len, reason)
        return seq_len
    seq_len = read_count(value, "seq_len", most=MOST_SEQ_LEN)
    if model.max_seq_len is not None and seq_len > model.max_seq_len:
        notebook.warn(
            f"seq_len {seq_len:,} is longer than the {model.max_seq_len:,} "
            f"that {model.name} was made for"
        )
    return seq_len


def _implied_batch(layout: Mapping[str, Any], gpus: int) -> int | None:
    """The batch that a layout states, or that its dp, micro_batch and microbatches make."""
    if "global_batch" in layout:
        return int(layout["global_batch"])
    if "micro_batch" not in layout or "microbatches" not in layout:
        return None
    others = int(layout.get("tp", 1)) * int(layout.get("cp", 1)) * int(layout.get("pp", 1))
    dp = int(layout.get("dp", max(1, gpus // others)))
    batch = dp * int(layout["micro_batch"]) * int(layout["microbatches"])
    return read_count(batch, "layout.microbatches", most=MOST_BATCH)


def _read_tokens(
    value: object, model: Model, step_tokens: int, notebook: Notebook, *, finetune: bool
) -> int:
    if value is None:
        tokens, reason = defaults.default_tokens(model, step_tokens if finetune else None)
        notebook.fill("tokens", tokens, reason)
    else:
        tokens = read_count(value, "tokens", most=MOST_TOKENS, fraction=True)
    if tokens < step_tokens:
        notebook.warn(
            f"tokens {tokens:,} is less than one step of {step_tokens:,}: one step is run"
        )
    return tokens


def _read_precision(value: object, gpu: Gpu, notebook: Notebook) -> Precision:
    has = gpu.peak_flops_per_s
    if value is None:
        if "bf16" not in has and "fp16" in has:
            notebook.fill("precision", "fp16", f"{gpu.name} has no bf16")
            return "fp16"
        notebook.fill("precision", defaults.PRECISION, defaults.PRECISION_REASON)
        return "bf16"
    name = choice(str(value), "precision", PRECISIONS)
    if (name in _EIGHT_BIT and "fp8" not in has) or (name == "nvfp4" and "fp4" not in has):
        notebook.warn(f"{gpu.name} has no {name}: timed at the peak of the next wider type it has")
    return cast("Precision", name)
