r"""Huber's loss for rows of one-hot fields: the posterior of reweighted rows.

Each round fits the posterior to rows with weights ω·min(1, hσ/|r|), where r are the residuals of
the last round and σ is their size by the median, as `solve/fits/robust.py` does for least squares.
Rows with |r| > gσ are gross errors. They are left out: with a bounded pull they would still count
as noise, and the noise decides which levels and components the posterior believes in.
"""

from dataclasses import dataclass, replace

import numpy as np

from quadlin.core.chunks import MemorySource
from quadlin.core.moments import Moments, Survey
from quadlin.solve.fits.robust import FAR, MAD, huber_factor, weighted_median

GROSS = 5.0  # g: a normal residual is that large once in two million rows
LEFT_OUT = 1e-6  # the weight of a gross error, which stays in place
ROUNDS = 8  # at most
SETTLED = 0.01  # the mean change of weights that ends them


@dataclass(frozen=True)
class RobustRows:
    """Rows with the weights that their residuals give them."""

    given: MemorySource
    source: MemorySource  # the same with weights by residuals, and targets that are not far off
    factor: np.ndarray  # (n,)
    scale: float  # σ; 0 where most targets are fitted exactly

    @classmethod
    def of(cls, given: MemorySource, f: np.ndarray | None = None) -> "RobustRows":
        """Return rows weighted by their residuals from f, or from the median of the targets.

        What is far from the median may be an effect, so no row is left out by that.
        """
        y = np.asarray(given.y, dtype=np.float64)
        weight = np.ones(len(y)) if given.weight is None else np.asarray(given.weight, dtype=float)
        middle = np.full(len(y), weighted_median(y, weight)) if f is None else f
        size = np.abs(y - middle)
        scale = MAD * weighted_median(size, weight)
        if not scale > 0:
            return cls(given, given, np.ones(len(y)), 0.0)
        factor, far = huber_factor(size / scale, FAR[-1]), FAR[-1] * scale
        factor = factor if f is None else np.where(size > GROSS * scale, LEFT_OUT, factor)
        target = np.where(size > far, middle + np.clip(y - middle, -far, far), y)
        return cls(given, replace(given, y=target, weight=weight * factor), factor, scale)

    def again(self, f: np.ndarray) -> "RobustRows":
        """Return the rows weighted by their residuals from predictions."""
        return RobustRows.of(self.given, np.asarray(f, dtype=np.float64))

    def is_settled(self, last: "RobustRows") -> bool:
        """Tell whether weights are about those of the last round, or cannot be told."""
        return not self.scale > 0 or float(np.mean(np.abs(self.factor - last.factor))) <= SETTLED

    def surveyed(self, survey: Survey) -> Survey:
        """Return a survey with the targets of these rows: gross errors are no unit of y."""
        y, weight = np.asarray(self.source.y, dtype=np.float64), self.source.weight
        return replace(survey, target=Moments.of(y[:, None], weight))
