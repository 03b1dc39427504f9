r"""The search for a few pairs, y = b + xᵀw + xᵀ(L + S)x with S of few entries.

The moments of the residual, :math:`\sum \omega r z_i z_j`, over their standard errors show which
products are worth trying. A pass gives the Gram matrix of those, of the features and of L's tangent
directions, on which `Stepwise` chooses. Another pass gives the moments of the new residual, and
standard errors that do not trust a few rows. This is repeated until nothing changes. It takes three
or four passes if nothing interacts; otherwise two per round, one for the leverages of rows, and one
for each choice that leaves out products which rest on a few rows only.
"""

from collections.abc import Sequence
from math import log

import numpy as np

from quadlin.core.arrays import to_numpy
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
from quadlin.solve.pairs.pair_regression import Coefficients, PairRegression
from quadlin.solve.pairs.pair_screen import Screen
from quadlin.solve.pairs.pair_sums import ProductMoments, another_look
from quadlin.solve.pairs.pair_terms import level_contrast

ROUNDS, MOST_PAIRS = 60, 32
FALSE_ALARMS = 0.05  # of a table without interactions: the level of tests that use few rows
FEWEST, PER_PAIR = 2.0, 10.0  # rows beyond the parameters: for one pair, and for each further one


class PairSearch(PairRegression):
    """The search among all products for a regression.

    Parameters
    ----------
    rows, units, model, alpha, features, moments
        As for `PairRegression`.
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
        fields: Sequence[np.ndarray] = (),
        features: np.ndarray | None = None,
        candidates: int | None = None,
        moments: ProductMoments | None = None,
        noise: float | None = None,
        excluded: np.ndarray | None = None,
    ) -> None:
        super().__init__(rows, units, model, alpha, features, moments)
        at = self.columns.features
        allowed = None if excluded is None else ~excluded
        inside = [np.flatnonzero(np.isin(at, field)) for field in fields]
        inside = [field for field in inside if len(field)]
        self.fields = fields
        self.screen = Screen(self.moments, to_numpy(units.free)[at], inside, allowed)
        count = self.screen.candidates if candidates is None else candidates
        self.criterion = Criterion(self.freedom, count, max(self.power, 1e-300), noise)

    def run(self, most: int | None = None) -> PairFit:
        """Search until a round changes nothing: screen, step, and leave out what few rows carry."""
        most = min(MOST_PAIRS, max(1, int(self.freedom // PER_PAIR))) if most is None else most
        listed, banned, screening = self._listed(()), set[Group](), True
        choice = listed.step.judged(())
        enough = self.freedom < FEWEST or choice.loss <= SMALLEST * self.power
        self.regression = listed.regressed(self.columns, choice)
        self.score = self._scored(self.regression)
        for _ in range(0 if enough else ROUNDS):
            taken, new = [listed.groups[g] for g in choice.taken], list[Group]()
            if screening and len(taken) < most:
                shortlist = self.screen.shortlist(self.score, self.criterion, len(taken))
                new = [group for group in shortlist if group not in listed.groups]
            doubtful = [] if new else self._doubtful(listed.step, choice)
            if screening and not (new or doubtful):
                break
            if new:
                listed = self._listed(sorted({*listed.groups, *new}))
            banned |= {listed.groups[g] for g in doubtful}
            if new or doubtful:
                start = listed.places(group for group in taken if group not in banned)
                choice = listed.step.run(start, listed.places(banned), most)
            self.regression = listed.regressed(self.columns, choice)
            screening = not doubtful  # for others, once no chosen product is doubtful
            self.score = self._scored(self.regression, screening)
        if not screening:
            self.score = self._scored(self.regression)
        errors = RobustErrors.of(self.score, self.criterion.noise)
        return self._fit(self.regression, errors, listed, choice, most)

    def left_out_squares(self) -> np.ndarray:
        """Return ωe² of each observation, left out of the last regression: one pass."""
        chunks = self.rows.collect_beside(weighted_residuals, self.leverages, *self.regression)
        return observed_squares(*np.concatenate([p for pieces in chunks for p in pieces], axis=1))

    def from_means(self, fit: PairFit) -> tuple[np.ndarray, RobustErrors]:
        """Return the coefficients with levels measured from their field's mean, and their errors.

        That is the convention of models (`levels`); one pass, if a product has such a level.
        """
        contrast = level_contrast(fit.i, fit.j, self.units, self.fields)
        if contrast is None:
            return fit.coef, fit.errors
        args = fit.columns, Coefficients(fit.beta, fit.onto, fit.inverse), False, contrast
        sums = self.rows.reduce_beside(scores, self.leverages, *args)
        return contrast @ fit.coef, RobustErrors.of(sums, self.criterion.noise)

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

    def _doubtful(self, step: Stepwise, choice: PairChoice) -> list[int]:
        """Return single products that rest on a few rows.

        These are the worst, and all that are about as bad. The standard error comes from residuals
        of fits without the row. It is itself less certain if fewer rows determine it, so Student's
        t is compared with its distribution, at a level that is shared by all products.
        """
        place = {c: m for m, c in enumerate(step.columns(choice.taken))}
        single = {g: place[step.groups[g][0]] for g in choice.taken if len(step.groups[g]) == 1}
        errors = RobustErrors.of(self.score, self.criterion.noise)
        log_tail = errors.log_tail(self.regression.fit.beta[self.columns.base :])
        level = log(FALSE_ALARMS / max(self.criterion.candidates, 1))
        doubtful = {g: m for g, m in single.items() if log_tail[m] > level}
        worst = max((log_tail[m] for m in doubtful.values()), default=0.0)
        least = min(worst, level / 4)  # Student's t at about half of the level's
        return [g for g, m in doubtful.items() if log_tail[m] >= least]

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
            fit.onto,
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
