"""A machine of log-odds: the posterior of labels, variational or by draws.

Near one point the logistic loss is about least squares. Where tastes are strong, log-odds are far
from such a point, and least squares about a first estimate finds little of them. So each sweep
begins with new targets and precisions of every row: given a curvature that is drawn (`polya_gamma`)
or by what is expected of the likelihood (`label_bounds`). With these, levels are updated as for
ratings.

Variational inference begins with the bound that no update lowers and goes on with the higher one
when it has nearly settled. A sweep that would lower that one is undone and repeated with targets
nearer to the last ones. The means of log-odds that are not known well are too sure, so those of a
model are calibrated: its probabilities are about the means over the posterior.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.solve.fields.field_machine import FieldMachine
from quadlin.solve.fields.field_rows import FieldRows
from quadlin.solve.fields.field_sums import row_moments
from quadlin.solve.fields.label_bounds import (
    Calibration,
    LabelTargets,
    by_expectation,
    by_tangents,
    calibration,
)
from quadlin.solve.fields.label_rows import LabelRows
from quadlin.solve.fields.polya_gamma import polya_gamma

BURN_IN, SHARE = 100, 0.25  # sweeps before the draws that are kept, at least; of those kept
SETTLED = 1e-2  # the rise of the bound per label and sweep, below which the higher one goes on
MOST_DAMPED, RELEASED = 0.9, 0.1  # a share that is not raised; what is taken off it after a sweep
ROUNDING = 1e-9  # of the bound per label
PREDICTED = 10_000  # rows that a calibration is for


class LabelSweeps(FieldMachine):
    """Sweeps of a machine whose rows are labels; the noise is given."""

    held_precision = 2.0  # of log-odds: smaller factors are lost among labels before they grow
    intercept_precision = 0.01  # labels of one class alone would not bound b
    exact = False  # whether the curvature is drawn exactly, which a start does not need
    expects = False  # whether the bound is the expected log-likelihood
    damping = 0.0  # the share of the last targets, where the bound would fall without it
    labels: LabelRows
    working: LabelTargets | None = None  # given the state, where inference is variational
    last: LabelTargets | None = None  # of the last sweep

    @property
    def n(self) -> float:
        """The number of labels."""
        return self.labels.n

    def stop_sampling(self) -> None:
        """Go on by variational inference from the last draw."""
        super().stop_sampling()
        self.expects, self.working, self.last, self.damping = False, None, None, 0.0

    def sweep(self) -> None:
        """Update the targets of every row, then every unknown once, given the others."""
        if self.sampled:
            self._sweep_given(LabelTargets(self._drawn_curvature(), self.labels.pull))
            return
        before = -np.inf if self.working is None else self.bound()
        working = self.working or self._working()
        while True:
            saved, given = self._saved(), working.damped(self.last, self.damping)
            self._sweep_given(given)
            self.working = self._working()
            rise = (self.bound() - before) / self.n
            if rise > -ROUNDING:
                break
            for name, value in saved.items():
                setattr(self, name, value)
            self.working = working
            if self.damping > MOST_DAMPED:
                return
            self.damping = (1 + self.damping) / 2
        self.last, self.damping = given, max(0.0, self.damping - RELEASED)
        if not self.expects and rise < SETTLED:
            self.expects = True
            self.working = self._working()

    def _sweep_given(self, working: LabelTargets) -> None:
        """Update every unknown once, given targets and precisions of the rows."""
        noise = self.noise
        z = working.pull / working.omega
        self.rows = self.labels.as_targets(working.omega, z, float(noise.mean))
        super().sweep()
        self.noise = noise

    def _saved(self) -> dict[str, Any]:
        """Return what a sweep changes, to undo it."""
        return {
            "levels": [list(members) for members in self.levels],
            "state": list(self.state),
            "means": self.means.copy(),
            "precisions": list(self.precisions),
            "entropy": dict(self.entropy),
            "b": self.b,
            "error": self.error,
        }

    def _moments(self, rows: FieldRows) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of the log-odds of rows."""
        b = self.b + rows.shift / rows.scale
        mean, variance = row_moments(rows, self.state, self.signs, b)
        return rows.scale * mean, rows.scale**2 * variance

    def _working(self) -> LabelTargets:
        bound = by_expectation if self.expects else by_tangents
        return bound(self.labels.powers, self.labels.pull, *self._moments(self.rows))

    def _drawn_curvature(self) -> np.ndarray:
        """Return a draw of the curvature of each merged row."""
        labels, (f, _) = self.labels, self._moments(self.rows)
        if not self.exact:
            return polya_gamma(f, labels.powers, self.rng, exact=False)
        omega = polya_gamma(f[labels.of_row], labels.weight, self.rng)
        return np.bincount(labels.of_row, omega)

    def _rows_bound(self) -> float:
        """Return the part of the bound that is due to the labels and b."""
        assert self.working is not None
        return self.working.bound - self.intercept_precision * self.b**2 / 2

    def calibration(self) -> Calibration:
        """Return what gives log-odds of new rows about their mean probabilities.

        New rows have patterns of different rows.
        """
        rng, shares = np.random.default_rng(0), self.labels.powers / self.labels.n
        entities = [
            e._replace(of_row=rng.choice(e.of_row, PREDICTED, p=shares)) for e in self.rows.entities
        ]
        return calibration(*self._moments(replace(self.rows, entities=tuple(entities), pairs=None)))


class LabelMachine(LabelSweeps):
    """A machine of log-odds, in their own units."""

    def __init__(self, rows: FieldRows, signs: np.ndarray, rng: np.random.Generator) -> None:
        labels = np.round(rows.shift + rows.scale * rows.y)
        self.labels = LabelRows.of(replace(rows, y=labels, shift=0.0, scale=1.0))
        super().__init__(self.labels.merged, signs, rng, sampled=False)
