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

from quadlin.core.arrays import to_numpy
from quadlin.core.model import degrees_of_freedom
from quadlin.core.rows import Rows
from quadlin.solve.choose.automatic import RankSearch
from quadlin.solve.choose.linear_choice import MANY_ROWS
from quadlin.solve.choose.rank_climb import FIRST_RANK
from quadlin.solve.composite.pair_composite import (
    Composite,
    LowRankPart,
    PairRequest,
    ProductPrior,
    evidence_of,
)
from quadlin.solve.composite.pair_split import absorbed_pairs
from quadlin.solve.lowrank.types import Options, Plan
from quadlin.solve.pairs.pair_choice import SMALLEST, Criterion
from quadlin.solve.pairs.pair_joint import Joint, joined, settled
from quadlin.solve.pairs.pair_regression import MOST_FEATURES
from quadlin.solve.pairs.pair_screen import WORTH_A_LOOK, Screen
from quadlin.solve.pairs.pair_search import CLEAR, MOST_PAIRS, PairSearch, SeenProducts
from quadlin.solve.pairs.pair_sparse import sparse_search
from quadlin.solve.pairs.pair_sums import ProductMoments, RegressionColumns, look_at
from quadlin.solve.pairs.pair_terms import PairTerms, less_pairs

STARTS = 5  # most sets of pairs for which a low-rank part is fitted
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
        self.refused = False  # whether pairs with ridge regression are no better than all products
        self.seen = SeenProducts()  # with ridge regression

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
        candidates = self._candidates(start, here, exact)
        if exact:  # the smallest of the models without any error
            dof = degrees_of_freedom(self.d, start.rank, linear=False, intercept=False)
            small = (c for c in candidates if not c.rank and c.joint.fit.choice.dof < dof)
            return next((c for c in small if self._no_error(c.joint.fit.choice.loss)), None)
        best = max(candidates, key=lambda c: c.value, default=None)
        if best is None or best.value <= self._evidence(self.rows, start):
            return None
        return best if self._agree(best, start) else None

    def _candidates(self, start: LowRankPart, here: bool, exact: bool) -> list[Composite]:
        """Fit the pairs that are worth it, each set with its own L; `here` adds a first search."""
        queue: list[tuple[PairTerms, int | None]] = []  # pairs, and the rank to fit with them
        absorbed = self._absorbed(start, exact) if self.chooses.rank else None
        if absorbed is not None:
            ranks = (None,) if absorbed[1] else (0, None)
            queue += [(absorbed[0], rank) for rank in ranks]
        if here and not self._redundant(start):
            queue.append(self._with_rank(self._chosen(start), start))
        candidates, tried = [], set[tuple[frozenset[tuple[int, int]], int | None]]()
        while queue and len(tried) < STARTS:
            terms, rank = queue.pop(0)
            if not terms.pairs or (terms.pairs, rank) in tried:
                continue
            tried.add((terms.pairs, rank))
            part = self._fitted_part(terms, rank)
            if self._redundant(part):
                continue
            joint, part = self._refitted(part)
            if joint.terms.pairs:
                candidates.append(self._valued(joint, part))
                follows = self._with_rank(joint, start)
                if part.rank == 0 and follows[1] == 0:
                    break  # the residual has no low rank
                queue.append(follows)
        return candidates

    def alone(self, ridge: LowRankPart) -> Composite | None:
        """Return pairs with ridge regression if they leave nothing of low rank, otherwise None.

        Half as many pairs as features have fewer parameters than an L of any rank; blocks of levels
        may have as many as an L of rank two. Sets `clean` if no pair is worth a search.
        """
        self.clean = not self._worth_a_search(ridge)[0]
        if self.clean or self.spread:
            return None
        joint = self._chosen(ridge, few=True)
        self.clean = not joint.fit.choice.taken
        for again in (True, False):
            choice = joint.fit.choice
            few = 0 < len(choice.taken) <= self.d / 2 and choice.dof <= 2 * self.d
            if not few or joint.search.looks_low_rank(CLEAR):
                return None
            if again:
                joint, part = self._refitted(self._fitted_part(joint.terms, 0))
        best = self._valued(joint, part)
        if best.value <= self._evidence(self.rows, ridge):
            return None
        self.refused = not (self._in_any_case(best) or self._preferred(best))
        return None if self.refused else best

    def _preferred(self, best: Composite) -> bool:
        """Return whether pairs beat the alternatives: only ridge regression, if nothing is left."""
        search = self.search
        # Ranks of few features cost little, and ranks are not tried with pairs of a sample.
        costly = not search.few_features and search.sample_size(FIRST_RANK) >= search.n_rows
        if costly and best.joint.search.leaves_nothing():
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

    def _absorbed(self, start: LowRankPart, exact: bool) -> tuple[PairTerms, int] | None:
        """Return the pairs that the L of a fit seems to have absorbed, and the rank of the rest."""
        if not start.rank or self.moments is None:
            return None
        noise = (SMALLEST if exact else 1.0) * self.start_loss / self.moments.weight
        most = MOST_PAIRS if self.request.most is None else self.request.most
        return absorbed_pairs(start.model, self.moments, self.weight, noise, most)

    def _no_error(self, loss: float) -> bool:
        return loss <= SMALLEST * self.weight * self.units.target.power

    def _with_rank(self, joint: Joint, start: LowRankPart) -> tuple[PairTerms, int | None]:
        """Return pairs and the rank to fit to what they leave; None means the best rank."""
        if not self.chooses.rank:
            return joint.terms, start.rank
        low_rank = joint.search.columns.model.U.shape[1] or joint.search.looks_low_rank(CLEAR)
        return joint.terms, None if low_rank else 0

    def _search(self, part: LowRankPart) -> PairSearch:
        alpha, given = (*part.alpha, self.prior.penalty(part.alpha)), self.request.given
        settings: dict[str, Any] = {"model": part.model, "alpha": alpha, "fields": self.fields}
        if given is None:
            settings["hierarchy"] = self.request.hierarchy
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

    def _chosen(self, part: LowRankPart, few: bool = False) -> Joint:
        """Choose pairs for a fit; with ridge regression, products seen before still count."""
        search = self._search(part)
        if not part.rank:
            search.seen = self.seen
        limits = [m for m in (self.request.most, self.d // 2 + 1 if few else None) if m is not None]
        most = min(limits, default=None)
        joint = settled(search, self._options(part), self.plan.seed, most, few)
        if not part.rank:
            self.seen = joint.search.seen
        return joint

    def _redundant(self, part: LowRankPart) -> bool:
        """Return whether L has full rank already, and the user did not ask for pairs."""
        return part.rank == self.d and not self.request.asked

    def _refitted(self, part: LowRankPart) -> tuple[Joint, LowRankPart]:
        """Choose pairs for a model that was fitted to what other pairs left."""
        joint = self._chosen(part)
        if not part.rank and joint.terms.pairs:  # the pairs have changed, and it costs little
            part = self._fitted_part(joint.terms, 0)
            joint = self._chosen(part)
        return joint, part

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
