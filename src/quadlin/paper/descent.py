r"""Alternating gradient descent on the paper's Eq. (4), with every step size of a grid at once.

.. math:: \mathcal{L} = \frac{1}{2n} \sum_i (c + z_i^\top w + z_i^\top U V^\top z_i - y_i)^2

In three forms:

- *printed*: z = x as sampled and c = 0, Eq. (4) to the letter;
- *standardised*: z has mean 0 and variance 1, and c is learned;
- *centred*: the same, with the mean of the quadratic part subtracted.

The paper says nothing about start and step size. Both are chosen in favour of the method: a
spectral start whose size fits the targets best, and the best step size of a grid, each over the
largest curvature of its block at the start.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

from quadlin.core.arrays import Array, namespace
from quadlin.paper.race import STEP_SIZES, Predict, Report, Setting, Standardised

POWER_STEPS = 12  # for the curvature of V, one pass each
START_PASSES = 3 + POWER_STEPS  # moments, the spectral start with λ(ZᵀZ), its size
LOST = 1e6  # times the loss of the start: such a loss never recovers


@dataclass(frozen=True)
class Factors:
    """g functions of z at once, c + zᵀw + zᵀUVᵀz with or without its diagonal."""

    U: Array  # (d, g, k)
    V: Array  # (d, g, k)
    w: Array  # (d, g)
    c: Array  # (g,)
    has_diagonal: bool
    centred: bool

    def values(self, Z: Array) -> tuple[Array, Array, Array]:
        """Return f (n, g), and ZU and ZV (n, g, k)."""
        xp = namespace(Z)
        ZU, ZV = product(Z, self.U), product(Z, self.V)
        m = xp.sum(self.U * self.V, axis=2)
        f = self.c + Z @ self.w + xp.sum(ZU * ZV, axis=2)
        if not self.has_diagonal:
            f = f - (Z * Z) @ m
        elif self.centred:
            f = f - xp.sum(m, axis=0)
        return f, ZU, ZV


def product(Z: Array, Q: Array) -> Array:
    """Return the (n, g, k) products of rows with a (d, g, k) block."""
    xp = namespace(Z)
    return xp.reshape(Z @ xp.reshape(Q, (Q.shape[0], -1)), (Z.shape[0], *Q.shape[1:]))


def gradient(factors: Factors, Z: Array, t: Array, by_u: bool) -> tuple[Array, Array, Array, Array]:
    """Return the loss (g,) and the gradients in c, w and V (in U if `by_u`)."""
    xp = namespace(Z)
    n, d = Z.shape
    f, ZU, ZV = factors.values(Z)
    r = f - t[:, None]
    Q, ZQ = (factors.V, ZV) if by_u else (factors.U, ZU)
    scaled = xp.reshape(r[:, :, None] * ZQ, (n, -1))
    in_Q = xp.reshape(Z.T @ scaled, (d, *Q.shape[1:])) / n
    if not factors.has_diagonal:
        in_Q = in_Q - (((Z * Z).T @ r) / n)[:, :, None] * Q
    elif factors.centred:
        in_Q = in_Q - xp.mean(r, axis=0)[:, None] * Q
    return xp.mean(r * r, axis=0), xp.mean(r, axis=0), Z.T @ r / n, in_Q


def descend(X: Array, y: Array, setting: Setting, report: Report, form: str) -> None:
    """Run gradient descent in one of its forms; two passes per iteration."""
    rows = Standardised.identity(X, y) if form == "printed" else Standardised.of(X, y)
    with np.errstate(over="ignore", invalid="ignore"):  # of a step size that diverges
        _descend(rows, setting, report, form)


def _descend(rows: Standardised, setting: Setting, report: Report, form: str) -> None:
    xp, Z, t = namespace(rows.Z), rows.Z, rows.t
    factors, curvature = _start(rows, setting, form)
    eta = xp.asarray(STEP_SIZES, dtype=Z.dtype, device=Z.device)
    loss, grad_c, grad_w, grad_V = gradient(factors, Z, t, False)
    first, passes = loss, START_PASSES + 1
    for step in range(setting.max_iter + 1):
        if report(passes, _predictor(rows, factors), rows.mean_square(loss)):
            return
        if step == setting.max_iter:
            return
        alive = xp.isfinite(loss) & (loss < LOST * first)
        rate = xp.where(alive, eta, xp.zeros_like(eta))
        rate_V, rate_w = rate / curvature["V"], xp.clip(rate, max=1.0) / curvature["w"]
        moved = {"V": factors.V - rate_V[:, None] * grad_V, "w": factors.w - rate_w * grad_w}
        if form != "printed":
            moved["c"] = factors.c - xp.clip(rate, max=1.0) * grad_c
        factors = _where(alive, factors, moved)
        grad_U = gradient(factors, Z, t, True)[3]
        factors = _where(alive, factors, {"U": factors.U - rate_V[:, None] * grad_U})
        loss, grad_c, grad_w, grad_V = gradient(factors, Z, t, False)
        passes += 2


def _where(alive: Array, factors: Factors, moved: dict[str, Array]) -> Factors:
    """Update the variants that have not diverged; gradients of others may not be finite."""
    xp = namespace(alive)

    def kept(name: str, new: Array) -> Array:
        old = getattr(factors, name)
        mask = alive if old.ndim == 1 else alive[None, :] if old.ndim == 2 else alive[None, :, None]
        return xp.where(mask, new, old)

    return replace(factors, **{name: kept(name, new) for name, new in moved.items()})


def _predictor(rows: Standardised, factors: Factors) -> Predict:
    return lambda X: rows.predictions(factors.values(rows.standardise(X))[0])


def _start(rows: Standardised, setting: Setting, form: str) -> tuple[Factors, dict[str, float]]:
    """Return the spectral start, once per step size, and the curvature of the blocks V and w."""
    xp, Z, t = namespace(rows.Z), rows.Z, rows.t
    n = Z.shape[0]
    moment = rows.moment_matrix()
    if not setting.has_diagonal:
        moment = moment * (1 - xp.eye(Z.shape[1], dtype=Z.dtype, device=Z.device))
    s, Q = xp.linalg.eigh(moment / 2)
    lead = xp.argsort(-xp.abs(s))[: setting.rank]
    Q, s = xp.take(Q, lead, axis=1), xp.take(s, lead)
    Q = Q * xp.sign(xp.sum(Q**3, axis=0))  # the same on every machine
    one = Factors(
        (Q * xp.sqrt(xp.abs(s)))[:, None, :],
        (Q * xp.sqrt(xp.abs(s)) * xp.sign(s))[:, None, :],
        xp.zeros((Z.shape[1], 1), dtype=Z.dtype, device=Z.device),
        xp.zeros(1, dtype=Z.dtype, device=Z.device),
        setting.has_diagonal,
        form == "centred",
    )
    f = one.values(Z)[0][:, 0]
    size = xp.sqrt(xp.clip(xp.sum(f * t) / xp.sum(f * f), min=1e-6))
    one = replace(one, U=one.U * size, V=one.V * size)
    curvature_w = float(xp.max(xp.linalg.eigvalsh(Z.T @ Z / n)))
    curvature = {"V": _curvature_in_v(one, Z, setting.seed), "w": curvature_w}
    g = len(STEP_SIZES)
    blocks = {name: xp.concat([getattr(one, name)] * g, axis=1) for name in ("U", "V", "w")}
    return replace(one, **blocks, c=xp.concat([one.c] * g)), curvature


def _curvature_in_v(factors: Factors, Z: Array, seed: int) -> float:
    """Return the largest eigenvalue of the Hessian in V, by power iteration."""
    xp = namespace(Z)
    zero = xp.zeros(Z.shape[0], dtype=Z.dtype, device=Z.device)
    random = np.random.default_rng(seed).standard_normal(factors.V.shape)
    D = xp.asarray(random, dtype=Z.dtype, device=Z.device)
    size: Any = 1.0
    for _ in range(POWER_STEPS):
        D = D / xp.sqrt(xp.sum(D * D))
        # The prediction is linear in V, so the gradient at targets of 0 is the Hessian times V.
        still = replace(factors, V=D, w=factors.w * 0, c=factors.c * 0)
        D = gradient(still, Z, zero, False)[3]
        size = xp.sqrt(xp.sum(D * D))
    return float(size)


START_SIZE = 0.1  # size of the random factors, beside those of the truth
MAX_STEPS = 1000  # a loss and a gradient each, as many passes as our fit may take


@dataclass(frozen=True)
class FactorFit:
    """y = b + xᵀw + xᵀUVᵀx."""

    b: np.ndarray
    w: np.ndarray
    U: np.ndarray
    V: np.ndarray
    passes: int

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the predictions for some rows."""
        return np.asarray(self.b + X @ self.w + np.sum((X @ self.U) * (X @ self.V), axis=1))


def fit_factors(
    X: np.ndarray, y: np.ndarray, k: int, seed: int, signs: np.ndarray | None = None
) -> FactorFit:
    """Minimise the squared error over (b, w, U, V), or over (b, w, U) with V = U diag(signs).

    Given signs make as many parameters as ours, all 1 a positive M. U and V find the signs, for
    any M of rank k and for many of rank up to 2k.
    """
    n, d = X.shape
    factors = [d * k] if signs is not None else [d * k, d * k]
    cuts = np.cumsum([1, d, *factors])[:-1]

    def split(p: np.ndarray, passes: int = 0) -> FactorFit:
        b, w, *blocks = np.split(p, cuts)
        U, V = blocks[0].reshape(d, k), blocks[-1].reshape(d, k)
        return FactorFit(b, w, U, V if signs is None else U * signs, passes)

    def loss(p: np.ndarray) -> tuple[float, np.ndarray]:
        model = split(p)
        r = (model.predict(X) - y) / n
        by_U = X.T @ (r[:, None] * (X @ model.V))
        by_V = X.T @ (r[:, None] * (X @ model.U))
        last = [by_U.ravel(), by_V.ravel()] if signs is None else [2 * by_U.ravel()]
        return float(0.5 * n * (r @ r)), np.concatenate([[r.sum()], X.T @ r, *last])

    rng = np.random.default_rng([seed, 1])
    start = np.concatenate(
        [np.zeros(1 + d), START_SIZE * rng.standard_normal(sum(factors)) / d**0.5]
    )
    options = {"maxiter": MAX_STEPS, "maxfun": int(1.2 * MAX_STEPS), "ftol": 0.0, "gtol": 1e-10}
    optimum = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    return split(optimum.x, int(optimum.nfev))
