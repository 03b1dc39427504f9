r"""The moment estimation sequence in its four readings, and gradient descent, on rows of features.

With r = f − y, P0, P1, P2 the means of r, r z and r(z∘z − 1), κ = E z³, φ = E z⁴, τ = φ − 1 − κ²:

.. math:: \mathcal{M} Q = \tfrac12 \big(E\,r z z^\top - P_0\big) Q
          - \tfrac12 (G_1 P_1 + G_2 P_2) \circ Q, \qquad \mathcal{W} = H_1 P_1 + H_2 P_2

with G = (2κ/τ, 1 − 2/τ) and H = ((φ−1)/τ, −κ/τ), or G = (0, 1) and H = (1, 0) if M has no diagonal.

- `plain`, what the authors mean: M ← rank-k part of M − 𝓜, w ← w − 𝓦.
- `gaussian`, the method of 2016: the same with κ = 0 and φ = 3 whatever the features.
- `published`, their public code (MingLin-home/gFM): H stands where G is meant in the update of V,
  w and b follow U and V with a residual of their own, G P is κ∘P1 without a diagonal, and the
  start takes up to 100 power iterations.
- `printed`, Algorithm 1 read literally: V⁺ = U Rᵀ, and nothing symmetrises U Vᵀ. Four corrections
  make it run: rows are standardised and c is carried; P0 is subtracted (without it the trace
  diverges for k ≥ 2); V⁺ = U Rᵀ where V Rᵀ is printed, with which V stays zero; H(z) = A′(z)/(2n).

Ours is `SecondOrderRegressor(solver="moments")`: the same moments on the tangent space of rank k,
and the length of the step by least squares; see `quadlin.paper.methods`.

Gradient descent alternates between V (with w and c) and U in the paper's Eq. (4), the mean square
of c + zᵀw + zᵀUVᵀz − y. The paper names neither start nor step size; both are chosen in favour of
the method: the spectral start, at the best size, and each step at the length of least loss, which
is a least-squares problem, since the prediction is linear in each block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from quadlin.core.arrays import Array, namespace

Batches = Iterator[tuple[Array, Array]]  # (Z, t) of each step: the same rows again, or fresh ones
KRYLOV_BLOCKS, OVERSAMPLING = 4, 4  # of the spectral start
POWER_STEPS, POWER_TOLERANCE = 100, 1e-6  # of the authors' start


@dataclass(frozen=True)
class Iterate:
    """f(z) = c + zᵀw + zᵀUVᵀz, less the mean of the quadratic part, or its diagonal."""

    U: Array  # (d, k)
    V: Array  # (d, k)
    w: Array  # (d,)
    c: Any
    has_diagonal: bool
    centred: bool = True
    loss: Any = np.nan  # mean squared residual
    passes: int = 0  # over the rows so far, that of the loss included

    def quadratic(self, Z: Array) -> Array:
        """Return the quadratic part of f."""
        xp = namespace(Z)
        m = xp.sum(self.U * self.V, axis=1)
        f = xp.sum((Z @ self.U) * (Z @ self.V), axis=1)
        if not self.has_diagonal:
            return f - (Z * Z) @ m
        return f - xp.sum(m) if self.centred else f

    def values(self, Z: Array) -> Array:
        """Return f."""
        return self.c + Z @ self.w + self.quadratic(Z)

    def times(self, Q: Array) -> Array:
        """Return sym(UVᵀ) Q."""
        return (self.U @ (self.V.T @ Q) + self.V @ (self.U.T @ Q)) / 2


def solve_systems(kappa: Array, phi: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return G and H, the solutions of the paper's 2×2 systems."""
    tau = phi - 1 - kappa**2
    return (2 * kappa / tau, 1 - 2 / tau), ((phi - 1) / tau, -kappa / tau)


class Coefficients(NamedTuple):
    """κ of the features, and the G and H that follow: two (d,) arrays each."""

    kappa: Array
    G: tuple[Any, Any]
    H: tuple[Any, Any]

    @classmethod
    def of(cls, Z: Array, has_diagonal: bool, gaussian: bool = False) -> "Coefficients":
        """Measure the moments, or take those of Gaussian features."""
        xp = namespace(Z)
        kappa, phi = xp.mean(Z**3, axis=0), xp.mean(Z**4, axis=0)
        if gaussian:
            kappa, phi = kappa * 0, phi * 0 + 3
        G, H = solve_systems(kappa, phi) if has_diagonal else ((0.0, 1.0), (1.0, 0.0))
        return cls(kappa, G, H)


class Residual(NamedTuple):
    """The moments of a residual r."""

    Z: Array
    r: Array
    P0: Any
    P1: Array
    P2: Array

    @classmethod
    def of(cls, Z: Array, r: Array) -> "Residual":
        """Take the means over the rows."""
        P0, n = namespace(Z).mean(r), Z.shape[0]
        return cls(Z, r, P0, Z.T @ r / n, (Z * Z).T @ r / n - P0)

    def action(self, Q: Array) -> Array:
        """Return (E r z zᵀ − P0) Q."""
        return self.Z.T @ (self.r[:, None] * (self.Z @ Q)) / self.Z.shape[0] - self.P0 * Q

    def mix(self, C: tuple[Any, Any]) -> Array:
        """Return C₁P1 + C₂P2."""
        return C[0] * self.P1 + C[1] * self.P2

    def error(self, Q: Array, C: tuple[Any, Any]) -> Array:
        """Return 𝓜Q."""
        return (self.action(Q) - self.mix(C)[:, None] * Q) / 2


def _begin(batches: Batches, rank: int, has_diagonal: bool) -> tuple[Array, Array, Iterate]:
    Z, t = next(batches)
    nothing = namespace(Z).zeros((Z.shape[1], rank), dtype=Z.dtype, device=Z.device)
    return Z, t, Iterate(nothing, nothing, nothing[:, 0], 0.0, has_diagonal, passes=1)


def _evaluate(model: Iterate, Z: Array, t: Array, passes: int) -> tuple[Iterate, Residual]:
    residual = Residual.of(Z, model.values(Z) - t)
    loss = namespace(Z).mean(residual.r * residual.r)
    return replace(model, loss=loss, passes=model.passes + passes), residual


def _random(Z: Array, columns: int, seed: int) -> Array:
    numbers = np.random.default_rng(seed).standard_normal((Z.shape[1], columns))
    return namespace(Z).asarray(numbers, dtype=Z.dtype, device=Z.device)


def _lead(xp: Any, S: Array, rank: int) -> tuple[Array, Array]:
    """Return the eigenvalues of largest size, and their vectors."""
    s, vectors = xp.linalg.eigh((S + S.T) / 2)
    order = xp.argsort(-xp.abs(s))[:rank]
    return xp.take(s, order), xp.take(vectors, order, axis=1)


def _spectral(residual: Residual, C: tuple[Any, Any], rank: int, seed: int) -> tuple[Array, Array]:
    """Return the leading eigenpairs (U, s) of −𝓜 by block Krylov: a pass for each block."""
    xp, d = namespace(residual.Z), residual.Z.shape[1]
    block = xp.linalg.qr(_random(residual.Z, min(d, rank + OVERSAMPLING), seed))[0]
    blocks = [block]
    while len(blocks) < KRYLOV_BLOCKS and (len(blocks) + 1) * block.shape[1] <= d:
        blocks.append(xp.linalg.qr(residual.error(blocks[-1], C))[0])
    Q = xp.linalg.qr(xp.concat(blocks, axis=1))[0]
    s, vectors = _lead(xp, -(Q.T @ residual.error(Q, C)), rank)
    return Q @ vectors, s


def plain(
    batches: Batches,
    rank: int,
    has_diagonal: bool,
    seed: int,
    gaussian: bool = False,
) -> Iterator[Iterate]:
    """Yield the start and the model after each step; two passes per step.

    The method of 2016 takes any features for Gaussian ones, and models their squares.
    """
    has_diagonal = has_diagonal or gaussian
    Z, t, model = _begin(batches, rank, has_diagonal)
    xp, moments = namespace(Z), Coefficients.of(Z, has_diagonal, gaussian)
    model, residual = _evaluate(model, Z, t, 0)
    yield model
    U, s = _spectral(residual, moments.G, rank, seed)
    w, c = -residual.mix(moments.H), -residual.P0
    model = replace(model, U=U, V=U * s, w=w, c=c, passes=1 + KRYLOV_BLOCKS)
    for Z, t in batches:
        model, residual = _evaluate(model, Z, t, 1)
        yield model
        U = xp.linalg.qr(model.times(model.U) - residual.error(model.U, moments.G))[0]
        s, vectors = _lead(xp, U.T @ (model.times(U) - residual.error(U, moments.G)), rank)
        U, w = U @ vectors, model.w - residual.mix(moments.H)
        c = model.c - residual.P0
        model = replace(model, U=U, V=U * s, w=w, c=c, passes=model.passes + 1)


def published(batches: Batches, rank: int, has_diagonal: bool, seed: int) -> Iterator[Iterate]:
    """Yield the start and the model after each step of the public code; three passes per step."""
    Z, t, model = _begin(batches, rank, has_diagonal)
    xp, moments = namespace(Z), Coefficients.of(Z, has_diagonal)
    # For exactly two values P2 = κ∘P1, and the two forms without a diagonal are the same.
    none = (moments.kappa, 0.0)
    for_U, for_V = (moments.G, moments.H) if has_diagonal else (none, none)
    model, residual = _evaluate(model, Z, t, 0)
    yield model
    U, steps = xp.linalg.qr(_random(Z, rank, seed))[0], 0
    while steps < POWER_STEPS:
        steps += 1
        before, U = U, xp.linalg.qr(-residual.error(U, for_U))[0]
        if float(xp.mean(xp.abs(U - before))) < POWER_TOLERANCE:
            break
    V, w = -residual.error(U, for_U), -residual.mix(moments.H)
    model = replace(model, U=U, V=V, w=w, c=-residual.P0, passes=2 + steps)
    for Z, t in batches:
        model, residual = _evaluate(model, Z, t, 1)
        yield model
        U = xp.linalg.qr(model.times(model.U) - residual.error(model.U, for_U))[0]
        V = model.times(U) - residual.error(U, for_V)
        model, residual = _evaluate(replace(model, U=U, V=V), Z, t, 2)
        w, c = model.w - residual.mix(moments.H), model.c - residual.P0
        model = replace(model, w=w, c=c)


def printed(batches: Batches, rank: int, has_diagonal: bool, seed: int) -> Iterator[Iterate]:
    """Yield the start and the model after each step of Algorithm 1; one pass per step."""
    Z, t, model = _begin(batches, rank, has_diagonal)
    xp, moments = namespace(Z), Coefficients.of(Z, has_diagonal)
    model, residual = _evaluate(model, Z, t, 0)
    # The start is that of H(y), without the correction of its diagonal.
    model = replace(model, U=_spectral(residual, (0.0, 0.0), rank, seed)[0])
    model = replace(model, passes=1 + KRYLOV_BLOCKS)
    while True:
        model, residual = _evaluate(model, Z, t, 1)
        yield model
        U, R = xp.linalg.qr(model.V - residual.error(model.U, moments.G))
        w, c = model.w - residual.mix(moments.H), model.c - residual.P0
        model = replace(model, U=U, V=model.U @ R.T, w=w, c=c)
        Z, t = next(batches)


def _least_squares(columns: list[Array], r: Array) -> Array:
    """Return the coefficients of the columns that make r smallest."""
    xp = namespace(r)
    F = xp.astype(xp.stack([*columns, r]), xp.float64)
    gram = F @ F.T
    size = xp.sqrt(xp.linalg.diagonal(gram))
    size = xp.where(size > 0, size, xp.ones_like(size))
    gram = gram / size[:, None] / size
    return -(xp.linalg.pinv(gram[:-1, :-1], rtol=1e-10) @ gram[:-1, -1]) * size[-1] / size[:-1]


def descent(
    batches: Batches, rank: int, has_diagonal: bool, seed: int, intercept: bool = True
) -> Iterator[Iterate]:
    """Yield the start and the model after each step of gradient descent; four passes per step."""
    Z, t, model = _begin(batches, rank, has_diagonal)
    model, residual = _evaluate(replace(model, centred=False), Z, t, 0)
    yield model
    xp = namespace(Z)
    diagonal = (0.0, 0.0) if has_diagonal else (0.0, 1.0)
    U, s = _spectral(residual, diagonal, rank, seed)
    f = replace(model, U=U, V=U * s).quadratic(Z)
    root = xp.sqrt(xp.abs(s) * xp.clip(xp.sum(f * t) / xp.sum(f * f), min=1e-6))
    model = replace(model, U=U * root, V=U * (root * xp.sign(s)), passes=2 + KRYLOV_BLOCKS)
    for Z, t in batches:
        model, residual = _evaluate(model, Z, t, 1)
        yield model
        for block, other in (("V", model.U), ("U", model.V)):
            if block == "U":  # with the new V
                other = model.V
                model, residual = _evaluate(model, Z, t, 1)
            gradient = residual.action(other) - residual.mix(diagonal)[:, None] * other
            if has_diagonal:
                gradient = gradient + residual.P0 * other
            columns = [replace(model, U=other, V=gradient).quadratic(Z)]
            columns += [Z @ residual.P1, xp.ones_like(t)][: 1 + intercept] if block == "V" else []
            a = [float(x) for x in _least_squares(columns, residual.r)]
            model = replace(model, **{block: getattr(model, block) + a[0] * gradient})
            if block == "V":
                w = model.w + a[1] * residual.P1
                model = replace(model, w=w, c=model.c + (a[2] if intercept else 0.0))
            model = replace(model, passes=model.passes + 1)


ITERATIONS: dict[str, Callable[[Batches, int, bool, int], Iterator[Iterate]]] = {
    "published": published,
    "plain": plain,
    "gaussian": partial(plain, gaussian=True),
    "literal": printed,
    "gd_printed": partial(descent, intercept=False),
    "gd_standardised": descent,
}
