"""The fit that chooses rank and penalties by least squares, of rows that can be read again.

Wide sparse rows are fitted by sweeps (`wide_rows`). A rank is chosen with the penalties of largest
evidence, whatever penalties the fit has.

With few features one pass is enough for all ranks (`ProductGram`). With more than 40 rows per
parameter, a sample of the rows chooses. The content of the rows determines the sample, so their
order does not matter.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import numpy as np

from quadlin.core.arrays import Array, moved, to_numpy
from quadlin.core.model import Model
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.choose.penalties import Diagonal, maximised
from quadlin.solve.choose.residual_spectrum import ResidualSpectrum, residual_spectrum
from quadlin.solve.choose.search import (
    CLEARLY,
    FIRST,
    FIRST_RANK,
    MARGIN,
    NEAR,
    Candidate,
    Search,
    rough,
    surely_less,
)
from quadlin.solve.choose.wide_rows import fit_swept
from quadlin.solve.fits.fit_state import FitState, OnState, fit_state, fit_table
from quadlin.solve.lowrank.design import EXACT_COLUMNS, EXACT_ENTRIES, EXACT_ROWS, Alpha, Design
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.gauss_newton import final_error, precise
from quadlin.solve.lowrank.linear_model import NO_PENALTY, Evidence, Gram, Kernel, LinearModel
from quadlin.solve.lowrank.observations import sample_of
from quadlin.solve.lowrank.polish import OnStep, polish, sharp_whitener
from quadlin.solve.lowrank.product_gram import FEW, ProductGram, product_gram
from quadlin.solve.lowrank.types import (
    FIXED,
    NO_NOISE,
    Automatic,
    Options,
    Plan,
    Problem,
    Record,
    Solution,
    Status,
    finished,
)
from quadlin.solve.lowrank.whitening import (
    Covariance,
    Full,
    Identity,
    Whitener,
    sharpened,
    whitener,
)

EVIDENT_ROWS = 10  # per parameter: with so many, their matrix is about that of all products
SAMPLE_ROWS = 20  # rows per parameter that choose as well as all rows
LEAST_RATIO = 2  # of all rows to the sample; with less, all rows choose
FEWEST = 3  # rows that evidence can be computed from


Chosen = tuple[Solution, Options, Whitener]  # a fit with what was chosen for it


@dataclass
class LeastSquares:
    """Rows in which squared errors are minimised, with what was computed from them."""

    rows: Rows
    units: Units
    options: Options
    n_rows: int
    weight: float
    seed: int
    white: Whitener | None = None
    white_ridge: float = 0.0  # the ridge that the whitener was made for

    def __post_init__(self) -> None:
        self.d = int(self.units.scale.shape[0])
        # Whether one pass for all products costs less than the passes that it saves.
        self.few_features = 0 < self.d <= FEW
        self.margin = CLEARLY * self.options.plain
        self.observations = self.weight

    @property
    def settings(self) -> tuple[Units, Options, int, float, int]:
        """Return what other targets of the same rows share."""
        return self.units, self.options, self.n_rows, self.weight, self.seed

    @cached_property
    def products(self) -> ProductGram | None:
        """Return the sums of all products, from one pass, if features are few; otherwise None."""
        return product_gram(self.rows, self.units, self.options) if self.few_features else None

    @cached_property
    def features(self) -> Gram | None:
        """Return the linear model without M, from the products of all features: one pass.

        None if a matrix of the rows is smaller, or if both are too large.
        """
        if self.products is not None:
            return self.products.tangent(self.units.array(np.zeros((self.d, 0))))
        if self.d > EXACT_COLUMNS:
            return None
        return Gram.of(self.rows, Design.of_rank(0, self.units, self.options))

    @cached_property
    def spectrum(self) -> ResidualSpectrum | None:
        """Return the spectrum of the residual of ridge regression; None if it is not needed.

        It is not used for levels: those of one column never occur together, so noise has fewer
        products than its law counts, and the law hides components that stand out.
        """
        levels = bool(np.any(to_numpy(self.units.penalty_scale) != 1))
        if self.few_features or levels or not self.options.plain or self.features is None:
            return None
        ridge = Search(self).ridge()
        if ridge.noise <= NO_NOISE:
            return None
        return residual_spectrum(self.rows, self.features, ridge.alpha)

    def linear(
        self, rank: int, ridge: Candidate | None = None
    ) -> tuple[LinearModel, Evidence] | None:
        """Return the model of rank 0 or d with its best penalties; None if it is too large."""
        linear = self.without_rank(rank)
        if linear is None:
            return None
        starts: list[tuple[float, ...]] = [(first,) for first in (NO_PENALTY, *FIRST)]
        if ridge is None:
            return linear, maximised(linear, starts)
        first = log(ridge.alpha[0] / self.weight) - 1
        starts = [(first, second)[-len(linear.sizes) :] for second in FIRST]
        return linear, maximised(linear, starts)

    def without_rank(self, rank: int) -> LinearModel | None:
        """Return the model of rank 0 or d; None if the matrix is too large."""
        if not rank:
            few = self.n_rows <= EXACT_ROWS and self.n_rows * self.d <= EXACT_ENTRIES
            by_rows = self.features is None and self.options.plain and few
            return Kernel.of(self.rows, self.units, True) if by_rows else self.features
        if self.options.dof(rank, rank) - 1 <= min(self.n_rows, EXACT_COLUMNS):
            return self._tangent(self.units.array(np.eye(self.d)))
        if self.n_rows > EXACT_COLUMNS or self.n_rows * self.d > EXACT_ENTRIES:
            return None
        return Kernel.of(self.rows, self.units) if self.options.plain else None

    def _tangent(self, U: Array) -> Gram:
        """Return the linear model on the tangent space at the span of U (d, k)."""
        if self.products is None:
            return Gram.of(self.rows, Design.at(U, self.units, self.options))
        return self.products.tangent(U)

    def around(self, model: Model, alpha: Alpha) -> tuple[LinearModel, float]:
        """Return the linear model around a fit: on its tangent space, or about its matrix."""
        dof = self.options.dof(*model.U.shape)
        determined = self.options.plain and self.observations >= EVIDENT_ROWS * dof
        if dof > EXACT_COLUMNS or (determined and not self.few_features):
            return self._diagonal(model, alpha), 0.0
        return self._tangent(model.U), 0.0

    def _diagonal(self, model: Model, alpha: Alpha) -> Diagonal:
        """Return about the linear model on the tangent space, from the loss: one pass."""
        loss, C = float(self._problem(self.options).sums(model, squares=False).loss), None
        if self.features is not None and self.options.fit_linear:
            C = self.features.products[: self.d, : self.d] / self.weight
        return Diagonal.about(model, self.units, alpha, loss, C, self.weight)

    def least_alpha(self, rank: int) -> Alpha:
        """Return the smallest penalties that may be chosen: any."""
        return 0.0, 0.0

    def fit_roughly(self, rank: int, alpha: Alpha, model: Model | None) -> Model:
        """Fit a rank well enough to compare its evidence."""
        options = rough(self.options, rank, alpha, self.d, self.observations)
        return finished(self.fit(options, model, products=self.products)[0]).model

    def left_out(self, candidate: Candidate) -> np.ndarray:
        """Return ωe² of each observation when it is left out: one pass."""
        return candidate.linear.left_out(self.rows, candidate.alpha).squares

    def prefers_products(self, gain: float, losses: np.ndarray, others: np.ndarray) -> bool:
        """Return whether all products are surely better, more so if their evidence is smaller."""
        return surely_less(losses, others, MARGIN + CLEARLY * (gain < MARGIN))

    def fit(
        self,
        options: Options,
        warm: Model | None,
        on_step: OnStep = None,
        products: ProductGram | None = None,
    ) -> tuple[Solution, Whitener]:
        """Fit a rank with given penalties; if `products` are given, without a pass."""
        rng, ridge = np.random.default_rng(self.seed), options.alpha[0] / self.weight
        if ridge > 0:  # rounded, so that earlier fits do not matter
            ridge = NEAR ** round(log(ridge, NEAR))
        if self.white is None or ridge != self.white_ridge:
            args = (self.rows, self.units, ridge, rng, self.covariance)
            self.white, self.white_ridge = whitener(*args), ridge
        problem = replace(self._problem(options), products=products)
        method = polish(problem, self.white, warm, products=self.products)
        return follow(problem, method, on_step), self.white

    @property
    def covariance(self) -> Covariance | None:
        """Return Σ of the features, if it is known."""
        return None if self.features is None else self.features.covariance()

    def _problem(self, options: Options, worthless: float = 0.0) -> Problem:
        rng = np.random.default_rng(self.seed)
        error = options.dof(self.d, options.rank) / self.observations
        centred = self.rows.share == 1
        return Problem(self.rows, self.units, options, rng, worthless, error, centred)

    # All rows, after a sample has chosen.

    def sampled(self, k: int) -> "LeastSquares":
        """Return the task on enough rows to compare ranks up to k: all rows if features are few.

        A penalty is the noise over the variance of a prior, so it does not depend on the number of
        rows.
        """
        size = SAMPLE_ROWS * self.options.dof(self.d, min(k + 1, self.d))
        size = min(max(size, EXACT_COLUMNS + 1), EXACT_ENTRIES // max(self.d, 1))
        if LEAST_RATIO * size > self.n_rows or self.few_features:
            return self
        sample = sample_of(self.rows, size / self.n_rows, None)
        if sample.engine.source.rows < size / 2:  # too many rows are equal
            return self
        tally = sample.reduce(survey).tally
        counts = tally.counting, tally.weight
        return LeastSquares(sample, self.units, self.options, *counts, self.seed)

    def refit(
        self, best: Candidate, search: "Search[LeastSquares]", on_step: OnStep = None
    ) -> Chosen:
        """Fit the best candidate of a search until it converges; without noise, with no penalty."""
        alpha, warm, low = best.alpha, best.model, 0 < best.rank < self.d
        if search.is_exact(best):
            alpha = (0.0, 0.0)
        elif not low and not self.options.psd:
            warm = self._linear_optimum(best, search)
        elif self.few_features and low:
            warm = None  # the best of many optima, which rough fits do not look for
        options, white = replace(self.options, rank=best.rank, alpha=alpha), search.task.white
        if low:
            warm = self._best_start(best, options)
        if search.task is self or warm is None or white is None or not low:
            solution, white = self.fit(options, warm, on_step)
        else:
            dof = self.options.dof(self.d, best.rank)
            problem = self._problem(options, final_error(options, dof / self.observations))
            sigma = self.covariance if isinstance(white, Full) else None
            white = sharp_whitener(white, problem, alpha[0] / self.weight, sigma)
            solution = follow(problem, polish(problem, white, warm, near=True), on_step)
        return solution, options, white

    def _best_start(self, best: Candidate, options: Options) -> Model | None:
        """Return the model of a low rank or the optimum of its tangent space, by the objective.

        Where columns nearly determine one another, steps that only multiply by the rows fall far
        behind the matrix of the tangent space.
        """
        if not isinstance(best.linear, Gram):
            return best.model
        task = precise(self._problem(options), Identity())
        models = [m for m in (best.model, best.linear.model(options.alpha)) if m is not None]
        return min(models, key=lambda m: task.point_of(m).objective, default=None)

    def _linear_optimum(self, best: Candidate, search: "Search[LeastSquares]") -> Model | None:
        """Return the optimum of rank 0 or d, from the sums of its evidence if they are of all rows.

        None if the matrix is too large.
        """
        same = search.task is self and (best.rank > 0) == (sum(best.linear.sizes) > self.d)
        linear = best.linear if same else self.without_rank(best.rank)
        return None if linear is None else linear.model(best.alpha)

    def best_so_far(self, search: "Search[LeastSquares]") -> Chosen | None:
        """Return the best candidate of an interrupted search, without a pass; None if none has one.

        The model of a low rank is the one at which its evidence was computed, and that of ridge
        regression comes from its sums; all products would take another pass.
        """
        plain = self.options.plain
        models = [
            (c, c.linear.model(c.alpha) if c.model is None and not c.rank and plain else c.model)
            for c in search.candidates()
        ]
        fitted = [(c, model) for c, model in models if model is not None]
        if not fitted:
            return None
        best, model = max(fitted, key=lambda pair: pair[0].merit)
        unit, walks = self.units.target.scale**2, self.rows.walks
        start = Record(0, walks, self.units.target.power * unit)
        history = (start, Record(1, walks, best.noise * unit))
        solution = Solution(model, self.units, Status.interrupted, history)
        options = replace(self.options, rank=best.rank, alpha=best.alpha)
        return solution, options, self.white or Identity()


def choose_fit(
    search: Search[LeastSquares], given: int | None = None, on_step: OnStep = None
) -> Chosen:
    """Fit with the penalties of largest evidence, and with the best rank unless it is given.

    Without noise there is no penalty. `on_step` is for the driver of the last fit.
    """
    task = search.task
    found: list[Search[LeastSquares]] = []
    try:
        best = choose_candidate(search, given, found)
    except KeyboardInterrupt:
        so_far = task.best_so_far(found[-1])
        if so_far is None:
            raise
        return so_far
    return task.refit(best, found[-1], on_step)


def choose_candidate(
    search: Search[LeastSquares], given: int | None, found: list[Search[LeastSquares]]
) -> Candidate:
    """Return the best candidate, from a sample of the rows if they are many.

    The searches are appended to `found`.
    """
    task = search.task
    k = FIRST_RANK if given is None else min(given, task.d)
    while True:
        part = task.sampled(k)
        found.append(search if part is task else Search(part))
        best = found[-1].best(None if given is None else k)
        if best is None:  # more parameters than fit in a matrix
            return replace(found[-1].ridge(), rank=k)
        if part is task or best.rank <= k:
            return best
        k = best.rank + 1


def fit_choosing(
    rows: Rows,
    plan: Plan,
    warm: FitState | None = None,
    on_step: OnState = None,
    surveyed: Survey | None = None,
    search: Search[LeastSquares] | None = None,
) -> tuple[FitState, Options]:
    """Fit rows that can be read again; also return the options with the chosen values.

    `search` is an earlier search on the same rows.
    """
    surveyed = rows.reduce(survey) if surveyed is None else surveyed
    automatic, options, n_rows = plan.automatic, plan.options, surveyed.tally.counting
    if automatic.alpha and n_rows >= FEWEST:
        swept = fit_swept(rows, plan, surveyed, on_step)
        if swept is not None:
            return swept
    if automatic != FIXED and n_rows < FEWEST:
        options = _for_too_few(options, automatic, surveyed.features.weight)
    elif automatic != FIXED:
        if search is None:
            units = plan.make_units(surveyed.features, surveyed.target)
            search = search_of(rows, units, plan, surveyed)
        if automatic.alpha and options.solver == "auto":
            return _by_evidence(plan, on_step, surveyed, search)
        if automatic.rank:
            options = replace(options, rank=choose_candidate(search, None, []).rank)
    return fit_table(rows, replace(plan, options=options), warm, on_step, surveyed), options


def _by_evidence(
    plan: Plan, on_step: OnState, surveyed: Survey, search: Search
) -> tuple[FitState, Options]:
    """Return the fit of largest evidence."""

    def state(solution: Solution, options: Options, white: Whitener) -> FitState:
        return fit_state(solution, surveyed, options, plan.make_units, white)

    watch = None if on_step is None else lambda s: on_step(state(s, plan.options, Identity()))
    given = None if plan.automatic.rank else plan.options.rank
    solution, options, white = choose_fit(search, given, watch)
    share = surveyed.tally.share  # of penalties for counts of observations, in the given weights
    options = replace(options, alpha=(options.alpha[0] / share, options.alpha[1] / share))
    white = sharpened(white) if isinstance(white, Full) else white
    return state(solution, options, white), options


def _for_too_few(options: Options, automatic: Automatic, weight: float) -> Options:
    """Return options for too few rows to choose anything, which fit little more than the mean.

    They are rank 0, or the given rank, with a penalty that leaves little but the mean unless these
    few rows are repeated many times.
    """
    penalty = min(weight, 4 / weight)
    penalised = automatic.alpha and options.solver == "auto"
    return replace(
        options,
        rank=0 if automatic.rank else options.rank,
        alpha=(penalty, penalty) if penalised else options.alpha,
    )


def search_of(rows: Rows, units: Units, plan: Plan, surveyed: Survey) -> Search[LeastSquares]:
    """Return a search in which weights count observations (`Tally`)."""
    tally = surveyed.tally
    if tally.share != 1:
        rows = rows.reweighted(moved(np.full(tally.rows, tally.share), units.scale))
    counts = tally.counting, tally.share * surveyed.features.weight
    return Search(LeastSquares(rows, units, plan.options, *counts, plan.seed))
