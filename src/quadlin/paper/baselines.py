r"""The solvers the paper prints or names, to be measured against: none is meant for use.

Their iterates are factors that need be neither symmetric nor balanced. Several of them, one for
each step size of a grid, walk over the rows together: the letter g counts them in shapes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.core.model import constant_model
from quadlin.core.rows import Rows
from quadlin.core.sums import Sums, residual_sums, standardised_target
from quadlin.core.units import Units
from quadlin.solve import moment_estimates as mes

STEP_SIZES = (0.1, 0.2, 0.4, 0.8, 1.6)  # of gradient descent, over the curvature of each block
START_PASSES = mes.KRYLOV_BLOCKS + 1  # for the spectral start and its residual
LOST = 1e6  # a loss this many times that of the constant model does not come back
MAX_CONVEX_FEATURES = 60  # beyond, the semidefinite programme takes minutes and gigabytes


@dataclass(frozen=True)
class Factors:
    r"""Functions of standardised features, :math:`f_g = c_g + z^\top w_g + z^\top U_gV_g^\top z`.

    Less the diagonal where it is not modelled, and less its mean, the trace, where `centred`.
    """

    U: Array  # (d, g·k), the factors of one function after those of the other
    V: Array  # (d, g·k)
    w: Array  # (d, g)
    c: Array  # (g,)
    free: Array  # (d,), 1 where the diagonal of M is modelled
    centred: bool

    @property
    def owner(self) -> Array:
        """Return the (g, g·k) matrix of zeros and ones that says whose a column of U is."""
        xp = namespace(self.w)
        eye = xp.eye(self.w.shape[1], dtype=self.w.dtype, device=self.w.device)
        return xp.repeat(eye, self.U.shape[1] // self.w.shape[1], axis=1)


@dataclass(frozen=True)
class Residuals(Additive):
    """Sums over rows of what the residuals r say, one column for each of the functions."""

    weight: float  # rows
    loss: Array  # (g,), Σ r², float64
    p0: Array  # (g,), Σ r
    p1: Array  # (d, g), Zᵀr
    p2: Array  # (d, g), (Z∘Z)ᵀr, or zero where nobody asked for it
    action: Array  # (d, g·k), Zᵀ(r∘ZQ) with Q one of the factors


@dataclass(frozen=True)
class Iterate:
    """Where a solver stands after a step."""

    step: int
    passes: int  # over the rows, so far
    factors: Factors
    loss: Array  # (g,), mean squared residual in standardised units, float64


def predict(factors: Factors, block: Block) -> Array:
    """Return f (n, g) for the rows of a block."""
    with np.errstate(over="ignore", invalid="ignore"):  # of a step size that diverged
        return _evaluate(factors, block)[0]


def _evaluate(factors: Factors, block: Block) -> tuple[Array, Array, Array]:
    """Return f and the products of the rows with U and V."""
    xp = namespace(factors.w)
    q = factors.U.shape[1]
    products = block.matmul(xp.concat([factors.U, factors.V, factors.w], axis=1))
    ZU, ZV = products[:, :q], products[:, q : 2 * q]
    m = (factors.U * factors.V) @ factors.owner.T
    # A product with zeros and ones is a sum over each function's columns, and a fast one.
    f = (ZU * ZV) @ factors.owner.T + products[:, 2 * q :] + factors.c
    if factors.centred:
        f = f - factors.free @ m
    if bool(xp.any(factors.free == 0)):
        f = f - block.squares_matmul((1 - factors.free)[:, None] * m)
    return f, ZU, ZV


def residuals(
    chunk: Chunk, factors: Factors, units: Units, by_v: bool = False, squares: bool = True
) -> Residuals:
    """Sum over one chunk; the action is on U, or on V if `by_v`."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _residuals(chunk, factors, units, by_v, squares)


def _residuals(
    chunk: Chunk, factors: Factors, units: Units, by_v: bool, squares: bool
) -> Residuals:
    xp = namespace(factors.w)
    q = factors.U.shape[1]
    block = Block(chunk.X, units)
    f, ZU, ZV = _evaluate(factors, block)
    r = f - standardised_target(chunk, units)[:, None]
    scaled = (r @ factors.owner) * (ZV if by_v else ZU)
    back = block.rmatmul(xp.concat([scaled, r], axis=1))
    wide = xp.astype(r, xp.float64)
    return Residuals(
        float(r.shape[0]),
        xp.sum(wide * wide, axis=0),
        xp.astype(xp.sum(wide, axis=0), r.dtype),
        back[:, q:],
        block.squares_rmatvec(r) if squares else xp.zeros_like(factors.w),
        back[:, :q],
    )


def published_mes(
    rows: Rows,
    units: Units,
    rank: int,
    rng: np.random.Generator,
    max_iter: int = 50,
) -> Iterator[Iterate]:
    r"""Run the paper's Algorithm 1, with the least that makes it run.

    .. math:: \hat U = V - \mathcal{M} U,\quad U^+ R = \hat U,\quad V^+ = U R^\top,\quad
              w^+ = w - \mathcal{W}

    Where `units` model the diagonal of every feature this is the MIP form, where of none the
    non-MIP form. Corrections:

    - features are standardised and the mean of y is carried as c, because 0/1 and min(x, a) as
      sampled have neither mean 0 nor variance 1;
    - the residual is centred, i.e. ½P0·I is taken from 𝓜: else the trace diverges for k ≥ 3;
    - V⁺ = U Rᵀ where V Rᵀ is printed, with which V stays at zero;
    - H(z) = A′(z)/(2n), which is what the types allow.

    The start, the top singular vectors of H(y), and the asymmetric factors are as printed: the
    skew part of U Vᵀ is seen by no residual.

    Parameters
    ----------
    rows : Rows
        Dense rows, to be walked once an iteration and four times for the start.
    units : Units
        How the rows are standardised.
    rank : int
        Rank k.
    rng : numpy Generator
        For the block that the singular vectors are found from.
    max_iter : int
        Most iterations.

    Yields
    ------
    Iterate
        The start, V = 0, and then one an iteration, with g = 1.
    """
    U, _ = spectral_of_gradient(rows, units, rank, rng, whole_diagonal=True)
    factors = _started(U, U * 0, 1, units, True)
    total = rows.reduce(residuals, factors, units)
    yield Iterate(0, START_PASSES, factors, total.loss / total.weight)
    for step in range(1, max_iter + 1):
        factors = published_step(factors, total, units)
        total = rows.reduce(residuals, factors, units)
        yield Iterate(step, START_PASSES + step, factors, total.loss / total.weight)


def published_step(factors: Factors, total: Residuals, units: Units) -> Factors:
    """Take one step of `published_mes`, given the residual's sums at the factors."""
    U = factors.U
    loss = float(total.loss[0])
    sums = Sums(total.weight, loss, total.p0, total.p1, total.p2, total.action[:, None, :])
    MU, W = mes.unbiased(sums, U, units)
    U_next, R = namespace(U).linalg.qr(factors.V - MU)
    w, c = factors.w - W[:, None], factors.c - total.p0 / total.weight
    return replace(factors, U=U_next, V=U @ R.T, w=w, c=c)


def gradient_descent(
    rows: Rows,
    units: Units,
    rank: int,
    rng: np.random.Generator,
    max_iter: int = 50,
    step_sizes: tuple[float, ...] = STEP_SIZES,
    centred: bool = False,
) -> Iterator[Iterate]:
    r"""Descend the paper's Eq. (4) in turns, with every step size of a grid at once.

    .. math:: \mathcal{L} = \frac{1}{2n} \sum_i (c + z_i^\top w + z_i^\top U V^\top z_i - y_i)^2

    c, w and V take a gradient step, then U. A step has the length η over the curvature of its
    block at the start: 2σ₁(UVᵀ) for U and V, and 1 for c and w, whose η is at most 1. The start is
    spectral, from the gradient at M = 0, shared equally between U and V. The paper says nothing of
    either; both are in favour of the method, and so is choosing the best η afterwards.

    Parameters
    ----------
    rows, units, rank, rng, max_iter
        As for `published_mes`. Two passes an iteration.
    step_sizes : tuple of float
        The grid of η.
    centred : bool
        Whether the mean of the quadratic part is taken out of it and of the gradient: what a
        practitioner may think of, and the paper's "naive" gradient descent does not do.

    Yields
    ------
    Iterate
        The start and then one an iteration, with g = len(step_sizes). Where a step size diverges
        its factors stay where they are.
    """
    xp = namespace(units.scale)
    Q, s = spectral_of_gradient(rows, units, rank, rng, whole_diagonal=False)
    root = xp.sqrt(xp.abs(s))
    g = len(step_sizes)
    U, V = (xp.concat([a] * g, axis=1) for a in (Q * root, Q * root * xp.sign(s)))
    factors = _started(U, V, g, units, centred)
    eta = xp.asarray(step_sizes, dtype=U.dtype, device=U.device)
    curvature = 2 * float(xp.max(xp.abs(s)))
    squares = bool(xp.any(units.free == 0))
    total = rows.reduce(residuals, factors, units, False, squares)
    for step in range(max_iter + 1):
        loss = total.loss / total.weight
        yield Iterate(step, START_PASSES + 2 * step, factors, loss)
        if step == max_iter:
            return
        rates = xp.where(xp.isfinite(loss) & (loss < LOST), eta, xp.zeros_like(eta))
        wide = (rates @ factors.owner) / curvature
        grad_c, grad_w, grad_V = gradient(factors, total, False)
        rates = xp.clip(rates, max=1.0)
        V, w = _moved(factors.V, wide, grad_V), _moved(factors.w, rates, grad_w)
        factors = replace(factors, V=V, w=w, c=_moved(factors.c, rates, grad_c))
        total = rows.reduce(residuals, factors, units, True, squares)
        U = _moved(factors.U, wide, gradient(factors, total, True)[2])
        factors = replace(factors, U=U)
        total = rows.reduce(residuals, factors, units, False, squares)


def gradient(factors: Factors, total: Residuals, by_v: bool) -> tuple[Array, Array, Array]:
    """Return the gradient of the loss in c, w, and V (in U if `by_v`), given the sums."""
    n = total.weight
    Q = factors.V if by_v else factors.U
    with np.errstate(over="ignore", invalid="ignore"):
        diagonal = (1 - factors.free)[:, None] * total.p2 / n
        if factors.centred:
            diagonal = diagonal + factors.free[:, None] * (total.p0 / n)
        return total.p0 / n, total.p1 / n, total.action / n - (diagonal @ factors.owner) * Q


def _moved(block: Array, rate: Array, grad: Array) -> Array:
    """Take a gradient step where the rate is not zero; a lost gradient may not even be finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return namespace(block).where(rate > 0, block - rate * grad, block)


def spectral_of_gradient(
    rows: Rows,
    units: Units,
    rank: int,
    rng: np.random.Generator,
    whole_diagonal: bool,
) -> tuple[Array, Array]:
    """Return the top singular vectors of H(y − ȳ) with their eigenvalues.

    `whole_diagonal` takes H as printed. The gradient at M = 0 has no diagonal where M has none.
    """
    xp = namespace(units.scale)
    constant = constant_model(units, 1, units.target.centre)
    squares = not whole_diagonal and bool(xp.any(units.free == 0))

    def estimate(Q: Array) -> mes.Estimate:
        P1, P2, EQ = mes.centred(rows.reduce(residual_sums, constant, units, Q, squares), Q)
        left_out = (1 - units.free) * P2 if squares else P2 * 0
        return (EQ - left_out[:, None] * Q) / 2, P1

    d = units.scale.shape[0]
    columns = min(d, rank + min(rank, mes.OVERSAMPLING))
    like = {"dtype": units.scale.dtype, "device": units.scale.device}
    random = xp.asarray(rng.standard_normal((d, columns)), **like)
    U, s, _ = mes.spectral(estimate, random, rank, False)
    return U, s


def _started(U: Array, V: Array, functions: int, units: Units, centred: bool) -> Factors:
    xp = namespace(U)
    like = {"dtype": U.dtype, "device": U.device}
    c = xp.full(functions, units.target.centre, **like)
    w = xp.zeros((U.shape[0], functions), **like)
    return Factors(U, V, w, c, units.free, centred)


@dataclass(frozen=True)
class ConvexFit:
    """What the nuclear-norm problem is solved by: y = intercept + xᵀcoef + xᵀMx."""

    intercept: float
    coef: np.ndarray  # (d,)
    M: np.ndarray  # (d, d), symmetric; zero on the diagonal where that is not modelled
    status: str  # the solver's own word

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the predictions for some rows."""
        return np.asarray(self.intercept + X @ self.coef + np.sum((X @ self.M) * X, axis=1))


def nuclear_norm(
    X: np.ndarray, y: np.ndarray, penalty: float = 1e-6, diagonal: bool = True
) -> ConvexFit:
    r"""Solve the paper's Eq. (3), with an intercept, as a semidefinite programme.

    .. math:: \min_{b, w, M}\; \frac{1}{2n} \sum_i (b + x_i^\top w + x_i^\top M x_i - y_i)^2
              + \lambda \|M\|_*

    M is the difference of two positive matrices, and the sum of their traces its nuclear norm.
    The rows are first reduced by a QR decomposition to as many as there are products of features.
    The solver is Clarabel: an interior-point method, good to 1e-8, where a first-order one such
    as SCS is good to 1e-4 and would not tell recovery from failure.

    Parameters
    ----------
    X : array (n, d)
        Rows; a few dozen features at most, for the work grows as d⁶.
    y : array (n,)
        Targets.
    penalty : float
        λ, which the paper writes λ/n.
    diagonal : bool
        Whether squares of features are modelled; else only the off-diagonal of M counts.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((40, 4))
    >>> fit = nuclear_norm(X, 1.0 + X[:, 0] + 2 * X[:, 1] * X[:, 2])
    >>> bool(abs(fit.M[1, 2] - 1) < 1e-3)
    True
    """
    try:
        cp: Any = import_module("cvxpy")
    except ImportError as error:
        raise ImportError(
            'The nuclear-norm problem needs cvxpy: pip install "quadlin[reproduce]".'
        ) from error
    n, d = X.shape
    if d > MAX_CONVEX_FEATURES:
        raise ValueError(
            f"X has {d} features; the nuclear-norm problem is solved here for at most "
            f"{MAX_CONVEX_FEATURES}. Use SecondOrderRegressor for more."
        )
    i, j = np.triu_indices(d, 0 if diagonal else 1)
    products = np.where(i == j, 1.0, 2.0) * X[:, i] * X[:, j]
    design = np.column_stack([np.ones(n), X, products, y])
    reduced = np.asarray(np.linalg.qr(design.astype(np.float64), mode="r"))
    b, w = cp.Variable(), cp.Variable(d)
    positive, negative = (cp.Variable((d, d), PSD=True) for _ in range(2))
    M = positive - negative
    entries = cp.vec(M, order="C")[i * d + j]
    residual = reduced[:, :-1] @ cp.hstack([b, w, entries]) - reduced[:, -1]
    nuclear = cp.trace(positive) + cp.trace(negative)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(residual) / (2 * n) + penalty * nuclear))
    problem.solve(solver=cp.CLARABEL)
    found = np.asarray(M.value)
    if not diagonal:
        found = found - np.diag(np.diag(found))
    return ConvexFit(float(b.value), np.asarray(w.value), found, str(problem.status))
