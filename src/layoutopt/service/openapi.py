"""The service's OpenAPI parts, from the published JSON Schemas."""

from __future__ import annotations

import json
from typing import Any

from layoutopt.schema import schema_text
from layoutopt.service.work import INLINE

_ONLY = {
    "solve": ("layout", "from_launch"),
    "estimate": (
        "fix", "limit", "objective", "deadline", "budget", "top", "time_limit", "workers",
        "why_not", "max_power", "pareto", "sensitivity", "critical_batch", "from_launch",
        "phase_layouts",
    ),
}  # fmt: skip
"""Options that a command does not take."""


def request_schema(command: str) -> dict[str, Any]:
    """The body of ``/solve`` or ``/estimate``: options, model and cluster also as objects."""
    schema: dict[str, Any] = json.loads(schema_text("request"))
    properties = schema["properties"]
    for name in (*_ONLY[command], "calibration"):
        properties.pop(name, None)
    for name in INLINE:
        properties[name] = {"anyOf": [{"type": "object"}, properties[name]]}
    if command == "estimate":
        schema["required"] = ["model", "layout"]
    return schema


def answer_schema(name: str) -> dict[str, Any]:
    """A published schema of what is sent back."""
    schema: dict[str, Any] = json.loads(schema_text(name))
    return schema


def components() -> dict[str, Any]:
    """Every schema under a name of its own, references rewritten."""
    whole = {
        "solve": request_schema("solve"),
        "estimate": request_schema("estimate"),
        "plan": answer_schema("plan"),
        "error": answer_schema("error"),
    }
    found: dict[str, Any] = {}
    for name, schema in whole.items():
        for inner, definition in schema.pop("$defs", {}).items():
            found[f"{name}_{inner}"] = _moved(definition, name)
        schema.pop("$id", None)
        schema.pop("$schema", None)
        found[name] = _moved(schema, name)
    return found


def _moved(value: Any, name: str) -> Any:
    """``#/$defs/x`` as ``#/components/schemas/NAME_x``."""
    if isinstance(value, dict):
        return {
            key: f"#/components/schemas/{name}_{inner.removeprefix('#/$defs/')}"
            if key == "$ref" and isinstance(inner, str)
            else _moved(inner, name)
            for key, inner in value.items()
        }
    return [_moved(item, name) for item in value] if isinstance(value, list) else value


def operation(command: str) -> dict[str, Any]:
    """What FastAPI cannot tell by itself: body and answers of one path."""

    def body(name: str) -> dict[str, Any]:
        return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}

    why = {
        401: "no token, or a wrong one",
        413: "the body is too large",
        422: "bad input: what is wrong, and the nearest right value",
        429: "too many requests wait; come back after Retry-After seconds",
        500: "a fault of ours",
        503: "the request took longer than its limit",
    }
    return {
        "requestBody": {"required": True, "content": body(command)},
        "responses": {
            "200": {
                "description": "an answer; its status says whether there is a layout",
                "content": body("plan"),
            },
            **{
                str(code): {"description": text, "content": body("error")}
                for code, text in why.items()
            },
        },
    }
