"""Reports of searches for pairs: coefficients in the user's units, with their tests."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import f as fisher

from quadlin.core.arrays import to_numpy
from quadlin.core.losses import constant_deviance, log_odds
from quadlin.core.units import Units
from quadlin.explain.pair_report import (
    DEVIANCE,
    VARIANCE,
    Exchange,
    Pair,
    PairBlock,
    PairReport,
    PathStep,
)
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.pairs.pair_fit import LEAST_FREEDOM, PairFit, RobustErrors
from quadlin.solve.pairs.pair_search import PairSearch

NOTHING = 1e-200  # variance of a coefficient that the rows do not determine
UNSEEN = 1e-9  # of the largest variance: products that others of the block explain


class PairTests(NamedTuple):
    """Coefficients of products in a regression, and what their tests need."""

    i: np.ndarray  # (m,), the first feature of each product
    j: np.ndarray  # (m,), the second
    coef: np.ndarray  # (m,)
    errors: RobustErrors
    inverse: np.ndarray  # (m, m), the block of the inverse Gram matrix
    entry: np.ndarray  # (m,), the step in which each entered
    noise: float  # σ², known from `left` rows
    left: float

    def pairs(self, names: Sequence[str], units: Units, power: float) -> list[Pair]:
        """Return pairs in the user's units; NaN where the rows do not determine a product."""
        scale = to_numpy(units.scale).astype(float)
        factor = units.target.scale * scale[self.i] * scale[self.j]
        determined = (factor > 0) & (self.errors.unit_variance > NOTHING)

        def known(values: np.ndarray) -> np.ndarray:
            return np.where(determined, values, np.nan)

        coefficient, std = known(factor * self.coef), known(factor * self.errors.std)
        p = known(2 * np.exp(self.errors.log_tail(self.coef)))
        share = self.coef**2 / known(self.errors.unit_variance) / power
        numbers = np.stack([coefficient, std, coefficient / std, p, share], axis=1).tolist()
        places = zip(self.i.tolist(), self.j.tolist(), numbers, self.entry.tolist(), strict=True)
        return [
            Pair._make((names[i], names[j], *values, int(order))) for i, j, values, order in places
        ]

    def blocks(self, names: Sequence[str]) -> list[PairBlock]:
        r"""Test each step that took several products, such as those of two text columns, at once.

        F = βᵀ V⁻¹ β / (q σ²) of its q coefficients, V the block of the inverse Gram matrix.
        """
        blocks = []
        for order in np.unique(self.entry):
            at = np.flatnonzero(self.entry == order)
            if len(at) < 2 or not self.noise > 0:
                continue
            values, V = np.linalg.eigh(self.inverse[np.ix_(at, at)])
            seen = values > UNSEEN * values.max()
            q = int(seen.sum())
            square = float(np.sum((V[:, seen].T @ self.coef[at]) ** 2 / values[seen]))
            F = square / (q * self.noise)
            first, second = (_column([names[k] for k in ends[at]]) for ends in (self.i, self.j))
            p = float(fisher.sf(F, q, max(self.left, 1.0)))
            blocks.append(PairBlock(first, second, len(at), F, p, int(order)))
        return blocks


def report_of(
    names: Sequence[str],
    search: PairSearch,
    fit: PairFit,
    n_rows: int,
    tested: tuple[PairSearch, PairFit] | None = None,
    low_rank: bool | None = None,
) -> PairReport:
    """Return the report of a search in the user's units, with the coefficients of `tested`.

    `low_rank` tells whether something of low rank is left; None looks for it.
    """
    start = fit.path[0].value
    path = [
        PathStep(m, choice.value - start, 1 - choice.loss / search.power)
        for m, choice in enumerate(fit.path)
    ]
    shown, of = tested or (search, fit)
    tests = PairTests(of.i, of.j, of.coef, of.errors, of.inverse, fit.entry, of.noise, of.left)
    return PairReport(
        tests.pairs(names, shown.units, shown.power),
        _exchanges(names, fit.exchangeable),
        path,
        search.looks_low_rank() if low_rank is None else low_rank,
        n_rows,
        len(names),
        search.criterion.candidates,
        fit.at_limit,
        None if tested is None else "half",
        blocks=tests.blocks(names),
    )


def empty_report(n_features: int, n_candidates: int, n_rows: int, r2: float) -> PairReport:
    """Return the report of a search that took no pair; `r2` is that of the model without pairs."""
    path = [PathStep(0, 0.0, r2)]
    return PairReport([], [], path, False, n_rows, n_features, n_candidates, False, None)


def stream_report(names: Sequence[str], state: FitState, n_rows: int) -> PairReport | None:
    """Return the report of a stream: pairs found in its first batch, and fitted to all rows.

    None if there was no search, or if the stream went on with M as a whole. Standard errors take
    the noise as equal in all rows; of labels they are those of the information matrix.
    """
    notes, running = state.notes, state.running
    if notes is None or (running is None and len(notes.path) > 1):
        return None
    path = [PathStep(m, value, r2) for m, (value, r2) in enumerate(notes.path)]
    counts = (notes.n_rows, len(names), notes.candidates)
    measure = DEVIANCE if notes.deviance else VARIANCE
    if running is None:
        return PairReport([], [], path, False, *counts, False, None, measure)
    solved, units, columns = running.solved, running.units, running.columns
    variance, coef = np.diag(solved.inverse), solved.beta[columns.base :]
    errors = RobustErrors(
        np.maximum(np.sqrt(solved.noise * variance), 1e-150),
        np.full(len(variance), max(solved.left, LEAST_FREEDOM)),
        variance,
    )
    power = running.weight * float(state.target.var[0]) / units.target.scale**2
    if notes.deviance:
        share = float(state.target.mean[0])
        power = state.target.weight * constant_deviance(share, log_odds(share))
    rest = (solved.inverse, to_numpy(running.order), solved.noise, solved.left)
    tests = PairTests(columns.i, columns.j, coef, errors, *rest)
    return PairReport(
        tests.pairs(names, units, power),
        _exchanges(names, notes.exchangeable),
        path,
        False,
        *counts,
        notes.at_limit,
        None,
        measure,
        n_rows_fitted=n_rows,
        blocks=tests.blocks(names),
    )


def _exchanges(names: Sequence[str], exchangeable: Sequence[Any]) -> list[Exchange]:
    return [
        Exchange((names[i], names[j]), (names[k], names[l]), cost)
        for (i, j), (k, l), cost in exchangeable
    ]


def _column(names: Sequence[str]) -> str:
    """Return the name of a feature, or of the column that several levels belong to."""
    different = list(dict.fromkeys(names))
    if len(different) == 1:
        return different[0]
    columns = {name.partition("=")[0] for name in different}
    return columns.pop() if len(columns) == 1 else f"{different[0]}…{different[-1]}"
