"""Kubeflow Trainer's models (kubeflow-trainer-api 2.3.0) and kubernetes-validate 1.37."""

from __future__ import annotations

import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import judge

import kubernetes_validate
import yaml
from kubeflow_trainer_api import models

_MODELS = {"TrainJob": models.TrainerV1alpha1TrainJob, "JobSet": models.JobsetV1alpha2JobSet}


def check(case: dict[str, Any]) -> dict[str, Any]:
    """A round trip that loses nothing; a Job by the published schema, unknown keys refused."""
    manifest = yaml.safe_load(case["text"])
    kind = manifest["kind"]
    if kind == "Job":
        kubernetes_validate.validate(manifest, "1.37", strict=True)
        return {"kind": kind}
    back = _MODELS[kind].from_dict(manifest).to_dict()
    lost = list(_lost(manifest, back, kind))
    assert not lost, f"keys that vanish: {', '.join(lost)}"
    return {"kind": kind}


def _lost(given: Any, back: Any, where: str):
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(back, dict) or key not in back:
                yield f"{where}.{key}"
            else:
                yield from _lost(value, back[key], f"{where}.{key}")
    elif isinstance(given, list):
        for index, value in enumerate(given):
            yield from _lost(value, back[index], f"{where}[{index}]")


if __name__ == "__main__":
    judge(check)
