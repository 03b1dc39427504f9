"""The statistics of residuals that a step needs, as sums over rows."""

from dataclasses import dataclass

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Additive, folded
from quadlin.core.model import Model, evaluate
from quadlin.core.steps import Steps, changes
from quadlin.core.units import Units

ELEMENTS = 1 << 22  # numbers in a block of rows times columns of a product


@dataclass(frozen=True)
class Sums(Additive):
    """Sums over rows of what m residuals r = f − y say, each row weighted by ω."""

    weight: float  # Σω
    loss: float  # Σω r², of a single residual
    p0: Array  # (m,), Σω r, float64
    p1: Array  # (d, m), Zᵀ(ω∘r)
    p2: Array  # (d, m), (Z∘Z)ᵀ(ω∘r), or zero where nobody asked for it
    action: Array  # (d, m, q), Zᵀ(ω∘r∘ZQ)


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
    block = Block(chunk.X, units)
    columns = [model.U, model.w[:, None]] + ([] if Q is None else [Q])
    products = block.matmul(xp.concat(columns, axis=1))
    ZU, Zw = products[:, :k], products[:, k]
    ZQ = ZU if Q is None else products[:, k + 1 :]
    r = evaluate(model, block, ZU, Zw) - standardised_target(chunk, units)
    weight, weighted = _weighted(chunk, r)
    loss = float(xp.sum(xp.astype(weighted * r, xp.float64)))
    return batch_sums(block, weight, weighted[:, None], ZQ, squares, loss)


def change_sums(chunk: Chunk, steps: Steps, units: Units, squares: bool) -> Sums:
    """Sum what `residual_sums` sums, of the changes of the predictions along m steps."""
    _, m, k = steps.H.shape
    pieces = cut_rows(chunk, m * k)
    if len(pieces) > 1:
        return folded(change_sums, pieces, (steps, units, squares))[0]  # type: ignore[return-value]
    block = Block(chunk.X, units)
    q, ZE = changes(block, steps, units.free)
    weight, weighted = _weighted(chunk, q)
    return batch_sums(block, weight, weighted, ZE, squares)


def batch_sums(
    block: Block, weight: float, r: Array, ZQ: Array, squares: bool, loss: float = 0.0
) -> Sums:
    """Sum what m residuals r (n, m), already weighted, say of the rows of a block."""
    xp = namespace(ZQ)
    (n, m), q = r.shape, ZQ.shape[1]
    columns = xp.reshape(r[:, :, None] * ZQ[:, None, :], (n, m * q))
    back = block.rmatmul(xp.concat([r, columns], axis=1))
    p1 = back[:, :m]
    p2 = xp.zeros_like(p1)
    if squares:
        p2 = xp.stack([block.squares_rmatvec(r[:, i]) for i in range(m)], axis=1)
    p0 = xp.sum(xp.astype(r, xp.float64), axis=0)
    return Sums(weight, loss, p0, p1, p2, xp.reshape(back[:, m:], (back.shape[0], m, q)))


def cut_rows(chunk: Chunk, columns: int) -> list[Chunk]:
    """Cut a chunk so that a product with this many columns stays a block."""
    step = max(1, ELEMENTS // max(1, columns))
    return list(MemorySource(chunk.X, chunk.y, chunk.weight, step))


def _weighted(chunk: Chunk, r: Array) -> tuple[float, Array]:
    """Return Σω and ω∘r, for r (n,) or (n, m)."""
    if chunk.weight is None:
        return float(r.shape[0]), r
    xp = namespace(r)
    weight = xp.astype(chunk.weight, r.dtype)
    return float(xp.sum(chunk.weight)), (weight if r.ndim == 1 else weight[:, None]) * r
