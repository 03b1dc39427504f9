"""The statistics of a residual that a step needs, as sums over rows."""

from dataclasses import dataclass

from quadlin.arrays import Array, namespace
from quadlin.design import Rows, Units
from quadlin.engine import Additive
from quadlin.model import Model, evaluate
from quadlin.sources import Chunk


@dataclass(frozen=True)
class Sums(Additive):
    """Sums over rows of what the residual r = f − y says, each row weighted by ω."""

    weight: float  # Σω
    loss: float  # Σω r²
    p0: float  # Σω r
    p1: Array  # (d,), Zᵀ(ω∘r)
    p2: Array  # (d,), (Z∘Z)ᵀ(ω∘r), or zero where nobody asked for it
    action: Array  # (d, q), Zᵀ(ω∘r∘ZQ)


def standardised_target(chunk: Chunk, units: Units) -> Array:
    """Return (y − mean)/scale in the dtype of the model, subtracted in the dtype of y."""
    xp = namespace(chunk.y)
    return xp.astype((chunk.y - units.target.mean) / units.target.scale, units.scale.dtype)


def residual_sums(
    chunk: Chunk, model: Model, units: Units, Q: Array | None = None, squares: bool = True
) -> Sums:
    """Sum over one chunk; Q defaults to the model's own U, whose product is needed anyway."""
    xp = namespace(model.U)
    k = model.U.shape[1]
    rows = Rows(chunk.X, units)
    columns = [model.U, model.w[:, None]] + ([] if Q is None else [Q])
    products = rows.matmul(xp.concat(columns, axis=1))
    ZU, Zw = products[:, :k], products[:, k]
    ZQ = ZU if Q is None else products[:, k + 1 :]
    r = evaluate(model, rows, ZU, Zw) - standardised_target(chunk, units)
    if chunk.weight is None:
        weight, weighted = float(r.shape[0]), r
    else:
        omega = xp.astype(chunk.weight, r.dtype)
        weight, weighted = float(xp.sum(xp.astype(omega, xp.float64))), omega * r
    back = rows.rmatmul(xp.concat([weighted[:, None] * ZQ, weighted[:, None]], axis=1))
    return Sums(
        weight,
        float(xp.sum(xp.astype(weighted * r, xp.float64))),
        float(xp.sum(xp.astype(weighted, xp.float64))),
        back[:, -1],
        rows.squares_rmatvec(weighted) if squares else xp.zeros_like(back[:, -1]),
        back[:, :-1],
    )
