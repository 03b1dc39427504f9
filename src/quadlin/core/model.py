r"""The model in standardised units, its changes, its predictions, and the user's units."""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from quadlin.core.arrays import (
    Array,
    diagonal,
    lead,
    namespace,
    orthonormal,
    remembered,
    unflagged,
)
from quadlin.core.block import Assembly, Block
from quadlin.core.units import Units

T = TypeVar("T", bound=Any)  # a dataclass of arrays


@dataclass(frozen=True)
class Model:
    r"""The centred function, :math:`c = E f`, of standardised features.

    .. math::
        f(z) = c + z^\top w + z^\top \bar M z - \sum_{j \notin F} m_j z_j^2 - \sum_{j \in F} m_j

    :math:`\bar M = U\,\mathrm{diag}(s)\,U^\top`, :math:`m = \mathrm{diag}\,\bar M`, and F the
    features whose diagonal is modelled (`free`).
    """

    U: Array  # (d, k), orthonormal columns
    s: Array  # (k,), signed
    w: Array  # (d,)
    c: float
    free: Array  # (d,), 1 on F, 0 elsewhere


@dataclass(frozen=True)
class RawModel:
    r""":math:`y = b + x^\top w + x^\top M x` in the user's units, M by its factors.

    If the diagonal is not modelled, that of the low-rank part must be left out of M.
    The components reproduce M up to rounding of its largest entries.
    """

    intercept: float
    coef: Array  # (d,)
    components: Array  # (k, d), orthonormal rows
    eigenvalues: Array  # (k,), signed, by decreasing size


def degrees_of_freedom(
    n_features: int, rank: int, *, linear: bool = True, intercept: bool = True
) -> int:
    """Return the number of free parameters: 1 + d + dk − k(k−1)/2, less parts that are not fitted.

    Examples
    --------
    >>> degrees_of_freedom(100, 3)
    398
    >>> degrees_of_freedom(100, 1, linear=False, intercept=False)
    100
    """
    k = min(rank, n_features)
    return intercept + linear * n_features + n_features * k - k * (k - 1) // 2


def predict(model: Model, block: Block) -> Array:
    """Return f(z) for the rows of a block."""
    assembly = assembly_of(model)
    products = block.products(columns_of(model), assembly.left_out)
    return assembly.bilinear(*products, model.s, 0)[:, 0]


@remembered
def columns_of(model: Model) -> Array:
    """Return [U w], whose products with the rows f(z) is made of."""
    return namespace(model.U).concat([model.U, model.w[:, None]], axis=1)


@remembered
def assembly_of(model: Model) -> Assembly:
    """Return how f(z) is put together."""
    return Assembly.of(model.c, ((model.U * model.U) @ model.s)[:, None], model.free)


def constant_model(units: Units, rank: int, c: float = 0.0) -> Model:
    """Return the model that predicts `c` everywhere."""
    xp = namespace(units.scale)
    like = {"dtype": units.scale.dtype, "device": units.scale.device}
    d = units.scale.shape[0]
    U = xp.eye(d, rank, **like)
    return Model(U, xp.zeros(rank, **like), xp.zeros(d, **like), c, units.free)


def tied(model: Model, units: Units, fit_linear: bool, fit_intercept: bool) -> Model:
    """Return the model whose raw linear part or raw intercept is zero, if it is not fitted.

    Both are linear in the other parameters, so the loss stays quadratic along any line.
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
    """Return M v, with the diagonal that is not modelled left out."""
    m = (model.U * model.U) @ model.s
    return model.U @ (model.s * (model.U.T @ v)) - (1 - model.free) * m * v


@unflagged
def to_raw(model: Model, units: Units) -> RawModel:
    """Convert the model to the user's units.

    In float64 throughout, and the eigenvalues stay so: σ⁻² leaves the range of float32 early.
    """
    xp = namespace(model.U)
    dtype = model.U.dtype
    model, units = in_dtype(model, xp.float64), in_dtype(units, xp.float64)
    y = units.target.scale
    D, nu = units.scale, units.nu
    m = (model.U * model.U) @ model.s
    Mnu = apply_m(model, nu)
    intercept = model.c - float(xp.sum(model.free * m) + nu @ model.w - nu @ Mnu)
    coef = D * (model.w - 2 * Mnu)
    values, components = _eigenpairs(D[:, None] * model.U, model.s)
    peak = xp.argmax(xp.abs(components), axis=1)
    # Eigenvectors have no sign of their own: make the largest entry of each positive.
    signs = xp.sign(xp.take_along_axis(components, peak[:, None], axis=1))
    return RawModel(
        units.target.mean + y * intercept,
        xp.astype(y * coef, dtype),
        xp.astype(components * xp.where(signs == 0, 1.0, signs), dtype),
        y * values,
    )


def _eigenpairs(A: Array, s: Array) -> tuple[Array, Array]:
    """Return the eigenvalues (k,) of A diag(s) Aᵀ by decreasing size, and its vectors as rows."""
    xp = namespace(A)
    V, R = xp.linalg.qr(A)
    values, vectors = lead(R @ diagonal(s) @ R.T, s.shape[0])
    return values, (V @ vectors).T


def in_dtype(parts: T, dtype: Any) -> T:
    """Return a model, units or a whitener with every array in a dtype."""
    arrays = {f.name: getattr(parts, f.name) for f in fields(parts)}
    given = {name: a for name, a in arrays.items() if hasattr(a, "__dlpack__")}
    return replace(
        parts, **{name: namespace(a).astype(a, dtype, copy=False) for name, a in given.items()}
    )


def in_units(model: Model, old: Units, new: Units) -> Model:
    """Convert a model to other units: z and z′ differ by a shift and a scale.

    A feature that is free in the new units and was not in the old ones keeps its diagonal in the
    low-rank part, where it becomes part of the function: a small jump, which later steps correct.
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
    moved = Model(V @ vectors, y * s, y * g * (model.w + 2 * Mh), 0.0, new.free)
    # The mean over z′ of the old function, from its own definition.
    constant = model.c - xp.sum(model.free * m) + model.w @ h + h @ Mh
    new_m = (moved.U * moved.U) @ moved.s
    c = y * float(constant) + float(xp.sum(moved.free * new_m))
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


@dataclass(frozen=True)
class Steps:
    """Changes i = 1 … m of a model: M + E Hᵢᵀ + Hᵢ Eᵀ, w + wᵢ, c + cᵢ."""

    E: Array  # (d, k), the model's own factor
    H: Array  # (d, m, k)
    w: Array  # (d, m)
    c: Array  # (m,)

    def __getitem__(self, part: slice) -> "Steps":
        return Steps(self.E, self.H[:, part, :], self.w[:, part], self.c[part])

    def scaled(self, size: float) -> "Steps":
        """Return multiples of the steps."""
        return Steps(self.E, size * self.H, size * self.w, size * self.c)

    @remembered
    def columns(self) -> Array:
        """Return [E w H], whose products with the rows the changes are made of."""
        d, m, k = self.H.shape
        xp = namespace(self.E)
        return xp.concat([self.E, self.w, xp.reshape(self.H, (d, m * k))], axis=1)

    @remembered
    def assembly(self, free: Array) -> Assembly:
        """Return how the changes of the predictions are put together."""
        return Assembly.of(self.c, self.diagonals(), free)

    def bilinear(self) -> tuple[Array, int]:
        """Return the factors of the products with E and H, and where the columns of H start."""
        _, m, k = self.H.shape
        return 2 * namespace(self.E).ones_like(self.E[0, :]), k + m

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


def changes(block: Block, steps: Steps, free: Array) -> Array:
    """Return how each step changes the predictions of a block, J tᵢ (n, m)."""
    assembly = steps.assembly(free)
    products = block.products(steps.columns(), assembly.left_out)
    return assembly.bilinear(*products, *steps.bilinear())
