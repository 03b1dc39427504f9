"""The curvature of the objective at an optimum, and noise drawn per row: for standard errors."""

import numpy as np

from quadlin.core.arrays import Array, namespace, symmetric
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import folded
from quadlin.core.model import Model, predict
from quadlin.core.sums import Sums, batch_sums, cut_rows, standardised_target
from quadlin.core.units import Units
from quadlin.solve.gauss_newton import GaussNewton, Point
from quadlin.solve.tangent import Ridge, Tangent
from quadlin.solve.types import Problem
from quadlin.solve.whitening import FULL_LIMIT, Whitener

NOISE_ROWS = 256  # whose noise is drawn together


class Curvature(GaussNewton):
    """A + share·C at an optimum: A is Gauss–Newton's, C that of the rank-k matrices.

    C/n maps G to 2 P_⊥ E[r zzᵀ] P_⊥ G S⁻¹, in whitened coordinates.
    """

    def __init__(self, problem: Problem, white: Whitener) -> None:
        super().__init__(problem, white)
        self.normal: Array | None = None  # (d, d), P_⊥ E[r zzᵀ] P_⊥, whitened
        self.inverse_s: Array = None  # (k,)
        self.share = 0.0  # of C in `curvature`

    def look_around(self, p: Point) -> None:
        """Learn C, from a d×d matrix: one pass. |C| ≤ A at an optimum, for Gaussian features."""
        xp, (d, k), second = namespace(p.U), p.U.shape, self.options.alpha[1]
        if d > FULL_LIMIT or k in (0, d):
            return
        identity = xp.eye(d, dtype=p.U.dtype, device=p.U.device)
        E, B = p.model.U, self.white.apply(identity)
        sums = self.problem.sums(p.model, B, squares=self.squares)
        RE, RB = (self.units.penalty_scale[:, None] ** 2 * A for A in (E, B))
        ME = 2 * second / sums.weight * (RE @ (p.s[:, None] * (E.T @ RB)))
        ridge = Ridge(None, ME[:, None, :])
        G = self.coordinates.gradient(sums, identity, B, ridge).G[:, 0, :]
        P = identity - p.U @ p.U.T
        self.normal = symmetric(P @ G @ P / 2)
        most = 2 / max(float(xp.linalg.matrix_norm(self.normal, ord=2)), 1e-30)
        self.inverse_s = xp.sign(p.s) / xp.clip(xp.abs(p.s), min=1 / most)

    def bent(self, G: Array) -> Array:
        """Return C/n times the G (d, m, k) of some tangents."""
        if self.normal is None:
            return 0 * G
        xp, shape = namespace(G), G.shape
        flat = xp.reshape(G * self.inverse_s, (shape[0], shape[1] * shape[2]))
        return 2 * xp.reshape(self.normal @ flat, shape)

    def curvature(self, p: Point, t: Tangent) -> Tangent:
        """Return (A + share·C)/n times every tangent: one pass for all."""
        A = super().curvature(p, t)
        return A if not self.share else Tangent(A.c, A.v, A.G + self.share * self.bent(t.G))


def noise_sums(
    numbered: tuple[Chunk, range],
    E: Array,
    units: Units,
    seed: int,
    draws: int,
    squares: bool,
    model: Model | None = None,
) -> Sums:
    """Sum what noise Ω^½ε says, or with a model Ω(r∘ε), r its residuals."""
    (chunk, places), xp = numbered, namespace(E)
    pieces = cut_rows(chunk, draws * E.shape[1])
    if len(pieces) > 1:
        params = (E, units, seed, draws, squares, model)
        return folded(noise_sums, pieces, params, places)[0]  # type: ignore[return-value]
    r = xp.asarray(noise(places, seed, draws), dtype=E.dtype, device=E.device)
    if chunk.weight is not None:
        weight = xp.astype(chunk.weight, E.dtype)[:, None]
        r = xp.sqrt(weight) * r if model is None else weight * r
    if model is not None:
        residual = predict(model, Block(chunk.X, units)) - standardised_target(chunk, units)
        r = residual[:, None] * r

    def drawn(ZE: Array, _: None, part: slice) -> tuple[Array, Array, Array]:
        return r[part, :], r[part, :], ZE

    return batch_sums(chunk, units, E, drawn, None, squares)


def noise(places: range, seed: int, draws: int) -> np.ndarray:
    """Draw the noise of some rows: it depends on their places, not on how rows are cut."""
    if not places:
        return np.empty((0, draws))
    first, last = places[0] // NOISE_ROWS, places[-1] // NOISE_ROWS
    drawn = [
        np.random.default_rng([seed, number]).standard_normal((NOISE_ROWS, draws))
        for number in range(first, last + 1)
    ]
    start = places[0] - first * NOISE_ROWS
    return np.concatenate(drawn)[start : start + len(places)]
