"""The candidates whose evidence is compared: ranks, each with its best penalties and a rough fit.

With few features one pass is enough for all ranks (`ProductGram`). Otherwise each rank takes passes
of its own, and starts from a neighbouring rank.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, log, sqrt

import numpy as np

from quadlin.core.arrays import Array, to_numpy
from quadlin.core.model import Model, with_rank
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.choose.penalties import maximised
from quadlin.solve.choose.residual_spectrum import ResidualSpectrum, residual_spectrum
from quadlin.solve.lowrank.design import EXACT_COLUMNS, EXACT_ENTRIES, Alpha, Design
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.linear_model import Evidence, Gram, Kernel, LinearModel
from quadlin.solve.lowrank.polish import OnStep, polish
from quadlin.solve.lowrank.product_gram import FEW, ProductGram, product_gram
from quadlin.solve.lowrank.types import NO_NOISE, Options, Problem, Solution, finished
from quadlin.solve.lowrank.volume import log_volume
from quadlin.solve.lowrank.whitening import Covariance, Whitener, whitener

KERNEL_ROWS = 1500  # most rows for which all products are tried if they outnumber the rows
KERNEL_START = 250  # rows that give the first penalties
ROUNDS, SETTLED = 3, 0.5  # of fit and penalties, and the change of log α that ends them
NOTHING = 0.5  # parameters of M that the rows determine; with fewer, there is no M
CLEAR = 20.0  # log evidence of a quadratic part that exists, and that no penalties make up for
LOOSE_TOL, LOOSE_STEPS = 1e-4, 8  # of fits whose evidence is compared
LOOSE_ERROR = 0.005  # of a statistical error: a better fit would gain less than 1 in evidence
BEGIN = 0.2  # first α₂/n: about that of a component that barely stands out from the noise
FIRST, SECOND = (-9.0, -5.0, -2.0, 0.0, 2.0), (-9.0, -5.0, -2.0, 1.0)  # log α₁/n and log α₂/n
NO_PENALTY = -25.0  # log α₁/n without noise, far below the others
NEAR = 10.0  # penalties that round to the same power of it share a whitener
MARGIN = 2.0  # of log evidence, to accept a quadratic part: noise reaches it in one of 20 tables
CLEARLY = 3.0  # log odds, 20 to 1, by which a structure must be better than ridge regression
LIKELY = 2.0  # log odds of products over a ridge, or a ridge over the mean: one standard error
CHEAP_EIGENVECTORS = 700  # most columns, or rows, for which factors on penalties are tried
FACTORS = [1.0, 10.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5]  # of penalties that left-out rows compare
WORTH = 0.99  # of the error of left-out rows: what other penalties must reach


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
    def key(self) -> tuple[int, Alpha]:
        """Return what distinguishes candidates on the same rows."""
        return self.rank, self.alpha

    @property
    def parameters(self) -> int:
        """Return the number of parameters except the intercept."""
        return sum(self.linear.sizes)

    @property
    def merit(self) -> float:
        """Return the evidence, less the advantage that a quadratic part must have."""
        return self.evidence - MARGIN * (self.rank > 0)


@dataclass
class Candidates:
    """The candidates so far, and the fits that they come from."""

    rows: Rows
    units: Units
    options: Options
    n_rows: int
    weight: float
    seed: int
    tried: dict[int, Candidate | None] = field(default_factory=dict)
    squares: dict[tuple[int, Alpha], np.ndarray] = field(default_factory=dict)  # of rows left out
    sized_alpha: dict[tuple[int, Alpha], Alpha] = field(default_factory=dict)  # best for them
    empty: set[tuple[int, Alpha]] = field(default_factory=set)  # without M, except for rounding
    draft: Model | None = None  # a model whose leading components are the start of lower ranks
    white: Whitener | None = None
    white_ridge: float = 0.0  # the ridge that the whitener was made for

    def __post_init__(self) -> None:
        self.d = int(self.units.scale.shape[0])
        self.plain = self.options.plain  # rank d is linear in its parameters
        # Whether one pass for all products costs less than the passes that it saves.
        self.few_features = 0 < self.d <= FEW

    @property
    def observations(self) -> float:
        """Return how many observations the rows are."""
        return self.weight

    @cached_property
    def products(self) -> ProductGram | None:
        """Return the sums of all products, from one pass, if features are few; otherwise None."""
        return product_gram(self.rows, self.units, self.options) if self.few_features else None

    @cached_property
    def features(self) -> Gram:
        """Return the linear model without M, from the products of all features: one pass."""
        if "products" in self.__dict__ and self.products is not None:  # computed already
            return self.products.tangent(np.zeros((self.d, 0)))
        return Gram.of(self.rows, Design.of_rank(0, self.units, self.options))

    @property
    def covariance(self) -> Covariance | None:
        """Return Σ of the features, if it is known."""
        return None if self.by_rows else self.features.covariance()

    @property
    def by_rows(self) -> bool:
        """Return whether a matrix of the rows is smaller than one of the features, and enough."""
        return self.plain and self.d > max(EXACT_COLUMNS, self.n_rows)

    @cached_property
    def spectrum(self) -> ResidualSpectrum | None:
        """Return the spectrum of the residual of ridge regression; None if it is not needed.

        It is not used for levels: those of one column never occur together, so noise has fewer
        products than its law counts, and the law hides components that stand out.
        """
        ridge, levels = self.ridge(), bool(np.any(to_numpy(self.units.penalty_scale) != 1))
        needless = self.few_features or self.by_rows or levels or not self.plain
        if needless or ridge.noise <= NO_NOISE or not isinstance(ridge.linear, Gram):
            return None
        return residual_spectrum(self.rows, ridge.linear, ridge.alpha, ridge.noise)

    def linear_model(self, U: Array) -> Gram:
        """Return the linear model on the tangent space at the span of U (d, k)."""
        if self.products is None:
            return Gram.of(self.rows, Design.at(U, self.units, self.options))
        return self.products.tangent(self.products.rho[:, None] * to_numpy(U))

    def candidates(self) -> list[Candidate]:
        """Return the candidates that have been tried."""
        return [c for c in self.tried.values() if c is not None]

    def is_exact(self, candidate: Candidate) -> bool:
        """Return whether the fit is exact, although it has fewer parameters than rows."""
        return candidate.noise <= NO_NOISE and self.observations > candidate.parameters

    def is_ridge(self, products: Candidate) -> bool:
        """Return whether the penalty of M reduces all products to ridge regression."""
        return products.key in self.empty and self.options.loss == "squared"

    def candidate(self, k: int) -> Candidate | None:
        """Return a rank with its best penalties, or None if its matrix is too large."""
        if k not in self.tried:
            ways = {0: self.ridge, self.d: self.all_products}
            self.tried[k] = ways[k]() if k in ways else self.low_rank(k)
        return self.tried[k]

    def ridge(self) -> Candidate:
        """Return ridge regression."""
        ridge = self.tried.get(0)
        if ridge is None:
            linear = Kernel.of(self.rows, self.units, True) if self.by_rows else self.features
            best = maximised(linear, [(a,) for a in (NO_PENALTY, *FIRST)])
            ridge = self.tried[0] = self.noted(0, best, None, linear)
        return ridge

    def all_products(self) -> Candidate | None:
        """Return ridge regression on all products, from the smaller of two matrices."""
        d, first = self.d, log(self.ridge().alpha[0] / self.weight)
        starts: list[tuple[float, ...]] = [(first - 1, second) for second in SECOND]
        linear: LinearModel
        if d * (d + 3) // 2 <= min(self.n_rows, EXACT_COLUMNS):
            U = self.units.array(np.eye(d))
            linear = self.linear_model(U)
            starts = [start[-len(linear.sizes) :] for start in starts]  # without w, only that of M
        elif self.n_rows > KERNEL_ROWS or self.n_rows * d > EXACT_ENTRIES:
            return None
        else:
            linear = kernel = Kernel.of(self.rows, self.units)
            if self.n_rows > KERNEL_START:
                # The content of the rows, not their order, determines which rows come first.
                direction = np.random.default_rng(self.seed).standard_normal(d)
                key = np.sin(1e3 * (kernel.Z @ direction))
                few = maximised(kernel.some(np.argsort(key)[:KERNEL_START]), starts).log_alpha
                starts = [tuple((few - log(kernel.weight)).tolist())]
        rival = max(c.evidence for c in self.candidates())
        return self.noted(d, maximised(linear, starts, rival), None, linear)

    def best_low_rank(self) -> Candidate | None:
        """Return the low rank of largest evidence so far."""
        low = [c for c in self.candidates() if 0 < c.rank < self.d]
        return max(low, key=lambda c: c.evidence, default=None)

    def low_rank(self, k: int) -> Candidate:
        """Fit a low rank and find its penalties, alternately."""
        model, alpha = self.start(k)
        model = self.extended(k, alpha) if model is None else model
        options, rival = self.loose(k), self.best_low_rank()
        further = (BEGIN, BEGIN / 50) if model is None or rival is None else ()
        for _ in range(ROUNDS):
            model = self.near_optimum(replace(options, alpha=alpha), model)
            linear = self.linear_model(model.U)
            before = np.log(linear.of_groups(alpha))
            begin = (before - log(linear.weight)).tolist()
            starts = [begin, *([*begin[:-1], log(second)] for second in further)]
            best = maximised(linear, starts)
            candidate = self.noted(k, best, model, linear)
            alpha, further = candidate.alpha, ()
            if candidate.key in self.empty:  # M need not be fitted again: this much of it remains
                factor = float(np.exp(before[-1] - best.log_alpha[-1]))
                return replace(candidate, model=replace(model, s=factor * model.s))
            settled = np.max(np.abs(best.log_alpha - before)) <= SETTLED
            if settled or (rival is not None and candidate.evidence < rival.evidence - CLEAR):
                break
        return candidate

    def start(self, k: int) -> tuple[Model | None, Alpha]:
        """Return a first model and first penalties: those of the next higher rank, if any.

        Those of the first rank follow from the components that the residual of ridge regression
        shows.
        """
        low = [c for c in self.candidates() if 0 < c.rank < self.d]
        higher = min((c for c in low if c.rank > k), key=lambda c: c.rank, default=None)
        if higher is not None and higher.model is not None:
            first, second = higher.alpha  # the same |M|² from fewer parameters
            return with_rank(higher.model, k), (first, second * k / higher.rank)
        if low:
            return None, max(low, key=lambda c: c.rank).alpha
        draft = self.draft
        model = None if draft is None or draft.s.shape[0] < k else with_rank(draft, k)
        linear, seen = self.tried.get(self.d) or self.ridge(), self.spectrum
        first = max(linear.alpha[0], 1e-8 * self.weight)
        if seen is not None and seen.components:
            remaining, second = seen.expected(min(k, seen.components))
            return model, (first * remaining, second * self.weight)
        second = linear.alpha[1] / self.weight if linear.rank else inf
        return model, (first, min(max(second, BEGIN / 50), BEGIN) * self.weight)

    def extended(self, k: int, alpha: Alpha) -> Model | None:
        """Return the next lower rank, extended to fit its residual; None with many features."""
        low = [c.model for c in self.candidates() if c.rank < k and c.model is not None]
        if (gram := self.products) is None or not low:
            return None
        lower = max(low, key=lambda model: int(model.s.shape[0]))
        return gram.model(gram.extended(gram.of(lower, alpha), k, alpha), alpha)

    def noted(self, k: int, best: Evidence, model: Model | None, linear: LinearModel) -> Candidate:
        """Return a candidate; its evidence is reduced for the volume of rank-k matrices."""
        share = float(best.determined[-1]) / (self.d * k - k * (k - 1) // 2) if k else 0.0
        cost = share * log_volume(self.d, k)
        alpha = float(np.exp(best.log_alpha[0])), float(np.exp(best.log_alpha[-1]))
        if k and best.determined[-1] < NOTHING:
            self.empty.add((k, alpha))
        return Candidate(k, best.log_evidence - cost, alpha, best.noise, linear, model)

    def loose(self, k: int) -> Options:
        """Return the options of a rough fit of a rank, whose evidence is compared."""
        dof = self.options.dof(self.d, k)
        tol = max(LOOSE_TOL, self.options.tol, LOOSE_ERROR * dof / self.observations)
        return replace(self.options, rank=k, tol=tol, max_iter=LOOSE_STEPS)

    def near_optimum(self, options: Options, warm: Model | None) -> Model:
        """Fit a rank well enough to compare its evidence."""
        gram, alpha = self.products, options.alpha
        if gram is None:
            return finished(self.fit(options, warm)[0]).model
        if warm is None:
            return gram.model(gram.best(options.rank, alpha, options.tol), alpha)
        p = gram.descended(gram.of(warm, alpha), alpha, options.max_iter, options.tol)
        return gram.model(p, alpha)

    def fit(
        self, options: Options, warm: Model | None, on_step: OnStep = None
    ) -> tuple[Solution, Whitener]:
        """Fit a rank with given penalties."""
        rng, ridge = np.random.default_rng(self.seed), options.alpha[0] / self.weight
        if ridge > 0:  # rounded, so that earlier fits do not matter
            ridge = NEAR ** round(log(ridge, NEAR))
        if self.white is None or ridge != self.white_ridge:
            args = (self.rows, self.units, ridge, rng, self.covariance)
            self.white, self.white_ridge = whitener(*args), ridge
        problem = self.problem(options)
        return follow(problem, polish(problem, self.white, warm), on_step), self.white

    def problem(self, options: Options, worthless: float = 0.0) -> Problem:
        """Return the problem of a rank with given penalties."""
        rng = np.random.default_rng(self.seed)
        error = options.dof(self.d, options.rank) / self.observations
        centred = self.rows.share == 1
        return Problem(self.rows, self.units, options, rng, worthless, error, centred)

    def left_out(self, candidate: Candidate) -> float:
        """Return the mean squared error of rows left out one at a time."""
        return float(self.left_out_squares(candidate).sum()) / self.weight

    def left_out_squares(self, candidate: Candidate) -> np.ndarray:
        """Return ωe² of each row of positive weight when it is left out."""
        if candidate.key not in self.squares:
            self.squares[candidate.key] = self.squares_by_factors(candidate, [1.0])[:, 0]
        return self.squares[candidate.key]

    def squares_by_factors(self, candidate: Candidate, factors: list[float]) -> np.ndarray:
        """Return ωe² of each row left out, for multiples of the penalties: one pass."""
        return candidate.linear.left_out(self.rows, candidate.alpha, factors).squares

    def is_cheap(self, candidate: Candidate) -> bool:
        """Return whether other penalties may be tried."""
        linear = candidate.linear
        size = len(linear.y) if isinstance(linear, Kernel) else candidate.parameters
        return size <= CHEAP_EIGENVECTORS

    def sized(self, candidate: Candidate) -> Candidate:
        """Return the candidate with smaller or larger penalties, if they are better.

        They are tried on left-out rows, since the evidence assumes that the noise is Gaussian.
        """
        if not self.is_cheap(candidate):
            return candidate
        if candidate.key not in self.sized_alpha:
            squares = self.squares_by_factors(candidate, FACTORS)
            errors = squares.sum(axis=0)
            best = int(np.argmin(errors)) if errors.min() < WORTH * errors[0] else 0
            first, second = candidate.alpha
            alpha = (first * FACTORS[best], second * FACTORS[best])
            self.sized_alpha[candidate.key] = alpha
            self.squares[candidate.rank, alpha] = squares[:, best].copy()
        return replace(candidate, alpha=self.sized_alpha[candidate.key])


def surely_less(squares: np.ndarray, others: np.ndarray, log_odds: float = CLEARLY) -> bool:
    """Return whether a model is surely better than another at predicting left-out rows.

    With Gaussian noise, log odds of G for a model mean that it lowers the sum of squares by √(G/2)
    standard errors. If a few rows contribute most of that sum, they say less about new rows than
    the evidence assumes: a single row cannot gain more than one standard error.
    """
    saved = others - squares
    return float(saved.sum()) > sqrt(log_odds / 2) * float(np.linalg.norm(saved))
