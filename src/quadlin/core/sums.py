"""The statistics of residuals that a step needs, as sums over rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Additive, folded
from quadlin.core.losses import curvature, value_and_slope
from quadlin.core.model import Model, assembly_of, columns_of, evaluate
from quadlin.core.steps import Steps
from quadlin.core.units import Units

Residuals = Callable[[Array, Array | None, slice], tuple[Array, Array]]
ELEMENTS = 1 << 22  # numbers in a block of rows times columns of a product


@dataclass(frozen=True)
class Sums(Additive):
    """Sums over rows of what m residuals r = f − y say, each row weighted by ω.

    For another loss than squared errors r is half its slope.
    """

    weight: float  # Σω
    loss: float  # Σω r², or the sum of another loss, of a single residual
    p0: Array  # (m,), Σω r, float64
    p1: Array  # (d, m), Zᵀ(ω∘r)
    p2: Array  # (d, m), (Z∘Z)ᵀ(ω∘r), or zero where nobody asked for it
    action: Array  # (d, m, q), Zᵀ(ω∘r∘ZQ)


def standardised_target(chunk: Chunk, units: Units) -> Array:
    """Return (y − mean)/scale in the dtype of the model, subtracted in the dtype of y."""
    xp = namespace(chunk.y)
    return xp.astype((chunk.y - units.target.mean) / units.target.scale, units.scale.dtype)


def residual_sums(
    chunk: Chunk,
    model: Model,
    units: Units,
    Q: Array | None = None,
    squares: bool = True,
    loss: str = "squared",
) -> Sums:
    """Sum over one chunk; Q defaults to the model's own U, whose product is needed anyway.

    `squares=False` leaves P2 out, for those who need it for no feature.
    """
    xp, k = namespace(model.U), model.U.shape[1]
    y, assembly, losses = standardised_target(chunk, units)[:, None], assembly_of(model), []

    def residuals(products: Array, square: Array | None, part: slice) -> tuple[Array, Array]:
        value, r = value_and_slope(loss, evaluate(model, assembly, products, square), y[part, :])
        losses.append(_weighted(chunk, value, part))
        return _weighted(chunk, r, part), products[:, :k] if Q is None else products[:, k + 1 :]

    Y = columns_of(model) if Q is None else xp.concat([columns_of(model), Q], axis=1)
    sums = batch_sums(chunk, units, Y, residuals, assembly.left_out, squares)
    return replace(sums, loss=float(xp.sum(xp.astype(xp.concat(losses), xp.float64))))


def change_sums(
    chunk: Chunk, steps: Steps, units: Units, squares: bool, log_odds: Model | None = None
) -> Sums:
    """Sum what `residual_sums` sums, of the changes of the predictions along m steps.

    With `log_odds`, the model that the steps lead away from, rows weigh by the curvature of the
    logistic loss there; Z E is needed anyway, so that it costs one product with a vector more.
    """
    _, m, k = steps.H.shape
    pieces = cut_rows(chunk, m * k)
    if len(pieces) > 1:
        params = (steps, units, squares, log_odds)
        return folded(change_sums, pieces, params)[0]  # type: ignore[return-value]
    assembly = steps.assembly(units.free)
    Y, left_out = steps.columns(), assembly.left_out
    if log_odds is not None:
        xp, at = namespace(Y), assembly_of(log_odds)
        Y = xp.concat([Y, log_odds.w[:, None]], axis=1)
        if left_out is not None:
            left_out = xp.concat([left_out, at.left_out], axis=1)

    def changes(products: Array, square: Array | None, part: slice) -> tuple[Array, Array]:
        if log_odds is None:
            change, ZE = steps.changes(assembly, products, square)
            return _weighted(chunk, change, part), ZE
        first, last = (None, None) if square is None else (square[:, :m], square[:, m:])
        change, ZE = steps.changes(assembly, products[:, :-1], first)
        f = at.assembled(products[:, -1:], (ZE * ZE) @ log_odds.s[:, None], last)
        return _weighted(chunk, curvature(f) * change, part), ZE

    return batch_sums(chunk, units, Y, changes, left_out, squares)


def batch_sums(
    chunk: Chunk, units: Units, Y: Array, residuals: Residuals, S: Array | None, squares: bool
) -> Sums:
    """Sum what m residuals say of the rows of a chunk, from one read of them.

    Parameters
    ----------
    chunk : Chunk
    units : Units
    Y : array of shape (d, q)
    residuals : callable
        Gets Z Y, (Z∘Z) S (None without S) and which rows they are of; returns the weighted
        residuals (n, m) of those rows and their Z Q.
    S : array of shape (d, p) or None
    squares : bool
        Whether anybody needs P2.
    """
    xp, weighted = namespace(Y), []

    def respond(products: Array, square: Array | None, part: slice) -> tuple[Array, Array]:
        r, ZQ = residuals(products, square, part)
        weighted.append(r)
        columns = r[:, :, None] * ZQ[:, None, :]
        return xp.reshape(columns, (r.shape[0], r.shape[1] * ZQ.shape[1])), r

    action, p1, p2 = Block(chunk.X, units).through(Y, respond, S, squares)
    d, m = p1.shape
    omega = float(chunk.X.shape[0]) if chunk.weight is None else float(xp.sum(chunk.weight))
    p0 = xp.sum(xp.astype(xp.concat(weighted), xp.float64), axis=0)
    p2 = xp.zeros_like(p1) if p2 is None else p2
    return Sums(omega, 0.0, p0, p1, p2, xp.reshape(action, (d, m, action.shape[1] // m)))


def cut_rows(chunk: Chunk, columns: int) -> list[Chunk]:
    """Cut a chunk so that a product with this many columns stays a block."""
    step = max(1, ELEMENTS // max(1, columns))
    return list(MemorySource(chunk.X, chunk.y, chunk.weight, step))


def _weighted(chunk: Chunk, r: Array, part: slice) -> Array:
    """Return ω∘r for the residuals r (n, m) of some rows."""
    if chunk.weight is None:
        return r
    return namespace(r).astype(chunk.weight[part], r.dtype)[:, None] * r
