"""The event engine: tasks on lanes. A lane does its tasks one at a time, in the order given."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from layoutopt.errors import InternalError

Key = Hashable


class Label(NamedTuple):
    """What a task is, for traces and sums."""

    stage: int
    stream: str
    part: str
    """A name of results.BREAKDOWN."""
    kind: str
    microbatch: int = -1
    chunk: int = -1
    layers: str = ""


@dataclass
class Timeline:
    """When each task starts and ends, in seconds; parallel lists."""

    start: list[float]
    end: list[float]

    @property
    def finish(self) -> float:
        """When the last task ends."""
        return max(self.end, default=0.0)


@dataclass
class Graph:
    """Tasks, the lanes they stand on and what they wait for.

    A task starts when its lane is free and everything it needs has ended. What is needed is named
    by keys, which may be given to a task before or after: stages wait for one another.
    """

    seconds: list[float] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    _needs: list[tuple[Key, ...]] = field(default_factory=list)
    _before: list[int] = field(default_factory=list)
    """The task before it on its lane; -1: none."""
    _last: dict[Key, int] = field(default_factory=dict)
    _named: dict[Key, int] = field(default_factory=dict)

    def add(
        self, lane: Key, seconds: float, label: Label, needs: Iterable[Key] = (), name: Key = None
    ) -> int:
        """Puts a task at the end of ``lane``; its number, which is also a key."""
        task = len(self.seconds)
        self.seconds.append(seconds)
        self.labels.append(label)
        self._needs.append(tuple(needs))
        self._before.append(self._last.get(lane, -1))
        self._last[lane] = task
        if name is not None:
            self._named[name] = task
        return task

    def name(self, task: int, name: Key) -> None:
        """Gives a task one more key."""
        self._named[name] = task

    def run(self) -> Timeline:
        """Every task as early as it can start; InternalError where tasks wait in a circle."""
        count, named = len(self.seconds), self._named
        followers: list[list[int]] = [[] for _ in range(count)]
        waiting = [0] * count
        for task, (needs, lane) in enumerate(zip(self._needs, self._before, strict=True)):
            for key in needs:
                followers[key if type(key) is int else named[key]].append(task)
            if lane >= 0:
                followers[lane].append(task)
            waiting[task] = len(needs) + (lane >= 0)
        ready = deque(task for task in range(count) if not waiting[task])
        start, end = [0.0] * count, [0.0] * count
        done = 0
        while ready:
            task = ready.popleft()
            done += 1
            end[task] = ended = start[task] + self.seconds[task]
            for other in followers[task]:
                if ended > start[other]:
                    start[other] = ended
                waiting[other] -= 1
                if not waiting[other]:
                    ready.append(other)
        if done < count:
            stuck = next(label for n, label in enumerate(self.labels) if waiting[n])
            raise InternalError(f"the schedule hangs: {stuck} waits for something that never ends")
        return Timeline(start, end)
