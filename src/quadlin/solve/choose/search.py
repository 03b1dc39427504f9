r"""The choice of what is fitted: evidence proposes a rank and penalties, rows left out must agree.

Candidates are a model without products (rank 0), all products (rank d, if a matrix of them fits in
memory) and low ranks, from a moderate one down or up as long as the evidence rises. With fewer than
100 rows per parameter, rows that are left out one at a time must agree: the evidence assumes that
the noise has the law of the loss and that the model is true, but a few extreme rows may cause a
quadratic part that does not hold for the other rows.

The search is the same for every loss. What is fitted, and the linear model around a fit, are those
of its `Task`: least squares, or the likelihood of labels or counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, log, sqrt
from typing import Generic, Protocol, TypeVar

import numpy as np

from quadlin.core.model import Model, with_rank
from quadlin.core.units import Units
from quadlin.solve.choose.penalties import TIE, maximised
from quadlin.solve.choose.residual_spectrum import ResidualSpectrum
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Alpha
from quadlin.solve.lowrank.linear_model import Evidence, LinearModel, log_volume
from quadlin.solve.lowrank.types import NO_NOISE, Options

ROUNDS, SETTLED = 6, 0.5  # of fit and penalties, and the change of log α that ends them
CLEAR = 20.0  # log evidence of a quadratic part that exists, and that no penalties make up for
BEGIN = 0.2  # first α₂/n: about that of a component that barely stands out from the noise
BEGINS = (BEGIN, BEGIN / 50)
FIRST = (-9.0, -5.0, -2.0, 0.0, 2.0)  # log α₁/n of first trials
MARGIN = 2.0  # of log evidence, to accept a quadratic part: noise reaches it in one of 20 tables
CLEARLY = 3.0  # log odds, 20 to 1, by which a structure must be better than ridge regression
MANY_ROWS = 100  # per parameter: with so many, a fit cannot rest on a few rows
FIRST_RANK, MOST_RANK = 4, 16
LOOSE_TOL, LOOSE_STEPS = 1e-4, 8  # of fits whose evidence is compared
NEAR = 10.0  # the ratio of penalties that share a whitener
LOOSE_ERROR = 0.005  # of a statistical error: a better fit would gain less than 1 in evidence


@dataclass(frozen=True)
class Candidate:
    """A rank with its best penalties."""

    rank: int
    evidence: float
    alpha: Alpha
    noise: float  # σ², of the standardised target
    linear: LinearModel  # from which the evidence was computed
    model: Model | None = None  # if it was fitted for that

    @property
    def parameters(self) -> int:
        """Return the number of parameters except the intercept."""
        return sum(self.linear.sizes)

    @property
    def merit(self) -> float:
        """Return the evidence, less the advantage that a quadratic part must have."""
        return self.evidence - MARGIN * (self.rank > 0)


class Task(Protocol):
    """What a search asks of a loss and its rows."""

    units: Units
    options: Options
    n_rows: int
    weight: float
    observations: float  # how many observations the rows are
    few_features: bool  # whether all ranks come from the sums of one pass
    margin: float  # log evidence by which a low rank must exceed what is linear in its parameters

    @property
    def spectrum(self) -> ResidualSpectrum | None:
        """Return what residuals show about low ranks; None if nothing."""

    def linear(self, rank: int, ridge: Candidate | None) -> tuple[LinearModel, Evidence] | None:
        """Return the model of rank 0 or d, and its best evidence; None if it needs other fits.

        `ridge` is the candidate of rank 0, with which the search for that of rank d begins.
        """

    def fit_roughly(self, rank: int, alpha: Alpha, model: Model | None) -> Model:
        """Fit a rank well enough to compare its evidence."""

    def around(self, model: Model, alpha: Alpha) -> tuple[LinearModel, float]:
        """Return the linear model around a fit, and what to add to its evidence."""

    def least_alpha(self, rank: int) -> Alpha:
        """Return the smallest penalties that may be chosen."""

    def left_out(self, candidate: Candidate) -> np.ndarray:
        """Return the loss of each observation when it is left out."""

    def prefers_products(self, gain: float, losses: np.ndarray, others: np.ndarray) -> bool:
        """Return whether all products are better than none, by evidence and by left-out rows."""


T = TypeVar("T", bound=Task)


@dataclass
class Search(Generic[T]):
    """The candidates so far, and the rules by which one of them is chosen."""

    task: T
    tried: dict[int, Candidate | None] = field(default_factory=dict)
    losses: dict[tuple[int, Alpha], np.ndarray] = field(default_factory=dict)  # of rows left out

    def __post_init__(self) -> None:
        self.d = int(self.task.units.scale.shape[0])
        self.options = self.task.options

    # The candidates.

    def candidates(self) -> list[Candidate]:
        """Return the candidates that have been tried."""
        return [c for c in self.tried.values() if c is not None]

    def candidate(self, k: int) -> Candidate | None:
        """Return a rank with its best penalties, or None if its matrix is too large."""
        if k not in self.tried:
            ridge = self.ridge() if k == self.d > 0 else None
            found = self.task.linear(k, ridge) if k in (0, self.d) else None
            if found is not None:
                self.tried[k] = self._noted(k, found[1], None, found[0])
            else:
                large = k == self.d and self.options.dof(k, k) > EXACT_COLUMNS
                self.tried[k] = None if large else self._alternate(k)
        return self.tried[k]

    def ridge(self) -> Candidate:
        """Return the model without products."""
        ridge = self.candidate(0)
        assert ridge is not None
        return ridge

    def _alternate(self, k: int) -> Candidate:
        """Fit a rank and find its penalties, alternately."""
        task, rival, least = self.task, self._best_low_rank(), self.task.least_alpha(k)
        model, alpha = self._start(k)
        further = BEGINS if k and (model is None or rival is None) else ()
        for _ in range(ROUNDS):
            model = task.fit_roughly(k, alpha, model)
            linear, excess = task.around(model, alpha)
            before = np.log(linear.of_groups(alpha))
            begin = (before - log(max(linear.weight, 1.0))).tolist()
            starts = [begin, *([*begin[:-1], log(second)] for second in further)]
            best, further = maximised(linear, starts), ()
            floor = np.log(np.maximum(linear.of_groups(least), 1e-300))
            if np.any(best.log_alpha < floor):
                best = linear.at(np.maximum(best.log_alpha, floor))
            candidate = self._noted(k, best, model, linear, excess)
            alpha = candidate.alpha
            settled = np.max(np.abs(best.log_alpha - before)) <= SETTLED
            if settled or (rival is not None and candidate.evidence < rival.evidence - CLEAR):
                break
        return candidate

    def _best_low_rank(self) -> Candidate | None:
        low = [c for c in self.candidates() if self.is_low(c)]
        return max(low, key=lambda c: c.evidence, default=None)

    def _start(self, k: int) -> tuple[Model | None, Alpha]:
        """Return a first model and first penalties: those of the next higher rank, if any.

        Those of the first rank follow from the components that the residual of ridge regression
        shows.
        """
        weight = self.task.weight
        if not k:
            return None, (float(np.exp(FIRST[2])) * weight,) * 2
        low = [c for c in self.candidates() if self.is_low(c) and c.model is not None]
        higher = min((c for c in low if c.rank > k), key=lambda c: c.rank, default=None)
        if k < self.d and higher is not None and higher.model is not None:
            first, second = higher.alpha  # the same |M|² from fewer parameters
            return with_rank(higher.model, k), (first, second * k / higher.rank)
        if low:
            lower = max(low, key=lambda c: c.rank)
            return lower.model if self.task.few_features else None, lower.alpha
        linear, seen = self.tried.get(self.d) or self.ridge(), self.task.spectrum
        first = max(linear.alpha[0], 1e-8 * weight)
        if seen is not None and seen.components:
            remaining, second = seen.expected(min(k, seen.components))
            return None, (first * remaining, second * weight)
        second = linear.alpha[1] / weight if linear.rank else inf
        return None, (first, min(max(second, BEGINS[1]), BEGIN) * weight)

    def _noted(
        self, k: int, best: Evidence, model: Model | None, linear: LinearModel, excess: float = 0.0
    ) -> Candidate:
        """Return a candidate; its evidence is reduced for the volume of rank-k matrices."""
        share = float(best.determined[-1]) / (self.d * k - k * (k - 1) // 2) if k else 0.0
        evidence = best.log_evidence + excess - share * log_volume(self.d, k)
        alpha = float(np.exp(best.log_alpha[0])), float(np.exp(best.log_alpha[-1]))
        return Candidate(k, evidence, alpha, best.noise, linear, model)

    def evaluate(self, model: Model, alpha: Alpha) -> Candidate:
        """Return the candidate around a model that was fitted with these penalties."""
        k = int(model.s.shape[0])
        if k in (0, self.d):
            candidate = self.candidate(k)
            assert candidate is not None
            return candidate
        alpha = max(alpha[0], 1e-9 * self.task.weight), max(alpha[1], 1e-9 * self.task.weight)
        linear, excess = self.task.around(model, alpha)
        begin = (np.log(linear.of_groups(alpha)) - log(max(linear.weight, 1.0))).tolist()
        starts: list[Sequence[float]] = [begin, *([*begin[:-1], log(b)] for b in BEGINS)]
        return self._noted(k, maximised(linear, starts), model, linear, excess)

    # Which candidates are tried.

    def best(self, given: int | None = None) -> Candidate | None:
        """Return the best candidate, or that of a given rank; None if its matrix is too large."""
        if given is not None:
            return self.candidate(given)
        task = self.task
        ridge, most = self.ridge(), self.most()
        if ridge.noise <= NO_NOISE and task.observations > 2 * (self.d + 1):
            return ridge  # it predicts the target exactly
        few = self.d * (self.d + 3) // 2 <= min(task.n_rows, EXACT_COLUMNS)
        plain, spectrum = self.options.plain, task.spectrum
        products = self.d > 0 and (plain or few)  # the matrix n×n is of the plain model
        if products and few and spectrum is None:
            self.candidate(self.d)  # it costs little, and gives the other ranks a start
        clear = 0 if spectrum is None else spectrum.components
        if most > 0 and not (spectrum is not None and spectrum.is_noise):
            self._climb(min(clear + 1 if clear else FIRST_RANK, most), most, max(clear, 1))
        low = self._best_low_rank()
        if low is not None and low.rank == clear and low.merit > ridge.merit:
            return low  # the spectrum, in which extreme rows count little, and the evidence agree
        if products and not any(self.is_exact(c) for c in self.candidates()):
            self.candidate(self.d)
        return self._decided()

    def most(self) -> int:
        """Return the largest low rank with no more parameters than rows."""
        most = min(self.task.weight, self.task.observations)
        ranks = range(min(MOST_RANK, self.d - 1), 0, -1)
        return next((k for k in ranks if self.options.dof(self.d, k) <= most), 0)

    def _climb(self, k: int, most: int, least: int) -> None:
        """Double the rank while one more is better, then lower it while the evidence rises."""
        self.candidate(k)
        down = k > least and self._is_better(k - 1, k)
        while not down and k < most and self._evidence(k + 1) >= self._evidence(k) + CLEARLY:
            k = min(2 * k, most)
        while k > least and self._is_better(k - 1, k):
            k -= 1

    def _is_better(self, k: int, other: int) -> bool:
        return self._evidence(k) >= self._evidence(other)

    def _evidence(self, k: int) -> float:
        candidate = self.candidate(k)
        return -inf if candidate is None else candidate.evidence

    # Which candidate is chosen.

    def is_exact(self, candidate: Candidate) -> bool:
        """Return whether the fit is exact, although it has fewer parameters than rows."""
        exact = candidate.noise <= NO_NOISE
        return exact and self.task.observations > candidate.parameters

    def is_low(self, candidate: Candidate) -> bool:
        """Return whether a candidate has a low rank."""
        return 0 < candidate.rank < self.d

    def has_many_rows(self, candidate: Candidate) -> bool:
        """Return whether there are so many rows that the evidence needs no check."""
        return self.task.observations >= MANY_ROWS * candidate.parameters

    def by_merit(self) -> list[Candidate]:
        """Return the candidates, the best first; of several that tie, the lowest rank first."""
        top = max(c.merit for c in self.candidates())
        return sorted(self.candidates(), key=lambda c: (max(top - c.merit, TIE), c.rank))

    def _decided(self) -> Candidate:
        """Return ridge regression, all products or a low rank.

        The evidence decides where rows are many. Otherwise rows that are left out must confirm that
        products, or a low rank of larger evidence, predict better than ridge regression.
        """
        ridge, products, ranked = self.ridge(), self.tried.get(self.d), self.by_merit()
        if any(self.is_exact(c) for c in ranked):
            return ranked[0]
        linear = [c for c in (ridge, products) if c is not None]
        least = max(c.merit for c in linear) + self.task.margin * (len(linear) > 1)
        low = next((c for c in ranked if self.is_low(c) and c.merit >= least), None)
        if low is not None and all(self.has_many_rows(c) for c in (low, products) if c):
            return low
        best = self._better_linear(ridge, products)
        return low if low is not None and self.confirmed(self.left_out(low), best) else best

    def _better_linear(self, ridge: Candidate, products: Candidate | None) -> Candidate:
        """Return ridge regression, or all products if they predict left-out rows surely better.

        They are one family: as the penalty of M grows to infinity, all products become ridge
        regression.
        """
        if products is None:
            return ridge
        if self.has_many_rows(products):
            return products if products.merit > ridge.merit else ridge
        gain = products.evidence - ridge.evidence
        losses, others = self.left_out(products), self.left_out(ridge)
        return products if self.task.prefers_products(gain, losses, others) else ridge

    def left_out(self, candidate: Candidate) -> np.ndarray:
        """Return the loss of each observation when it is left out."""
        key = candidate.rank, candidate.alpha
        if key not in self.losses:
            self.losses[key] = self.task.left_out(candidate)
        return self.losses[key]

    def confirmed(self, losses: np.ndarray, other: Candidate, log_tried: float = 0.0) -> bool:
        """Return whether left-out rows confirm a structure with these losses.

        It must be no worse than the alternative, which may have more parameters, and surely better
        than ridge regression, which has fewer. `log_tried` is the log of the number of structures
        that it was chosen from.
        """
        others = self.left_out(self.ridge())
        no_worse = float(losses.sum()) <= float(self.left_out(other).sum())
        return no_worse and surely_less(losses, others, CLEARLY + log_tried)


def rough(options: Options, rank: int, alpha: Alpha, d: int, observations: float) -> Options:
    """Return the options of a rough fit, whose evidence is compared."""
    tol = max(LOOSE_TOL, options.tol, LOOSE_ERROR * options.dof(d, rank) / observations)
    return replace(options, rank=rank, alpha=alpha, tol=tol, max_iter=LOOSE_STEPS)


def surely_less(losses: np.ndarray, others: np.ndarray, log_odds: float = CLEARLY) -> bool:
    """Return whether a model is surely better than another at predicting left-out rows.

    With Gaussian noise, log odds of G for a model mean that it lowers the sum of squares by √(G/2)
    standard errors. If a few rows contribute most of that sum, they say less about new rows than
    the evidence assumes: a single row cannot gain more than one standard error.
    """
    saved = others - losses
    return float(saved.sum()) > sqrt(log_odds / 2) * float(np.linalg.norm(saved))
