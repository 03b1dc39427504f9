"""The rank, chosen by the spectrum and confirmed on held-out rows."""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import NamedTuple

import numpy as np

from quadlin.core.arrays import Array, moved, namespace
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.fits.grid import Path, squared_errors
from quadlin.solve.lowrank.design import Alpha
from quadlin.solve.lowrank.gauss_newton import smallest_loss
from quadlin.solve.lowrank.observations import content_keys, row_hash
from quadlin.solve.lowrank.tangent import Coordinates
from quadlin.solve.lowrank.types import Options

FOLDS = 5  # the first is the test set of a fit to the others
FEW_ROWS = 5000  # most rows for which each fold is a test set: a single one would be too small
EDGE = 1.5  # times the noise edge: a smaller eigenvalue is not worth a test on held-out rows
ROWS_PER_RANK, MOST_RANK = 3, 16  # the generous rank: rows per feature for each, and its maximum
LOOSE_TOL = 1e-3
ROUNDED = 100.0  # times the smallest possible loss: errors below are rounding
PATIENCE = 2  # ranks in a row that fail the test and end the search


class Split(NamedTuple):
    """The rows that are fitted, the rows of the test, and the fits."""

    kept: Rows
    test: Rows
    path: Path
    n: int  # rows kept


class HeldOut:
    """A fifth of the rows, which tests fits to the others; if rows are few, each fifth in turn.

    Examples
    --------
    >>> from quadlin.datasets import make_second_order
    >>> from quadlin.core.chunks import MemorySource
    >>> from quadlin.core.rows import Rows
    >>> from quadlin.core.units import UnitsMaker
    >>> from quadlin.core.moments import moments_of
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
        loose = replace(options, tol=max(LOOSE_TOL, options.tol))
        folds = folds_by(content_keys(rows, units), rng)
        seed, n_rows = int(rng.integers(2**31)), len(folds)
        self.weight = weight * (1 - 1 / FOLDS)
        self.splits: list[Split] = []
        for fold in range(FOLDS if n_rows <= FEW_ROWS else 1):
            mask = folds == fold
            kept, test = (
                rows.reweighted(moved(m.astype(float), units.scale)) for m in (~mask, mask)
            )
            n = int((~mask).sum())
            similar = self.splits[0].path if self.splits else None  # most of its rows are the same
            path = Path(kept, units, loose, n, weight * n / n_rows, seed, similar)
            self.splits.append(Split(kept, test, path, n))

    def errors(self, rank: int, alpha: Alpha) -> tuple[Array, Array]:
        """Return the squared errors of all held-out rows, and their weights.

        Errors below rounding count as equal, so that rounding does not decide between ranks.
        """
        models = [split.path.model(rank, alpha) for split in self.splits]
        tests = zip(models, self.splits, strict=True)
        parts = (squared_errors(model, self.units, split.test) for model, split in tests)
        errors, weights = zip(*parts, strict=True)
        xp, least = namespace(errors[0]), ROUNDED * smallest_loss(self.units)
        return xp.clip(xp.concat(list(errors)), min=least), xp.concat(list(weights))

    def rank(self, alpha: Alpha) -> int:
        """Return the smallest rank that predicts held-out rows as well as the best.

        A generous rank is fitted to the other rows. Eigenvalues below 1.5·sd(r)·√(d/n), in whitened
        coordinates and shrunk as a penalty shrinks them, are noise. From there the rank goes down,
        each fit starting from the last, until two ranks in a row predict held-out rows worse by
        more than one standard error of the difference. Without a quadratic part the rank is zero.

        Passes: those of one fit of the generous rank and, for each split, some ten for each rank
        tested. Memory: that of the fit, and one number per row.
        """
        rank = self._generous(self.splits[0], alpha)
        errors: dict[int, Array] = {}
        failures = 0
        while rank >= 0 and failures < PATIENCE:
            errors[rank], omega = self.errors(rank, alpha)
            means = {k: float(omega @ e) for k, e in errors.items()}
            best = min(means, key=lambda k: means[k])
            failures = 0 if as_good(errors[rank], errors[best], omega) else failures + 1
            rank -= 1
        return min(k for k, e in errors.items() if as_good(e, errors[best], omega))

    def _generous(self, split: Split, alpha: Alpha) -> int:
        """Return how many eigenvalues of a generous fit are above the noise."""
        d, n, units = self.units.scale.shape[0], split.n, self.units
        most = generous_rank(d, n)
        model = split.path.model(most, alpha)
        squares, omega = squared_errors(model, units, split.kept)
        xp = namespace(omega)
        n = max(1, int(xp.count_nonzero(omega)))
        freedom = max(n / 10, n - self.options.dof(d, most))
        noise = sqrt(float(omega @ squares) / float(xp.sum(omega)) * n / freedom)
        s = Coordinates(units, self.options, split.path.whitener(alpha)).of(model)[-1]
        shrunk = self.weight / (self.weight + alpha[1])  # by the penalty, as the eigenvalues are
        return int(xp.count_nonzero(xp.abs(s) > EDGE * noise * shrunk * sqrt(d / n)))

    def alpha(self, rank: int, penalties: Sequence[Alpha]) -> Alpha:
        """Return the penalties, as shares of the weight, that predict held-out rows best at a rank.

        Errors that are only rounding count as equal: the first penalties are then chosen.
        """
        sums = []
        for first, second in penalties:
            errors, omega = self.errors(rank, (first * self.weight, second * self.weight))
            sums.append(float(omega @ errors))
        return penalties[int(np.argmin(sums))]


def generous_rank(d: int, n: int) -> int:
    """Return the highest rank that is tried on n rows."""
    return min(d, max(1, n // (ROWS_PER_RANK * d)), MOST_RANK)


def folds_by(content: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the fold of each row, from its content: neither its position nor units matter."""
    order = np.argsort(row_hash(content, int(rng.integers(2**31))), kind="stable")
    folds = np.empty(len(content), dtype=int)
    folds[order] = np.arange(len(content)) * FOLDS // max(1, len(content))
    return folds


def as_good(errors: Array, best: Array, omega: Array, within: float = 1.0) -> bool:
    """Return whether errors exceed the best by no more than some standard errors."""
    xp, gap = namespace(omega), errors - best
    total = max(float(xp.sum(omega)), 1e-300)
    mean = float(omega @ gap) / total
    return mean <= within * sqrt(float(omega**2 @ (gap - mean) ** 2)) / total
