r"""The search for a few pairs, y = b + xᵀw + xᵀ(L + S)x with S of few entries.

The moments of the residual, :math:`\sum \omega r z_i z_j`, over their standard errors show which
products are worth trying. A pass gives the Gram matrix of those, of the features and of L's tangent
directions, on which `Stepwise` chooses. Another pass gives the moments of the new residual, and
standard errors that do not trust a few rows. This is repeated until nothing changes. It takes three
or four passes if nothing interacts; otherwise two per round, one for the leverages of rows, and one
for each choice that leaves out products which rest on a few rows only.
"""

from collections.abc import Iterator, Sequence
from math import inf, sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr

from quadlin.core.arrays import to_numpy
from quadlin.core.engine import height
from quadlin.core.model import Model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.observations import observed_squares
from quadlin.solve.pairs.pair_choice import SMALLEST, Criterion, PairChoice, Stepwise
from quadlin.solve.pairs.pair_fit import (
    Group,
    Listed,
    PairFit,
    Regressed,
    RobustErrors,
    Scores,
    scores,
    weighted_residuals,
)
from quadlin.solve.pairs.pair_regression import PairRegression
from quadlin.solve.pairs.pair_remainder import Remainder
from quadlin.solve.pairs.pair_screen import Screen
from quadlin.solve.pairs.pair_sums import (
    ProductMoments,
    another_look,
    flipped_moments,
)

ROUNDS, MOST_PAIRS = 60, 32
FLIPS = 19  # residuals with random signs: by chance, the residual is the largest once in twenty
FEW_FLIPS = 3  # of them, which are enough for a clear case
FLIPPED = 1 << 22  # entries of the moments that are kept in one pass
CLEAR = 1.5  # times the eigenvalues of noise: clearly of low rank
FEWEST, PER_PAIR = 2.0, 10.0  # rows beyond the parameters: for one pair, and for each further one
FEW_CARRIERS = 3.0  # rows, less one, that determine a product: with fewer it is never certain


class SeenProducts(NamedTuple):
    """What a search has seen, for the next one with about the same model."""

    shortlist: tuple[Group, ...] = ()  # products that were worth trying
    banned: frozenset[Group] = frozenset()  # those of them that rest on next to no rows


class PairSearch(PairRegression):
    """The search among all products, or those of a hierarchy, for a regression.

    Parameters
    ----------
    rows, units, model, alpha, features, moments
        As for `PairRegression`.
    hierarchy : None, "weak" or "strong"
        Whether one or both of the features must have a main effect, |t| > 2 in the linear fit.
    fields : sequence of arrays
        One-hot groups, which also compete as wholes.
    candidates : int or None
        Number of products that were tried before these features were selected.
    noise : float or None
        The variance of the noise of a row of weight 1, if known.
    excluded : array of bool (d, d) or None
        Products that may not be chosen.
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
        main = None if hierarchy is None else self.main_effects(hierarchy, noise)
        if excluded is not None:
            main = ~excluded if main is None else main & ~excluded
        inside = [np.flatnonzero(np.isin(at, field)) for field in fields]
        inside = [field for field in inside if len(field)]
        self.screen = Screen(self.moments, to_numpy(units.free)[at], inside, main)
        count = self.screen.candidates if candidates is None else candidates
        self.criterion = Criterion(self.freedom, count, max(self.power, 1e-300), noise)
        self.seen = SeenProducts()

    def run(self, most: int | None = None, few: bool = False) -> PairFit:
        """Search until a round changes nothing.

        With `few` the search also ends when pairs are in doubt and are more than half as many as
        the features, or leave something of low rank. If that many pairs are refused because they
        rest on a few rows only, none is chosen.
        """
        most = min(MOST_PAIRS, max(1, int(self.freedom // PER_PAIR))) if most is None else most
        banned, screening = dict.fromkeys(self.seen.banned, 0.0), True
        listed = self._listed(self.seen.shortlist)
        choice = listed.step.judged(())
        enough = self.freedom < FEWEST or choice.loss <= SMALLEST * self.power
        choice = choice if enough else listed.step.run((), listed.places(banned), most)
        self.regression = listed.regressed(self.columns, choice)
        self.score = self._scored(self.regression)
        for _ in range(0 if enough else ROUNDS):
            taken, new = [listed.groups[g] for g in choice.taken], list[Group]()
            if screening and len(taken) < most:
                shortlist = self.screen.shortlist(self.score, self.criterion, len(taken))
                new = [group for group in shortlist if group not in listed.groups]
            doubtful = {} if new else self._doubtful(listed.step, choice)
            if screening and not (new or doubtful):
                break
            many = few and doubtful and not banned
            if many and (len(taken) > self.d / 2 or self.looks_low_rank(CLEAR)):
                break
            if new:
                listed = self._listed(sorted({*listed.groups, *new}))
            banned |= {listed.groups[g]: carriers for g, carriers in doubtful.items()}
            hopeless = few and len(banned) > self.d / 2  # any choice rests on a few rows
            if hopeless:
                choice = listed.step.judged(())
            elif new or doubtful:
                start = listed.places(group for group in taken if group not in banned)
                choice = listed.step.run(start, listed.places(banned), most)
            self.regression = listed.regressed(self.columns, choice)
            screening = hopeless or not doubtful  # for others, once no chosen product is doubtful
            self.score = self._scored(self.regression, screening)
            if hopeless:
                break
        if not screening:
            self.score = self._scored(self.regression)
        always = (group for group, carriers in banned.items() if carriers < FEW_CARRIERS)
        self.seen = SeenProducts(tuple(listed.groups), frozenset(always))
        errors = RobustErrors.of(self.score, self.criterion.noise)
        return self._fit(self.regression, errors, listed, choice, most)

    def left_out_squares(self) -> np.ndarray:
        """Return ωe² of each observation, left out of the last regression: one pass."""
        chunks = self.rows.collect_beside(weighted_residuals, self.leverages, *self.regression)
        return observed_squares(*np.concatenate([p for pieces in chunks for p in pieces], axis=1))

    def refit(self, fit: PairFit) -> PairFit:
        """Return the regression with the same products and the same errors: one pass."""
        return self._given(fit.i, fit.j, fit.entry, fit.errors)

    def tested(self, i: np.ndarray, j: np.ndarray, entry: np.ndarray | None = None) -> PairFit:
        """Return the regression with given products and its errors: two passes.

        `entry` is the step in which each enters; None means one by one.
        """
        return self._given(i, j, np.arange(1, len(i) + 1) if entry is None else entry, None)

    def _given(
        self, i: np.ndarray, j: np.ndarray, entry: np.ndarray, errors: RobustErrors | None
    ) -> PairFit:
        first, second = self.among(i, j)
        flat = first * self.d + second
        together = (flat[entry == step] for step in np.unique(entry))
        listed = self._listed([tuple(sorted(group.tolist())) for group in together])
        choice = listed.step.judged(tuple(range(len(listed.groups))))
        regression = listed.regressed(self.columns, choice)
        if errors is None:
            errors = RobustErrors.of(self._scored(regression, False), self.criterion.noise)
        else:
            self.regression = regression  # with an L that has moved
        return self._fit(regression, errors, listed, choice)

    def _scored(self, regression: Regressed, look: bool = True) -> Scores:
        """Return the errors of products and, if `look`, the moments of all others: one pass."""
        columns, fit = regression
        if len(columns.i):
            args = self.leverages, columns, fit, look
            score: Scores = self.rows.reduce_beside(scores, *args)
            return score
        none = np.zeros(0)
        residual = self.rows.reduce(another_look, columns, fit.beta)
        return Scores(residual.loss, residual.moments, none, none, none)

    def looks_low_rank(self, clear: float = inf) -> bool:
        """Return whether the last residual contains something of low rank: up to five passes.

        Its moments must have an eigenvalue beyond the edge of normal noise, also if features and
        residuals are clipped. It must also exceed those of residuals with random signs, which have
        the same tails; if it exceeds a few of those by the factor `clear`, that is enough.
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
        """Return whether all products explain no more of the residual than noise: a few passes."""
        if self.criterion.noise is not None:  # for labels, whose variance is not informative
            return self._remainder.says_nothing()
        return self._remainder.says_nothing(self.score.loss / self.power)

    @property
    def _remainder(self) -> Remainder:
        """Return the residual of the last regression."""
        columns, fit = self.regression
        return Remainder(self.rows, columns, fit.beta, self.screen.whitener, self.weight)

    def _flipped(self, times: int) -> Iterator[np.ndarray]:
        """Yield the moments of the last residual with random signs: several per pass."""
        (columns, fit), start = self.regression, 0
        n_rows = sum(self.rows.collect(height))
        while start < times:
            count = min(FLIPS - FEW_FLIPS if start else FEW_FLIPS, max(1, FLIPPED // self.d**2))
            salts = range(start, min(start + count, times))
            sums = self.rows.reduce_numbered(flipped_moments, n_rows, columns, fit.beta, salts)
            yield from sums.moments
            start += count

    def _doubtful(self, step: Stepwise, choice: PairChoice) -> dict[int, float]:
        """Return single products that rest on a few rows, and the number of these rows less one.

        These are the worst, and all that are about as bad. The standard error comes from residuals
        of fits without the row. It is itself less certain if fewer rows determine it, so Student's
        t must be as unlikely as the criterion demands for many rows.
        """
        place = {c: m for m, c in enumerate(step.columns(choice.taken))}
        single = {g: place[step.groups[g][0]] for g in choice.taken if len(step.groups[g]) == 1}
        errors = RobustErrors.of(self.score, self.criterion.noise)
        log_tail = errors.log_tail(self.regression.fit.beta[self.columns.base :])
        t = sqrt(self.criterion.entry(max(len(choice.taken) - 1, 0)))
        doubtful = {g: m for g, m in single.items() if log_tail[m] > log_ndtr(-t)}
        worst = max((log_tail[m] for m in doubtful.values()), default=0.0)
        least = min(worst, log_ndtr(-t / 2))
        return {g: float(errors.freedom[m]) for g, m in doubtful.items() if log_tail[m] >= least}

    def _fit(
        self,
        regression: Regressed,
        errors: RobustErrors,
        listed: Listed,
        choice: PairChoice,
        most: int = 0,
    ) -> PairFit:
        """Return the result of a search for at most `most` pairs."""
        (columns, fit), at, step = regression, self.columns.features, listed.step
        order = [*enumerate((step.groups[g] for g in choice.taken), 1)]
        entry = {c: m for m, group in reversed(order) for c in group}
        freedom = self.freedom - choice.dof
        return PairFit(
            at[columns.i],
            at[columns.j],
            fit.beta[columns.base :],
            np.array([entry[c] for c in step.columns(choice.taken)], dtype=np.int64),
            errors,
            columns,
            fit.beta,
            fit.inverse,
            self.criterion.noise or choice.loss / max(freedom, 1.0),
            freedom,
            step,
            choice,
            [tuple(at[[*divmod(group[0], self.d)]].tolist()) for group in listed.groups],
            at_limit=0 < most <= len(choice.taken),
        )

    def _listed(self, groups: Sequence[Group]) -> Listed:
        """Return the stepwise choice among some groups of products: one pass, if there are any."""
        flat = np.array(sorted({p for group in groups for p in group}), dtype=np.int64)
        i, j = np.divmod(flat, self.d)
        projected, place = self.projected(i, j), {p: m for m, p in enumerate(flat.tolist())}
        columns = [np.array([place[p] for p in group]) for group in groups]
        step = Stepwise(projected.rest, columns, self.criterion)
        return Listed([*groups], i, j, projected, step)
