"""Many tangent steps at once: what curvature and draws need, several right-hand sides a pass."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quadlin.core.arrays import Array, namespace, symmetric
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Additive, paired, reduce
from quadlin.core.sums import Sums
from quadlin.core.units import Units
from quadlin.solve.gauss_newton import Point, Tangent, Task
from quadlin.solve.whitening import FULL_LIMIT

ELEMENTS = 1 << 22  # numbers in a block of rows times steps
NOISE_ROWS = 256  # whose noise is drawn together


@dataclass(frozen=True)
class Steps:
    """Changes i = 1 … m of a model within its tangent space: M + E Hᵢᵀ + Hᵢ Eᵀ, w + wᵢ, c + cᵢ."""

    E: Array  # (d, k), the model's own factor
    H: Array  # (d, m, k)
    w: Array  # (d, m)
    c: Array  # (m,)

    def __getitem__(self, part: slice) -> "Steps":
        return Steps(self.E, self.H[:, part, :], self.w[:, part], self.c[part])

    def diagonals(self) -> Array:
        """Return diag(E Hᵢᵀ + Hᵢ Eᵀ), (d, m)."""
        return 2 * namespace(self.E).sum(self.E[:, None, :] * self.H, axis=2)

    def times(self, v: Array, free: Array) -> Array:
        """Return dMᵢ v, (d, m), with the diagonal that is not modelled left out."""
        xp = namespace(self.E)
        d, m, k = self.H.shape
        vH = xp.reshape(v @ xp.reshape(self.H, (d, m * k)), (m, k))
        Hv = xp.reshape(xp.reshape(self.H, (d * m, k)) @ (self.E.T @ v), (d, m))
        return self.E @ vH.T + Hv - ((1 - free) * v)[:, None] * self.diagonals()

    def combined(self, W: Array) -> "Steps":
        """Return the steps Σᵢ Wᵢⱼ tᵢ."""
        xp = namespace(self.E)
        H = xp.permute_dims(xp.tensordot(self.H, W, axes=((1,), (0,))), (0, 2, 1))
        return Steps(self.E, H, self.w @ W, self.c @ W)

    def penalty(self, alpha: tuple[float, float], rho: Array) -> float:
        """Return tr R Σ tᵢtᵢᵀ = Σ α₁|ρ∘wᵢ|² + 2α₂‖ρρᵀ∘(E Hᵢᵀ + Hᵢ Eᵀ)‖²."""
        xp = namespace(self.E)
        E, H, w = rho[:, None] * self.E, rho[:, None, None] * self.H, rho[:, None] * self.w
        EH = xp.tensordot(E, H, axes=((0,), (0,)))
        inner = xp.sum(H * (H @ (E.T @ E)))
        cross = xp.sum(EH * xp.permute_dims(EH, (2, 1, 0)))
        return alpha[0] * float(xp.sum(w * w)) + 4 * alpha[1] * float(inner + cross)


def changes(rows: Block, ZE: Array, steps: Steps, free: Array) -> Array:
    """Return how each step changes the predictions, J tᵢ: (n, m)."""
    xp = namespace(ZE)
    d, m, k = steps.H.shape
    columns = xp.concat([xp.reshape(steps.H, (d, m * k)), steps.w], axis=1)
    diagonals = steps.diagonals()
    if bool(xp.any(free == 0)):
        products, squares = rows.products(columns, (1 - free)[:, None] * diagonals)
    else:
        products, squares = rows.matmul(columns), 0.0
    ZH = xp.reshape(products[:, : m * k], (ZE.shape[0], m, k))
    linear = steps.c + products[:, m * k :] - free @ diagonals
    return linear + 2 * xp.sum(ZE[:, None, :] * ZH, axis=2) - squares


@dataclass(frozen=True)
class ManySums(Additive):
    """What `Sums` holds of a residual, for m of them."""

    weight: float
    p0: Array  # (m,)
    p1: Array  # (d, m)
    p2: Array  # (d, m)
    action: Array  # (d, m, k)

    @classmethod
    def of(cls, rows: Block, r: Array, ZE: Array, chunk: Chunk, squares: bool) -> "ManySums":
        """Sum over a block, r (n, m) already weighted."""
        xp = namespace(ZE)
        (n, m), k = r.shape, ZE.shape[1]
        responses = xp.reshape(r[:, :, None] * ZE[:, None, :], (n, m * k))
        back = rows.rmatmul(xp.concat([responses, r], axis=1))
        action, p1 = back[:, : m * k], back[:, m * k :]
        p2 = rows.squares_rmatvec(r) if squares else xp.zeros_like(p1)
        weight = float(n) if chunk.weight is None else float(xp.sum(chunk.weight))
        return cls(weight, xp.sum(r, axis=0), p1, p2, xp.reshape(action, (p1.shape[0], m, k)))

    def each(self) -> Iterator[Sums]:
        """Return them one by one."""
        for i in range(self.p0.shape[0]):
            p0, p1, p2 = float(self.p0[i]), self.p1[:, i], self.p2[:, i]
            yield Sums(self.weight, 0.0, p0, p1, p2, self.action[:, i, :])


def blocks(chunk: Chunk, columns: int) -> list[Chunk]:
    """Cut rows so that a product with this many columns stays a block."""
    step = max(1, ELEMENTS // max(1, columns))
    return list(MemorySource(chunk.X, chunk.y, chunk.weight, step))


def change_sums(chunk: Chunk, steps: Steps, units: Units, squares: bool) -> ManySums:
    """Sum what the changes of the predictions say."""
    pieces = blocks(chunk, steps.H.shape[1] * steps.H.shape[2])
    if len(pieces) > 1:
        return reduce(change_sums, pieces, steps, units, squares)
    rows = Block(chunk.X, units)
    ZE = rows.matmul(steps.E)
    q = changes(rows, ZE, steps, units.free)
    if chunk.weight is not None:
        q = namespace(q).astype(chunk.weight, q.dtype)[:, None] * q
    return ManySums.of(rows, q, ZE, chunk, squares)


def noise_sums(
    numbered: tuple[Chunk, range], E: Array, units: Units, seed: int, draws: int, squares: bool
) -> ManySums:
    """Sum what noise Ω^½ε says."""
    (chunk, places), xp = numbered, namespace(E)
    pieces = blocks(chunk, draws * E.shape[1])
    if len(pieces) > 1:
        return reduce(noise_sums, paired(pieces, places), E, units, seed, draws, squares)
    r = xp.asarray(noise(places, seed, draws), dtype=E.dtype, device=E.device)
    if chunk.weight is not None:
        r = xp.sqrt(xp.astype(chunk.weight, E.dtype))[:, None] * r
    rows = Block(chunk.X, units)
    return ManySums.of(rows, r, rows.matmul(E), chunk, squares)


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


class Many(Task):
    """A task whose tangents are m laid side by side, [c₁ … c_m, v₁ … v_m] and [G₁ … G_m].

    To conjugate gradients that is one system, block by block the same: one pass an iteration.
    """

    normal: Array | None = None  # (d, d), P_⊥ E[r zzᵀ] P_⊥, whitened
    inverse_s: Array  # (k,)
    share: float = 0.0  # of C in `curvature`

    @property
    def ridge(self) -> tuple[float, float]:
        """Return α₁ and α₂; a linear part that is tied to M is not penalised."""
        first, second = self.options.alpha
        return first * self.options.fit_linear, second

    def look_around(self, p: Point) -> None:
        """Learn C, from a d×d matrix: one pass. |C| ≤ A at an optimum, for Gaussian features."""
        xp, (d, k), second = namespace(p.U), p.U.shape, self.options.alpha[1]
        if d > FULL_LIMIT or k == d:
            return
        identity = xp.eye(d, dtype=p.U.dtype, device=p.U.device)
        E, B = p.model.U, self.white.apply(identity)
        sums = self.problem.sums(p.model, B, squares=self.squares)
        RE, RB = (self.units.burden[:, None] ** 2 * A for A in (E, B))
        ME = 2 * second / sums.weight * (RE @ (p.s[:, None] * (E.T @ RB)))
        P = identity - p.U @ p.U.T
        self.normal = symmetric(P @ self.pulled_back(sums, identity, B, None, ME).G @ P / 2)
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
        steps, E, (d, k) = self.steps(p, t), p.model.U, p.U.shape
        self.problem.passes += 1
        sums = reduce(change_sums, self.problem.source, steps, self.units, self.squares)
        tangents = []
        for i, s in enumerate(sums.each()):
            ridge = self.ridge_curvature(E, steps.H[:, i, :], steps.w[:, i], sums.weight)
            tangents.append(self.pulled_back(s, p.U, E, *ridge))
        CG = self.bent(namespace(E).reshape(t.G, (d, steps.c.shape[0], k)))
        bent = Tangent(0.0, 0 * t.v, namespace(E).reshape(CG, t.G.shape))
        return beside(tangents).plus(self.share, bent)

    def steps(self, p: Point, t: Tangent) -> Steps:
        """Return the tangents as steps in standardised units, with the parts tied to others."""
        xp, (d, k) = namespace(p.U), p.U.shape
        m = t.v.shape[0] // (d + 1)
        v, G = xp.reshape(t.v[m:], (m, d)), xp.reshape(t.G, (d, m, k))
        tangents = (Tangent(float(t.v[i]), v[i, :], G[:, i, :]) for i in range(m))
        steps = [self._pushed_forward(p, each) for each in tangents]
        c = xp.asarray([s.c for s in steps], dtype=p.U.dtype, device=p.U.device)
        H, w = (xp.stack([getattr(s, name) for s in steps], axis=1) for name in ("H", "w"))
        return Steps(p.model.U, H, w, c)


def beside(tangents: list[Tangent]) -> Tangent:
    """Lay tangents side by side."""
    v = tangents[0].v
    xp = namespace(v)
    c = xp.asarray([t.c for t in tangents], dtype=v.dtype, device=v.device)
    return Tangent(
        0.0,
        xp.concat([c, *(t.v for t in tangents)]),
        xp.concat([t.G for t in tangents], axis=1),
    )
