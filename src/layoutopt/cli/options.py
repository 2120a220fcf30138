"""Options that commands share. Values stay text here: layoutopt.inputs reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from layoutopt.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def text_option(*names: str, help: str, metavar: str) -> Callable[[F], F]:
    """An option with one value; given twice with two values it is refused, naming both."""

    def once(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
        swallowed = next((value for value in values if value.startswith("--")), None)
        if swallowed:
            raise InputError(
                f"{names[0]} has no value: {swallowed} follows it",
                field=param.name,
                value=swallowed,
            )
        if len(set(values)) > 1:
            raise InputError(
                f"{names[0]} is given twice: {values[0]} and {values[1]}",
                field=param.name,
                value=values[1],
                nearest=(values[0],),
            )
        return values[0] if values else None

    return click.option(*names, multiple=True, callback=once, help=help, metavar=metavar)


def stack(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several decorators as one, the first on top."""

    def apply(function: F) -> F:
        for decorate in reversed(decorators):
            function = decorate(function)
        return function

    return apply


calibration_option = text_option(
    "--calibration", metavar="FILE", help="A site's own figures, made by layoutopt calibrate."
)

job_options = stack(
    text_option(
        "--model",
        metavar="M",
        help="Catalogue name, size (405B), config.json, YAML file, or - for standard input.",
    ),
    text_option(
        "--gpus", metavar="N", help="GPUs to use: exactly so many; solve takes 64..4096 too."
    ),
    text_option("--gpu", metavar="NAME", help="GPU type, in its usual nodes. [h100-sxm-80gb]"),
    text_option("--cluster", metavar="NAME|FILE", help="Cluster instead of --gpu; - for stdin."),
    text_option("--seq-len", metavar="TOKENS", help="Sequence length. [8192 or the model's most]"),
    text_option(
        "--global-batch", metavar="N", help="Sequences per step. [by model size, see the answer]"
    ),
    text_option("--tokens", metavar="N", help="Tokens of the run. [20 per active parameter]"),
    text_option("--precision", metavar="P", help="bf16, fp16, fp8, mxfp8, nvfp4, fp32. [bf16]"),
    text_option("--framework", metavar="NAME", help="Whose rules and overlap apply. [generic]"),
    text_option("--finetune", metavar="WHAT", help="full or lora; else the run is pretraining."),
    text_option("--lora-rank", metavar="R", help="Rank of the adapters. [32]"),
    text_option("--lora-targets", metavar="T", help="attention, mlp, all, or q_proj,v_proj. [all]"),
    text_option("--document-length", metavar="N", help="Tokens a document: 512, exponential:512."),
    click.option(
        "--packing/--no-packing",
        default=None,
        help="Documents fill sequences, or are padded. [packing]",
    ),
    calibration_option,
    text_option("--eval-every", metavar="STEPS", help="Steps between pauses for evaluation."),
    text_option("--eval-time", metavar="TIME", help="How long such a pause lasts, as in 5min."),
    text_option("--mtbf", metavar="TIME", help="Mean time between failures of the job: 3.1h."),
    text_option("--failure-rate", metavar="R", help="Failures per 1,000 node-days, instead."),
    text_option("--planned-stops", metavar="S", help="Stops: '4h every 30d', '3 x 4h', none."),
    text_option("--degraded", metavar="N", help="What to restart with when N nodes are gone."),
)

phase_options = stack(
    text_option(
        "--phases", metavar="FILE", help="A run in phases: YAML or JSON list, - for stdin."
    ),
    click.option(
        "--phase",
        multiple=True,
        metavar="A=N,...",
        help="One phase, in their order: tokens=1T,seq_len=8192,global_batch=1024[,gpus=512].",
    ),
)


def with_phases(options: dict[str, Any]) -> dict[str, Any]:
    """The options with each ``--phase`` among ``phases``; raises InputError for both."""
    listed = options.pop("phase", None)
    if listed and options.get("phases") is not None:
        raise InputError(
            "--phases and --phase both list the phases; give one of them",
            field="phases",
            value=options["phases"],
        )
    return {**options, "phases": list(listed)} if listed else options


cache_option = text_option(
    "--cache", metavar="DIR", help="Keep answers there: the same question, the same bytes back."
)

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
explain_option = click.option(
    "--explain", "assumptions", is_flag=True, help="Also print the assumptions leaned on."
)
