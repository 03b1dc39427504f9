"""The fit that chooses rank and penalties: evidence proposes, left-out rows must agree.

Candidates are ridge regression (rank 0), all products (rank d, if a matrix of them fits in memory)
and low ranks, from a moderate one down or up as long as the evidence rises. With fewer than 100
rows per parameter, rows that are left out one at a time must agree, also on the size of the
penalties: the evidence assumes that the noise is Gaussian and the model true, but a few extreme
rows may cause a quadratic part that does not hold for the other rows. With more than 40 rows per
parameter, a sample of them chooses. The content of the rows determines the sample, so
their order does not matter.
"""

from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.model import Model
from quadlin.core.moments import survey
from quadlin.solve.choose.candidates import (
    CLEARLY,
    KERNEL_ROWS,
    LIKELY,
    ROUNDS,
    SETTLED,
    Candidate,
    Candidates,
    surely_less,
)
from quadlin.solve.choose.penalties import CERTAIN
from quadlin.solve.lowrank.design import EXACT_COLUMNS, EXACT_ENTRIES, Alpha
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.few_rows import ROWS_PER_PARAMETER, component_sizes, sharp_whitener
from quadlin.solve.lowrank.gauss_newton import final_error, precise
from quadlin.solve.lowrank.linear_model import Gram, linear_model
from quadlin.solve.lowrank.polish import OnStep, polish
from quadlin.solve.lowrank.sample import sample_of
from quadlin.solve.lowrank.types import NO_NOISE, Options, Record, Solution, Status, finished
from quadlin.solve.lowrank.whitening import Full, Identity, Whitener

EVIDENT_ROWS = 10  # per parameter: with so many, the rows may determine all of them,
SHRUNK = 0.1  # of the weight: and do, if no penalty is larger
SAMPLE_ROWS = 20  # rows per parameter that choose as well as all rows
LEAST_RATIO = 2  # of all rows to the sample; with less, all rows choose
TIE = 0.1  # of log evidence: among candidates that are closer, the lowest rank is chosen
CHEAP_COLUMNS = 1000  # products whose matrix is small
MANY_ROWS = 100  # per parameter: with so many, a fit cannot rest on a few rows
FIRST_RANK, MOST_RANK = 4, 16
SURE = 1.6  # times the eigenvalues of noise: a component that certainly exists
SEEN = 1.5  # times the eigenvalues of noise: a component
GAP = 0.5  # ratio to the next eigenvalue: the last component


@dataclass(frozen=True)
class Choice:
    """The fit of largest evidence."""

    options: Options  # with the rank and the penalties chosen
    solution: Solution
    white: Whitener
    certain: bool = False  # whether no higher rank need be tried


@dataclass
class RankSearch(Candidates):
    """The search for the candidate of largest evidence."""

    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0))  # of the components of a draft
    thorough: bool = True  # whether the last fit of few features starts from many points

    def choice(self, rank: int | None = None, on_step: OnStep = None) -> Choice:
        """Fit with the penalties of largest evidence, and with the best rank unless it is given.

        Without noise there is no penalty. `on_step` is for the driver of the last fit.
        """
        given = None if rank is None else min(rank, self.d)
        k, search = FIRST_RANK if given is None else given, self
        try:
            while True:
                search = self.sampled(k)
                best = search.evident() if given is None else None
                if best is not None:
                    return replace(self.fitted(best, search, on_step), certain=True)
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
        size = min(size, EXACT_ENTRIES // max(self.d, 1))
        too_few = LEAST_RATIO * size > self.n_rows or self.few_features
        return self.n_rows if too_few else size

    # Which candidates are tried.

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
        if products and few and (self.few_features or not self.plain):
            self.candidate(self.d)  # it costs little, and gives the other ranks a start
        if most > 0 and not (spectrum is not None and spectrum.is_noise):
            self.climb(self.first_rank(most), most)
        if products and spectrum is not None:
            products = not spectrum.says_nothing
        if products and not any(self.is_exact(c) for c in self.candidates()):
            self.candidate(self.d)
        return self.decided()

    def evident(self) -> Candidate | None:
        """Return the rank whose components all stand out clearly; None if there is any doubt.

        Two spectra must agree: that of the clipped residual of ridge regression, in which a few
        extreme rows count little, and that of a fit with one component more, which is noise.
        """
        if self.options.loss != "squared" or self.spectrum is None or not self.spectrum.components:
            return None
        k = self.spectrum.components
        dof = self.options.dof(self.d, k + 1)
        if k + 1 >= self.d or self.observations < ROWS_PER_PARAMETER * dof:
            return None
        if self.clear_components(k + 1, self.start(k + 1)[1]) != k or self.sizes[k - 1] < SURE:
            return None
        candidate = self.determined(k) if self.is_determined(k + 1) else self.candidate(k)
        if candidate is None:
            return None
        alpha = candidate.alpha[0], candidate.alpha[1] * (k + 1) / k
        return candidate if self.clear_components(k + 1, alpha) == k else None

    def is_determined(self, k: int) -> bool:
        """Return whether there are many rows for each parameter of a rank."""
        return self.observations >= EVIDENT_ROWS * self.options.dof(self.d, k)

    def determined(self, k: int) -> Candidate | None:
        """Return a low rank with its best penalties, if the rows determine all its parameters.

        The penalties of largest evidence then follow from the number of parameters and the noise,
        without a matrix of the parameters: MacKay's fixed point is σ²p/|θ|².
        """
        model, alpha = self.start(k)
        for _ in range(ROUNDS):
            options, before = replace(self.loose(k), alpha=alpha), np.log(alpha)
            model = finished(self.fit(options, model)[0]).model
            noise, alpha = self.likely(model)
            if noise <= NO_NOISE or np.max(np.abs(np.log(alpha) - before)) <= SETTLED:
                break
        if max(alpha) > SHRUNK * self.weight:
            return None
        linear = replace(self.features, sizes=[self.d, self.options.dof(self.d, k) - self.d - 1])
        return Candidate(k, inf, alpha, noise, linear, model)

    def likely(self, model: Model) -> tuple[float, Alpha]:
        """Return the noise and the penalties σ²p/|θ|² at a fit: one pass."""
        d, k = model.U.shape
        rho = to_numpy(self.units.penalty_scale).astype(np.float64)
        w, E = rho * to_numpy(model.w), rho[:, None] * to_numpy(model.U)
        A = (E.T @ E) * to_numpy(model.s)
        sums = self.problem(replace(self.options, rank=k)).sums(model, squares=False)
        noise = sums.loss / (sums.weight - self.options.dof(d, k))
        first, second = max(float(w @ w), 1e-300), max(2 * float(np.sum(A * A.T)), 1e-300)
        return noise, (noise * d / first, noise * (d * k - k * (k - 1) / 2) / second)

    def given(self, k: int) -> Candidate | None:
        """Return a given rank with its best penalties."""
        plain, low = self.plain and self.options.loss == "squared", 0 < k < self.d
        candidate = None
        if plain and low and not self.few_features and self.is_determined(k):
            candidate = self.determined(k)
        candidate = candidate or self.candidate(k)
        if candidate is None or self.is_exact(candidate):
            return candidate
        if k in (0, self.d) and not self.many_rows(candidate):
            candidate = self.sized(candidate)
        return candidate

    def first_rank(self, most: int) -> int:
        """Return the first low rank: one more than the number of components, or a moderate one."""
        clear = 0 if self.spectrum is None else self.spectrum.components
        return min(clear + 1 if clear else FIRST_RANK, most)

    def climb(self, k: int, most: int) -> None:
        """Double the rank while one more is better, then lower it while the evidence rises."""
        self.candidate(k)
        down = self.better(k - 1, k)
        while not down and k < most and self.evidence(k + 1) >= self.evidence(k) + CLEARLY:
            double = min(2 * k, most)
            while double > k + 1 and not self.better(double, k + 1):
                double = (k + 1 + double) // 2
            k = double
        while k > 1 and self.better(k - 1, k):
            k -= 1

    def clear_components(self, k: int, alpha: Alpha) -> int:
        """Return how many components of a fit of rank k stand out, or 0 if there is any doubt."""
        options = replace(self.loose(k), alpha=alpha)
        solution, white = self.fit(options, self.draft)
        self.draft = finished(solution).model
        error = self.options.dof(self.d, k) / self.observations
        self.sizes = sizes = component_sizes(solution, white, options, error)
        last = (sizes[:-1] > SEEN) & (sizes[1:] < np.minimum(SEEN, GAP * sizes[:-1]))
        return int(np.argmax(last)) + 1 if last.any() else 0

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
        most = min(self.weight, self.observations, EXACT_COLUMNS)
        return next((k for k in ranks if self.options.dof(self.d, k) <= most), 0)

    # Which candidate is chosen.

    def decided(self) -> Candidate:
        """Return ridge regression, all products or a low rank.

        The evidence decides where rows are many. Otherwise rows that are left out must confirm that
        products, or a low rank of larger evidence, predict better than ridge regression.
        """
        ridge, products, low = self.ridge(), self.tried.get(self.d), self.low()
        if any(self.is_exact(c) for c in self.candidates()):
            return self.by_merit()[0]
        if products is not None and self.is_ridge(products):
            products = None
        if low is not None and self.many_rows(low) and (not products or self.many_rows(products)):
            return low
        if low is not None and products is not None and low.merit >= products.merit + CERTAIN:
            products = None  # its left-out errors would cost more than the rest
        best = self.better_linear(ridge, products)
        return low if low is not None and self.agree(low, best) else best

    def low(self) -> Candidate | None:
        """Return the low rank of largest evidence, if that is enough to have a structure."""
        return next((c for c in self.by_merit() if self.is_low(c) and c.merit >= self.least), None)

    def is_low(self, candidate: Candidate) -> bool:
        """Return whether a candidate has a low rank."""
        return 0 < candidate.rank < self.d

    def by_merit(self) -> list[Candidate]:
        """Return the candidates, the best first; of several that tie, the lowest rank first."""
        top = max(c.merit for c in self.candidates())
        return sorted(self.candidates(), key=lambda c: (max(top - c.merit, TIE), c.rank))

    @property
    def least(self) -> float:
        """Return the merit that a structure must have."""
        linear = self.linear_candidates
        return max(c.merit for c in linear) + CLEARLY * (len(linear) > 1 and self.plain)

    @property
    def linear_candidates(self) -> list[Candidate]:
        """Return ridge regression and, if they were tried, all products."""
        return [c for c in (self.tried.get(k) for k in (0, self.d)) if c is not None]

    def many_rows(self, candidate: Candidate) -> bool:
        """Return whether there are so many rows that the evidence needs no check."""
        return self.observations >= MANY_ROWS * candidate.parameters

    def better_linear(self, ridge: Candidate, products: Candidate | None = None) -> Candidate:
        """Return ridge regression, or all products if they predict left-out rows surely better.

        They are one family: as the penalty of M grows to infinity, all products become ridge
        regression.
        """
        if products is not None and self.many_rows(products):
            return products if products.merit > ridge.merit else ridge
        ridge = ridge if self.many_rows(ridge) else self.sized(ridge)
        if products is None:
            return ridge
        against = CLEARLY * (ridge.merit > products.merit)
        products = self.sized(products)
        squares, others = self.left_out_squares(products), self.left_out_squares(ridge)
        return products if surely_less(squares, others, LIKELY + against) else ridge

    def agree(self, candidate: Candidate, linear: Candidate) -> bool:
        """Return whether a low rank predicts rows that are left out one at a time well enough."""
        return self.confirmed(self.left_out_squares(candidate), linear)

    def confirmed(self, squares: np.ndarray, other: Candidate, log_tried: float = 0.0) -> bool:
        """Return whether left-out rows confirm a structure with these squared errors.

        It must be no worse than the alternative, which may have more parameters, and surely better
        than ridge regression, which has fewer. `log_tried` is the log of the number of structures
        that it was chosen from.
        """
        ridge = other if other.rank == 0 else self.ridge()
        no_worse = float(squares.sum()) <= self.left_out(other) * self.weight
        return no_worse and surely_less(squares, self.left_out_squares(ridge), CLEARLY + log_tried)

    # The fit of the chosen candidate.

    def fitted(self, best: Candidate, search: Candidates, on_step: OnStep = None) -> Choice:
        """Fit the best candidate of a search until it converges; without noise, with no penalty."""
        alpha, warm, low = best.alpha, best.model, 0 < best.rank < self.d
        if search.is_exact(best):
            alpha = (0.0, 0.0)
        elif not low and not self.options.psd:
            warm = self.linear_optimum(best, search)
        options = replace(self.options, rank=best.rank, alpha=alpha)
        if low:
            warm = self.best_start(best, options)
        if search is self or warm is None or search.white is None or not low:
            solution, white = self.fit(options, warm, on_step)
        else:
            dof = self.options.dof(self.d, best.rank)
            problem = self.problem(options, final_error(options, dof / self.observations))
            ridge = alpha[0] / self.weight
            sigma = self.covariance if isinstance(search.white, Full) else None
            white = sharp_whitener(search.white, problem, ridge, sigma)
            solution = follow(problem, polish(problem, white, warm, near=True), on_step)
        return Choice(options, solution, white)

    def best_start(self, best: Candidate, options: Options) -> Model | None:
        """Return the start of the last fit of a low rank, by its objective.

        It is the best of many optima if features are few, otherwise the model of the candidate; or
        the optimum of the tangent space there. Where columns nearly determine one another, steps
        that only multiply by the rows fall far behind the matrix of the tangent space.
        """
        gram, model, linear = self.products, best.model, best.linear
        if gram is not None and self.thorough:
            model = gram.model(gram.best(options.rank, options.alpha), options.alpha)
        if not isinstance(linear, Gram) or linear.design is None or linear.design.basis.rank == 0:
            return model
        task = precise(self.problem(options), Identity())
        models = [m for m in (model, linear.model(options.alpha)) if m is not None]
        return min(models, key=lambda m: task.point_of(m).objective, default=None)

    def linear_optimum(self, best: Candidate, search: Candidates) -> Model | None:
        """Return the optimum of rank 0 or d, from the sums of its evidence if they are of all rows.

        None if the matrix is too large.
        """
        linear = best.linear if search is self else None
        if best.rank == 0 and not self.by_rows:
            linear = self.features
        if linear is None or (best.rank > 0) != (sum(linear.sizes) > self.d):
            linear = linear_model(self.rows, self.units, self.options, self.n_rows, best.rank)
        return None if linear is None else linear.model(best.alpha)

    def best_so_far(self) -> Choice | None:
        """Return the best candidate of an interrupted search, without a pass; None if none has one.

        The model of a low rank is the one at which its evidence was computed, and that of ridge
        regression comes from its sums; all products would take another pass.
        """
        models = [(c, self._model_so_far(c)) for c in self.candidates()]
        fitted = [(c, model) for c, model in models if model is not None]
        if not fitted:
            return None
        best, model = max(fitted, key=lambda pair: pair[0].merit)
        unit, walks = self.units.target.scale**2, self.rows.walks
        start = Record(0, walks, self.units.target.power * unit)
        history = (start, Record(1, walks, best.noise * unit))
        solution = Solution(model, self.units, Status.interrupted, history)
        chosen = replace(self.options, rank=best.rank, alpha=best.alpha)
        return Choice(chosen, solution, self.white or Identity())

    def _model_so_far(self, candidate: Candidate) -> Model | None:
        if candidate.model is not None or candidate.rank or not self.plain:
            return candidate.model
        return candidate.linear.model(candidate.alpha)
