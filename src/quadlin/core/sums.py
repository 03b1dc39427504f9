"""The statistics of residuals that a step needs, as sums over rows."""

from dataclasses import dataclass, replace

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block, Residuals, Response
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import Additive, folded, in_wide_blocks
from quadlin.core.losses import curvature, value_and_slope
from quadlin.core.model import Model, Steps, assembly_of, columns_of
from quadlin.core.units import Units

ELEMENTS = 1 << 22  # numbers in a block of rows times columns of a product


@dataclass(frozen=True)
class Sums(Additive):
    """Sums of m residuals r = f − y over rows with weights ω.

    For losses other than squared errors, r is half the slope of the loss.
    """

    weight: float  # Σω
    loss: float  # Σω r², or the sum of another loss, of a single residual
    p0: Array  # (m,), Σω r, float64
    p1: Array  # (d, m), Zᵀ(ω∘r)
    p2: Array  # (d, m), (Z∘Z)ᵀ(ω∘r), or zero where it was not asked for
    action: Array  # (d, m, q), Zᵀ(ω∘r∘ZQ)


@dataclass(frozen=True)
class Asked:
    """What a pass computes: products with some columns, and a response without targets."""

    columns: Array  # (d, q)
    response: Response


def residuals_asked(model: Model, Q: Array | None) -> Asked:
    """Return what a pass for the residuals of a model computes, multiplied by Z U or by Z Q."""
    k, Y, action = model.U.shape[1], columns_of(model), slice(0, model.U.shape[1])
    if Q is not None:
        Y = namespace(Y).concat([Y, Q], axis=1)
        action = slice(k + 1, k + 1 + Q.shape[1])
    return Asked(Y, Response(assembly_of(model), model.s, 0, action, None, None))


def changes_asked(steps: Steps, units: Units) -> Asked:
    """Return what a pass for changes of predictions along steps computes, multiplied by Z E."""
    action = slice(0, steps.H.shape[2])
    response = Response(steps.assembly(units.free), *steps.bilinear(), action, None, None)
    return Asked(steps.columns(), response)


@in_wide_blocks
def residual_sums(
    chunk: Chunk,
    model: Model,
    units: Units,
    Q: Array | None = None,
    squares: bool = True,
    loss: str = "squared",
) -> Sums:
    """Sum over one chunk; Q defaults to the model's own U, whose product is needed anyway.

    `squares=False` leaves P2 out, where no feature needs it.
    """
    asked, y = residuals_asked(model, Q), units.standardised_target(chunk.y)
    Y, predicted = asked.columns, asked.response
    left_out = predicted.assembly.left_out
    if loss == "squared":
        response = replace(predicted, y=y, weight=chunk.weight)
        return batch_sums(chunk, units, Y, response, left_out, squares)
    xp, losses = namespace(model.U), []

    def slopes(products: Array, square: Array | None, part: slice) -> tuple[Array, Array, Array]:
        f, _, ZQ = predicted(products, square, part)
        value, r = value_and_slope(loss, f, y[part, None])
        losses.append(_weighted(chunk, value, part))
        return r, _weighted(chunk, r, part), ZQ

    sums = batch_sums(chunk, units, Y, slopes, left_out, squares)
    return replace(sums, loss=float(xp.sum(xp.astype(xp.concat(losses), xp.float64))))


@in_wide_blocks
def change_sums(
    chunk: Chunk,
    steps: Steps,
    units: Units,
    squares: bool,
    about: Model | None = None,
    loss: str = "logistic",
) -> Sums:
    """Return the sums of `residual_sums` for the changes of the predictions along m steps.

    With `about`, the model from which the steps start, rows are weighted by the curvature of the
    loss there. Z E is needed anyway, so this costs one more product with a vector.
    """
    _, m, k = steps.H.shape
    pieces = cut_rows(chunk, m * k)
    if len(pieces) > 1:
        params = (steps, units, squares, about, loss)
        return folded(change_sums, pieces, params)[0]  # type: ignore[return-value]
    asked = changes_asked(steps, units)
    Y, changed = asked.columns, asked.response
    left_out = changed.assembly.left_out
    if about is None:
        response = replace(changed, weight=chunk.weight)
        return batch_sums(chunk, units, Y, response, left_out, squares)
    xp, at = namespace(Y), assembly_of(about)
    Y = xp.concat([Y, about.w[:, None]], axis=1)
    left_out = None if left_out is None else xp.concat([left_out, at.left_out], axis=1)

    def changes(products: Array, square: Array | None, part: slice) -> tuple[Array, Array, Array]:
        first, last = (None, None) if square is None else (square[:, :m], square[:, m:])
        change, _, ZE = changed(products[:, :-1], first, part)
        f = at.assembled(products[:, -1:], (ZE * ZE) @ about.s[:, None], last)
        change = curvature(f, loss) * change
        return change, _weighted(chunk, change, part), ZE

    return batch_sums(chunk, units, Y, changes, left_out, squares)


def batch_sums(
    chunk: Chunk, units: Units, Y: Array, residuals: Residuals, S: Array | None, squares: bool
) -> Sums:
    """Return the sums of m residuals over a chunk, from one read of its rows.

    Parameters
    ----------
    chunk : Chunk
    units : Units
    Y : array of shape (d, q)
    residuals : callable
        A `Response`, or another function of Z Y, (Z∘Z) S (None without S) and of which rows they
        are of; returns the residuals (n, m) of those rows, weighted residuals and their Z Q.
    S : array of shape (d, p) or None
    squares : bool
        Whether P2 is needed.
    """
    xp, passed = namespace(Y), Block(chunk.X, units).passed(Y, residuals, S, squares)
    d, m = passed.p1.shape
    p2 = xp.zeros_like(passed.p1) if passed.p2 is None else passed.p2
    action = xp.reshape(passed.action, (d, m, passed.action.shape[1] // m))
    return Sums(chunk.total_weight, passed.loss, passed.p0, passed.p1, p2, action)


def cut_rows(chunk: Chunk, columns: int) -> list[Chunk]:
    """Cut a chunk so that a product with this many columns stays a block."""
    step = max(1, ELEMENTS // max(1, columns))
    return list(MemorySource(chunk.X, chunk.y, chunk.weight, step))


def _weighted(chunk: Chunk, r: Array, part: slice) -> Array:
    """Return ω∘r for the residuals r (n, m) of some rows."""
    if chunk.weight is None:
        return r
    return namespace(r).astype(chunk.weight[part], r.dtype)[:, None] * r
