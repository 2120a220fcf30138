"""Saved activations on their way to host memory and back, on a lane for each direction."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from layoutopt.simulation.engine import Key
from layoutopt.simulation.pieces import Piece
from layoutopt.simulation.schedules import Unit

Needs = tuple[Key, ...]


class HostCopies:
    """The copies of one stage.

    Two layers' activations stay on the device: a forward pass begins when those of the layer two
    before have left; those of the next layer of the backward pass come back while this one runs.
    """

    def __init__(
        self, backward: Iterable[tuple[Unit, Piece]], copy: Callable[[str, Unit, Piece, Needs], int]
    ) -> None:
        self._backward, self._copy = iter(backward), copy
        self._left: tuple[int | None, int | None] = None, None
        """The copies out of the last piece but one, and of the last."""
        self._arriving: int | None = None

    def begin(self) -> None:
        """The first one that a backward pass needs; before any other copy back."""
        self._next(())

    def before_forward(self) -> Needs:
        """What a piece's forward pass waits for."""
        return () if self._left[0] is None else (self._left[0],)

    def after_forward(self, unit: Unit, piece: Piece, so_far: Needs) -> None:
        """What it saved leaves."""
        if piece.offload_s:
            self._left = self._left[1], self._copy("out", unit, piece, so_far)

    def before_backward(self, so_far: Needs) -> Needs:
        """What a piece's backward pass waits for; the next piece's comes from here on."""
        if self._arriving is None:
            return ()
        arrived = self._arriving
        self._next(so_far)
        return (arrived,)

    def _next(self, so_far: Needs) -> None:
        found = next(self._backward, None)
        self._arriving = None if found is None else self._copy("in", *found, so_far)
