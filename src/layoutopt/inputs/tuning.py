"""Options of fine-tuning: what is trained, adapters, and how documents fill sequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from layoutopt.costmodel.documents import Documents, Lengths
from layoutopt.costmodel.linears import (
    ATTENTION_NAMES,
    MLP_NAMES,
    Lora,
    target_names,
    usual_adapters,
)
from layoutopt.costmodel.model import Model
from layoutopt.costmodel.software import Software, framework_facts
from layoutopt.errors import InputError, RuleError
from layoutopt.inputs.filled import Notebook
from layoutopt.inputs.numbers import MOST_SEQ_LEN, read_count
from layoutopt.inputs.words import choice, yes_or_no
from layoutopt.nearest import did_you_mean, nearest_names

Finetune = Literal["full", "lora"]
_UNPRICED = {
    "qlora": "4-bit weights are unpacked before every product, which has no price here",
    "dora": "the norms of whole weights in every pass have no price here",
}
"""Ways of fine-tuning that people ask for."""

RANK_REASON = "default of Megatron Bridge 0.3.1 (peft/lora.py, dim)"
TARGETS_REASON = (
    "default: every linear layer, as in Megatron Bridge 0.3.1 (peft/lora.py) and in Dettmers et "
    "al. 2023 (arXiv 2305.14314), section 4"
)
EXPERT_TARGETS_REASON = "default: as in Megatron Bridge's recipes of mixtures of experts"
MOST_RANK = 65_536
GROUPS = {"attention": ATTENTION_NAMES, "mlp": MLP_NAMES, "all": (*ATTENTION_NAMES, *MLP_NAMES)}
"""Words for several targets."""

LORA_OPTIONS = ("lora_rank", "lora_targets")
LENGTHS = ("fixed", "exponential")


@dataclass(frozen=True)
class Tuning:
    """What a run trains, and what its sequences are made of: fields of Training."""

    finetune: Finetune | None
    lora: Lora | None
    documents: Documents | None

    def fields(self) -> dict[str, Any]:
        """Them by name."""
        return {"finetune": self.finetune, "lora": self.lora, "documents": self.documents}


def read_tuning(
    options: Mapping[str, Any], model: Model, software: Software, notebook: Notebook
) -> Tuning:
    """The options of fine-tuning; raises InputError for what is wrong, or has no price."""
    finetune = _read_finetune(options.get("finetune"))
    lora = None
    if finetune == "lora":
        lora = _read_lora(options, model, software, notebook)
    else:
        _refuse_without_lora(options)
    return Tuning(finetune, lora, _read_documents(options, notebook))


def _read_finetune(value: object) -> Finetune | None:
    if value is None:
        return None
    word = str(value).strip().lower()
    if word in _UNPRICED:
        raise InputError(
            f"finetune {word} is not modelled: {_UNPRICED[word]}; lora and full are",
            field="finetune",
            value=str(value)[:200],
            nearest=("lora", "full"),
        )
    return cast("Finetune", choice(word, "finetune", ("full", "lora")))


def _refuse_without_lora(options: Mapping[str, Any]) -> None:
    given = next((name for name in LORA_OPTIONS if options.get(name) is not None), None)
    if given:
        raise InputError(
            f"{given} is of adapters: it needs finetune lora",
            field=given,
            value=str(options[given])[:200],
            nearest=("finetune=lora",),
        )


def _read_lora(
    options: Mapping[str, Any], model: Model, software: Software, notebook: Notebook
) -> Lora:
    if not software.lora:
        why = framework_facts()[software.framework]["lora"]["source"]
        able = [name for name, facts in framework_facts().items() if _has_lora(facts)]
        raise RuleError(
            f"{software.name} trains no adapters ({why}); frameworks that do: {', '.join(able)}",
            field="finetune",
            value="lora",
            nearest=tuple(f"framework={name}" for name in able),
        )
    usual = usual_adapters(model, software.merged_adapters)
    if options.get("lora_rank") is None:
        rank = usual.rank
        notebook.fill("lora_rank", rank, RANK_REASON)
    else:
        rank = read_count(options["lora_rank"], "lora_rank", most=MOST_RANK)
    experts = model.moe is not None and software.merged_adapters
    if options.get("lora_targets") is not None:
        targets = read_targets(options["lora_targets"], model)
    else:
        targets = usual.targets
        reason = EXPERT_TARGETS_REASON if experts else TARGETS_REASON
        notebook.fill("lora_targets", ",".join(targets), reason)
    if experts and set(targets) & set(MLP_NAMES):
        raise RuleError(
            f"{software.name} puts one adapter beside all experts that a rank holds, which has no "
            "price here; adapters of attention have",
            field="lora_targets",
            value=",".join(targets),
            nearest=("attention",),
        )
    return Lora(rank=rank, targets=targets)


def _has_lora(facts: Mapping[str, Mapping[str, Any]]) -> bool:
    return bool(facts.get("lora", {"value": True})["value"])


def read_targets(value: object, model: Model) -> tuple[str, ...]:
    """Names of the model's layers for ``attention``, ``mlp``, ``all`` or names, commas between."""
    parts = value.split(",") if isinstance(value, str) else value
    words = [str(part).strip().lower() for part in parts] if isinstance(parts, Iterable) else []
    known, chosen = target_names(model), set()
    for word in words:
        if word in GROUPS:
            chosen |= set(GROUPS[word])
        elif word in known:
            chosen.add(word)
        else:
            close = nearest_names(word, (*known, *GROUPS))
            raise InputError(
                f"lora_targets: {model.name} has no layer {word[:40]!r}{did_you_mean(close)}; it "
                f"has {', '.join(known)}, or attention, mlp, all",
                field="lora_targets",
                value=str(value)[:200],
                nearest=close or known,
            )
    targets = tuple(name for name in known if name in chosen)
    if not targets:
        raise InputError(
            "lora_targets names no layer: attention, mlp, all, or names with commas between",
            field="lora_targets",
            value=str(value)[:200],
            nearest=("all",),
        )
    return targets


def _read_documents(options: Mapping[str, Any], notebook: Notebook) -> Documents | None:
    length, packing = options.get("document_length"), options.get("packing")
    if length is None:
        if packing is not None:
            raise InputError(
                "packing needs document_length: how many tokens a document has",
                field="packing",
                value=str(packing)[:200],
            )
        return None
    kind, colon, number = str(length).rpartition(":")
    lengths = choice(kind, "document_length", LENGTHS) if colon else LENGTHS[0]
    mean = read_count(number if colon else length, "document_length", most=MOST_SEQ_LEN)
    if packing is None:
        packed = True
        notebook.fill("packing", True, "default: documents fill sequences one after another")
    else:
        packed = yes_or_no(packing, "packing")
    return Documents(mean_tokens=mean, lengths=cast("Lengths", lengths), packed=packed)


def tuning_json(tuning: Tuning) -> dict[str, Any]:
    """The options as an answer's request echoes them; those that were not given are left out."""
    entry: dict[str, Any] = {}
    if tuning.finetune:
        entry["finetune"] = tuning.finetune
    if tuning.lora:
        entry |= {"lora_rank": tuning.lora.rank, "lora_targets": list(tuning.lora.targets)}
    documents = tuning.documents
    if documents:
        mean, kind = documents.mean_tokens, documents.lengths
        entry["document_length"] = mean if kind == "fixed" else f"{kind}:{mean}"
        entry["packing"] = documents.packed
    return entry


def tuning_of(request: Mapping[str, Any]) -> Tuning:
    """What `tuning_json` wrote."""
    lora = None
    if "lora_rank" in request:
        lora = Lora(rank=request["lora_rank"], targets=tuple(request["lora_targets"]))
    packed = {"packing": request["packing"]} if "packing" in request else {}
    length = {"document_length": request.get("document_length")}
    return Tuning(request.get("finetune"), lora, _read_documents({**length, **packed}, Notebook()))
