"""The statistics of a residual that a step needs, as sums over rows."""

from dataclasses import dataclass

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.core.model import Model, evaluate
from quadlin.core.units import Units


@dataclass(frozen=True)
class Sums(Additive):
    """Sums over rows of what the residual r = f − y says, each row weighted by ω."""

    weight: float  # Σω
    loss: float  # Σω r²
    p0: float  # Σω r
    p1: Array  # (d,), Zᵀ(ω∘r)
    p2: Array  # (d,), (Z∘Z)ᵀ(ω∘r), or zero where nobody asked for it
    action: Array  # (d, q), Zᵀ(ω∘r∘ZQ)


@dataclass(frozen=True)
class Step:
    """A change of the model within the tangent space: M + E Hᵀ + H Eᵀ, w + w, c + c."""

    E: Array  # (d, k), the model's own factor
    H: Array  # (d, k)
    w: Array  # (d,)
    c: float


def standardised_target(chunk: Chunk, units: Units) -> Array:
    """Return (y − mean)/scale in the dtype of the model, subtracted in the dtype of y."""
    xp = namespace(chunk.y)
    return xp.astype((chunk.y - units.target.mean) / units.target.scale, units.scale.dtype)


def residual_sums(
    chunk: Chunk, model: Model, units: Units, Q: Array | None = None, squares: bool = True
) -> Sums:
    """Sum over one chunk; Q defaults to the model's own U, whose product is needed anyway.

    `squares=False` leaves P2 out, for those who need it for no feature.
    """
    xp = namespace(model.U)
    k = model.U.shape[1]
    rows = Block(chunk.X, units)
    columns = [model.U, model.w[:, None]] + ([] if Q is None else [Q])
    products = rows.matmul(xp.concat(columns, axis=1))
    ZU, Zw = products[:, :k], products[:, k]
    ZQ = ZU if Q is None else products[:, k + 1 :]
    r = evaluate(model, rows, ZU, Zw) - standardised_target(chunk, units)
    return _sums(rows, r, ZQ, chunk.weight, squares)


def dual_sums(chunk: Chunk, step: Step, units: Units, squares: bool) -> Sums:
    """Sum what `residual_sums` sums, of the change q of the predictions along a tangent step."""
    xp = namespace(step.E)
    k = step.E.shape[1]
    rows = Block(chunk.X, units)
    products = rows.matmul(xp.concat([step.E, step.H, step.w[:, None]], axis=1))
    ZE, ZH = products[:, :k], products[:, k : 2 * k]
    m = 2 * xp.sum(step.E * step.H, axis=1)
    q = step.c + products[:, -1] + 2 * xp.sum(ZE * ZH, axis=1) - xp.sum(units.free * m)
    if squares:
        q = q - rows.squares_matmul(((1 - units.free) * m)[:, None])[:, 0]
    return _sums(rows, q, ZE, chunk.weight, squares)


def _sums(rows: Block, r: Array, ZQ: Array, weight: Array | None, squares: bool) -> Sums:
    xp = namespace(r)
    if weight is None:
        total, weighted = float(r.shape[0]), r
    else:
        total = float(xp.sum(weight))
        weighted = xp.astype(weight, r.dtype) * r
    back = rows.rmatmul(xp.concat([weighted[:, None] * ZQ, weighted[:, None]], axis=1))
    return Sums(
        total,
        float(xp.sum(xp.astype(weighted * r, xp.float64))),
        float(xp.sum(xp.astype(weighted, xp.float64))),
        back[:, -1],
        rows.squares_rmatvec(weighted) if squares else xp.zeros_like(back[:, -1]),
        back[:, :-1],
    )
