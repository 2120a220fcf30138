"""Names of devices as people, drivers and schedulers write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NOISE = frozenset(
    re.findall(
        r"\w+",
        "nvidia amd intel google habana instinct tesla geforce tensor core gpu gpus accelerator "
        "oam hgx dgx hbm2 hbm3 hbm3e cloud labs slice podslice",
    )
)
"""Words that tell no device of the catalogue from another."""

_SHARED = re.compile(r"sxm\d?|pcie|nvl|hbm2e|tpu|rtx|\d+gb")
"""Words that say nothing of which device is meant when they stand alone."""

_SAME_WORD = {"sxm4": "sxm", "sxm5": "sxm", "sxm6": "sxm"}


@dataclass(frozen=True)
class Match:
    """The device taken, and the others that the name would have fitted."""

    name: str
    others: tuple[str, ...] = ()


def words(text: str) -> frozenset[str]:
    """What is left of a name without case, punctuation, vendors and generations of a socket."""
    plain = re.sub(r"(\d+)\s*-?(gib|gb|g)\b", r"\1gb", text.lower())
    split = re.sub(r"\b(rtx|tpu|[abhv]\d{2,3})(?=sxm|pcie|nvl|\d{4}|v\d)", r"\1 ", plain)
    found = re.findall(r"[a-z0-9.]+", split)
    return frozenset(_SAME_WORD.get(word, word) for word in found) - _NOISE


def match(
    text: str, known: tuple[str, ...], same: dict[str, str], prefer: dict[str, str]
) -> Match | None:
    """The device that ``text`` names; None where none fits.

    ``same`` maps other names to known ones. A name whose words are all in several devices is
    ambiguous: ``prefer`` says which is taken, else the first.
    """
    wanted = words(text)
    squeezed = _squeeze(text)
    if not wanted and not squeezed:
        return None
    for other, name in same.items():
        if squeezed == _squeeze(other):
            return Match(name)
    for name in known:
        if squeezed == _squeeze(name) or wanted == words(name):
            return Match(name)
    fitting = [name for name in known if wanted <= words(name)]
    if not fitting or all(_SHARED.fullmatch(word) for word in wanted):
        return None
    first = next((one for key, one in prefer.items() if words(key) == wanted), fitting[0])
    return Match(first, tuple(name for name in fitting if name != first))


def _squeeze(text: str) -> str:
    """Letters and digits alone, without the vendor in front."""
    return re.sub(r"^(nvidia|amd|intel|google)", "", re.sub(r"[^a-z0-9]", "", text.lower()))
