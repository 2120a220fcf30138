"""Answers against the published schemas: valid, and no key that the schema does not describe."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator

from layoutopt.schema import schema_text


@lru_cache
def schema(name: str) -> dict[str, Any]:
    """The published schema called ``name``."""
    entry: dict[str, Any] = json.loads(schema_text(name))
    return entry


def check(answer: dict[str, Any], name: str) -> None:
    """Fails where ``answer`` breaks the schema, or says more than the schema describes."""
    Draft202012Validator(schema(name)).validate(answer)
    undescribed = sorted(_undescribed(answer, schema(name), schema(name), "$"))
    assert not undescribed, f"not in the schema {name}: {undescribed}"


def _undescribed(value: Any, rule: dict[str, Any], root: dict[str, Any], where: str) -> set[str]:
    rules = _flat(rule, root)
    if isinstance(value, list):
        items = [one["items"] for one in rules if "items" in one]
        return {
            found
            for index, entry in enumerate(value)
            for item in items[:1]
            for found in _undescribed(entry, item, root, f"{where}[{index}]")
        }
    described = {key: sub for one in rules for key, sub in one.get("properties", {}).items()}
    if not isinstance(value, dict) or not described:
        return set()
    found = {f"{where}.{key}" for key in value if key not in described}
    for key in value.keys() & described.keys():
        found |= _undescribed(value[key], described[key], root, f"{where}.{key}")
    return found


def _flat(rule: dict[str, Any], root: dict[str, Any]) -> list[dict[str, Any]]:
    """``rule`` with its references and its alternatives opened; conditions add no keys."""
    if "$ref" in rule:
        return _flat(root["$defs"][rule["$ref"].rpartition("/")[2]], root)
    parts = [*rule.get("anyOf", []), *(p for p in rule.get("allOf", []) if "if" not in p)]
    return [rule, *(flat for part in parts for flat in _flat(part, root))]
