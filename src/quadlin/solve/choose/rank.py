"""The rank, chosen by the spectrum and confirmed on rows held out."""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np

from quadlin.core.arrays import Array, moved, namespace
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.fits.path import Path, squared_errors
from quadlin.solve.lowrank.exact import Alpha
from quadlin.solve.lowrank.row_hash import row_hash
from quadlin.solve.lowrank.sample import row_content
from quadlin.solve.lowrank.tangent import Coordinates
from quadlin.solve.lowrank.types import Options, smallest_loss

HELD_OUT = 0.2  # of the rows
EDGE = 1.5  # times the noise edge: a smaller eigenvalue is not worth a test on rows held out
ROWS_PER_RANK, MOST_RANK = 3, 16  # the generous rank: rows per feature for each, and at most
LOOSE_TOL = 1e-3
NOTHING_LEFT = 1e-9  # of the target's variance
ROUNDED = 100.0  # times the smallest loss there is
PATIENCE = 2  # ranks in a row that fail the test


class HeldOut:
    """A fifth of the rows, which judge what was fitted to the others.

    Examples
    --------
    >>> from quadlin.datasets import make_second_order
    >>> from quadlin.core.chunks import MemorySource
    >>> from quadlin.core.rows import Rows
    >>> from quadlin.core.units import UnitsMaker
    >>> from quadlin.core.survey import moments_of
    >>> data = make_second_order(2000, 10, rank=3, noise=0.8, random_state=0)
    >>> rows = Rows.of(MemorySource(data.X, data.y))
    >>> units = UnitsMaker("auto", True, data.X.dtype, "abcdefghij")(*moments_of(rows))
    >>> held_out = HeldOut(rows, units, Options(rank=1), 2000.0, np.random.default_rng(0))
    >>> held_out.rank((0.0, 0.0))
    3
    """

    def __init__(
        self,
        rows: Rows,
        units: Units,
        options: Options,
        weight: float,
        rng: np.random.Generator,
    ) -> None:
        self.units, self.options = units, options
        mask = held_out_by(np.concatenate(rows.collect(row_content)), rng)
        self.kept, self.test = (
            rows.reweighted(moved(m.astype(float), units.scale)) for m in (~mask, mask)
        )
        n_rows, self.n = len(mask), int((~mask).sum())
        loose = replace(options, tol=max(LOOSE_TOL, options.tol))
        share = weight * self.n / n_rows
        self.weight = share
        self.path = Path(self.kept, units, loose, self.n, share, int(rng.integers(2**31)))

    def errors(self, rank: int, alpha: Alpha) -> tuple[Array, Array]:
        """Return the squared errors of a fit on the rows held out, and their weights.

        Errors below rounding count as equal, so that rounding alone does not tell ranks apart.
        """
        errors, omega = squared_errors(self.path.model(rank, alpha), self.units, self.test)
        least = ROUNDED * smallest_loss(self.units)
        return namespace(errors).clip(errors, min=least), omega

    def rank(self, alpha: Alpha) -> int:
        """Return the smallest rank that predicts them as well as the best, within its error.

        A generous rank is fitted to the other rows. Eigenvalues below 1.5·sd(r)·√(d/n), in whitened
        coordinates and shrunk as a penalty shrinks them, are noise; from there the rank goes down,
        each fit started from the last, while the rows held out do not object by one standard error
        of the difference. It is zero where no quadratic part is found.

        Passes: those of one fit of the generous rank and some ten for each rank tested. Memory:
        that of the fit, and one number per row.
        """
        d, n, units = self.units.scale.shape[0], self.n, self.units
        most = min(d, max(1, n // (ROWS_PER_RANK * d)), MOST_RANK)
        model = self.path.model(most, alpha)
        squares, omega = squared_errors(model, units, self.kept)
        n = max(1, int(namespace(omega).count_nonzero(omega)))
        left = max(n / 10, n - degrees_of_freedom(d, most, **self.options.parts))
        xp = namespace(omega)
        noise = sqrt(float(omega @ squares) / float(xp.sum(omega)) * n / left)
        s = Coordinates(units, self.options, self.path.whitener(alpha)).of(model)[-1]
        shrunk = self.weight / (self.weight + alpha[1])  # by the penalty, as the eigenvalues are
        rank = int(xp.count_nonzero(xp.abs(s) > EDGE * noise * shrunk * sqrt(d / n)))
        errors: dict[int, Array] = {}
        failures = 0
        while rank >= 0 and failures < PATIENCE:
            errors[rank], omega = self.errors(rank, alpha)
            means = {k: float(omega @ e) for k, e in errors.items()}
            best = min(means, key=lambda k: means[k])
            failures = 0 if as_good(errors[rank], errors[best], omega) else failures + 1
            rank -= 1
        return min(k for k, e in errors.items() if as_good(e, errors[best], omega))

    def alpha(self, rank: int, penalties: Sequence[Alpha]) -> Alpha:
        """Return the penalties, as shares of the weight, that predict them best at a rank.

        Errors that are nothing but rounding count as equal: then the first ones are taken.
        """
        floor, means = 0.0, []
        for first, second in penalties:
            errors, omega = self.errors(rank, (first * self.weight, second * self.weight))
            total = float(namespace(omega).sum(omega))
            floor = NOTHING_LEFT * self.units.target.power * total
            means.append(max(float(omega @ errors), floor))
        return penalties[int(np.argmin(means))]


def held_out_by(content: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return which rows are held out, by what they hold, so that their order does not matter."""
    order = np.argsort(row_hash(content, int(rng.integers(2**31))), kind="stable")
    mask = np.zeros(len(content), dtype=bool)
    mask[order[: int(HELD_OUT * len(content))]] = True
    return mask


def as_good(errors: Array, best: Array, omega: Array, within: float = 1.0) -> bool:
    """Tell whether errors are no larger than the best by more than some standard errors."""
    xp, gap = namespace(omega), errors - best
    total = max(float(xp.sum(omega)), 1e-300)
    mean = float(omega @ gap) / total
    return mean <= within * sqrt(float(omega**2 @ (gap - mean) ** 2)) / total
