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
KERNEL_ROWS = 1500  # up to which all products are tried where they are too many for a p×p matrix
ROUNDS, SETTLED = 3, 0.3  # of fit and penalties, and the change of log α that ends them
LOOSE_TOL, LOOSE_STEPS = 1e-4, 8  # of fits whose evidence is compared
NO_NOISE = 1e-10  # of the target's variance: what is left is rounding
STARTS = [(first, second) for first in (-9.0, -5.0, -1.5) for second in (-9.0, -5.0, -2.0, 1.0)]


@dataclass(frozen=True)
class Basis:
    """An orthonormal basis of the tangent space at a span of k directions: w_i w_jᵀ, i < k, i ≤ j.

    In units in which the ridge weighs all features the same, z/ρ. With k = d the directions are the
    features, so that these are all products of two.
    """

    W: Array  # (d, d), the span first
    i: Array
    j: Array
    size: Array  # 1, or √2 for two different directions

    @classmethod
    def of(cls, units: Units, U: Array) -> "Basis":
        """Return the basis at the span of U, in standardised units."""
        xp, (d, k) = namespace(U), U.shape
        W = xp.eye(d, dtype=xp.float64, device=U.device)
        if 0 < k < d:
            rho = xp.astype(units.burden, xp.float64)[:, None]
            W = xp.linalg.qr(rho * xp.astype(U, xp.float64), mode="complete")[0]
        i, j = np.triu_indices(d)
        i, j = i[i < k], j[i < k]
        size = np.where(i == j, 1.0, sqrt(2))
        return cls(W, *(xp.asarray(a, device=U.device) for a in (i, j, size)))


@dataclass(frozen=True)
class Products(Additive):
    """Σω φφᵀ for φ = (1, z, the directions of a basis, y)."""

    gram: Array


def products(chunk: Chunk, units: Units, options: Options, basis: Basis) -> Products:
    """Sum over one chunk, in float64."""
    n, d = chunk.X.shape
    step = max(1, EXACT_ENTRIES // 8 // (d + 2 + basis.i.shape[0]))
    if n > step:
        parts = (rows_of(chunk, np.arange(n)[i : i + step]) for i in range(0, n, step))
        return reduce(products, parts, units, options, basis)
    Z = _dense(chunk, units)
    xp = namespace(Z)
    nu, rho = (xp.astype(a, xp.float64) for a in (units.nu, units.burden))
    fixed = xp.astype(units.free == 0, xp.float64)  # whose squares are left out
    ones = xp.ones_like(Z[:, :1])
    linear = Z if options.fit_intercept else Z + nu
    at = Z if options.fit_linear else Z + nu
    columns = [ones, linear / rho] if options.fit_linear else [ones]
    columns.append(_quadratic(at / rho, basis, fixed))
    if options.fit_linear and not options.fit_intercept:
        columns[-1] = columns[-1] - _quadratic((nu / rho)[None, :], basis, fixed)
    columns.append(xp.astype(standardised_target(chunk, units), xp.float64)[:, None])
    A = xp.concat(columns, axis=1)
    if chunk.weight is not None:
        A = xp.sqrt(xp.astype(chunk.weight, xp.float64))[:, None] * A
    return Products(A.T @ A)


def _quadratic(Z: Array, basis: Basis, fixed: Array) -> Array:
    """Return zᵀBz for the directions B of a basis, squares left out where they are fixed."""
    xp = namespace(Z)
    ZW = Z @ basis.W
    values = xp.take(ZW, basis.i, axis=1) * xp.take(ZW, basis.j, axis=1)
    if bool(xp.any(fixed != 0)):
        W = fixed[:, None] * basis.W
        values = values - (Z * Z) @ (xp.take(W, basis.i, axis=1) * xp.take(basis.W, basis.j, axis=1))
    return values * basis.size


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

    @property
    def d(self) -> int:
        return int(self.units.scale.shape[0])

    @property
    def plain(self) -> bool:
        return self.options.fit_linear and self.options.fit_intercept and not self.options.psd

    def best(self) -> Candidate:
        """Return the best of rank 0, of all products and of a search over low ranks."""
        self.candidate(0)
        if self.d > 0 and self.plain:
            self.candidate(self.d)
        most = self.most()
        if most > 0:
            k = min(FIRST_RANK, most)
            self.candidate(k)
            while k > 1 and (k == min(FIRST_RANK, most) or self.better(k, 2 * k)):
                k = k // 2
                self.candidate(k)
            k = min(FIRST_RANK, most)
            while k < most and self.better(k, k // 2):
                k = min(2 * k, most)
                self.candidate(k)
            self.refine(most)
        return max(self.found(), key=lambda c: c.evidence)

    def refine(self, most: int) -> None:
        """Try ranks between the best low rank and its neighbours, the middle ones first."""
        while True:
            low = sorted(k for k, c in self.tried.items() if c is not None and k <= most)
            top = max(low, key=lambda k: self.evidence(k))
            place = low.index(top)
            around = [(low[p], top) for p in (place - 1,) if p >= 0]
            around += [(top, low[p]) for p in (place + 1,) if p < len(low)]
            gaps = [(b - a, (a + b) // 2) for a, b in around if b - a > 1]
            if top == 0 or not gaps:
                return
            self.candidate(max(gaps)[1])

    def better(self, k: int, other: int) -> bool:
        return self.evidence(k) >= self.evidence(other)

    def evidence(self, k: int) -> float:
        candidate = self.tried.get(k)
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
        linear, quadratic = self.d * self.options.fit_linear, basis.i.shape[0]
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
        starts = [(a,) for a in (-9.0, -5.0, -2.0, 0.0, 2.0)] if k == 0 else STARTS
        best = maximised(model, starts)
        return self.noted(k, best, None)

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
            before = np.log(alpha)[-2 + self.options.fit_linear * 0 :]
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
            return with_rank(near.model, k), near.alpha
        if lower:
            return None, self.tried[max(lower)].alpha
        ends = [self.tried[j] for j in (self.d, 0) if self.tried.get(j) is not None]
        first = ends[0].alpha[0] if ends else 1e-3 * self.weight
        second = ends[0].alpha[1] if ends and ends[0].rank else 0.05 * self.weight
        clip = self.weight * np.array([1e-8, 1.0])
        return None, (float(np.clip(first, *clip)), float(np.clip(second, *clip)))

    def fit(self, options: Options, warm: Model | None) -> tuple[Solution, Whitener]:
        rng = np.random.default_rng(self.seed)
        white, passes = whitener(
            self.source, self.units, options.whiten, options.alpha[0] / self.weight, rng
        )
        problem = Problem(self.source, self.units, options, rng)
        solution = polish(problem, white, warm)
        self.passes += problem.passes + passes
        return solution, white

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
