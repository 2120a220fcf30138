"""The accelerators and cloud machines that ship with the package, read one file at a time."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from layoutopt.errors import InputError, InternalError, ProfileError
from layoutopt.hardware_profiles import names, reading
from layoutopt.hardware_profiles.gpu_file import read_gpu, read_sources
from layoutopt.hardware_profiles.reading import Fields
from layoutopt.hardware_profiles.schema import Gpu, GpuFacts, Instance
from layoutopt.nearest import did_you_mean, nearest_names

DATA = Path(__file__).parent / "data"
"""Where the shipped files are."""


@lru_cache(maxsize=1)
def gpu_names() -> tuple[str, ...]:
    """Names of all accelerators, in alphabetical order."""
    return _names("gpus")


@lru_cache(maxsize=1)
def instance_names() -> tuple[str, ...]:
    """Names of all cloud machines and per-GPU offers, in alphabetical order."""
    return _names("instances")


def load_gpu(name: str) -> Gpu:
    """The accelerator of exactly that name (see ``find_gpu`` for names as people write them)."""
    return gpu_facts(name).gpu


def find_gpu(text: str) -> tuple[Gpu, str | None]:
    """The accelerator that ``text`` names, and a note where the name fitted several."""
    name, note = find_gpu_name(text)
    return load_gpu(name), note


def find_gpu_name(text: str) -> tuple[str, str | None]:
    """As ``find_gpu``, without reading the file."""
    same, prefer = _aliases()
    found = names.match(text[:200], gpu_names(), same, prefer)
    if found is None:
        near = nearest_names(text, [*gpu_names(), *same], 6)
        near = tuple(dict.fromkeys(same.get(one, one) for one in near))[:3]
        shown = text if len(text) <= 60 else text[:60] + "..."
        raise InputError(
            f"GPU {shown!r} is not known{did_you_mean(near) or '; see layoutopt hardware'}",
            field="gpu",
            value=text[:200],
            nearest=near,
        )
    if not found.others:
        return found.name, None
    return found.name, f"{text} fits {', '.join(found.others)} as well; {found.name} was taken"


@lru_cache(maxsize=64)
def gpu_facts(name: str) -> GpuFacts:
    """Everything known of the accelerator of exactly that name, each figure with its source."""
    if name not in gpu_names():
        near = nearest_names(name, gpu_names())
        message = f"GPU {name[:60]!r} is not known{did_you_mean(near)}"
        raise InputError(message, field="gpu", value=name[:200], nearest=near)
    return read_gpu(_shipped("gpus", name))


def find_instance_name(text: str) -> str | None:
    """The machine that ``text`` names, with its provider or without; None where none does."""
    wanted = _squeeze(text)
    for name in instance_names():
        if wanted and wanted in (_squeeze(name), _squeeze(name.split("-", 1)[1])):
            return name
    return None


@lru_cache(maxsize=64)
def load_instance(text: str) -> Instance:
    """A cloud machine by name: ``aws-p5.48xlarge`` or ``p5.48xlarge``."""
    name = find_instance_name(text)
    if name is None:
        near = nearest_names(text, instance_names())
        message = f"machine {text[:60]!r} is not known{did_you_mean(near)}"
        raise InputError(message, field="cluster", value=text[:200], nearest=near)
    return _read_instance(_shipped("instances", name))


def _read_instance(fields: Fields) -> Instance:
    fields.sources = read_sources(fields)
    found = {key: fields.text(key) for key in ("name", "provider", "instance", "gpu", "network")}
    instance = {
        **found,
        "gpus_per_node": fields.figure("gpus_per_node", reading.COUNT, required=True),
        "node_bytes_per_s_one_way": fields.figure("node_bandwidth_one_way", reading.NODE_ADAPTERS),
        "usd_per_hour": fields.figure("usd_per_hour", reading.NODE_PRICE),
        "usd_per_gpu_hour": fields.figure("usd_per_gpu_hour", reading.GPU_PRICE),
        "notes": fields.text("notes"),
        "figures": tuple(fields.figures),
    }
    fields.done()
    return Instance.model_validate(instance)


def _names(folder: str) -> tuple[str, ...]:
    found = tuple(sorted(path.stem for path in (DATA / folder).glob("*.yaml")))
    if not found:
        raise InternalError(f"the package was installed without its files in {folder}")
    return found


def _shipped(folder: str, name: str) -> Fields:
    """A shipped file, in which every figure must have a source."""
    path = DATA / folder / f"{name}.yaml"
    data = reading.parse_yaml(path.read_text(encoding="utf-8"), path.name)
    if data.get("name") != name:
        raise ProfileError(f"{path.name}: name is {data.get('name')!r}, not {name!r}", field="name")
    return Fields(data, path.name, must_have_source=True)


@lru_cache(maxsize=1)
def _aliases() -> tuple[dict[str, str], dict[str, str]]:
    """(other name -> device, ambiguous name -> the device taken)."""
    text = (DATA / "aliases.yaml").read_text(encoding="utf-8")
    data = reading.parse_yaml(text, "aliases.yaml")
    same = {str(other): name for name, others in data["same"].items() for other in others}
    return same, dict(data["prefer"])


def _squeeze(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())
