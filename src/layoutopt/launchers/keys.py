"""What of a plan a launcher has said: a key that it cannot say is refused, never dropped."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from layoutopt.costmodel.layout import Layout
from layoutopt.errors import RuleError
from layoutopt.inputs.tuning import Tuning, tuning_json
from layoutopt.launchers.plan import Plan

_NEUTRAL = Layout()


class Keys:
    """The layout's keys, each of which a launcher has to take, or that has to have no effect.

    A key that a later version adds to Layout is refused by every launcher that was not taught it.
    """

    def __init__(self, plan: Plan, launcher: str) -> None:
        self.plan, self.launcher = plan, launcher
        self._tuned = False
        self._left = {item.name for item in fields(Layout)} - {"microbatches"}

    def take(self, name: str) -> Any:
        """The value of a key that the launcher says."""
        self._left.discard(name)
        return getattr(self.plan.layout, name)

    def tuning(self, why: str, *, adapters: bool = False, documents: bool = False) -> str | None:
        """What of a trained model the run trains; raises RuleError, with ``why``, for adapters or
        documents that the launcher does not say."""
        training, self._tuned = self.plan.training, True
        if training.lora and not adapters:
            raise self.refused("finetune", why)
        if training.documents and not documents:
            raise self.refused("document_length", why)
        return training.finetune

    def refused(self, key: str, why: str) -> RuleError:
        """The refusal of an option of fine-tuning, ``key`` of the plan's request."""
        training = self.plan.training
        tuning = tuning_json(Tuning(training.finetune, training.lora, training.documents))
        value = tuning[key]
        shown = ",".join(value) if isinstance(value, list) else value
        message = f"{self.launcher} cannot say {key} {shown}: {why}"
        return RuleError(message, field=key, value=shown)

    def cannot(self, key: str, why: str, *nearest: object) -> RuleError:
        """The refusal of what this launcher cannot say."""
        value = getattr(self.plan.layout, key, getattr(self.plan.training, key, None))
        shown = str(value).lower() if isinstance(value, bool) else value
        return RuleError(
            f"{self.launcher} cannot say {key} {shown}: {why}",
            field=f"layout.{key}",
            value=value if isinstance(value, bool | int | str) else str(value),
            nearest=nearest,
        )

    def finish(self) -> None:
        """Raises RuleError for the first key that matters and was not taken."""
        if not self._tuned and self.tuning("it has no option for it"):
            raise self.refused("finetune", "it has no option for it")
        layout = self.plan.layout
        for name in sorted(self._left):
            if getattr(layout, name) != getattr(_NEUTRAL, name) and not _idle(layout, name):
                raise self.cannot(name, "it has no option for it")


def _idle(layout: Layout, name: str) -> bool:
    """Whether the key changes nothing in this layout."""
    return {
        "cp_kind": layout.cp == 1,
        "reshard": layout.zero_stage < 3,
        "schedule": layout.pp == 1,
        "vpp": layout.pp == 1,
        "sequence_parallel": layout.tp == 1,
        "axis_order": layout.pp == 1 or layout.dp == 1,
        "shard_degree": layout.shard_degree == layout.dp * layout.cp or layout.zero_stage == 0,
        "layers_per_stage": layout.pp == 1,
    }.get(name, False)
