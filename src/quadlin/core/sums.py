"""The statistics of a residual that a step needs, as sums over rows."""

from collections.abc import Callable
from dataclasses import dataclass

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.core.model import Model
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
    columns = [model.U, model.w[:, None]] + ([] if Q is None else [Q])
    m = (model.U * model.U) @ model.s
    constant = model.c - xp.sum(model.free * m)
    offset = constant - standardised_target(chunk, units)

    def residual(products: Array, part: slice) -> tuple[Array, Array]:
        ZU, Zw = products[:, :k], products[:, k]
        r = (ZU * ZU) @ model.s + Zw + offset[part]
        return r, ZU if Q is None else products[:, k + 1 :]

    fixed = (1 - model.free) * m if bool(xp.any(model.free == 0)) else None
    return _sums(chunk, units, xp.concat(columns, axis=1), fixed, residual, squares)


def dual_sums(chunk: Chunk, step: Step, units: Units, squares: bool) -> Sums:
    """Sum what `residual_sums` sums, of the change q of the predictions along a tangent step."""
    xp = namespace(step.E)
    k = step.E.shape[1]
    m = 2 * xp.sum(step.E * step.H, axis=1)
    constant = step.c - xp.sum(units.free * m)

    def change(products: Array, part: slice) -> tuple[Array, Array]:
        ZE, ZH = products[:, :k], products[:, k : 2 * k]
        return 2 * xp.sum(ZE * ZH, axis=1) + products[:, -1] + constant, ZE

    columns = xp.concat([step.E, step.H, step.w[:, None]], axis=1)
    fixed = (1 - units.free) * m if squares else None
    return _sums(chunk, units, columns, fixed, change, squares)


def _sums(
    chunk: Chunk,
    units: Units,
    columns: Array,
    fixed: Array | None,
    value: Callable[[Array, slice], tuple[Array, Array]],
    squares: bool,
) -> Sums:
    """Sum what r = `value` − (Z∘Z) `fixed` says; `value` gets the products with `columns`.

    It returns its part of r and the products ZQ of those rows.
    """
    xp = namespace(columns)
    weight = None if chunk.weight is None else xp.astype(chunk.weight, columns.dtype)
    losses, totals = [], []

    def respond(products: Array, square: Array | None, part: slice) -> Array:
        r, ZQ = value(products, part)
        if square is not None:
            r = r - square
        weighted = r if weight is None else weight[part] * r
        losses.append(weighted * r)
        totals.append(weighted)
        return xp.concat([weighted[:, None] * ZQ, weighted[:, None]], axis=1)

    back, p2 = Block(chunk.X, units).through(columns, respond, fixed, squares)
    loss, total = (float(xp.sum(xp.astype(xp.concat(v), xp.float64))) for v in (losses, totals))
    omega = float(chunk.X.shape[0]) if chunk.weight is None else float(xp.sum(chunk.weight))
    p1 = back[:, -1]
    return Sums(omega, loss, total, p1, xp.zeros_like(p1) if p2 is None else p2, back[:, :-1])
