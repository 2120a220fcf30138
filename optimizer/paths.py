"""The pipeline's time of an even split as paths through its schedule, in whole numbers of columns.

Under 1F1B the time is the longest of a few chains of work (`pipeline.one_f_one_b_seconds`), each a
sum of table columns times whole numbers; the model, the score and the floors read them from here.
Interleaved, it is m t_max + (sum of t - t_max) / v, one path for each stage that can be slowest.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from layoutopt.costmodel.axes import ints
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.stages import even_classes

STAGES = ("first", "long", "last")
"""The stages of an even split that can be the slowest or the fullest (stages.even_classes)."""


@dataclass(frozen=True)
class StageShape:
    """Whole numbers about one of STAGES for one pp."""

    name: str
    layers: int
    first: bool
    last: bool
    ahead: int
    """Layers on the stages before the last one like it."""
    place: int
    """Which stage that is."""
    priced: int
    """``layers`` and, where the loss head stands, the prediction blocks, which take as long."""


@dataclass(frozen=True)
class Path:
    """How often each column is in vpp times the pipeline's time, beside what all paths have: vpp
    pp message and host columns times M, and the late messages."""

    many: int
    """A layer's microbatch, times M."""
    once: int
    """A layer's microbatch."""
    embedding: tuple[int, int]
    head: tuple[int, int]
    """Times M, and plain."""
    fixed: int
    """Messages and host of a microbatch on one stage."""
    forward: int = 0
    """A layer's forward pass, taken off."""
    m_forward: int = 0
    """The same, times M."""
    rounds: Fraction = Fraction(0)
    """There is such a path from this M on."""

    @property
    def size(self) -> int:
        """Entries that it adds up, as often as they are in it."""
        ends = sum(map(abs, (*self.embedding, *self.head)))
        layers = self.many + abs(self.once) + self.forward + self.m_forward
        return 5 * layers + ends + 2 * abs(self.fixed)


def stage_shapes(job: Job, pp: int) -> tuple[StageShape, ...]:
    """The stages of ``even_classes`` for one pp, without repeats."""
    return _stage_shapes(job.model.layers, job.model.mtp_layers, pp)


def priced_layers(job: Job) -> int:
    """Layers of the model, and prediction blocks."""
    return job.model.layers + job.model.mtp_layers


@lru_cache(maxsize=4096)
def _stage_shapes(layers_of_model: int, blocks: int, pp: int) -> tuple[StageShape, ...]:
    stages = even_classes(layers_of_model, ints(pp))
    found: dict[int, StageShape] = {}
    for name, column in zip(STAGES, range(len(STAGES)), strict=True):
        layers, last = int(stages.layers[0, column]), bool(stages.last[0, column])
        shape = StageShape(
            name,
            layers,
            bool(stages.first[0, column]),
            last,
            0 if stages.ahead is None else int(stages.ahead[0, column]),
            0 if stages.run_end is None else int(stages.run_end[0, column]),
            layers + (blocks if last else 0),
        )
        found.setdefault(int(stages.index[0, column]), shape)
    return tuple(found.values())


def late_hops(pp: int, vpp: int) -> int:
    """Messages there and back that nothing hides (`pipeline.late_messages`)."""
    return pp * vpp - 1 if pp > 1 else 0


def paths_of(job: Job, pp: int, vpp: int) -> tuple[Path, ...]:
    """Those of an even split of the job's model."""
    return _paths(job.model.layers, job.model.mtp_layers, pp, vpp)


@lru_cache(maxsize=4096)
def _paths(layers: int, blocks: int, pp: int, vpp: int) -> tuple[Path, ...]:
    shapes = _stage_shapes(layers, blocks, pp)
    if vpp > 1 or pp == 1:
        found = [_interleaved(layers + blocks, pp, vpp, shape) for shape in shapes]
    else:
        found = [path for shape in shapes for path in _plain(layers + blocks, pp, shape)]
    return tuple(dict.fromkeys(found))


def _end(here: bool, times_m: int, elsewhere: int) -> tuple[int, int]:
    return (times_m, 0) if here else (0, elsewhere)


def _interleaved(layers: int, pp: int, vpp: int, shape: StageShape) -> Path:
    """m t + (sum of the others) / v, times v."""
    return Path(
        many=vpp * pp * shape.priced,
        once=layers - shape.priced,
        embedding=_end(shape.first, vpp * pp, 1),
        head=_end(shape.last, vpp * pp, 1),
        fixed=pp - 1,
    )


def _plain(layers: int, pp: int, shape: StageShape) -> list[Path]:
    """The paths of pipeline.one_f_one_b_seconds over one stage, each by its own name there."""
    here, before = shape.priced, shape.ahead
    after, ahead = layers - before - here, pp - shape.place - 1
    embedding, many = _end(shape.first, pp, 1), pp * here
    found = [Path(many, before, embedding, _end(shape.last, pp, 0), shape.place)]
    if not ahead:
        return found
    # S - k f, with k = min(p - s - 1, m - 1): the larger of two, whatever m is.
    wait = Path(many, before + after, embedding, (0, 1), pp - 1, forward=ahead * here)
    few = Path(many, before + after, embedding, (0, 1), pp - 1, forward=-here, m_forward=pp * here)
    both = Path(
        many,
        before + 2 * after - ahead * here,
        (pp, -ahead) if shape.first else (0, 1),
        (0, 2),
        pp - 1,
        rounds=Fraction(pp - shape.place + 1, pp),
    )
    return [*found, wait, *([few] if ahead > 1 else []), both]
