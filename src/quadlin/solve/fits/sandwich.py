r"""Standard errors that do not assume equal noise: the residuals give that of each direction.

.. math:: \mathrm{cov} = B \left( J^\top \mathrm{diag}(\omega_i^2 e_i^2)\, J + \sigma^2 R \right)
          B^\top, \quad e_i = \frac{r_i}{1 - h_i}, \quad
          h_i = \omega_i\, \varphi_i^\top A^{-1} \varphi_i, \quad B = (I + A^{-1} C)^{-1/2} A^{-1}

(White, 1980; MacKinnon and White's HC3, 1985), with φ the rows of J, and A, C and R as in
`uncertainty`. With the same noise in every row it is again σ²H⁻¹. A row counts as one observation,
independent of the others, whatever its weight: weights may be precisions or shares of a population.

With Huber's loss, ω are the weights of its reweighted least squares. The loss is curved only inside
the bend, so the rows outside are subtracted from A.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt

from quadlin.core.arrays import Array, namespace, symmetric
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import folded
from quadlin.core.model import Model, Steps, changes, predict
from quadlin.core.rows import Rows
from quadlin.core.sums import cut_rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.linear_model import Products

INSIDE = 0.05  # of the curvature along a direction: the least that remains with Huber's loss


@dataclass(frozen=True)
class Laplace:
    """A model and the steps of its H⁻¹, which are to be corrected."""

    model: Model
    units: Units
    steps: Steps
    root: Array  # (m,), the entries of (I + A⁻¹C)^−½ along the steps
    noise: float  # σ
    ridge: bool  # whether there is an R
    bend: float = inf  # of Huber's loss, in units of the residuals


def sandwiched(rows: Rows, at: Laplace) -> Steps:
    """Return steps whose squares sum to the covariance over σ²: a pass, two with a bend; O(nm²)."""
    steps, xp = at.steps, namespace(at.steps.E)
    S = symmetric(rows.reduce(score_products, at).gram)
    identity = xp.eye(S.shape[0], dtype=S.dtype, device=S.device)
    if at.ridge:  # A = JᵀΩJ + R is the identity along these steps; the rows subtract JᵀΩJ
        S = S + at.noise**2 * identity
    if at.bend < inf:
        outside = rows.reduce(outside_products, at)
        values, V = xp.linalg.eigh(identity - symmetric(outside.gram))
        inverse = (V / xp.clip(values, min=INSIDE)) @ V.T
        S = symmetric(inverse @ S @ inverse)
    values, V = xp.linalg.eigh(S)
    root = V * (xp.sqrt(xp.clip(values, min=0)) / at.noise)
    return steps.combined(xp.astype(root, steps.E.dtype))


def score_products(chunk: Chunk, at: Laplace) -> Products:
    """Sum (ω²e² − σ²ω) qqᵀ, without the second term if there is no ridge; q = J A^−½."""
    return _in_pieces(chunk, at, _scores)


def outside_products(chunk: Chunk, at: Laplace) -> Products:
    """Sum ω qqᵀ over the rows outside the bend."""
    return _in_pieces(chunk, at, _outside)


def _outside(_: Array, r: Array, weight: Array, at: Laplace) -> Array:
    xp = namespace(r)
    return xp.where(xp.abs(r) > at.bend, weight, 0 * weight)


def _scores(q: Array, r: Array, weight: Array, at: Laplace) -> Array:
    xp = namespace(q)
    leverage, most = weight * xp.sum(q * q, axis=1), 1 - sqrt(at.units.eps)
    e = r / (1 - xp.clip(leverage, max=most))
    # The residual of a row that alone determines a parameter is rounding.
    square = xp.where(leverage < most, (weight * e) ** 2, at.noise**2 * weight)
    return square - at.noise**2 * weight if at.ridge else square


def _in_pieces(chunk: Chunk, at: Laplace, weigh: Callable[..., Array]) -> Products:
    """Sum ν qqᵀ, where `weigh` computes ν from q = J A^−½, the residuals and the weights."""

    def of(part: Chunk) -> Products:
        block, xp = Block(part.X, at.units), namespace(at.steps.E)
        q = xp.astype(changes(block, at.steps, at.units.free) / at.root, xp.float64)
        r = xp.astype(predict(at.model, block) - at.units.standardised_target(part.y), xp.float64)
        omega = xp.ones_like(r) if part.weight is None else xp.astype(part.weight, xp.float64)
        return Products(q.T @ (weigh(q, r, omega, at)[:, None] * q))

    _, m, k = at.steps.H.shape
    pieces = cut_rows(chunk, m * max(1, k)) or [chunk]
    return folded(of, pieces, ())[0]  # type: ignore[return-value]
