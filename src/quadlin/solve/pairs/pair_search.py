r"""The search for a few pairs, y = b + xᵀw + xᵀ(L + S)x with S of few entries.

The moments of the residual, :math:`\sum \omega r z_i z_j`, over their standard errors say which
products are worth a look; a walk gives the Gram matrix of those, of the features and of L's tangent
directions, on which `Stepwise` chooses; another gives the moments of what is then left, and
standard errors that do not trust a few rows. Repeated until nothing changes: three or four walks
where nothing interacts, two a round else.
"""

from collections.abc import Iterator, Sequence
from math import inf, sqrt

import numpy as np
from scipy.special import log_ndtr

from quadlin.core.arrays import to_numpy
from quadlin.core.engine import height
from quadlin.core.model import Model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.pairs.pair_choice import SMALLEST, Criterion, PairChoice, Stepwise
from quadlin.solve.pairs.pair_fit import PairFit, PairSteps, RobustErrors
from quadlin.solve.pairs.pair_projection import Projected
from quadlin.solve.pairs.pair_regression import PairRegression
from quadlin.solve.pairs.pair_remainder import Remainder
from quadlin.solve.pairs.pair_screen import Group, Screen
from quadlin.solve.pairs.pair_sums import (
    ProductMoments,
    RegressionColumns,
    flipped_moments,
    left_out_squares,
    scores,
)

ROUNDS, MOST_PAIRS = 60, 32
FLIPS = 19  # residuals with random signs: one in twenty would be the largest by chance
FEW_FLIPS = 3  # of them, after which a clear case is one
FLIPPED = 1 << 22  # entries of the moments that are kept of one walk
CLEAR = 1.5  # times the eigenvalues of noise: of low rank, or to be tried in any case
FEWEST = 10.0  # rows beyond the parameters
MAIN_EFFECT = 4.0  # t² of a feature's own term, for a hierarchy
HIERARCHIES = {"weak": np.logical_or, "strong": np.logical_and}


class PairSearch(PairRegression):
    """The search among all products, or those of a hierarchy, beside what is fitted in any case.

    Parameters
    ----------
    rows, units, model, alpha, features, moments
        As for `PairRegression`.
    hierarchy : None, "weak" or "strong"
        Whether one or both of the features must have a main effect, |t| > 2 in the linear fit.
    fields : sequence of arrays
        One-hot groups, which compete as wholes as well.
    candidates : int or None
        How many products were looked at before these features were taken.
    noise : float or None
        The variance of the noise of a row of weight 1, where it is known.
    excluded : array of bool (d, d) or None
        Products that may not be taken.
    """

    def __init__(
        self,
        rows: Rows,
        units: Units,
        *,
        model: Model | None = None,
        alpha: tuple[float, float, float] = (0.0, 0.0, 0.0),
        hierarchy: str | None = None,
        fields: Sequence[np.ndarray] = (),
        features: np.ndarray | None = None,
        candidates: int | None = None,
        moments: ProductMoments | None = None,
        noise: float | None = None,
        excluded: np.ndarray | None = None,
    ) -> None:
        super().__init__(rows, units, model, alpha, features, moments)
        at = self.columns.features
        main = None if hierarchy is None else self._main_effects(hierarchy, noise)
        if excluded is not None:
            main = ~excluded if main is None else main & ~excluded
        inside = [np.flatnonzero(np.isin(at, field)) for field in fields]
        inside = [field for field in inside if len(field)]
        self.screen = Screen(self.moments, to_numpy(units.free)[at], inside, main)
        count = self.screen.candidates if candidates is None else candidates
        self.criterion = Criterion(self.freedom, count, max(self.power, 1e-300), noise)
        self.shortlist: list[Group] = []  # what has been worth a look

    def run(self, most: int | None = None, few: bool = False) -> PairFit:
        """Search until a round changes nothing; with `few` until pairs are in doubt that are many.

        That is more than half the features, or pairs that leave something of low rank. Where as
        many were refused since a few rows carry them, none is taken.
        """
        most = min(MOST_PAIRS, int(self.freedom // FEWEST)) if most is None else most
        shortlist, banned = self.shortlist, set[Group]()
        step, projected = self._stepwise(shortlist)
        choice = step.judged(())
        enough = self.freedom < FEWEST or choice.loss <= SMALLEST * self.power
        choice = choice if enough else step.run((), (), most)
        columns, beta, inverse = self._regressed(step, projected, choice, shortlist)
        self.score = self.rows.reduce(scores, columns, beta, inverse)
        for _ in range(0 if enough else ROUNDS):
            taken = [shortlist[g] for g in choice.taken]
            look: list[Group] = []
            if len(taken) < most:
                look = self.screen.shortlist(self.score, self.freedom, self.criterion, len(taken))
            new = [group for group in look if group not in shortlist]
            doubtful = [] if new else self._doubtful(step, choice, beta)
            if not (new or doubtful):
                break
            if few and doubtful and not banned:
                self.regression = columns, beta
                if len(taken) > self.d / 2 or self.looks_low_rank(CLEAR):
                    break
            if new:
                shortlist = sorted({*shortlist, *new})
                step, projected = self._stepwise(shortlist)
            banned |= {shortlist[g] for g in doubtful}
            start = [shortlist.index(group) for group in taken if group not in banned]
            hopeless = few and len(banned) > self.d / 2  # a few rows carry whatever is taken
            places = [shortlist.index(group) for group in banned]
            choice = step.judged(()) if hopeless else step.run(start, places, most)
            columns, beta, inverse = self._regressed(step, projected, choice, shortlist)
            self.score = self.rows.reduce(scores, columns, beta, inverse)
            if hopeless:
                break
        self.regression, self.shortlist, self.inverse = (columns, beta), shortlist, inverse
        errors = RobustErrors.of(self.score, self.criterion.noise)
        return self._fit(columns, beta, inverse, errors, step, choice, shortlist, most)

    def left_out_squares(self) -> np.ndarray:
        """Return ωe² of each row of positive weight, left out of the last regression: a walk."""
        chunks = self.rows.collect(left_out_squares, *self.regression, self.inverse)
        return np.concatenate([piece for pieces in chunks for piece in pieces])

    def refit(self, fit: PairFit) -> PairFit:
        """Return the regression with the same products, their errors as they were: a walk."""
        return self._given(fit.i, fit.j, fit.entry, fit.errors)

    def tested(self, i: np.ndarray, j: np.ndarray, entry: np.ndarray | None = None) -> PairFit:
        """Return the regression with given products and its errors: two walks.

        `entry` tells which of them enter together; None is one by one.
        """
        return self._given(i, j, np.arange(1, len(i) + 1) if entry is None else entry, None)

    def _given(
        self, i: np.ndarray, j: np.ndarray, entry: np.ndarray, errors: RobustErrors | None
    ) -> PairFit:
        shortlist = self._together(i, j, entry)
        step, projected = self._stepwise(shortlist)
        choice = step.judged(tuple(range(len(shortlist))))
        columns, beta, inverse = self._regressed(step, projected, choice, shortlist)
        if errors is None:
            score = self.rows.reduce(scores, columns, beta, inverse)
            errors = RobustErrors.of(score, self.criterion.noise)
        return self._fit(columns, beta, inverse, errors, step, choice, shortlist)

    def _together(self, i: np.ndarray, j: np.ndarray, entry: np.ndarray) -> list[Group]:
        """Return products, by the positions of their features, as groups that enter together."""
        first, second = self.among(i, j)
        flat = first * self.d + second
        return [tuple(sorted(flat[entry == step].tolist())) for step in np.unique(entry)]

    def looks_low_rank(self, clear: float = inf) -> bool:
        """Tell whether something of low rank is left in the last residual: up to five walks.

        Its moments must have an eigenvalue beyond the edge of normal noise, also those of features
        and residuals that end at some standard deviations, and beyond all those of residuals with
        random signs, which have the same tails; if it is larger than a few of those by the factor
        `clear`, that is enough.
        """
        noise = max(self.score.loss / self.freedom, SMALLEST * self.units.target.power)
        noise = self.criterion.noise or noise
        size = self.screen.spectral_size(self.score.moments, noise)
        if size <= self.screen.noise_edge:
            return False
        if self._remainder.plain_moments.spectral_size <= self.screen.noise_edge:
            return False
        largest = 0.0
        for salt, flipped in enumerate(self._flipped(FLIPS)):
            largest = max(largest, self.screen.spectral_size(flipped, noise))
            if size <= largest:
                return False
            if salt + 1 >= FEW_FLIPS and size > clear * largest:
                return True
        return True

    def leaves_nothing(self) -> bool:
        """Tell whether the last residual says no more of all products than noise: a few walks."""
        if self.criterion.noise is not None:  # of labels, whose variance says little
            return self._remainder.says_nothing()
        return self._remainder.says_nothing(self.score.loss / self.power)

    @property
    def _remainder(self) -> Remainder:
        """Return what the last regression left."""
        return Remainder(self.rows, *self.regression, self.screen.whitener, self.weight)

    def _flipped(self, times: int) -> Iterator[np.ndarray]:
        """Yield the moments of the last residual with random signs: some of them by one walk."""
        n_rows, start = sum(self.rows.collect(height)), 0
        while start < times:
            some = min(FLIPS - FEW_FLIPS if start else FEW_FLIPS, max(1, FLIPPED // self.d**2))
            salts = range(start, min(start + some, times))
            sums = self.rows.reduce_numbered(flipped_moments, n_rows, *self.regression, salts)
            yield from sums.moments
            start += some

    def _doubtful(self, step: Stepwise, choice: PairChoice, beta: np.ndarray) -> list[int]:
        """Return single products that a few rows carry, the worst and all that are about as bad.

        The standard error is that of residuals of fits without the row; it is itself the worse
        known the fewer rows there are to tell it, so Student's t must be as unlikely as the
        criterion wants of many rows.
        """
        place = {c: m for m, c in enumerate(step.columns(choice.taken))}
        log_tail = RobustErrors.of(self.score, self.criterion.noise).log_tail(
            beta[self.columns.base :]
        )
        t = sqrt(self.criterion.entry(max(len(choice.taken) - 1, 0)))
        singles = [g for g in choice.taken if len(step.groups[g]) == 1]
        doubtful = [(float(log_tail[place[step.groups[g][0]]]), g) for g in singles]
        doubtful = [(log_p, g) for log_p, g in doubtful if log_p > log_ndtr(-t)]
        worst = max(doubtful, default=(0.0, 0))[0]
        return [g for p, g in doubtful if p == worst or p > log_ndtr(-t / 2)]

    def _fit(
        self,
        columns: RegressionColumns,
        beta: np.ndarray,
        inverse: np.ndarray,
        errors: RobustErrors,
        step: Stepwise,
        choice: PairChoice,
        shortlist: Sequence[Group],
        most: int = 0,
    ) -> PairFit:
        k = len(choice.taken)
        entry = {c: m for m in range(k, 0, -1) for c in step.groups[choice.taken[m - 1]]}
        at = columns.features
        first = (divmod(group[0], self.d) for group in shortlist)
        pairs = [(int(at[i]), int(at[j])) for i, j in first]
        return PairFit(
            at[columns.i],
            at[columns.j],
            beta[columns.base :],
            np.array([entry[c] for c in step.columns(choice.taken)], dtype=np.int64),
            errors,
            columns,
            beta,
            len(choice.taken),
            choice.dof,
            choice.loss,
            choice.value,
            0 < most <= k,
            PairSteps(step, choice, pairs),
            inverse[columns.base :, columns.base :],
            self.criterion.noise or choice.loss / max(self.freedom - choice.dof, 1.0),
            self.freedom - choice.dof,
        )

    def _with(self, shortlist: Sequence[Group], index: np.ndarray) -> RegressionColumns:
        i, j = self._ij(shortlist)
        return self.columns.with_pairs(i[index], j[index])

    def _ij(self, groups: Sequence[Group]) -> tuple[np.ndarray, np.ndarray]:
        """Return the products of all groups, each once, in order."""
        flat = np.array(sorted({p for group in groups for p in group}), dtype=np.int64)
        return np.divmod(flat, self.d)

    def _stepwise(self, shortlist: Sequence[Group]) -> tuple[Stepwise, Projected]:
        """Return what chooses among some groups of products: a walk, unless there are none."""
        i, j = self._ij(shortlist)
        projected = self.projected(i, j)
        place = {p: m for m, p in enumerate((i * self.d + j).tolist())}
        groups = [np.array([place[p] for p in group]) for group in shortlist]
        return Stepwise(projected.rest, groups, self.criterion), projected

    def _regressed(
        self, step: Stepwise, projected: Projected, choice: PairChoice, shortlist: Sequence[Group]
    ) -> tuple[RegressionColumns, np.ndarray, np.ndarray]:
        """Return the regression with a choice: columns, coefficients and inverse Gram matrix."""
        index = step.columns(choice.taken)
        return self._with(shortlist, index), *projected.beta(index)

    def _main_effects(self, hierarchy: str, noise: float | None) -> np.ndarray:
        """Return which pairs have features with main effects, one or both of them."""
        projected = self.projected_base()
        linear = slice(1, self.d + 1)
        noise = noise or self.base_loss / self.freedom
        t2 = (self.penalty.w + projected.onto[linear, -1]) ** 2 / np.diag(projected.inverse)[linear]
        main = t2 > MAIN_EFFECT * noise
        allowed: np.ndarray = HIERARCHIES[hierarchy].outer(main, main)
        return allowed
