"""Which features interact: coefficients of products, and the report of a search for pairs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose, nan
from typing import Any, NamedTuple

import numpy as np

from quadlin.core.arrays import to_numpy, unflagged
from quadlin.core.losses import constant_deviance, log_odds
from quadlin.core.messages import printable
from quadlin.core.units import Units
from quadlin.data.names import Name, position_of
from quadlin.explain.tables import (
    ROUNDING,
    SHOWN,
    Records,
    columns_of,
    frame_of,
    p_value,
    product_name,
    text_table,
)
from quadlin.solve.choose.residual_spectrum import spectrum_beside
from quadlin.solve.composite.composer import PairOutcome, TableFit
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.uncertainty import two_sided
from quadlin.solve.lowrank.observations import LEAST_FREEDOM
from quadlin.solve.pairs.regression import Errors, PairNotes, Regression
from quadlin.solve.pairs.search import PairFit

VARIANCE, DEVIANCE = "R²", "D²"


class Interaction(NamedTuple):
    """A pair of features and what their product adds to the prediction."""

    first: str
    second: str
    coefficient: float  # of x_i·x_j in y: 2 M_ij, or M_ii for a square
    strength: float  # the same for standardised features: comparable between pairs
    std_error: float | None = None  # of the coefficient; None where it is not known


@dataclass(frozen=True, repr=False)
class Interactions:
    """A view of M = A diag(s) Aᵀ, less the diagonals not modelled, as coefficients of products.

    ``view[i, j]``, ``view.row(i)``, ``view.std_error(i, j)`` and ``view.top()`` all refer to the
    coefficient of x_i·x_j in y. That is 2 M_ij for two features, since M_ij and M_ji both count,
    and M_ii for a square. Only `matrix` returns M itself.

    Memory: the d×k factor. An entry costs O(k), a row O(kd), the strongest pairs at most O(kd²)
    time, and far less when few features carry M, because pairs are visited by falling bound.

    Examples
    --------
    >>> import numpy as np
    >>> view = Interactions(np.array([[1.0], [2.0], [0.0]]), np.array([3.0]),
    ...                     np.ones(3, dtype=bool), np.full(3, -1), np.ones(3),
    ...                     ["a", "b", "c"])
    >>> view["a", "b"], view["b", "b"]
    (12.0, 12.0)
    >>> view.matrix().tolist()
    [[3.0, 6.0, 0.0], [6.0, 12.0, 0.0], [0.0, 0.0, 0.0]]
    >>> view.top(1)
    [Interaction(first='a', second='b', coefficient=12.0, strength=12.0, std_error=None)]
    >>> view
    <Interactions of 3 features, rank 1>
    """

    factor: np.ndarray  # (d, k)
    signs: np.ndarray  # (k,), s
    has_diagonal: np.ndarray  # (d,), bool
    field: np.ndarray  # (d,), number of the one-hot group, −1 where there is none
    sd: np.ndarray  # (d,), of the features
    names: Sequence[str]
    entry_std: Callable[[int, int], float] | None = None  # the standard error of M_ij
    errors: Mapping[frozenset[int], float] | None = None  # of single coefficients, by positions

    def __repr__(self) -> str:
        d, k = self.factor.shape
        return f"<Interactions of {d:,} features, rank {k}>"

    @unflagged
    def __getitem__(self, pair: tuple[Name, Name]) -> float:
        """Return the coefficient of x_i·x_j in y, for features by position or name."""
        i, j = self.positions(*pair)
        if self.vanishes(i, j):
            return 0.0
        return (1 + (i != j)) * float(self.factor[i] * self.signs @ self.factor[j])

    def std_error(self, first: Name, second: Name) -> float | None:
        """Return the standard error of the coefficient of x_i·x_j; None where it is not known."""
        i, j = self.positions(first, second)
        if self.entry_std is None:
            return (self.errors or {}).get(frozenset((i, j)))
        return 0.0 if self.vanishes(i, j) else (1 + (i != j)) * self.entry_std(i, j)

    def vanishes(self, i: int, j: int) -> bool:
        """Tell whether the model has no product of two features, by position."""
        return bool(not self.has_diagonal[i] if i == j else self._together(i, j))

    @unflagged
    def row(self, feature: Name) -> np.ndarray:
        """Return the coefficients of the products of one feature with each feature."""
        i = position_of(self.names, feature)
        coefficients = 2 * (self.factor @ (self.signs * self.factor[i]))
        square = coefficients[i] / 2 * self.has_diagonal[i]
        coefficients[self._together(i, slice(None))] = 0.0  # one of them is always zero
        coefficients[i] = square
        return np.asarray(coefficients)

    @unflagged
    def matrix(self) -> np.ndarray:
        """Return M, symmetric (d, d): half of the coefficient of x_i·x_j off its diagonal."""
        M = (self.factor * self.signs) @ self.factor.T
        diagonal = np.diag(M) * self.has_diagonal
        M[(self.field[:, None] == self.field) & (self.field >= 0)] = 0.0
        np.fill_diagonal(M, diagonal)
        return np.asarray(M)

    def to_frame(self, count: int | None = None, squares: bool = True) -> Any:
        """Return the strongest pairs as a pandas frame, or as a dict of columns without pandas.

        Parameters
        ----------
        count : int or None, default=None
            Number of pairs; None takes all whose coefficient is not zero.
        squares : bool, default=True
            Whether the square of a feature counts as a pair.

        Returns
        -------
        frame
            `first`, `second`, the `coefficient` of their product in y, its `strength` for
            standardised features, and its `std_error` (NaN where it is not known).
        """
        d = len(self.names)
        pairs = self.top(d * (d + 1) // 2 if count is None else count, squares)
        columns = columns_of(pairs, Interaction)
        unknown = float("nan")
        columns["std_error"] = [unknown if e is None else e for e in columns["std_error"]]
        return frame_of(columns)

    @unflagged
    def top(self, count: int = 10, squares: bool = False) -> list[Interaction]:
        """Return the strongest interactions, by the size they have for standardised features.

        Parameters
        ----------
        count : int, default=10
            Maximum number.
        squares : bool, default=False
            Whether the square of a feature counts as a pair.

        Returns
        -------
        list of Interaction
            `first`, `second`, the `coefficient` of x_i·x_j in y, its `strength` (the same for
            standardised features) and its `std_error` (None without ``uncertainty=True``).
        """
        if count < 1:
            return []
        A = self.factor * self.sd[:, None] * np.sqrt(np.abs(self.signs))
        signs = np.sign(self.signs)
        norms = np.linalg.norm(A, axis=1)
        order = np.argsort(-norms, kind="stable")
        A, norms = A[order], norms[order]
        pieces, bound = [np.empty((0, 3))], 0.0  # sizes, with the features they belong to
        for p in range(len(order)):
            # |M_ij| ≤ ‖a_i‖‖a_j‖: nothing from `stop` on can be stronger.
            stop = int(np.searchsorted(-2 * norms[p] * norms, -bound, side="left"))
            if stop <= p or norms[p] == 0:
                break
            values = 2 * (A[p:stop] * signs) @ A[p]
            values[0] *= self.has_diagonal[order[p]] * squares / 2
            values[1:][self._together(order[p], order[p + 1 : stop])] = 0.0
            new = np.flatnonzero(np.abs(values) > max(ROUNDING * norms[0] * norms[p], bound))
            ends = np.full(len(new), order[p]), order[p + new]
            pieces.append(np.stack([np.abs(values[new]), *ends], axis=1))
            if sum(map(len, pieces)) >= (2 if bound else 1) * count:
                pieces = [_largest(pieces, count)]
                bound = float(pieces[0][-1, 0])
        pairs = _largest(pieces, count)[:, 1:].astype(int).tolist()
        return [self.interaction(*pair) for pair in pairs]

    def _together(self, i: int, others: Any) -> Any:
        """Tell which features belong to the field of feature i, so that their products are zero."""
        return (self.field[others] == self.field[i]) & (self.field[i] >= 0)

    def interaction(self, first: Name, second: Name) -> Interaction:
        """Return the interaction of two features, in their order."""
        i, j = sorted(self.positions(first, second))
        coefficient, error = self[i, j], self.std_error(i, j)
        strength = coefficient * float(self.sd[i] * self.sd[j])
        return Interaction(self.names[i], self.names[j], coefficient, strength, error)

    def positions(self, first: Name, second: Name) -> tuple[int, int]:
        """Return the positions of two features."""
        return position_of(self.names, first), position_of(self.names, second)


def _largest(pieces: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Return the rows with the largest first numbers, in order."""
    rows = np.concatenate(pieces)
    return rows[np.argsort(-rows[:, 0], kind="stable")[:count]]


class Pair(NamedTuple):
    """Two features whose product is in the model; the same feature twice is its square."""

    first: str
    second: str
    coefficient: float  # of x_i·x_j in y, in the user's units
    std_error: float  # robust (HC3); with `uncertainty`, the model's own
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
    criterion: float  # extended BIC, less the linear model's; smaller is better
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
        Whether the residual of the pairs still shows a quadratic part of low rank.
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
        Of the low-rank part of the model. It has products of all features.
    """

    pairs: list[Pair]
    exchangeable: list[Exchange]
    path: list[PathStep]
    n_rows: int
    n_features: int
    n_candidates: int
    low_rank: bool = False
    at_limit: bool = False
    test_on: str | None = None
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
        count, steps = len(self.pairs), len(self.path) - 1
        what = "No pair" if not count else "1 pair" if count == 1 else f"{count} pairs"
        if steps < count:  # whole text columns entered
            what += f" in {steps} step" + "s" * (steps > 1)
        searched = (
            f"{what} among {self.n_candidates:,} products of {self.n_features:,} features, "
            f"{self.n_rows:,} rows"
        )
        if not self.rank:
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
        notes = {
            compared([step.r2 for step in self.path]): True,
            f"On rows left out: {compared(self.validated or [0.0])}": self.validated,
            f"In this stream the search used the first {self.n_rows:,} rows; "
            f"coefficients and tests use {self.n_rows_fitted or 0:,}.": self.n_rows_fitted,
            "Coefficients and tests come from the half of the rows that was not searched.": (
                self.test_on == "half"
            ),
            **{printable(words): True for words in alike},
            f"{more} more pairs could be replaced.": more > 0,
            f"The search ended at its limit, in step {len(self.path) - 1}.": self.at_limit,
            "Besides these pairs, many features still interact weakly. SecondOrderRegressor "
            "learns such a quadratic part of low rank.": self.low_rank,
        }
        return [note for note, applies in notes.items() if applies]


def pairs_of(
    regression: Regression,
    shown: tuple[np.ndarray, Errors],
    entry: np.ndarray,
    names: Sequence[str],
    units: Units,
    power: float,
) -> list[Pair]:
    """Return the products of a regression as pairs in the user's units.

    `shown` are coefficients and errors in the convention of models, `entry` the step in which each
    entered, and `power` the sum of squares of the target. What the rows do not determine is NaN.
    """
    design, (coef, errors) = regression.gram.design, shown
    assert design is not None
    (i, j), scale = (design.i, design.j), to_numpy(units.scale).astype(float)
    factor, variance = units.target.scale * scale[i] * scale[j], regression.variance
    determined = np.where((factor > 0) & (variance > 0), 1.0, np.nan)
    coefficient, std = determined * factor * coef, determined * factor * errors.std
    p = determined * 2 * np.exp(errors.log_tail(coef))
    share = regression.coef**2 / (determined * variance) / power
    numbers = np.stack([coefficient, std, coefficient / std, p, share], axis=1).tolist()
    places = zip(i.tolist(), j.tolist(), numbers, entry.tolist(), strict=True)
    return [Pair._make((names[i], names[j], *values, int(order))) for i, j, values, order in places]


def report_of(
    names: Sequence[str],
    fit: PairFit,
    n_rows: int,
    tested: PairFit | None = None,
    low_rank: bool | None = None,
) -> PairReport:
    """Return the report of a search in the user's units, with the coefficients of `tested`.

    `low_rank` is whether something of low rank is left; None looks for it.
    """
    shown = tested or fit
    search = shown.search
    some = [names[j] for j in search.features.tolist()]
    tests = (shown.regression, shown.from_means(), fit.entry, some, search.units, search.power)
    return replace(
        report_of_notes(names, fit.notes(n_rows)),
        pairs=pairs_of(*tests),
        low_rank=not spectrum_beside(fit).is_noise if low_rank is None else low_rank,
        test_on=None if tested is None else "half",
    )


def report_of_notes(names: Sequence[str], notes: PairNotes) -> PairReport:
    """Return the report of a search without its pairs."""
    exchangeable = [
        Exchange((names[i], names[j]), (names[k], names[l]), cost)
        for (i, j), (k, l), cost in notes.exchangeable
    ]
    return PairReport(
        [],
        exchangeable,
        [PathStep(m, value, r2) for m, (value, r2) in enumerate(notes.path)],
        notes.n_rows,
        len(names),
        notes.candidates,
        at_limit=notes.at_limit,
        measure=DEVIANCE if notes.deviance else VARIANCE,
    )


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
        return report_of_notes(names, searched)
    return report_of(names, joint, searched.n_rows, low_rank=False)


def stream_report(names: Sequence[str], state: FitState, n_rows: int) -> PairReport | None:
    """Return the report of a stream: pairs found in its first batch, and fitted to all rows.

    None if there was no search, or if the stream went on with M as a whole. Standard errors take
    the noise as equal in all rows; of labels they come from the information matrix.
    """
    notes, running = state.notes, state.running
    if notes is None or (running is None and len(notes.path) > 1):
        return None
    report = report_of_notes(names, notes)
    if running is None:
        return report
    regression, units = running.regression, running.units
    errors = Errors(
        np.maximum(np.sqrt(running.noise * regression.variance), 1e-150),
        np.full(len(running.i), max(running.freedom, LEAST_FREEDOM)),
    )
    power = running.weight * float(state.target.var[0]) / units.target.scale**2
    if notes.deviance:
        share = float(state.target.mean[0])
        power = state.target.weight * constant_deviance(share, log_odds(share))
    shown, order = (regression.coef, errors), to_numpy(running.order)
    pairs = pairs_of(regression, shown, order, names, units, power)
    return replace(report, pairs=pairs, n_rows_fitted=n_rows)


def report_of_products(
    report: PairReport, view: Interactions, left: float, rank: int
) -> PairReport:
    """Return a report whose pairs have the coefficients of whole products, as `view` has them.

    A search measures a level from the other levels, and beside a given low-rank part. The standard
    error is the model's own. Where the model has none, it comes from the search if only the pair
    contributes to the product: one coefficient is then a multiple of the other.
    """

    def columns(pair: Pair) -> frozenset[tuple[int, int]]:
        places = view.positions(*pair[:2])
        return frozenset((int(view.field[j]), j if view.field[j] < 0 else -1) for j in places)

    pairs_of = Counter(map(columns, report.pairs))

    def whole(pair: Pair) -> Pair:
        names = pair.first, pair.second
        coefficient, error = view[names], view.std_error(*names)
        if error is not None:
            t = coefficient / error if error else nan
            p = two_sided(t, left) if error else nan
            return pair._replace(coefficient=coefficient, std_error=error, t=t, p=p)
        share = coefficient / pair.coefficient if pair.coefficient else 1.0
        alone = rank == 0 and pairs_of[columns(pair)] == 1
        if alone or isclose(share, 1.0, rel_tol=1e-6):
            return pair._replace(coefficient=coefficient, std_error=abs(share) * pair.std_error)
        return pair._replace(coefficient=coefficient, std_error=nan, t=nan, p=nan)

    return replace(report, pairs=list(map(whole, report.pairs)), rank=rank)
