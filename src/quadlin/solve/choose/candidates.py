"""The candidates whose evidence is compared: ranks, each with its best penalties and a rough fit.

With few features one pass is enough for all ranks (`ProductGram`). Otherwise each rank takes passes
of its own, and starts from a neighbouring rank.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, log

import numpy as np

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.model import Model, with_rank
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.choose.penalty_search import far_behind, maximised, maximised_from_few
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.evidence import Evidence, RowKernel, log_volume
from quadlin.solve.lowrank.exact import EXACT_COLUMNS, EXACT_ENTRIES, Alpha
from quadlin.solve.lowrank.polish import OnStep, polish
from quadlin.solve.lowrank.product_gram import FEW, ProductGram, product_gram
from quadlin.solve.lowrank.tangent_gram import Candidate, TangentGram, product_kernel, tangent_gram
from quadlin.solve.lowrank.types import NO_NOISE, Options, Problem, Solution, finished
from quadlin.solve.lowrank.whitening import Covariance, Whitener, whitener

CHEAP_COLUMNS = 1000  # products whose matrix is small
KERNEL_ROWS = 1500  # most rows for which all products are tried if they outnumber the rows
KERNEL_START = 250  # rows that give the first penalties
ROUNDS, SETTLED = 3, 0.5  # of fit and penalties, and the change of log α that ends them
NOTHING = 0.5  # parameters of M that the rows determine; with fewer, there is no M
BEHIND = 20.0  # difference of log evidence that other penalties cannot make up for
CERTAIN = 100.0  # log odds that leave no doubt
LOOSE_TOL, LOOSE_STEPS = 1e-4, 8  # of fits whose evidence is compared
LOOSE_ERROR = 0.005  # of a statistical error: a better fit would gain less than 1 in evidence
BEGIN = 0.2  # first α₂/n: about that of a component that barely stands out from the noise
FIRST, SECOND = (-9.0, -5.0, -2.0, 0.0, 2.0), (-9.0, -5.0, -2.0, 1.0)  # log α₁/n and log α₂/n
NO_PENALTY = -25.0  # log α₁/n without noise, far below the others
NEAR = 10.0  # penalties that round to the same power of it share a whitener


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
    latest: Candidate | None = None  # a low rank whose penalties may not have settled yet
    draft: Model | None = None  # a model whose leading components are the start of lower ranks
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0))  # of its components
    white: Whitener | None = None
    white_ridge: float = 0.0  # the ridge that the whitener was made for
    reached: float = -inf  # log evidence of a rival outside this search
    thorough: bool = True  # whether the last fit starts from many points

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
        if not self.few_features:
            return None
        return product_gram(self.rows, self.units, self.options)

    @cached_property
    def features(self) -> TangentGram:
        """Return the linear model without M, from the products of all features: one pass."""
        U = namespace(self.units.scale).reshape(self.units.scale[:0], (self.d, 0))
        if "products" in self.__dict__:  # they have been computed already
            return self.linear_model(U)
        return tangent_gram(self.rows, self.units, self.options, U)

    @property
    def covariance(self) -> Covariance | None:
        """Return Σ of the features, if it is known."""
        return None if self.by_rows else self.features.covariance(self.units)

    @property
    def by_rows(self) -> bool:
        """Return whether a matrix of the rows is smaller than one of the features, and enough."""
        return self.plain and self.d > max(EXACT_COLUMNS, self.n_rows)

    def linear_model(self, U: Array) -> TangentGram:
        """Return the linear model on the tangent space at the span of U (d, k)."""
        if self.products is None:
            return tangent_gram(self.rows, self.units, self.options, U)
        return self.products.tangent(self.products.rho[:, None] * to_numpy(U))

    def candidates(self) -> list[Candidate]:
        """Return the candidates that have been tried."""
        return [c for c in self.tried.values() if c is not None]

    def is_exact(self, candidate: Candidate) -> bool:
        """Return whether the fit is exact, although it has fewer parameters than rows."""
        return candidate.noise <= NO_NOISE and self.observations > candidate.parameters

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
            args = (self.rows, self.units, self.weight, True)
            gram = product_kernel(*args) if self.by_rows else self.features
            model = gram if isinstance(gram, RowKernel) else gram.centred(self.weight)
            best = maximised(model, [(a,) for a in (NO_PENALTY, *FIRST)])
            ridge = self.tried[0] = self.noted(0, best, None, gram)
        return ridge

    def all_products(self) -> Candidate | None:
        """Return ridge regression on all products, from the smaller of two matrices."""
        d, xp = self.d, namespace(self.units.scale)
        starts = [(log(self.ridge().alpha[0] / self.weight) - 1, second) for second in SECOND]
        if d * (d + 3) // 2 <= min(self.n_rows, EXACT_COLUMNS):
            U = xp.eye(d, dtype=self.units.scale.dtype, device=self.units.scale.device)
            gram = self.linear_model(U)
            linear, low = gram.centred(self.weight), self.best_low_rank()
            groups, behind = len(linear.sizes), None  # without w, only that of M
            alpha, least = (self.ridge().alpha[0], BEGIN * self.weight), self.reached
            if low is not None:  # the same |M|² from more parameters
                alpha = low.alpha[0], low.alpha[1] * gram.basis.size / low.parameters
                least = max(least, low.evidence)
            if least > -inf:
                behind = far_behind(linear, np.log(alpha)[-groups:], least)
            best = behind or maximised(linear, [start[-groups:] for start in starts])
            return self.noted(d, best, None, gram)
        if self.n_rows > KERNEL_ROWS or self.n_rows * d > EXACT_ENTRIES:
            return None
        kernel = product_kernel(self.rows, self.units, self.weight)
        if self.n_rows > KERNEL_START:
            # The content of the rows, not their order, determines which rows come first.
            direction = np.random.default_rng(self.seed).standard_normal(d)
            assert kernel.table is not None
            key = np.sin(1e3 * (kernel.table.Z @ direction))
            subset = kernel.some(np.argsort(key)[:KERNEL_START])
            least = max(self.reached, *(c.evidence for c in self.candidates()))
            ridge = log(self.ridge().alpha[0])
            best = maximised_from_few(kernel, subset, starts, ridge, least)
            return self.noted(d, best, None, kernel)
        return self.noted(d, maximised(kernel, starts), None, kernel)

    def best_low_rank(self) -> Candidate | None:
        """Return the low rank of largest evidence so far."""
        low = [c for c in self.candidates() if 0 < c.rank < self.d]
        return max(low, key=lambda c: c.evidence, default=None)

    def extended(self, k: int, alpha: Alpha) -> Model | None:
        """Return the next lower rank, extended to fit its residual; None with many features."""
        low = [c.model for c in self.candidates() if c.rank < k and c.model is not None]
        if (gram := self.products) is None or not low:
            return None
        lower = max(low, key=lambda model: int(model.s.shape[0]))
        return gram.model(gram.extended(gram.of(lower, alpha), k, alpha), alpha)

    def low_rank(self, k: int) -> Candidate:
        """Fit a low rank and find its penalties, alternately."""
        model, alpha = self.start(k)
        model = self.extended(k, alpha) if model is None else model
        options, rival = self.loose(k), self.best_low_rank()
        further = (BEGIN, BEGIN / 50) if model is None or rival is None else ()
        for _ in range(ROUNDS):
            model = self.near_optimum(replace(options, alpha=alpha), model)
            tangent = self.linear_model(model.U)
            gram = tangent.centred(self.weight)
            before = np.log(alpha[-len(gram.sizes) :])
            begin = (before - log(gram.weight)).tolist()
            best = maximised(gram, [begin, *([*begin[:-1], log(second)] for second in further)])
            candidate = self.latest = self.noted(k, best, model, tangent)
            alpha, further = candidate.alpha, ()
            if candidate.key in self.empty:  # M need not be fitted again: this much of it remains
                factor = float(np.exp(before[-1] - best.log_alpha[-1]))
                return replace(candidate, model=replace(model, s=factor * model.s))
            settled = np.max(np.abs(best.log_alpha - before)) <= SETTLED
            if settled or (rival is not None and candidate.evidence < rival.evidence - BEHIND):
                break
        return candidate

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

    def noted(
        self, k: int, best: Evidence, model: Model | None, gram: TangentGram | RowKernel
    ) -> Candidate:
        """Return a candidate; its evidence is reduced for the volume of rank-k matrices."""
        share = float(best.determined[-1]) / (self.d * k - k * (k - 1) // 2) if k else 0.0
        cost = share * log_volume(self.d, k)
        alpha = float(np.exp(best.log_alpha[0])), float(np.exp(best.log_alpha[-1]))
        if k and best.determined[-1] < NOTHING:
            self.empty.add((k, alpha))
        return Candidate(k, best.log_evidence - cost, alpha, best.noise, gram, model)

    def start(self, k: int) -> tuple[Model | None, Alpha]:
        """Return a first model and first penalties: those of the next higher rank, if any."""
        low = [c for c in self.candidates() if 0 < c.rank < self.d]
        higher = min((c for c in low if c.rank > k), key=lambda c: c.rank, default=None)
        if higher is not None and higher.model is not None:
            first, second = higher.alpha  # the same |M|² from fewer parameters
            return with_rank(higher.model, k), (first, second * k / higher.rank)
        if low:
            return None, max(low, key=lambda c: c.rank).alpha
        linear = self.tried.get(self.d) or self.ridge()
        second = linear.alpha[1] / self.weight if linear.rank else inf
        second = min(max(second, BEGIN / 50), BEGIN)
        draft = self.draft
        model = None if draft is None or draft.s.shape[0] < k else with_rank(draft, k)
        return model, (max(linear.alpha[0], 1e-8 * self.weight), second * self.weight)

    def fit(
        self, options: Options, warm: Model | None, on_step: OnStep = None
    ) -> tuple[Solution, Whitener]:
        """Fit a rank with given penalties."""
        rng, ridge = np.random.default_rng(self.seed), options.alpha[0] / self.weight
        if ridge > 0:  # rounded, so that earlier fits do not matter
            ridge = NEAR ** round(log(ridge, NEAR))
        if self.white is None or ridge != self.white_ridge:
            args = (self.rows, self.units, options.whiten, ridge, rng, self.covariance)
            self.white, self.white_ridge = whitener(*args), ridge
        problem = self.problem(options)
        return follow(problem, polish(problem, self.white, warm), on_step), self.white

    def problem(self, options: Options, worthless: float = 0.0) -> Problem:
        """Return the problem of a rank with given penalties."""
        rng, error = (
            np.random.default_rng(self.seed),
            options.dof(self.d, options.rank) / self.observations,
        )
        centred = self.rows.share == 1
        return Problem(self.rows, self.units, options, rng, worthless, error, centred)
