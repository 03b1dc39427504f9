"""The fit that chooses rank and penalties by itself, by their evidence on all rows.

Candidates are ridge regression (rank 0), all products (rank d, where a matrix of them fits) and
low ranks: from a moderate one, by halves, doubles and then ones, as long as the evidence rises.
Each starts from a neighbour, and its penalties from theirs. Every sum is over all rows: nothing
is held out, and the order of the rows does not matter.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import log, sqrt

import numpy as np

from quadlin.core.arrays import Array, diagonal, moved, namespace, orthonormal, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive, reduce
from quadlin.core.model import Model, with_rank
from quadlin.core.sums import standardised_target
from quadlin.core.units import Units
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.evidence import Evidence, Gram, Kernel, log_volume, maximised
from quadlin.solve.exact import EXACT_COLUMNS, EXACT_ENTRIES, Exact, _dense, rows_of
from quadlin.solve.polish import polish
from quadlin.solve.types import Options, Problem, Solution
from quadlin.solve.whitening import Whitener, whitener

FIRST_RANK, MOST_RANK = 4, 16
CHEAP_COLUMNS = 1000  # as many products are tried first, and tell the others where to begin
KERNEL_START = 400  # rows that find penalties to begin with
KERNEL_ROWS = 1500  # up to which all products are tried where they are too many for a p×p matrix
ROUNDS, SETTLED = 3, 0.5  # of fit and penalties, and the change of log α that ends them
LOOSE_TOL, LOOSE_STEPS = 1e-4, 8  # of fits whose evidence is compared
CLEAR = 20.0  # of log evidence: a quadratic part that is there beyond doubt
TIE = 0.1  # of log evidence: of what is closer, the lowest rank
BEGIN = 0.2  # α₂/n to begin with: a component that just stands out of the noise has about that
NEAR = 10.0  # penalties within this factor share a whitener
NO_NOISE = 1e-10  # of the target's variance: what is left is rounding
FIRST, SECOND = (-9.0, -5.0, -2.0, 0.0, 2.0), (-9.0, -5.0, -2.0, 1.0)  # log α₁/N, α₂/N to begin with


@dataclass(frozen=True)
class Basis:
    """An orthonormal basis of the tangent space at a span of k directions: w_i w_jᵀ, i < k, i ≤ j.

    In units in which the ridge weighs all features the same, z/ρ. With k = d the directions are the
    features, so that these are all products of two.
    """

    W: Array  # (d, d), the span first
    rank: int

    @classmethod
    def of(cls, units: Units, U: Array) -> "Basis":
        """Return the basis at the span of U, in standardised units."""
        xp, (d, k) = namespace(U), U.shape
        if k in (0, d):
            return cls(xp.eye(d, dtype=xp.float64, device=U.device), k)
        rho = xp.astype(units.burden, xp.float64)[:, None]
        return cls(xp.linalg.qr(rho * xp.astype(U, xp.float64), mode="complete")[0], k)

    @property
    def size(self) -> int:
        """Return the number of directions."""
        d, k = self.W.shape[0], self.rank
        return d * k - k * (k - 1) // 2

    def quadratic(self, Z: Array, fixed: Array) -> Array:
        """Return zᵀBz, (n, size), for every direction B; squares are left out where `fixed`."""
        xp = namespace(Z)
        values, any_fixed = self._pairs(Z @ self.W), bool(xp.any(fixed))
        if any_fixed:
            some = xp.nonzero(fixed)[0]
            squares = xp.take(Z, some, axis=1) ** 2
            values = values - squares @ self._pairs(xp.take(self.W, some, axis=0))
        return values

    def _pairs(self, A: Array) -> Array:
        """Return the products of columns i < k and j ≥ i, times √2 where i ≠ j."""
        xp, (n, d) = namespace(A), A.shape
        columns = [A[:, :0]]
        for i in range(self.rank):
            columns += [A[:, i : i + 1] ** 2, sqrt(2) * A[:, i : i + 1] * A[:, i + 1 :]]
        return xp.concat(columns, axis=1)


@dataclass(frozen=True)
class Products(Additive):
    """Σω φφᵀ for φ = (1, z, the directions of a basis, y)."""

    gram: Array


def products(chunk: Chunk, units: Units, options: Options, basis: Basis) -> Products:
    """Sum over one chunk, in float64."""
    n, d = chunk.X.shape
    step = max(1, EXACT_ENTRIES // 8 // (d + 2 + basis.size))
    if n > step:
        parts = (rows_of(chunk, np.arange(n)[i : i + step]) for i in range(0, n, step))
        return reduce(products, parts, units, options, basis)
    Z = _dense(chunk, units)
    xp = namespace(Z)
    nu, rho = (xp.astype(a, xp.float64) for a in (units.nu, units.burden))
    fixed = units.free == 0
    ones = xp.ones_like(Z[:, :1])
    linear = Z if options.fit_intercept else Z + nu
    at = Z if options.fit_linear else Z + nu
    columns = [ones, linear / rho] if options.fit_linear else [ones]
    columns.append(basis.quadratic(at / rho, fixed))
    if options.fit_linear and not options.fit_intercept:
        columns[-1] = columns[-1] - basis.quadratic((nu / rho)[None, :], fixed)
    columns.append(xp.astype(standardised_target(chunk, units), xp.float64)[:, None])
    A = xp.concat(columns, axis=1)
    if chunk.weight is not None:
        A = xp.sqrt(xp.astype(chunk.weight, xp.float64))[:, None] * A
    return Products(A.T @ A)


@dataclass(frozen=True)
class Candidate:
    """A rank with its best penalties."""

    rank: int
    evidence: float
    alpha: tuple[float, float]
    noise: float  # σ², of the standardised target
    model: Model | None = None


@dataclass(frozen=True)
class Choice:
    """The fit of largest evidence, and what it was chosen from."""

    rank: int
    alpha: tuple[float, float]
    solution: Solution
    white: Whitener
    noise: float  # σ, of the standardised target
    evidence: dict[int, float]  # of each rank that was tried
    passes: int


def choose(
    source: Iterable[Chunk],
    units: Units,
    options: Options,
    rows: int,
    weight: float,
    seed: int,
    rank: int | None = None,
) -> Choice:
    """Fit with the penalties, and where `rank` is None the rank, of largest evidence.

    Parameters
    ----------
    source : iterable of Chunk
        Rows that can be walked many times.
    units : Units
        Of these rows.
    options : Options
        All but the rank and the penalties count.
    rows : int
        Whose weight is not zero.
    weight : float
        Of all rows together; weights are repetitions.
    seed : int
        Of the random start.
    rank : int or None
        The rank, if only penalties are to be chosen.

    Returns
    -------
    Choice
        With no penalty at all where there is no noise.
    """
    search = _Search(source, units, options, rows, weight, seed)
    best = search.best() if rank is None else search.candidate(min(rank, search.d))
    return search.fitted(best)


@dataclass
class _Search:
    source: Iterable[Chunk]
    units: Units
    options: Options
    rows: int
    weight: float
    seed: int
    tried: dict[int, Candidate | None] = field(default_factory=dict)
    passes: int = 0
    white: Whitener | None = None
    ridge: float = 0.0  # that it was made for

    @property
    def d(self) -> int:
        return int(self.units.scale.shape[0])

    @property
    def plain(self) -> bool:
        return self.options.fit_linear and self.options.fit_intercept and not self.options.psd

    def best(self) -> Candidate:
        """Return the best of rank 0, of all products and of a search over low ranks."""
        self.candidate(0)
        most, products = self.most(), self.plain and self.d > 0
        if products and self.d * (self.d + 3) // 2 <= min(self.rows, CHEAP_COLUMNS):
            self.candidate(self.d)
        if most > 0:
            self.climb(min(FIRST_RANK, most), most)
        if products and min(c.noise for c in self.found()) > NO_NOISE:
            self.candidate(self.d)
        top = max(c.evidence for c in self.found())
        return min((c for c in self.found() if c.evidence >= top - TIE), key=lambda c: c.rank)

    def climb(self, k: int, most: int) -> None:
        """Go down by ones while the evidence rises, or else up: by doubles where one more is better."""
        self.candidate(k)
        if self.better(k - 1, k):
            while k > 1 and self.better(k - 1, k):
                k -= 1
        while k < most and self.better(k + 1, k):
            double = min(2 * k, most)
            while double > k + 1 and not self.better(double, k + 1):
                double = (k + 1 + double) // 2
            k = double
        weak = self.evidence(k) < self.evidence(0) + CLEAR
        if k > 2 and weak and self.better(1, k):  # of weak components one may be better than many
            self.candidate(2)

    def better(self, k: int, other: int) -> bool:
        """Tell whether a rank is at least as good as another."""
        return self.evidence(k) >= self.evidence(other)

    def evidence(self, k: int) -> float:
        candidate = self.candidate(k)
        return -np.inf if candidate is None else candidate.evidence

    def found(self) -> list[Candidate]:
        return [c for c in self.tried.values() if c is not None]

    def most(self) -> int:
        """Return the largest low rank: as many parameters as rows, in a matrix that fits."""
        ranks = range(min(MOST_RANK, self.d - 1), 0, -1)
        dof = {k: degrees_of_freedom(self.d, k, **self.options.parts) for k in ranks}
        return next((k for k in ranks if dof[k] <= min(self.weight, EXACT_COLUMNS)), 0)

    def candidate(self, k: int) -> Candidate:
        """Return a rank with its best penalties."""
        if k not in self.tried:
            self.tried[k] = self.ends(k) if k in (0, self.d) else self.low_rank(k)
        return self.tried[k]

    def gram(self, U: Array) -> Gram:
        """Return the products of the linear model on the tangent space: one pass."""
        self.passes += 1
        basis = Basis.of(self.units, U)
        G = to_numpy(reduce(products, self.source, self.units, self.options, basis).gram)
        weight = self.weight
        if self.options.fit_intercept:
            G, weight = G - np.outer(G[0], G[0]) / G[0, 0], weight - 1
        linear, quadratic = self.d * self.options.fit_linear, basis.size
        unit = np.repeat([1.0, 2.0], [linear, quadratic])
        sizes = [size for size in (linear, quadratic) if size]
        return Gram(G[1:-1, 1:-1], G[1:-1, -1], float(G[-1, -1]), weight, sizes, unit)

    def ends(self, k: int) -> Candidate | None:
        xp, d = namespace(self.units.scale), self.d
        columns = d * (d + 3) // 2
        like = {"dtype": self.units.scale.dtype, "device": self.units.scale.device}
        if k == 0 or columns <= min(self.rows, EXACT_COLUMNS):
            model = self.gram(xp.eye(d, k, **like))
        elif self.rows <= KERNEL_ROWS and self.rows * d <= EXACT_ENTRIES:
            exact = Exact(self.source, self.units, self.rows, linear=False)
            self.passes += 1
            y = to_numpy(exact.root * (exact.y - exact.share @ exact.y))
            kernels = [to_numpy(exact.L), to_numpy(exact.Q)]
            model = Kernel(kernels, y, self.weight - 1, [d, columns - d])
        else:
            return None
        if k == 0:
            starts: list[tuple[float, ...]] = [(a,) for a in FIRST]
        else:
            first = log(self.candidate(0).alpha[0] / self.weight)
            starts = [(first - 1.0, second) for second in SECOND]
        if isinstance(model, Kernel) and self.rows > KERNEL_START:
            # Which rows begin is told by the rows themselves, not by their order.
            Z = to_numpy(exact.Z)
            key = np.sin(1e3 * (Z @ np.random.default_rng(0).standard_normal(d)))
            few = model.some(np.argsort(key)[:KERNEL_START])
            starts = [maximised(few, starts).log_alpha - log(few.weight)]
        return self.noted(k, maximised(model, starts), None)

    def noted(self, k: int, best: Evidence, model: Model | None) -> Candidate:
        """Return a candidate, its evidence less what the volume of rank-k matrices costs."""
        p = self.d * k - k * (k - 1) // 2
        share = float(best.determined[-1]) / p if 0 < k < self.d else 0.0
        alpha = best.alpha if len(best.alpha) == 2 else 2 * best.alpha
        cost = share * log_volume(self.d, k)
        return Candidate(k, best.log_evidence - cost, alpha, best.noise, model)

    def low_rank(self, k: int) -> Candidate:
        warm, alpha = self.start(k)
        options = replace(self.options, tol=max(LOOSE_TOL, self.options.tol), max_iter=LOOSE_STEPS)
        shift = log(max(self.weight - 1, 1.0))
        for _ in range(ROUNDS):
            warm = self.fit(replace(options, rank=k, alpha=alpha), warm)[0].model
            gram = self.gram(warm.U)
            before = np.log(alpha) if len(gram.sizes) == 2 else np.log(alpha[1:])
            best = maximised(gram, [before - shift])
            candidate = self.noted(k, best, warm)
            alpha = candidate.alpha
            if np.max(np.abs(best.log_alpha - before)) <= SETTLED:
                break
        return candidate

    def start(self, k: int) -> tuple[Model | None, tuple[float, float]]:
        """Return a model and penalties to begin with, those of the next higher rank if known."""
        higher = [j for j, c in self.tried.items() if c is not None and j > k and c.model is not None]
        lower = [j for j, c in self.tried.items() if c is not None and 0 < j < k]
        if higher:
            near = self.tried[min(higher)]
            first, second = near.alpha  # the same |M|² by fewer parameters
            return with_rank(near.model, k), (first, second * k / near.rank)
        if lower:
            return None, self.tried[max(lower)].alpha
        ends = [self.tried[j] for j in (self.d, 0) if self.tried.get(j) is not None]
        first = ends[0].alpha[0] if ends else 1e-3 * self.weight
        second = min(ends[0].alpha[1] if ends and ends[0].rank else np.inf, BEGIN * self.weight)
        return None, tuple(max(a, 1e-8 * self.weight) for a in (first, second))

    def fit(self, options: Options, warm: Model | None) -> tuple[Solution, Whitener]:
        rng, ridge = np.random.default_rng(self.seed), options.alpha[0] / self.weight
        if self.white is None or not self.ridge / NEAR <= ridge <= self.ridge * NEAR:
            self.white, passes = whitener(self.source, self.units, options.whiten, ridge, rng)
            self.ridge, self.passes = ridge, self.passes + passes
        problem = Problem(self.source, self.units, options, rng)
        solution = polish(problem, self.white, warm)
        self.passes += problem.passes
        return solution, self.white

    def fitted(self, best: Candidate) -> Choice:
        """Fit the best candidate to the end; without noise, without penalty."""
        alpha, warm = best.alpha, best.model
        if best.noise <= NO_NOISE:
            alpha = (0.0, 0.0)
        elif best.rank in (0, self.d) and self.plain:
            warm = Exact(self.source, self.units, self.rows, best.rank == 0).model(alpha, best.rank)
        solution, white = self.fit(replace(self.options, rank=best.rank, alpha=alpha), warm)
        evidence = {c.rank: c.evidence for c in self.found()}
        return Choice(best.rank, alpha, solution, white, sqrt(best.noise), evidence, self.passes)
