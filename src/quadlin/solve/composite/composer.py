r"""More rank, more pairs, or neither: y = b + xᵀw + xᵀ(L + S)x, chosen by one criterion.

The value of a model with pairs T and a low-rank part L is its log evidence, by the chain rule:

.. math:: \log p(y, T \mid L) = \log p(y - S \mid L) - \tfrac12 |T| \log N - \log \binom{p}{|T|}

The first term is the evidence by which ``rank="auto"`` chooses ranks, of what the pairs leave of y.
The others are half the penalty of the extended BIC: what coefficients cost under a prior worth one
row, and what it costs to have chosen them among all p products.
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
    Beside,
    Composite,
    PairRequest,
    ProductPrior,
    evidence_beside,
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

STARTS = 5  # sets of pairs that something is fitted beside, at most
FIRST_LOOK = 0.8  # of the t² for entry, by the residual's moments: noise is below it in 19 of 20
ROUNDS = 3  # of pairs and what is fitted beside them


class Composer:
    """The rows, what pairs may be taken, and how the rest is fitted to what they leave.

    Parameters
    ----------
    plan : Plan
        How the rows are fitted.
    request : PairRequest
        Which pairs are wanted.
    search : RankSearch
        Of the same rows, for what else could be fitted; each different row counts once on average.
    prior : ProductPrior
        Of the coefficients of products, for rows that count so.
    """

    def __init__(
        self, plan: Plan, request: PairRequest, search: RankSearch, prior: ProductPrior
    ) -> None:
        self.plan, self.request, self.search, self.prior = plan, request, search, prior
        self.rows, self.units, self.n_rows = search.rows, search.units, search.n_rows
        self.d, self.fields, self.chooses = search.d, plan.make_units.fields, plan.automatic
        self.wide = self.d > MOST_FEATURES  # no matrix of all products is kept
        self.moments: ProductMoments | None = None
        self.candidates = 0  # products that were looked at
        self.start_loss = 0.0  # Σω r² without pairs
        self.clean = False  # whether no pair is worth a look beside ridge regression
        self.spread = False  # whether what ridge regression leaves is of too many pairs
        self.refused = False  # whether pairs beside it are not better than all products
        self.seen = SeenProducts()  # beside ridge regression

    def composed(self, start: Beside) -> Composite | None:
        """Return pairs with the best that was tried beside them; None if none are worth it.

        `start` is the fit without pairs. Pairs are searched for beside it, and those that its L
        seems to have absorbed are tried as well. What they leave is fitted again, and pairs are
        searched for beside that, because some pairs may have replaced a part of L, or L some pairs.
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
        if exact:  # of models without any error the smallest
            dof = degrees_of_freedom(self.d, start.rank, linear=False, intercept=False)
            small = (c for c in candidates if not c.rank and c.joint.fit.choice.dof < dof)
            return next((c for c in small if self._no_error(c.joint.fit.choice.loss)), None)
        best = max(candidates, key=lambda c: c.value, default=None)
        if best is None or best.value <= self._evidence(self.rows, start):
            return None
        return best if self._agree(best, start) else None

    def _candidates(self, start: Beside, here: bool, exact: bool) -> list[Composite]:
        """Fit the pairs that are worth it, each with what they leave; `here` searches first."""
        queue: list[tuple[PairTerms, int | None]] = []  # pairs, and the rank to fit beside them
        apart = self._absorbed(start, exact) if self.chooses.rank else None
        if apart is not None:
            queue += [(apart[0], None)] if apart[1] else [(apart[0], 0), (apart[0], None)]
        if here and not self._redundant(start):
            queue.append(self._with_rank(self._chosen(start), start))
        candidates, tried = [], set[tuple[frozenset[tuple[int, int]], int | None]]()
        while queue and len(tried) < STARTS:
            terms, rank = queue.pop(0)
            if not terms.pairs or (terms.pairs, rank) in tried:
                continue
            tried.add((terms.pairs, rank))
            beside = self._beside(terms, rank)
            if self._redundant(beside):
                continue
            joint, beside = self._refitted(beside)
            if joint.terms.pairs:
                candidates.append(self._valued(joint, beside))
                follows = self._with_rank(joint, start)
                if beside.rank == 0 and follows[1] == 0:
                    break  # nothing of low rank is left
                queue.append(follows)
        return candidates

    def alone(self, ridge: Beside) -> Composite | None:
        """Return pairs beside ridge regression if they leave nothing of low rank, else None.

        Half as many pairs as features have fewer parameters than an L of any rank; blocks of levels
        may have as many as one of rank two. Sets `clean` where no pair is worth a look.
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
                joint, beside = self._refitted(self._beside(joint.terms, 0))
        best = self._valued(joint, beside)
        if best.value <= self._evidence(self.rows, ridge):
            return None
        self.refused = not (self._in_any_case(best) or self._preferred(best))
        return None if self.refused else best

    def _preferred(self, best: Composite) -> bool:
        """Tell whether pairs are better than what else is tried: a ridge, if nothing is left."""
        search = self.search
        # Ranks of few features cost little, and ranks are not tried beside pairs of a sample.
        ranks_are_dear = not search.few_features and search.sample_size(FIRST_RANK) >= self.n_rows
        if ranks_are_dear and best.joint.search.leaves_nothing():
            ridge = search.sized(search.ridge())
            return search.confirmed(best.left_out_squares, ridge, best.looked)
        parameters = self._parameters(best)
        return search.prefers(best.value, best.left_out_squares, parameters, best.looked)

    def _in_any_case(self, best: Composite) -> bool:
        """Tell whether pairs are taken without a look at rows left out."""
        exact = self._no_error(best.joint.fit.choice.loss)
        return self.request.asked or not self.chooses.alpha or exact

    def _parameters(self, best: Composite) -> int:
        dof = self.plan.options.dof(self.d, best.rank)
        return int(dof + best.joint.fit.choice.dof)

    def _agree(self, best: Composite, start: Beside) -> bool:
        """Tell whether rows left out are predicted no worse than without pairs."""
        if self._in_any_case(best) or (candidate := self.search.tried.get(start.rank)) is None:
            return True
        most = max(self._parameters(best), candidate.parameters)
        if self.n_rows >= MANY_ROWS * most or not (candidate.model or start.rank in (0, self.d)):
            return True
        candidate = replace(candidate, alpha=start.alpha)
        return self.search.confirmed(best.left_out_squares, candidate, best.looked)

    def _worth_a_search(self, start: Beside) -> tuple[bool, bool]:
        """Tell whether to search beside a fit, and whether it has no error: one pass.

        Unless pairs were asked for, most tables without interactions are not read again.
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

    def _absorbed(self, start: Beside, exact: bool) -> tuple[PairTerms, int] | None:
        """Return the pairs that the L of a fit seems to have absorbed, and the rank of the rest."""
        if not start.rank or self.moments is None:
            return None
        noise = (SMALLEST if exact else 1.0) * self.start_loss / self.moments.weight
        most = MOST_PAIRS if self.request.most is None else self.request.most
        return absorbed_pairs(start.model, self.moments, float(self.n_rows), noise, most)

    def _no_error(self, loss: float) -> bool:
        return loss <= SMALLEST * self.n_rows * self.units.target.power

    def _with_rank(self, joint: Joint, start: Beside) -> tuple[PairTerms, int | None]:
        """Return pairs and the rank to fit to what they leave; None is the best one."""
        if not self.chooses.rank:
            return joint.terms, start.rank
        low_rank = joint.search.columns.model.U.shape[1] or joint.search.looks_low_rank(CLEAR)
        return joint.terms, None if low_rank else 0

    def _search(self, beside: Beside) -> PairSearch:
        alpha, given = (*beside.alpha, self.prior.penalty(beside.alpha)), self.request.given
        beside_all: dict[str, Any] = {"model": beside.model, "alpha": alpha, "fields": self.fields}
        if given is None:
            beside_all["hierarchy"] = self.request.hierarchy
        args, noise = (self.rows, self.units), self.prior.noise
        if self.wide and given is None:
            return sparse_search(*args, **beside_all, noise=noise)
        features = np.unique(np.array(given)) if self.wide else None
        return PairSearch(*args, **beside_all, noise=noise, features=features, moments=self.moments)

    def _beside(self, terms: PairTerms, rank: int | None) -> Beside:
        """Fit what pairs leave, of a rank or of the best one."""
        plan = self.plan if rank is None else self.plan.of_rank(rank)
        return Beside.of(less_pairs(self.rows, terms, self.units), plan, self.units)

    def _options(self, beside: Beside) -> Options:
        return replace(self.plan.options, rank=beside.rank, alpha=beside.alpha)

    def _chosen(self, beside: Beside, few: bool = False) -> Joint:
        """Choose pairs beside a fit; beside ridge regression, what was seen before still counts."""
        search = self._search(beside)
        if not beside.rank:
            search.seen = self.seen
        limits = [m for m in (self.request.most, self.d // 2 + 1 if few else None) if m is not None]
        most = min(limits, default=None)
        joint = settled(search, self._options(beside), self.plan.seed, most, few)
        if not beside.rank:
            self.seen = joint.search.seen
        return joint

    def _redundant(self, beside: Beside) -> bool:
        """Tell whether all products are fitted beside pairs that nobody asked for."""
        return beside.rank == self.d and not self.request.asked

    def _refitted(self, beside: Beside) -> tuple[Joint, Beside]:
        """Choose pairs beside a model that was fitted to what other pairs left."""
        joint = self._chosen(beside)
        if not beside.rank and joint.terms.pairs:  # the pairs have moved, and it costs little
            beside = self._beside(joint.terms, 0)
            joint = self._chosen(beside)
        return joint, beside

    def _valued(self, joint: Joint, beside: Beside) -> Composite:
        """Return pairs with their value: the evidence of what they leave, less what they cost."""
        rest = less_pairs(self.rows, joint.terms, self.units)
        evidence = self._evidence(rest, replace(beside, model=joint.model))
        return Composite(joint, beside.alpha, evidence - joint.cost / 2)

    def _evidence(self, rows: Rows, beside: Beside) -> float:
        """Return the log evidence of the rank that is fitted to these rows."""
        n, search = self.n_rows, self.search
        if rows is not self.rows:
            search = RankSearch(rows, self.units, self.plan.options, n, float(n), self.plan.seed)
        return evidence_beside(search, beside, self.plan.of_rank(0))

    def _with_given(self, start: Beside) -> Composite:
        """Return exactly the pairs that were given, with the rank and penalties beside them."""
        products, beside = self.request.products, start
        for attempt in range(ROUNDS):
            first = beside
            if self.chooses.rank and not attempt and start.rank > 0:
                first = Beside.of(self.rows, self.plan.of_rank(0), self.units)
            search = self._search(first)
            tested = Joint(search, search.tested(*products))
            joint = joined(tested, self._options(beside), self.plan.seed)
            if not (self.chooses.rank or self.chooses.alpha) or attempt == ROUNDS - 1:
                break
            again = self._beside(joint.terms, None if self.chooses.rank else start.rank)
            if attempt and again.is_like(beside):
                break
            beside = again
        fit = joint.search.tested(*products)  # with the standard errors of the last model
        return Composite(Joint(joint.search, fit), beside.alpha, 0.0)
