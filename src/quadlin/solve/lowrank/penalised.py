"""Fits of any low rank with penalties by matrices: two passes over the rows for all of them.

With few features the Gram matrix of all products is enough. The best optima of many starts at a
moderate penalty are followed to the given penalty. With more features, if the rows fit in memory,
a fit starts from ridge regression on all products with the same penalties, truncates M to the rank,
and takes Newton steps. The same rows, rank, penalties and seed always give the same model, whatever
was fitted before.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np

from quadlin.core.model import Model, with_rank
from quadlin.core.moments import Tally
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.driver import follow
from quadlin.solve.lowrank.exact import (
    EXACT_ENTRIES,
    EXACT_FEATURES,
    EXACT_ROWS,
    Alpha,
    Exact,
    covariance_among,
    products_of,
)
from quadlin.solve.lowrank.landscape import Landscape
from quadlin.solve.lowrank.many_descents import SignedFactors
from quadlin.solve.lowrank.many_descents import descended as all_descended
from quadlin.solve.lowrank.newton import CentredTable, Newton, factors
from quadlin.solve.lowrank.polish import OnStep, descended
from quadlin.solve.lowrank.restarts import (
    FEW,
    STEPS,
    optima,
    products_pay,
    with_better_components,
)
from quadlin.solve.lowrank.types import Options, Problem, Solution
from quadlin.solve.lowrank.whitening import Full, Whitener, sharpened, whitener

KEPT_RANK = 17  # components of the ridge regression that are kept for starts
REFERENCE = (1e-3, 0.02)  # moderate penalties, as shares of the weight
VANISHED = 1e-3  # of the largest component: a smaller one slowly tends to zero
SAME = 1e-6  # of the loss: optima that differ by less count as one


def by_matrices(rows: Rows, units: Units, options: Options, n_rows: int) -> bool:
    """Return whether to fit by matrices; for sparse rows, passes over the rows cost less."""
    d = int(units.scale.shape[0])
    if d <= FEW:
        return options.loss == "squared"
    plain = options.fit_linear and options.fit_intercept and not options.psd
    entries = rows.engine.source.entries
    dense = entries is None or 2 * entries >= n_rows * d
    small = dense and n_rows <= EXACT_ROWS and n_rows * d <= EXACT_ENTRIES
    return plain and options.loss == "squared" and d <= EXACT_FEATURES and small


class Penalised:
    """Models of many ranks and penalties on the same rows."""

    def __init__(
        self, rows: Rows, units: Units, options: Options, n_rows: int, weight: float, seed: int
    ) -> None:
        self.rows, self.units, self.options, self.seed = rows, units, options, seed
        self.n_rows, self.weight = n_rows, weight
        self._starts: dict[Alpha, Model] = {}
        self._optima: dict[int, list[SignedFactors]] = {}

    @property
    def d(self) -> int:
        """Return the number of features."""
        return int(self.units.scale.shape[0])

    @cached_property
    def table(self) -> CentredTable:
        """Return the rows: one pass."""
        return CentredTable.of(self.rows, self.units)

    @cached_property
    def gram(self) -> np.ndarray:
        """Return the Gram matrix of all products: one pass."""
        return products_of(self.rows, self.units)

    def model(self, rank: int, alpha: Alpha, products: Exact | None = None) -> Model:
        """Return the model of a rank and penalties; `products` is the solver of rank d."""
        if self.d <= FEW:
            return self._followed(rank, alpha)
        start = self._start(rank, alpha, products)
        newton = Newton(self.table, rank, alpha)
        return newton.model(newton.optimum(*factors(start, self.units, rank)), self.units)

    def _followed(self, rank: int, alpha: Alpha) -> Model:
        """Descend to the optimum from those of many starts at the moderate penalty."""
        landscape = self._landscape(rank, alpha)
        if min(alpha) > 0:
            moderate = (REFERENCE[0] * self.weight, REFERENCE[1] * self.weight)
            if rank not in self._optima:
                self._optima[rank] = self._many(self._landscape(rank, moderate), rank)
            ends = all_descended(landscape, landscape.again(self._optima[rank]), STEPS)
        else:
            ends = self._many(landscape, rank)
        best = min(ends, key=lambda f: f.loss)
        if not self.options.psd and _lost_a_component(best):
            best = with_better_components(landscape, best, psd=False)  # perhaps of the other sign
        return landscape.model(best, self.units)

    def _many(self, landscape: Landscape, rank: int) -> list[SignedFactors]:
        rng = np.random.default_rng(self.seed)
        return _different(optima(landscape, rank, self.options.psd, rng))

    def _landscape(self, rank: int, alpha: Alpha) -> Landscape:
        return Landscape(self.gram, self.units, replace(self.options, rank=rank, alpha=alpha))

    def _start(self, rank: int, alpha: Alpha, products: Exact | None) -> Model:
        start = self._starts.get(alpha)
        if start is None or start.s.shape[0] < rank:
            products = products or Exact(self.rows, self.units, self.n_rows, linear=False)
            full = products.model(alpha, self.d)
            # M is truncated in standardised units first, then to the rank in units of z/ρ.
            start = self._starts[alpha] = with_rank(full, min(self.d, max(rank, KEPT_RANK)))
        return start


def fit_penalised(
    rows: Rows,
    units: Units,
    options: Options,
    tally: Tally,
    seed: int,
    on_step: OnStep = None,
) -> tuple[Solution, Whitener] | None:
    """Fit a rank 0 < k < d with penalties by matrices; None if these are too large.

    Time: one n×n system, n ≤ 3,000, and some 5 to 15 steps of O(n·p²), p = (k + 1)d. Passes: two
    and, beyond 25 features, those of the whitener. Memory: three matrices n×n.
    """
    d = int(units.scale.shape[0])
    if not by_matrices(rows, units, options, tally.counting):
        return None
    if d <= FEW and not products_pay(tally.counting, d):
        return None
    problem = Problem(rows, units, options, np.random.default_rng(seed))
    ridge = options.alpha[0] / tally.weight
    penalised = Penalised(rows, units, options, tally.counting, tally.weight, seed)
    sigma = covariance_among(penalised.gram, units) if d <= FEW else None
    white = whitener(rows, units, options.whiten, ridge, problem.rng, sigma)
    start = penalised.model(options.rank, options.alpha)
    solution = follow(problem, descended(problem, white, start), on_step)
    return solution, sharpened(white) if isinstance(white, Full) else white


def _lost_a_component(f: SignedFactors) -> bool:
    """Return whether M has a lower rank than its factors: descents never change signs."""
    sizes = np.sort(np.abs(np.linalg.eigvalsh((f.L * f.signs) @ f.L.T)))[::-1][: len(f.signs)]
    return bool(sizes.min(initial=np.inf) <= VANISHED * sizes.max(initial=0.0))


def _different(sorted_optima: list[SignedFactors]) -> list[SignedFactors]:
    """Return optima of different losses."""
    kept = sorted_optima[:1]
    for f in sorted_optima[1:]:
        if all(abs(f.loss - other.loss) > SAME * other.loss for other in kept):
            kept.append(f)
    return kept
