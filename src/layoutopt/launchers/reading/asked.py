"""``estimate --from-launch``: what a launch says, where the options are silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from layoutopt.errors import InputError
from layoutopt.launchers.reading import read_launch


def options_of_launch(
    options: Mapping[str, Any], stdin: TextIO | None
) -> tuple[dict[str, Any], str]:
    """``options`` with those that the launch says, and a sentence that names them.

    Raises InputError where a layout is given as well, or neither says model or GPUs.
    """
    given = {key: value for key, value in options.items() if value is not None}
    source = str(given.pop("from_launch"))
    if "layout" in given:
        raise InputError(
            "--layout and --from-launch exclude each other: both say the layout", field="layout"
        )
    said = read_launch(source, stdin)
    for name, where in (("model", "its architecture"), ("gpus", "nodes and GPUs a node")):
        if name not in said and name not in given and not (name == "gpus" and "cluster" in given):
            raise InputError(f"{source} does not say {where}: give --{name}", field=name)
    taken = [name.replace("_", "-") for name in said if name not in given]
    return {**said, **given}, f"Read from {source}: {', '.join(taken)}."
