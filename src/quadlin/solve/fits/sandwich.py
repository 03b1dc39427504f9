r"""Standard errors that need no equal noise: what the residuals themselves say of each direction.

.. math:: \mathrm{cov} = B \left( J^\top \mathrm{diag}(\omega_i^2 e_i^2)\, J + \sigma^2 R \right)
          B^\top, \quad e_i = \frac{r_i}{1 - h_i}, \quad
          h_i = \omega_i\, \varphi_i^\top A^{-1} \varphi_i, \quad B = (I + A^{-1} C)^{-1/2} A^{-1}

(White, 1980; MacKinnon and White's HC3, 1985), φ the rows of J and A, C and R as in `uncertainty`.
With the same noise in every row it is σ²H⁻¹ again. A row counts as one observation, independent of
the others, whatever its weight: weights may be precisions or shares of a population.

With Huber's loss ω are the weights of its reweighted least squares. Its own curvature is that of
the rows inside of the bend, so those outside are taken off A.
"""

from dataclasses import dataclass
from math import inf

from quadlin.core.arrays import Array, namespace, symmetric
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import folded
from quadlin.core.model import Model, Steps, changes, predict
from quadlin.core.rows import Rows
from quadlin.core.sums import cut_rows, standardised_target
from quadlin.core.units import Units
from quadlin.solve.lowrank.tangent_gram import Products

SPEAKS = 0.999  # a row of larger leverage decides a parameter alone: its residual says nothing
INSIDE = 0.05  # of the curvature along a direction is taken to be left, at least, by Huber's loss


@dataclass(frozen=True)
class Laplace:
    """A model and the steps of its H⁻¹, to be corrected."""

    model: Model
    units: Units
    steps: Steps
    root: Array  # (m,), the entries of (I + A⁻¹C)^−½ along the steps
    noise: float  # σ
    ridge: bool  # whether R is there
    bend: float = inf  # of Huber's loss, as the residuals


def sandwiched(rows: Rows, at: Laplace) -> Steps:
    """Return steps whose squares sum to the covariance: one pass, two with a bend; O(nm²)."""
    steps, xp = at.steps, namespace(at.steps.E)
    parts = (at.model, at.units, steps, at.root, at.noise, at.ridge)
    S = symmetric(rows.reduce(score_products, *parts).gram)
    identity = xp.eye(S.shape[0], dtype=S.dtype, device=S.device)
    if at.ridge:  # JᵀΩJ + R = A, the identity along these steps, and JᵀΩJ is taken off by the rows
        S = S + at.noise**2 * identity
    if at.bend < inf:
        outside = rows.reduce(outside_products, at.model, at.units, steps, at.root, at.bend)
        values, V = xp.linalg.eigh(identity - symmetric(outside.gram))
        inverse = (V / xp.clip(values, min=INSIDE)) @ V.T
        S = symmetric(inverse @ S @ inverse)
    values, V = xp.linalg.eigh(S)
    return steps.combined(xp.astype(V * xp.sqrt(xp.clip(values, min=0)), steps.E.dtype))


def score_products(
    chunk: Chunk, model: Model, units: Units, steps: Steps, root: Array, noise: float, ridge: bool
) -> Products:
    """Sum (ω²e² − σ²ω) qqᵀ, without the second part where there is no ridge; q = J A^−½."""
    pieces = _pieces(chunk, steps)
    if len(pieces) > 1:
        params = (model, units, steps, root, noise, ridge)
        return folded(score_products, pieces, params)[0]  # type: ignore[return-value]
    q, r, weight = _looked_at(chunk, model, units, steps, root)
    xp = namespace(q)
    leverage = weight * xp.sum(q * q, axis=1)
    e = r / (1 - xp.clip(leverage, max=SPEAKS))
    square = xp.where(leverage < SPEAKS, (weight * e) ** 2, noise**2 * weight)
    if ridge:
        square = square - noise**2 * weight
    return Products(q.T @ (square[:, None] * q))


def outside_products(
    chunk: Chunk, model: Model, units: Units, steps: Steps, root: Array, bend: float
) -> Products:
    """Sum ω qqᵀ over the rows outside of the bend."""
    pieces = _pieces(chunk, steps)
    if len(pieces) > 1:
        params = (model, units, steps, root, bend)
        return folded(outside_products, pieces, params)[0]  # type: ignore[return-value]
    q, r, weight = _looked_at(chunk, model, units, steps, root)
    xp = namespace(q)
    return Products(q.T @ (xp.where(xp.abs(r) > bend, weight, 0 * weight)[:, None] * q))


def _pieces(chunk: Chunk, steps: Steps) -> list[Chunk]:
    _, m, k = steps.H.shape
    return cut_rows(chunk, m * max(1, k))


def _looked_at(
    chunk: Chunk, model: Model, units: Units, steps: Steps, root: Array
) -> tuple[Array, Array, Array]:
    """Return q = J A^−½ (n, m), the residuals and the weights."""
    block, xp = Block(chunk.X, units), namespace(steps.E)
    q = xp.astype(changes(block, steps, units.free) / root, xp.float64)
    r = xp.astype(predict(model, block) - standardised_target(chunk, units), xp.float64)
    weight = xp.ones_like(r) if chunk.weight is None else xp.astype(chunk.weight, xp.float64)
    return q, r, weight
