r"""More rank, more pairs, or neither: y = b + xᵀw + xᵀ(L + S)x, chosen by one criterion.

The value of a model with pairs T and a low-rank part L is its log evidence, by the chain rule:

.. math:: \log p(y, T \mid L) = \log p(y - S \mid L) - \tfrac12 |T| \log N - \log \binom{p}{|T|}

The first term is the evidence by which ``rank="auto"`` chooses ranks, for y without the pairs. The
others are half the penalty of the extended BIC: the cost of coefficients under a prior worth one
row, and the cost of having chosen them from all p products.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.core.arrays import lead, to_numpy
from quadlin.core.model import Model, degrees_of_freedom
from quadlin.core.rows import Rows
from quadlin.solve.choose.candidates import CLEARLY
from quadlin.solve.choose.rank_search import FIRST_RANK, MANY_ROWS, RankSearch
from quadlin.solve.choose.residual_spectrum import CLEAR, spectrum_beside
from quadlin.solve.composite.pair_composite import (
    Composite,
    LowRankPart,
    PairRequest,
    ProductPrior,
    evidence_of,
)
from quadlin.solve.lowrank.types import Options, Plan
from quadlin.solve.pairs.pair_choice import SMALLEST, Criterion
from quadlin.solve.pairs.pair_joint import Joint, choose_with_low_rank, joined
from quadlin.solve.pairs.pair_regression import MOST_FEATURES
from quadlin.solve.pairs.pair_screen import WORTH_A_LOOK, Screen
from quadlin.solve.pairs.pair_search import PairSearch
from quadlin.solve.pairs.pair_sparse import sparse_search
from quadlin.solve.pairs.pair_sums import ProductMoments, RegressionColumns, look_at
from quadlin.solve.pairs.pair_terms import PairTerms, less_pairs

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)  # of entries that L may have absorbed
TURNS = 30  # of entries and eigenvectors that are taken apart
FIRST_LOOK = 0.8  # of the t² for entry, by the residual's moments: noise is below in 19 of 20 cases
ROUNDS = 3  # of pairs and the low-rank part fitted with them


class Composer:
    """Fits of pairs, and of a low-rank part to what the pairs leave.

    Parameters
    ----------
    plan : Plan
        How the rows are fitted.
    request : PairRequest
        Which pairs may be chosen.
    search : RankSearch
        The search for alternatives on the same rows; each distinct row counts once on average.
    prior : ProductPrior
        The prior of the coefficients of products, for rows that count in this way.
    """

    def __init__(
        self, plan: Plan, request: PairRequest, search: RankSearch, prior: ProductPrior
    ) -> None:
        self.plan, self.request, self.search, self.prior = plan, request, search, prior
        self.rows, self.units, self.weight = search.rows, search.units, search.weight
        self.d, self.fields, self.chooses = search.d, plan.make_units.fields, plan.automatic
        self.wide = self.d > MOST_FEATURES  # no matrix of all products is kept
        self.moments: ProductMoments | None = None
        self.candidates = 0  # products that were tried
        self.start_loss = 0.0  # Σω r² without pairs
        self.clean = False  # whether no pair is worth a search after ridge regression
        self.spread = False  # whether the residual of ridge regression has too many pairs
        self.first: PairTerms | None = None  # pairs with ridge regression, which leave a low rank
        self.refused = False  # whether pairs with ridge regression are no better than all products

    def composed(self, start: LowRankPart) -> Composite | None:
        """Return pairs with the best low-rank part that was tried; None if none are worth it.

        `start` is the fit without pairs. Pairs are searched for in its residual, and those that its
        L seems to have absorbed are tried as well. L is then fitted again to what the pairs leave,
        and pairs are searched for again, because pairs may have replaced a part of L, or L some
        pairs.
        """
        if self.request.given is not None:
            return self._with_given(start)
        if self.wide:
            joint = self._chosen(start)
            self.candidates = joint.search.criterion.candidates
            self.start_loss = joint.search.base_loss
            return Composite(joint, start.alpha, 0.0) if joint.terms.pairs else None
        here, exact = self._worth_a_search(start)
        begin = self._absorbed(start, exact) if self.chooses.rank and start.rank else []
        if self.first is not None:
            begin.append((self.first, 0))
        if here and not self._redundant(start):
            begin.append(self._with_rank(self._chosen(start), start))
        candidates = [c for each in begin if (c := self._beside(*each)) is not None]
        if exact:  # the smallest of the models without any error
            dof = degrees_of_freedom(self.d, start.rank, linear=False, intercept=False)
            small = (c for c in candidates if not c.rank and c.joint.fit.choice.dof < dof)
            return next((c for c in small if self._no_error(c.joint.fit.choice.loss)), None)
        best = max(candidates, key=lambda c: c.value, default=None)
        if best is None or best.value <= self._evidence(self.rows, start):
            return None
        return best if self._agree(best, start) else None

    def _beside(self, terms: PairTerms, rank: int | None) -> Composite | None:
        """Return pairs with an L of a rank, or of the best one, that is fitted beside them."""
        if not terms.pairs:
            return None
        for _ in range(ROUNDS):  # pairs may have replaced a part of L, or L some pairs
            part = self._fitted_part(terms, rank)
            if self._redundant(part):
                return None
            before, joint = terms.pairs, self._chosen(part)
            terms = joint.terms
            if terms.pairs in (before, frozenset()):
                break
        return self._valued(joint, part) if terms.pairs else None

    def alone(self, ridge: LowRankPart) -> Composite | None:
        """Return pairs with ridge regression if they leave nothing of low rank, otherwise None.

        Half as many pairs as features have fewer parameters than an L of any rank; blocks of levels
        may have as many as an L of rank two. Sets `clean` if no pair is worth a search.
        """
        self.clean = not self._worth_a_search(ridge)[0]
        if self.clean or self.spread:
            return None
        joint = self._chosen(ridge, limit=self.d // 2 + 1)
        choice = joint.fit.choice
        self.clean = not choice.taken
        few = 0 < len(choice.taken) <= self.d / 2 and choice.dof <= 2 * self.d
        if not few:
            return None
        self.first = joint.terms
        if self._leaves_low_rank(joint):
            return None
        best = self._beside(joint.terms, 0)
        if best is None or best.value <= self._evidence(self.rows, ridge):
            return None
        self.first = None
        self.refused = not (self._in_any_case(best) or self._preferred(best))
        return None if self.refused else best

    def _leaves_low_rank(self, joint: Joint) -> bool:
        """Return whether a matrix of rank 1 is worth its parameters beside pairs."""
        if spectrum_beside(joint.search).sizes.max(initial=0.0) <= CLEAR:
            return False  # it would explain little more than its parameters cost
        rest = less_pairs(self.rows, joint.terms, self.units)
        one = LowRankPart.of(rest, self.plan.of_rank(1), self.units)
        counts = self.search.n_rows, self.search.weight
        search = RankSearch(rest, self.units, self.plan.options, *counts, self.plan.seed)
        return evidence_of(search, one, self.plan.of_rank(0)) > search.ridge().merit + CLEARLY

    def _preferred(self, best: Composite) -> bool:
        """Return whether pairs beat the alternatives: only ridge regression, if nothing is left."""
        search = self.search
        # Ranks of few features cost little, and ranks are not tried with pairs of a sample.
        costly = not search.few_features and search.sample_size(FIRST_RANK) >= search.n_rows
        if costly and spectrum_beside(best.joint.search).says_nothing:
            ridge = search.sized(search.ridge())
            return search.confirmed(best.left_out_squares, ridge, best.log_tried)
        parameters = self._parameters(best)
        return search.prefers(best.value, best.left_out_squares, parameters, best.log_tried)

    def _in_any_case(self, best: Composite) -> bool:
        """Return whether pairs are chosen without a check on left-out rows."""
        exact = self._no_error(best.joint.fit.choice.loss)
        return self.request.asked or not self.chooses.alpha or exact

    def _parameters(self, best: Composite) -> int:
        dof = self.plan.options.dof(self.d, best.rank)
        return int(dof + best.joint.fit.choice.dof)

    def _agree(self, best: Composite, start: LowRankPart) -> bool:
        """Return whether left-out rows are predicted no worse than without pairs."""
        if self._in_any_case(best) or (candidate := self.search.tried.get(start.rank)) is None:
            return True
        most = max(self._parameters(best), candidate.parameters)
        if self.weight >= MANY_ROWS * most or not (candidate.model or start.rank in (0, self.d)):
            return True
        candidate = replace(candidate, alpha=start.alpha)
        return self.search.confirmed(best.left_out_squares, candidate, best.log_tried)

    def _worth_a_search(self, start: LowRankPart) -> tuple[bool, bool]:
        """Return whether to search in the residual of a fit, and whether it has none: one pass.

        Unless the user asks for pairs, most tables without interactions are not read again.
        """
        columns = RegressionColumns(self.units, start.model, np.arange(self.d))
        look = look_at(self.rows, columns, self.moments)
        self.moments, self.start_loss = look.features, look.loss
        screen = Screen(look.features, to_numpy(self.units.free), self.fields, None)
        self.candidates = screen.candidates
        weight = look.features.weight
        power = max(weight * self.units.target.power, 1e-300)
        criterion = Criterion(weight, screen.candidates, power, self.prior.noise)
        exact = self._no_error(look.loss)
        if exact or not screen.candidates:
            return False, exact
        share = WORTH_A_LOOK if self.request.asked else FIRST_LOOK
        if not start.rank and self.chooses.rank:
            spectrum = self.search.spectrum
            largest = screen.largest(look, criterion)
            self.spread = spectrum is not None and spectrum.is_spread(largest)
        return bool(screen.shortlist(look, criterion, 0, share)), exact

    def _absorbed(self, start: LowRankPart, exact: bool) -> list[tuple[PairTerms, int | None]]:
        """Return the pairs that the L of a fit seems to have absorbed, and the rank to fit."""
        if self.moments is None:
            return []
        noise = (SMALLEST if exact else 1.0) * self.start_loss / self.moments.weight
        dof = degrees_of_freedom(self.d, start.rank, linear=False, intercept=False)
        C = to_numpy(self.moments.second) / self.moments.weight
        terms, rank = split_entries(start.model, C, noise * dof / self.weight)
        return [(terms, None if rank else 0)]

    def _no_error(self, loss: float) -> bool:
        return loss <= SMALLEST * self.weight * self.units.target.power

    def _with_rank(self, joint: Joint, start: LowRankPart) -> tuple[PairTerms, int | None]:
        """Return pairs and the rank to fit to what they leave; None means the best rank."""
        if not self.chooses.rank:
            return joint.terms, start.rank
        has_rank = joint.search.columns.model.U.shape[1] > 0
        low_rank = has_rank or self._leaves_low_rank(joint)
        return joint.terms, None if low_rank else 0

    def _search(self, part: LowRankPart) -> PairSearch:
        alpha, given = (*part.alpha, self.prior.penalty(part.alpha)), self.request.given
        settings: dict[str, Any] = {"model": part.model, "alpha": alpha, "fields": self.fields}
        args, noise = (self.rows, self.units), self.prior.noise
        if self.wide and given is None:
            return sparse_search(*args, **settings, noise=noise)
        features = np.unique(np.array(given)) if self.wide else None
        return PairSearch(*args, **settings, noise=noise, features=features, moments=self.moments)

    def _fitted_part(self, terms: PairTerms, rank: int | None) -> LowRankPart:
        """Fit a low-rank part to what pairs leave, of a given rank or of the best one."""
        plan = self.plan if rank is None else self.plan.of_rank(rank)
        return LowRankPart.of(less_pairs(self.rows, terms, self.units), plan, self.units)

    def _options(self, part: LowRankPart) -> Options:
        return replace(self.plan.options, rank=part.rank, alpha=part.alpha)

    def _chosen(self, part: LowRankPart, limit: int | None = None) -> Joint:
        """Choose pairs for a fit, at most as many as requested and as the limit allows."""
        most = min((m for m in (self.request.most, limit) if m is not None), default=None)
        return choose_with_low_rank(self._search(part), self._options(part), self.plan.seed, most)

    def _redundant(self, part: LowRankPart) -> bool:
        """Return whether L has full rank already, and the user did not ask for pairs."""
        return part.rank == self.d and not self.request.asked

    def _valued(self, joint: Joint, part: LowRankPart) -> Composite:
        """Return pairs with their value: the evidence of what they leave, less their cost."""
        rows = less_pairs(self.rows, joint.terms, self.units)
        evidence = self._evidence(rows, replace(part, model=joint.model))
        return Composite(joint, part.alpha, evidence - joint.cost / 2)

    def _evidence(self, rows: Rows, part: LowRankPart) -> float:
        """Return the log evidence of the rank that is fitted to these rows."""
        search = self.search
        if rows is not self.rows:
            counts = search.n_rows, search.weight
            search = RankSearch(rows, self.units, self.plan.options, *counts, self.plan.seed)
        return evidence_of(search, part, self.plan.of_rank(0))

    def _with_given(self, start: LowRankPart) -> Composite:
        """Return exactly the given pairs, with a rank and penalties that suit them."""
        products, part = self.request.products, start
        for attempt in range(ROUNDS):
            first = part
            if self.chooses.rank and not attempt and start.rank > 0:
                first = LowRankPart.of(self.rows, self.plan.of_rank(0), self.units)
            search = self._search(first)
            tested = Joint(search, search.tested(*products))
            joint = joined(tested, self._options(part), self.plan.seed)
            if not (self.chooses.rank or self.chooses.alpha) or attempt == ROUNDS - 1:
                break
            refitted = self._fitted_part(joint.terms, None if self.chooses.rank else start.rank)
            if attempt and refitted.is_like(part):
                break
            part = refitted
        fit = joint.search.tested(*products)  # with the standard errors of the last model
        return Composite(Joint(joint.search, fit), part.alpha, 0.0)


def split_entries(model: Model, C: np.ndarray, most_lost: float) -> tuple[PairTerms, int]:
    r"""Return a few entries that, with a matrix of lower rank, are about the L of a model.

    C are the correlations of the features, and `most_lost` is the variance of :math:`z^\top R z`
    that may be lost, R the difference. There are no entries if no lower rank is as near.
    """
    U, s, free = (to_numpy(a).astype(float) for a in (model.U, model.s, model.free))
    M, (d, k) = (U * s) @ U.T, U.shape
    M[np.diag_indices(d)] *= free
    tail = 2 * np.cumsum(np.sort(np.linalg.eigvals(M @ C).real ** 2))[::-1]
    upper = np.triu_indices(d)
    # A pair takes two ranks, a square one.
    tried = sorted({(max(0, k - each * m), m) for m in COUNTS for each in (1, 2)})
    for rank, count in tried:
        if k == d and 4 * rank > d:  # a dense matrix has no rank that is nearly as high
            continue
        if count > len(upper[0]) or (rank + 2 * count < d and tail[rank + 2 * count] > most_lost):
            continue
        S = np.zeros_like(M)
        for _ in range(TURNS if rank else 1):
            values, V = lead(M - S, rank)
            L, before, S = (V * values) @ V.T, S, np.zeros_like(M)
            largest = np.argsort(-np.abs((M - L)[upper]), kind="stable")[:count]
            i, j = upper[0][largest], upper[1][largest]
            S[i, j] = S[j, i] = (M - L)[i, j]
            if np.allclose(S, before, rtol=1e-3, atol=0):
                break
        R = (M - S - L) @ C
        if 2 * float(np.sum(R * R.T)) <= most_lost:
            i, j = np.nonzero(np.triu(S))
            return PairTerms(i, j, np.where(i == j, 1.0, 2.0) * S[i, j]), rank
    nothing = np.zeros(0, np.int64)
    return PairTerms(nothing, nothing, np.zeros(0)), k
