"""``--rejected FILE``: what was refused, as JSON lines, written while it is found."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutopt.errors import InputError

if TYPE_CHECKING:
    from layoutopt.optimizer.question import Question
    from layoutopt.optimizer.rejected import Rejected

MOST_LINES = 100_000
"""Lines of a file; one more says that there would have been others."""


def write_rejected(question: Question, path: str | Path) -> int:
    """Writes what the question refuses to ``path`` and returns the number of lines."""
    from layoutopt.optimizer.rejected import rejected

    lines, counts = 0, Counter[str]()
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            found = rejected(question)
            for one in islice(found, MOST_LINES):
                file.write(json.dumps(_entry(one), sort_keys=False) + "\n")
                lines += 1
                counts[one.rule] += 1
            if next(found, None) is not None:
                file.write(json.dumps({"truncated": True, "lines": MOST_LINES}) + "\n")
            file.write(json.dumps(_summary(counts)) + "\n")
    except OSError as error:
        raise InputError(
            f"rejected: cannot write {path}: {error.strerror}", field="rejected", value=str(path)
        ) from error
    return lines


def _summary(counts: Counter[str]) -> dict[str, Any]:
    """The last line: how many refusals of each rule the lines before it hold."""
    told = ", ".join(f"{count:,} {rule}" for rule, count in counts.most_common())
    by_rule = dict(sorted(counts.items()))
    return {"rule": "summary", "message": told or "none", "layout": {}, "refusals": by_rule}


def _entry(one: Rejected) -> dict[str, Any]:
    """``{"rule": ..., "message": ..., "layout": {"tp": 12}}``; over_bytes where it does not fit."""
    from layoutopt.inputs.layout_text import layout_to_dict

    layout = one.axes
    if one.layout is not None:
        layout = layout_to_dict(one.layout, one.layout.layers_per_stage or ())
    memory = {} if one.over_bytes is None else {"over_bytes": one.over_bytes}
    return {"rule": one.rule, "message": one.message, "layout": layout, **memory}
