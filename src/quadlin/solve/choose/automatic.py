"""The fit that chooses rank and penalties: evidence proposes, left-out rows must agree.

Candidates are ridge regression (rank 0), all products (rank d, if a matrix of them fits in memory)
and low ranks, from a moderate one down or up as long as the evidence rises. All products, which a
large penalty turns into ridge regression, are the answer unless something is clearly better. With
fewer than 100 rows per parameter, rows that are left out one at a time must agree, also on the size
of the penalties. With more than 40 rows per parameter, a sample of them chooses. The content of the
rows determines the sample, so their order does not matter.
"""

from dataclasses import replace

import numpy as np

from quadlin.core.moments import survey
from quadlin.solve.choose.candidates import CERTAIN, CHEAP_COLUMNS, KERNEL_ROWS
from quadlin.solve.choose.last_fit import Choice, LastFit
from quadlin.solve.choose.leave_one_out import CLEARLY, surely_less
from quadlin.solve.choose.linear_choice import MANY_ROWS, LinearChoice
from quadlin.solve.choose.rank_climb import FIRST_RANK, RankClimb
from quadlin.solve.lowrank.exact import EXACT_ENTRIES
from quadlin.solve.lowrank.polish import OnStep
from quadlin.solve.lowrank.sample import sample_of
from quadlin.solve.lowrank.tangent_gram import Candidate
from quadlin.solve.lowrank.types import NO_NOISE

SAMPLE_ROWS = 20  # rows per parameter that choose as well as all rows
LEAST_RATIO = 2  # of all rows to the sample; with less, all rows choose
TIE = 0.1  # of log evidence: among candidates that are closer, the lowest rank is chosen


class RankSearch(RankClimb, LinearChoice, LastFit):
    """The search for the candidate of largest evidence."""

    def choice(self, rank: int | None = None, on_step: OnStep = None) -> Choice:
        """Fit with the penalties of largest evidence, and with the best rank unless it is given.

        Without noise there is no penalty. `on_step` is for the driver of the last fit.
        """
        given = None if rank is None else min(rank, self.d)
        k, search = FIRST_RANK if given is None else given, self
        try:
            while True:
                search = self.sampled(k)
                best = search.best() if given is None else search.given(given)
                if search is self or best is None or best.rank <= k:
                    break
                k = best.rank + 1
            if best is None:  # more parameters than fit in a matrix
                best = replace(search.ridge(), rank=given or 0)
        except KeyboardInterrupt:
            choice = search.best_so_far()
            if choice is None:
                raise
            return choice
        return self.fitted(best, search, on_step)

    def sampled(self, k: int) -> "RankSearch":
        """Return a search on enough rows to compare ranks up to k: all rows if features are few.

        A penalty is the noise over the variance of a prior, so it does not depend on the number of
        rows.
        """
        size = self.sample_size(k)
        if size >= self.n_rows:
            return self
        sample = sample_of(self.rows, size / self.n_rows, None)
        if sample.engine.source.rows < size / 2:  # too many rows are equal
            return self
        tally = sample.reduce(survey).tally
        counts = tally.counting, tally.weight
        return RankSearch(sample, self.units, self.options, *counts, self.seed)

    def sample_size(self, k: int) -> int:
        """Return how many rows are enough to compare ranks up to k."""
        size = SAMPLE_ROWS * self.options.dof(self.d, min(k + 1, self.d))
        size = max(size, KERNEL_ROWS + 1)
        too_few = LEAST_RATIO * size > self.n_rows or self.few_features
        return self.n_rows if too_few or size * self.d > EXACT_ENTRIES else size

    def best(self) -> Candidate:
        """Return the best of ridge regression, of all products and of a search over low ranks."""
        if self.few_features:
            _ = self.products  # one pass, for ridge regression as well
        ridge = self.ridge()
        if ridge.noise <= NO_NOISE and self.observations > 2 * (self.d + 1):
            return ridge  # it predicts the target exactly
        most, few = self.most(), self.d * (self.d + 3) // 2 <= min(self.n_rows, CHEAP_COLUMNS)
        products = self.d > 0 and (self.plain or few)  # the matrix n×n is of the plain model
        spectrum = self.spectrum
        dense = spectrum is not None and spectrum.is_dense
        if products and few and (self.few_features or dense or not self.plain):
            self.candidate(self.d)  # it costs little, and gives the other ranks a start
        if most > 0 and not (spectrum is not None and spectrum.is_noise):
            self.climb(self.first_rank(most), most)
        if products and spectrum is not None:
            products = not spectrum.says_nothing
        if products and not any(self.is_exact(c) for c in self.candidates()):
            self.candidate(self.d)
        return self.decided()

    def decided(self) -> Candidate:
        """Return the low rank that is clearly better than none by evidence and by left-out rows.

        Otherwise return ridge regression or all products, whichever predicts left-out rows better.
        The evidence assumes that the noise is Gaussian and the model true, but a few extreme rows
        may cause a quadratic part that says nothing about the other rows.
        """
        if any(self.is_exact(c) for c in self.candidates()):
            return self.by_merit()[0]
        low = [c for c in self.by_merit() if c.rank not in (0, self.d) and c.merit >= self.least]
        linear: Candidate | None = None
        for c in low:
            if self.need_no_check(c) or self.ahead_of_products(c):
                return c
            linear = linear or self.better_linear(*self.linear_candidates)
            if self.agree(c, linear):
                return c
        return linear or self.better_linear(*self.linear_candidates)

    def need_no_check(self, candidate: Candidate) -> bool:
        """Return whether there are many rows per parameter of a low rank and of all products.

        With fewer, left-out rows may prefer products with penalties far from those of the evidence.
        Labels and counts keep the rule of their benchmarks: many rows for the low rank are enough.
        """
        products = self.tried.get(self.d) if self.options.loss == "squared" else None
        return self.many_rows(candidate) and (products is None or self.many_rows(products))

    def ahead_of_products(self, candidate: Candidate) -> bool:
        """Return whether a low rank is certainly better than all products.

        Then all products need not predict left-out rows, which would cost more than the rest.
        """
        products = self.tried.get(self.d)
        if products is None:
            return False
        certain = candidate.merit >= products.merit + CERTAIN or self.is_ridge(products)
        return certain and self.agree(candidate, self.sized(self.ridge()))

    def prefers(
        self, merit: float, squares: np.ndarray, parameters: int, log_tried: float = 0.0
    ) -> bool:
        """Return whether pairs are clearly better than no structure, and no worse than a low rank.

        `merit` is the log evidence of the pairs less the advantage that they must have, `squares`
        are the ωe² of left-out rows, and `log_tried` is the log of the number of products that the
        pairs were chosen from. With many features ranks are not tried, since the pairs leave
        nothing that looks like a low rank. With many rows as well, pairs need no comparison.
        """
        if self.sample_size(FIRST_RANK) < self.n_rows:
            return True
        ridge = self.ridge()
        if self.few_features:
            chosen = self.best()
        else:
            self.reached = merit
            products = self.candidate(self.d)
            behind = products is not None and self.is_ridge(products)
            chosen = self.sized(ridge) if behind else self.decided()
        least = chosen.merit if 0 < chosen.rank < self.d else self.least
        enough_rows = self.observations >= MANY_ROWS * parameters and self.many_rows(chosen)
        return merit >= least and (enough_rows or self.confirmed(squares, chosen, log_tried))

    def agree(self, candidate: Candidate, linear: Candidate) -> bool:
        """Return whether a low rank predicts rows that are left out one at a time well enough."""
        return self.confirmed(self.left_out_squares(candidate), linear)

    def confirmed(self, squares: np.ndarray, other: Candidate, log_tried: float = 0.0) -> bool:
        """Return whether left-out rows confirm a structure with these squared errors.

        It must be no worse than the alternative, which may have more parameters, and surely better
        than ridge regression, which has fewer.
        """
        ridge = other if other.rank == 0 else self.ridge()
        no_worse = float(squares.sum()) <= self.left_out(other) * self.weight
        return no_worse and surely_less(squares, self.left_out_squares(ridge), CLEARLY + log_tried)

    def by_merit(self) -> list[Candidate]:
        """Return the candidates, the best first; of several that tie, the lowest rank first."""
        top = max(c.merit for c in self.candidates())
        return sorted(
            self.candidates(),
            key=lambda c: (0.0, c.rank) if c.merit >= top - TIE else (top - c.merit, c.rank),
        )
