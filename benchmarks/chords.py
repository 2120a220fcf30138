"""Minimises the robust cost of a fit of step times by chord steps.

A matrix of derivatives takes a minute, pricing every run seconds. So one matrix serves for many
steps: each goes towards where the cost would be least if predictions followed the matrix, and is
judged by pricing all runs there. Where a figure has moved far, its column is taken anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

if TYPE_CHECKING:
    from benchmarks.fit_time import Fit

Vector = NDArray[np.float64]

PRIOR_PULL = 0.15
"""A figure one spread from its prior costs as much as a record that is 15% off. Of 0.1, 0.15 and
0.2 the one that predicts groups unseen about as well as the last and fits better."""
LOSS_SCALE = 0.07
"""Weighted error at which the loss, soft L1, turns from quadratic to linear."""
FAR = 0.4
"""Spreads that a figure may move before its derivatives are taken anew."""
STEPS = 6
"""Chord steps of a fit; the cost moves by under 1e-3 in the last one."""


class Chords:
    """The cost of ``rows`` of a fit, weighted afresh among themselves."""

    def __init__(self, fit: Fit, rows: NDArray[np.int64], weights: Vector) -> None:
        self.fit = fit
        self.rows = rows
        self.weights = np.sqrt(weights)
        self.low = np.array([p.low for p in fit.fitted])
        self.high = np.array([p.high for p in fit.fitted])

    def least(self, start: Vector, slopes: Vector, steps: int = STEPS) -> Vector:
        """Where the cost is least, from ``start``, at which ``slopes`` were taken: change of the
        logarithm of every run's seconds, a column a figure."""
        slopes, taken = slopes.copy(), start.copy()
        point = np.clip(start, *self._inside())
        errors = self._errors(point)
        cost = self._cost(point, errors)
        for _ in range(steps):
            aim, share = self._minimum(point, errors, slopes[self.rows]), 1.0
            while share > 0.05:
                tried = point + share * (aim - point)
                new_errors = self._errors(tried)
                new_cost = self._cost(tried, new_errors)
                if new_cost < cost:
                    break
                share /= 2
            else:
                break
            done = cost - new_cost < 1e-4 * cost
            point, errors, cost = tried, new_errors, new_cost
            far = np.flatnonzero(np.abs(point - taken) > FAR * self.fit.spread)
            if done and not len(far):
                break
            slopes[:, far] = self.fit.slopes(point, far)
            taken[far] = point[far]
        return np.asarray(point)

    def _inside(self) -> tuple[Vector, Vector]:
        # Bounds hold strictly inside for the trust-region reflective method.
        margin = 1e-6 * (self.high - self.low)
        return self.low + margin, self.high - margin

    def _errors(self, point: Vector) -> Vector:
        errors: Vector = np.log(self.fit.predicted(point) / self.fit.measured)[self.rows]
        return errors

    def _pull(self, point: Vector) -> Vector:
        pull: Vector = PRIOR_PULL * (point - self.fit.prior) / self.fit.spread
        return pull

    def _cost(self, point: Vector, errors: Vector) -> float:
        """The robust cost that least_squares minimises, soft L1."""
        residuals = np.concatenate([self.weights * errors, self._pull(point)]) / LOSS_SCALE
        return float(np.sum(2 * (np.sqrt(1 + residuals**2) - 1)) * LOSS_SCALE**2 / 2)

    def _minimum(self, point: Vector, errors: Vector, slopes: Vector) -> Vector:
        """Where the cost would be least if predictions followed ``slopes``."""
        pulls = np.diag(PRIOR_PULL / self.fit.spread)
        matrix = np.vstack([self.weights[:, None] * slopes, pulls])
        found = least_squares(
            lambda x: np.concatenate(
                [self.weights * (errors + slopes @ (x - point)), self._pull(x)]
            ),
            point,
            jac=lambda _: matrix,
            bounds=(self.low, self.high),
            loss="soft_l1",
            f_scale=LOSS_SCALE,
            x_scale=self.fit.spread,
            max_nfev=200,
        )
        return np.asarray(np.clip(found.x, *self._inside()))
