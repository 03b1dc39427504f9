"""The report of a search for pairs: the pairs with their tests, and the path to them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.losses import constant_deviance, log_odds
from quadlin.core.messages import printable
from quadlin.core.units import Units
from quadlin.explain.tables import (
    SHOWN,
    Records,
    columns_of,
    frame_of,
    p_value,
    product_name,
    text_table,
)
from quadlin.solve.choose.residual_spectrum import spectrum_beside
from quadlin.solve.composite.composer import PairOutcome
from quadlin.solve.composite.fitting import TableFit
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.pairs.regression import LEAST_FREEDOM, RobustErrors
from quadlin.solve.pairs.search import PairFit, PairSearch

VARIANCE, DEVIANCE = "R²", "D²"
NOTHING = 1e-200  # variance of a coefficient that the rows do not determine


class Pair(NamedTuple):
    """Two features whose product is in the model; the same feature twice is its square."""

    first: str
    second: str
    coefficient: float  # of x_i·x_j in y, in the user's units
    std_error: float  # robust (HC3), but of a model with `uncertainty` that of its coefficients
    t: float  # coefficient / std_error
    p: float  # two-sided, of Student's distribution
    share: float  # of the variance of y: by how much R² falls without the pair
    order: int  # of entry, from 1; products of whole text columns enter together

    @property
    def name(self) -> str:
        """Return the name of the product."""
        return product_name(self.first, self.second)


class Exchange(NamedTuple):
    """Two pairs, either of which could replace the other."""

    taken: tuple[str, str]
    other: tuple[str, str]
    cost: float  # by how much the criterion is larger with the other pair


class PathStep(NamedTuple):
    """The model with the first few pairs."""

    n_steps: int  # how many pairs, or blocks of pairs, are in it
    criterion: float  # extended BIC, less that of the linear model; smaller is better
    r2: float  # on the rows of the search


@dataclass(frozen=True, repr=False)
class PairReport(Records[Pair]):
    """The pairs that :func:`quadlin.find_pairs` has found; printing it shows a table.

    Attributes
    ----------
    pairs : list of Pair
        In the order of entry: `first`, `second`, `coefficient`, `std_error`, `t`, `p`, `share`,
        `order`.
    exchangeable : list of Exchange
        Pairs that could replace each other: the criterion differs by less than 6.
    path : list of PathStep
        The criterion and R² with the first 0, 1, … pairs.
    low_rank : bool
        Whether the residual beside the pairs still shows a quadratic part of low rank.
    n_rows, n_features, n_candidates : int
        The rows of the search, the features (text columns by their levels), and the products that
        were candidates.
    at_limit : bool
        Whether the search ended because `max_pairs` was reached.
    test_on : None or "half"
        Which rows the standard errors come from.
    measure : "R²" or "D²"
        What `share` and the `r2` of the path refer to: the variance of y, or for labels the
        deviance (D² = 1 − deviance/deviance of the constant).
    validated : list of float or None
        With `cv`: R² of rows left out, with the first 0, 1, … of the pairs found on the others.
    stability : list of float or None
        With `stability`: the share of resamples of the rows in which each pair was chosen again.
    n_rows_fitted : int or None
        For a stream: the rows behind coefficients and tests, while `n_rows` were searched.
    rank : int
        Of the low-rank part of the model beside the pairs, which has products of all features.
    """

    pairs: list[Pair]
    exchangeable: list[Exchange]
    path: list[PathStep]
    low_rank: bool
    n_rows: int
    n_features: int
    n_candidates: int
    at_limit: bool
    test_on: str | None
    measure: str = VARIANCE
    validated: list[float] | None = None
    stability: list[float] | None = None
    n_rows_fitted: int | None = None
    rank: int = 0

    @property
    def records(self) -> list[Pair]:
        """Return the pairs."""
        return self.pairs

    def to_frame(self) -> Any:
        """Return the pairs as a pandas frame, or as a dict of columns without pandas."""
        columns = columns_of(self.pairs, Pair)
        if self.stability is not None:
            columns["stability"] = self.stability
        return frame_of(columns)

    def __str__(self) -> str:
        return "\n".join([self._headline(), *self._table(), *self._notes()])

    def _headline(self) -> str:
        count = len(self.pairs)
        what = "No pair" if not count else "1 pair" if count == 1 else f"{count} pairs"
        steps = len(self.path) - 1
        if steps < count:  # whole text columns entered
            what += f" in {steps} step" + "s" * (steps > 1)
        searched = (
            f"{what} among {self.n_candidates:,} products of {self.n_features:,} features, "
            f"{self.n_rows:,} rows"
        )
        if count or not self.rank:
            return searched
        of_rank = "all products" if self.rank >= self.n_features else f"rank {self.rank}"
        return (
            f"The model has products of all features ({of_rank}): interactions_ lists them.\n"
            f"Besides these, {searched[0].lower()}{searched[1:]}"
        )

    def _table(self) -> list[str]:
        if not self.pairs:
            return []
        head = ["", "pair", "coefficient", "std error", "t", "p", "share"]
        rows = []
        for p in self.pairs[:SHOWN]:
            tests = f"{p.std_error:.2g}", f"{p.t:.1f}", p_value(p.p), f"{p.share:.1%}"
            rows.append([f"{p.order}", p.name, f"{p.coefficient:+.4g}", *tests])
        if self.stability is not None:
            head.append("stability")
            rows = [[*row, f"{s:.0%}"] for row, s in zip(rows, self.stability, strict=False)]
        lines = text_table(head, rows)
        if len(self.pairs) > SHOWN:
            lines.append(f"    and {len(self.pairs) - SHOWN} more")
        return lines

    def _notes(self) -> list[str]:
        def compared(values: Sequence[float]) -> str:
            with_pairs = f", {values[-1]:.3f} with them" if self.pairs else ""
            return f"{self.measure} {values[0]:.3f} without pairs{with_pairs}"

        shown = self.exchangeable[:SHOWN]
        alike = [f"{' × '.join(b)} would do about as well as {' × '.join(a)}." for a, b, _ in shown]
        more = len(self.exchangeable) - len(shown)
        notes = [
            (True, compared([step.r2 for step in self.path])),
            (self.validated, f"On rows left out: {compared(self.validated or [0.0])}"),
            (
                self.n_rows_fitted,
                f"In this stream the search used the first {self.n_rows:,} rows; "
                f"coefficients and tests use {self.n_rows_fitted or 0:,}.",
            ),
            (
                self.test_on == "half",
                "Coefficients and tests come from the half of the rows that was not searched.",
            ),
            *[(True, printable(words)) for words in alike],
            (more > 0, f"{more} more pairs could be replaced."),
            (self.at_limit, f"The search ended at its limit, in step {len(self.path) - 1}."),
            (
                self.rank and self.pairs,
                f"Besides these, the model has products of all features, of rank {self.rank}: "
                "interactions_ lists them.",
            ),
            (
                self.low_rank,
                "Besides these pairs, many features still interact weakly. SecondOrderRegressor "
                "learns such a quadratic part of low rank.",
            ),
        ]
        return [note for applies, note in notes if applies]


def pairs_of(
    products: tuple[np.ndarray, np.ndarray],
    coef: np.ndarray,
    errors: RobustErrors,
    entry: np.ndarray,
    names: Sequence[str],
    units: Units,
    power: float,
    from_means: tuple[np.ndarray, RobustErrors] | None = None,
) -> list[Pair]:
    """Return the products of a regression as pairs in the user's units.

    `entry` is the step in which each entered, `power` the sum of squares of the target, and
    `from_means` are coefficients and errors in the convention of models. What the rows do not
    determine is NaN.
    """
    (i, j), scale = products, to_numpy(units.scale).astype(float)
    factor = units.target.scale * scale[i] * scale[j]
    determined = np.where((factor > 0) & (errors.unit_variance > NOTHING), 1.0, np.nan)
    shown, errors_shown = from_means or (coef, errors)
    coefficient, std = determined * factor * shown, determined * factor * errors_shown.std
    p = determined * 2 * np.exp(errors_shown.log_tail(shown))
    share = coef**2 / (determined * errors.unit_variance) / power
    numbers = np.stack([coefficient, std, coefficient / std, p, share], axis=1).tolist()
    places = zip(i.tolist(), j.tolist(), numbers, entry.tolist(), strict=True)
    return [Pair._make((names[i], names[j], *values, int(order))) for i, j, values, order in places]


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
    tests = (of.i, of.j), of.solution.coef, of.errors, fit.entry
    return PairReport(
        pairs_of(*tests, names, shown.units, shown.power, shown.from_means(of)),
        _exchanges(names, fit.exchangeable),
        path,
        not spectrum_beside(search).is_noise if low_rank is None else low_rank,
        n_rows,
        len(names),
        search.criterion.candidates,
        fit.at_limit,
        None if tested is None else "half",
    )


def empty_report(n_features: int, n_candidates: int, n_rows: int, r2: float) -> PairReport:
    """Return the report of a search that took no pair; `r2` is that of the model without pairs."""
    path = [PathStep(0, 0.0, r2)]
    return PairReport([], [], path, False, n_rows, n_features, n_candidates, False, None)


def report_of_fit(names: Sequence[str], fit: TableFit) -> PairReport | None:
    """Return the report of a search in a fit, with its pairs as fitted last; None if none."""
    report = None if fit.searched is None else _report_of_outcome(names, fit.searched)
    if report is None:
        return None
    if fit.deviances:
        path = [s._replace(r2=d2) for s, d2 in zip(report.path, fit.deviances, strict=True)]
        report = replace(report, path=path, measure=DEVIANCE)
    last = None
    if fit.last is not None and fit.last is not fit.searched:
        last = _report_of_outcome(names, fit.last)
    if last is None:
        return report
    pairs = [p._replace(share=p.share * fit.factor) for p in last.pairs]
    return replace(report, pairs=pairs)


def _report_of_outcome(names: Sequence[str], outcome: PairOutcome) -> PairReport | None:
    searched, joint = outcome.searched, outcome.joint
    if searched is None:
        return None
    if joint is None:
        return empty_report(len(names), searched.candidates, searched.n_rows, searched.path[0][1])
    return report_of(names, joint.search, joint.fit, searched.n_rows, low_rank=False)


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
    tests = (columns.i, columns.j), coef, errors, to_numpy(running.order)
    return PairReport(
        pairs_of(*tests, names, units, power),
        _exchanges(names, notes.exchangeable),
        path,
        False,
        *counts,
        notes.at_limit,
        None,
        measure,
        n_rows_fitted=n_rows,
    )


def _exchanges(names: Sequence[str], exchangeable: Sequence[Any]) -> list[Exchange]:
    return [
        Exchange((names[i], names[j]), (names[k], names[l]), cost)
        for (i, j), (k, l), cost in exchangeable
    ]
