"""The climb to the rank of largest evidence, with as few fits as leave no doubt."""

from dataclasses import replace
from functools import cached_property
from math import inf, log

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.model import Model
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.choose.candidates import Candidates
from quadlin.solve.choose.leave_one_out import CLEARLY
from quadlin.solve.choose.residual_spectrum import ResidualSpectrum, residual_spectrum
from quadlin.solve.lowrank.exact import EXACT_COLUMNS, Alpha
from quadlin.solve.lowrank.few_rows import ROWS_PER_PARAMETER, component_sizes
from quadlin.solve.lowrank.tangent_gram import Candidate
from quadlin.solve.lowrank.types import NO_NOISE, finished

FIRST_RANK, MOST_RANK = 4, 16
CLEAR = 20.0  # log evidence of a quadratic part that certainly exists
SURE = 1.6  # times the eigenvalues of noise: a component that certainly exists
LEAST_SHARE = 0.8  # of what a component adds: what the next one may add
NEAR = 0.7  # in log α₂: penalties that are closer show the same components
SEEN = 1.5  # times the eigenvalues of noise: a component
GAP = 0.5  # ratio to the next eigenvalue: the last component


def too_wide(d: int) -> bool:
    """Return whether d features are too many to find the rank by evidence of all parameters."""
    return degrees_of_freedom(d, min(FIRST_RANK, d)) > EXACT_COLUMNS


class RankClimb(Candidates):
    """Candidates of low rank, tried one after the other."""

    @cached_property
    def spectrum(self) -> ResidualSpectrum | None:
        """Return the spectrum of the residual of ridge regression; None if it is not needed.

        It is not used for levels: those of one column never occur together, so noise has fewer
        products than its law counts, and the law hides components that stand out.
        """
        ridge, levels = self.ridge(), bool(np.any(to_numpy(self.units.penalty_scale) != 1))
        if self.few_features or self.by_rows or levels or not self.plain:
            return None
        if ridge.noise <= NO_NOISE:
            return None
        return residual_spectrum(self.rows, self.units, ridge, self.weight)

    def first_rank(self, most: int) -> int:
        """Return the first low rank: one more than the number of components, or a moderate one.

        If many components stand out from the noise of many rows and none is clearly the last, it is
        their number, unless all products, which are likely to be better, were tried already.
        """
        clear = 0 if self.spectrum is None else self.spectrum.components
        first = clear + 1 if clear else FIRST_RANK
        if not clear and self.spectrum is not None and self.d not in self.tried:
            visible = self.spectrum.standing_out
            dof = self.options.dof(self.d, visible)
            first = max(first, visible) if self.observations >= ROWS_PER_PARAMETER * dof else first
        return min(first, most)

    def start(self, k: int) -> tuple[Model | None, Alpha]:
        """Return a first model and first penalties; for the first rank, the expected penalties.

        They follow from the components that the residual of ridge regression shows.
        """
        model, alpha = super().start(k)
        first = not any(0 < c.rank < self.d for c in self.candidates())
        if not first or self.spectrum is None or not self.spectrum.components:
            return model, alpha
        remaining, second = self.spectrum.expected(min(k, self.spectrum.components))
        return model, (alpha[0] * remaining, second * self.weight)

    def climb(self, k: int, most: int) -> None:
        """Double the rank while one more is better, then lower it while the evidence rises.

        If it is certain which components of rank k are noise, only the rank of the others is tried.
        """
        if self.only_one_rank(k):
            return
        self.candidate(k)
        down = self.better(k - 1, k)
        while not down and self.should_rise(k, most):
            double = min(2 * k, most)
            while double > k + 1 and not self.better(double, k + 1):
                double = (k + 1 + double) // 2
            k = double
        while k > 1 and self.better(k - 1, k):
            k -= 1

    def only_one_rank(self, k: int) -> bool:
        """Return whether a fit of rank k shows how many components there are, and try that rank.

        It must show the same number with the penalties of that rank, if they differ: a target
        without noise has none, and those of the first fit hide small components.
        """
        dof = self.options.dof(self.d, k)
        if self.few_features:
            return False  # other ranks cost little
        if self.observations < ROWS_PER_PARAMETER * dof:
            return False
        first_alpha = self.start(k)[1]
        first = self.clear_components(k, first_alpha)
        if not first:
            return False
        candidate = self.candidate(first)
        alpha = (0.0, 0.0) if candidate is None else candidate.alpha
        alpha = (alpha[0], alpha[1] * k / first)
        is_far = max(alpha) == 0 or abs(log(alpha[1] / first_alpha[1])) > NEAR
        if is_far and first != self.clear_components(k, alpha):
            return False
        if self.sizes[first - 1] < SURE:
            self.candidate(first - 1)
        return True

    def clear_components(self, k: int, alpha: Alpha) -> int:
        """Return how many components of a fit of rank k stand out, or 0 if there is any doubt."""
        options = replace(self.loose(k), alpha=alpha)
        solution, white = self.fit(options, self.draft)
        self.draft = finished(solution).model
        error = self.options.dof(self.d, k) / self.observations
        self.sizes = sizes = component_sizes(solution, white, options, error)
        last = (sizes[:-1] > SEEN) & (sizes[1:] < np.minimum(SEEN, GAP * sizes[:-1]))
        return int(np.argmax(last)) + 1 if last.any() else 0

    def within_reach(self, k: int, most: int) -> bool:
        """Return whether the evidence may reach what a low rank must have, given its rise at k + 1.

        Components are sorted by size, so each adds less than the one before, by the same factor as
        the last one did, but no less than four fifths. (The last component of a target without
        noise adds most.)
        """
        products = self.tried.get(self.d)
        if products is None or products.noise <= NO_NOISE:
            return True
        rise, before = self.evidence(k + 1) - self.evidence(k), self.tried.get(k - 1)
        last = rise if before is None else self.evidence(k) - before.evidence
        share = min(max(rise / last, LEAST_SHARE), 1.0) if last > 0 else 1.0
        return self.evidence(k) + rise * sum(share**j for j in range(most - k)) >= self.least

    def should_rise(self, k: int, most: int) -> bool:
        """Return whether one more is so much better that still higher ranks are worth a try."""
        clear = k < most and self.evidence(k + 1) >= self.evidence(k) + CLEARLY
        return clear and self.within_reach(k, most)

    def better(self, k: int, other: int) -> bool:
        """Return whether a rank is at least as good as another."""
        return self.evidence(k) >= self.evidence(other)

    def evidence(self, k: int) -> float:
        """Return the log evidence of a rank."""
        candidate = self.candidate(k)
        return -inf if candidate is None else candidate.evidence

    def most(self) -> int:
        """Return the largest low rank with no more parameters than rows, and a small matrix."""
        ranks = range(min(MOST_RANK, self.d - 1), 0, -1)
        dof = {k: self.options.dof(self.d, k) for k in ranks}
        most = min(self.weight, self.observations, EXACT_COLUMNS)
        return next((k for k in ranks if dof[k] <= most), 0)

    @property
    def linear_candidates(self) -> list[Candidate]:
        """Return ridge regression and, if they were tried, all products."""
        return [c for c in (self.tried.get(k) for k in (0, self.d)) if c is not None]

    @property
    def least(self) -> float:
        """Return the merit that a structure must have."""
        linear = self.linear_candidates
        return max(c.merit for c in linear) + CLEARLY * (len(linear) > 1 and self.plain)
