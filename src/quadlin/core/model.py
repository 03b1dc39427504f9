r"""The model in standardised units, what it predicts, and what it says in the user's units."""

from dataclasses import dataclass, fields, replace
from typing import TypeVar

from quadlin.core.arrays import Array, diagonal, lead, namespace, orthonormal, unflagged
from quadlin.core.block import Block
from quadlin.core.units import Units

T = TypeVar("T", "Model", Units)


@dataclass(frozen=True)
class Products:
    r"""A few products :math:`\sum_m a_m (z_{i_m} z_{j_m} - e_m)`: the sparse part S of M + S."""

    i: Array  # (m,), i ≤ j
    j: Array  # (m,)
    coef: Array  # (m,), a: twice the entry of S, or once on its diagonal
    mean: Array  # (m,), e = E z_i z_j, so that the mean of f stays c

    def of(self, rows: Block) -> Array:
        """Return the sum for the rows of a block."""
        return (rows.columns(self.i) * rows.columns(self.j) - self.mean) @ self.coef

    def times(self, v: Array) -> Array:
        """Return S v."""
        xp = namespace(v)
        features = xp.arange(v.shape[0], device=v.device)[:, None]
        I, J = (xp.astype(features == index[None, :], v.dtype) for index in (self.i, self.j))
        return I @ (self.coef / 2 * (J.T @ v)) + J @ (self.coef / 2 * (I.T @ v))


@dataclass(frozen=True)
class Model:
    r"""The centred function, :math:`c = E f`, of standardised features.

    .. math::
        f(z) = c + z^\top w + z^\top \bar M z - \sum_{j \notin F} m_j z_j^2 - \sum_{j \in F} m_j
               + \sum_m a_m (z_{i_m} z_{j_m} - e_m)

    :math:`\bar M = U\,\mathrm{diag}(s)\,U^\top`, :math:`m = \mathrm{diag}\,\bar M`, and F the
    features whose diagonal is modelled (`free`).
    """

    U: Array  # (d, k), orthonormal columns
    s: Array  # (k,), signed
    w: Array  # (d,)
    c: float
    free: Array  # (d,), 1 on F, 0 elsewhere
    products: Products | None = None


@dataclass(frozen=True)
class RawModel:
    r""":math:`y = b + x^\top w + x^\top M x` in the user's units, M by its factors.

    Where the diagonal is not modelled, that of the low-rank part is to be left out of M. Products
    of M's sparse part are beside the factors.
    """

    intercept: float
    coef: Array  # (d,)
    components: Array  # (k, d), orthonormal rows
    eigenvalues: Array  # (k,), signed, by falling size
    products: Products | None = None  # of x_i and x_j as they are, so their means are left at 0


def predict(model: Model, rows: Block) -> Array:
    """Return f(z) for the rows of a block."""
    xp = namespace(model.U)
    products = rows.matmul(xp.concat([model.U, model.w[:, None]], axis=1))
    return evaluate(model, rows, products[:, :-1], products[:, -1])


def evaluate(model: Model, rows: Block, ZU: Array, Zw: Array) -> Array:
    """Return f(z), given the products of the rows with U and w."""
    xp = namespace(model.U)
    m = (model.U * model.U) @ model.s
    f = model.c + Zw + (ZU * ZU) @ model.s - xp.sum(model.free * m)
    if bool(xp.any(model.free == 0)):
        f = f - rows.squares_matmul(((1 - model.free) * m)[:, None])[:, 0]
    return f if model.products is None else f + model.products.of(rows)


def constant_model(units: Units, rank: int, c: float = 0.0) -> Model:
    """Return the model that predicts `c` everywhere."""
    xp = namespace(units.scale)
    like = {"dtype": units.scale.dtype, "device": units.scale.device}
    d = units.scale.shape[0]
    U = xp.eye(d, rank, **like)
    return Model(U, xp.zeros(rank, **like), xp.zeros(d, **like), c, units.free)


def tied(model: Model, units: Units, fit_linear: bool, fit_intercept: bool) -> Model:
    """Return the model with a raw linear part and a raw intercept of zero, as far as asked for.

    Both are linear in what remains, so that the loss stays quadratic along any line.
    """
    xp = namespace(model.U)
    w, c = model.w, model.c
    if not fit_linear:
        w = 2 * apply_m(model, units.nu)
    if not fit_intercept:
        m = (model.U * model.U) @ model.s
        mean_part = units.nu @ w - units.nu @ apply_m(model, units.nu)
        c = float(xp.sum(model.free * m) + mean_part)
    return replace(model, w=w, c=c)


def apply_m(model: Model, v: Array) -> Array:
    """Return M v, with the diagonal that is not modelled left out and the products within."""
    m = (model.U * model.U) @ model.s
    Mv = model.U @ (model.s * (model.U.T @ v)) - (1 - model.free) * m * v
    return Mv if model.products is None else Mv + model.products.times(v)


def _products_mean(model: Model) -> float:
    """Return Σ a e, what the centring of the products takes from the constant."""
    S = model.products
    return 0.0 if S is None else float(S.coef @ S.mean)


def _rescaled(S: Products | None, scale: Array, y: float, mean: float = 1.0) -> Products | None:
    """Return products of features z/scale instead of z, times y; their means times `mean`."""
    if S is None:
        return None
    xp = namespace(scale)
    return replace(
        S, coef=y * S.coef * xp.take(scale, S.i) * xp.take(scale, S.j), mean=mean * S.mean
    )


@unflagged
def to_raw(model: Model, units: Units) -> RawModel:
    """Say the model in the user's units.

    In float64 throughout, and the eigenvalues stay so: σ⁻² leaves the range of float32 early.
    """
    xp = namespace(model.U)
    dtype = model.U.dtype
    model, units = _in_float64(model), _in_float64(units)
    y = units.target.scale
    D, nu = units.scale, units.nu
    m = (model.U * model.U) @ model.s
    Mnu = apply_m(model, nu)
    intercept = model.c - float(xp.sum(model.free * m) + nu @ model.w - nu @ Mnu)
    intercept -= _products_mean(model)
    coef = D * (model.w - 2 * Mnu)
    V, R = xp.linalg.qr(D[:, None] * model.U)
    values, vectors = lead(R @ diagonal(model.s) @ R.T, model.s.shape[0])
    components = (V @ vectors).T
    peak = xp.argmax(xp.abs(components), axis=1)
    # Eigenvectors have no sign of their own: make the largest entry of each positive.
    signs = xp.sign(xp.take_along_axis(components, peak[:, None], axis=1))
    return RawModel(
        units.target.mean + y * intercept,
        xp.astype(y * coef, dtype),
        xp.astype(components * xp.where(signs == 0, 1.0, signs), dtype),
        y * values,
        _rescaled(model.products, D, y, mean=0.0),
    )


def _in_float64(parts: T) -> T:
    """Return a model or units with every array in float64."""
    arrays = {f.name: getattr(parts, f.name) for f in fields(parts)}
    arrays = {name: a for name, a in arrays.items() if hasattr(a, "shape")}
    xp = namespace(*arrays.values())
    return replace(parts, **{name: xp.astype(a, xp.float64) for name, a in arrays.items()})


def in_units(model: Model, old: Units, new: Units) -> Model:
    """Say the same function in other units: z and z′ differ by a shift and a scale.

    Where the new units know a feature as free that was not, its diagonal stays in the low-rank
    part and becomes part of the function: a small jump, corrected by the steps that follow.
    """
    xp = namespace(model.U)
    varies = new.scale > 0
    # z = g∘z′ + h with x the same, and features that were constant so far have z = 0.
    g = xp.where(varies, old.scale / xp.where(varies, new.scale, 1.0), 0.0)
    h = (new.mean - old.mean) * old.scale + g * new.rest - old.rest
    y = old.target.scale / new.target.scale
    Mh = apply_m(model, h)
    m = (model.U * model.U) @ model.s
    V, R = xp.linalg.qr(g[:, None] * model.U)
    s, vectors = lead(R @ diagonal(model.s) @ R.T, model.s.shape[0])
    S = _rescaled(model.products, g, y)  # whose means, near to those of z′, are kept
    moved = Model(V @ vectors, y * s, y * g * (model.w + 2 * Mh), 0.0, new.free, S)
    # The mean over z′ of the old function, from its own definition.
    constant = model.c - xp.sum(model.free * m) + model.w @ h + h @ Mh - _products_mean(model)
    new_m = (moved.U * moved.U) @ moved.s
    c = y * float(constant) + float(xp.sum(moved.free * new_m)) + _products_mean(moved)
    shift = (old.target.mean - new.target.mean) / new.target.scale
    return replace(moved, c=c + shift)


def positive(model: Model) -> Model:
    """Return the model without the directions of negative eigenvalues."""
    return replace(model, s=namespace(model.s).clip(model.s, min=0))


def with_rank(model: Model, rank: int) -> Model:
    """Keep the leading `rank` directions, or add empty ones."""
    xp = namespace(model.U)
    d, k = model.U.shape
    if rank <= k:
        top = xp.argsort(xp.abs(model.s), descending=True)[:rank]
        return replace(model, U=xp.take(model.U, top, axis=1), s=xp.take(model.s, top))
    like = {"dtype": model.U.dtype, "device": model.U.device}
    U = orthonormal(xp.concat([model.U, xp.eye(d, rank - k, **like)], axis=1))
    U = xp.concat([model.U, U[:, k:]], axis=1)
    return replace(model, U=U, s=xp.concat([model.s, xp.zeros(rank - k, **like)]))
