r"""The penalties of largest evidence, with as few evaluations as possible: each takes O(p³).

If parameters are more than fit in a matrix, or so few that the rows determine all of them, the
evidence follows from the loss of a fit and the size of its parameters (`Diagonal`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np
from scipy.optimize import minimize

from quadlin.core.arrays import to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import one_blas_thread
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.design import Alpha
from quadlin.solve.lowrank.linear_model import (
    EXACT,
    Evidence,
    LeftOut,
    LinearModel,
    log_likelihood,
    lowest_penalty,
    over_noise,
)

HIGHEST = 12.0  # log(α/N) above which nothing but the penalty is left
STEEP = 3.0  # largest log(α/N) with a noticeable slope
FLAT = 0.1  # the search ends if the slope of the log evidence, in log α, is smaller
FAR = 1e10  # below any log evidence
TIE = 0.1  # of log evidence: what differs by less is equally good


def maximised(model: LinearModel, starts: Sequence[Sequence[float]]) -> Evidence:
    """Return the penalties of largest evidence, starting from the best of some log(α/N)."""
    shift = log(max(model.weight, 1.0))
    low, high = lowest_penalty(model) + shift, HIGHEST + shift
    points = [np.clip(np.asarray(start, float), low - shift, STEEP) + shift for start in starts]
    with one_blas_thread():  # for such small matrices, synchronising threads costs more
        # From the largest penalties to the smallest; a smaller one must be better by more than a
        # tie. With few rows the evidence of a model of the noise and of one without it may be
        # equal, and rounding must not decide between them.
        best = Evidence(-inf, points[0])
        for point in sorted(points, key=lambda point: -float(point.sum())):
            value = model.at(point, least=best.log_evidence + TIE)
            if value.log_evidence > best.log_evidence + TIE:
                best = value
        best = climbed(model, best, low, high)
        # The evidence may rise slowly to that of a model without a group.
        vanishing = best.log_alpha >= shift + STEEP
        if np.any(vanishing & (best.log_alpha < high)) and best.log_evidence > -inf:
            end = model.at(np.where(vanishing, high, best.log_alpha))
            if end.log_evidence > best.log_evidence:
                best = climbed(model, end, low, high)
    if not best.determined.size:
        best = best._replace(determined=np.zeros_like(best.log_alpha))
    return best


def climbed(model: LinearModel, here: Evidence, low: float, high: float) -> Evidence:
    """Return the peak near some penalties."""
    best = here

    def falls(log_alpha: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        value = here if np.array_equal(log_alpha, here.log_alpha) else model.at(log_alpha)
        if not value.gradient.size:  # rounding is larger than the penalties
            return FAR, np.zeros_like(log_alpha)
        best = value if value.log_evidence > best.log_evidence else best
        return here.log_evidence - value.log_evidence, -value.gradient

    if here.gradient.size:
        bounds = [(low, high)] * len(here.log_alpha)
        settings = {"jac": True, "method": "L-BFGS-B", "bounds": bounds, "options": {"gtol": FLAT}}
        minimize(falls, here.log_alpha, **settings)
    return best


@dataclass(frozen=True)
class Diagonal(LinearModel):
    r"""About the linear model around a fit θ with penalties a, without its matrix.

    .. math:: S(\alpha) = S(a) + \sum_g |\theta_g|^2 (\alpha_g - a_g)
              \min\left(1, \frac{\bar v_g + a_g}{\bar v_g + \alpha_g}\right)

    The directions count as independent, with variances v that follow from those of the features:
    the product of two is that of two normal variables.
    """

    loss: float  # S(a)
    fitted: np.ndarray  # (g,), a
    squares: np.ndarray  # (g,), |θ_g|²
    variances: Sequence[np.ndarray]  # v, times the weight
    weight: float
    sizes: Sequence[int]
    optimum: Model
    units: Units
    noise: float | None = None

    @classmethod
    def about(
        cls,
        model: Model,
        units: Units,
        alpha: Alpha,
        loss: float,
        C: np.ndarray | None,
        weight: float,
        noise: float | None = None,
    ) -> "Diagonal":
        """Return the model about a fit, from its loss; C is the features' covariance, if known."""
        rho = to_numpy(units.penalty_scale).astype(np.float64)
        w, E = rho * to_numpy(model.w), rho[:, None] * to_numpy(model.U)
        (d, k), M = E.shape, (E * to_numpy(model.s)) @ E.T
        basis = np.linalg.qr(E)[0]
        of_features = np.ones(d) if C is None else np.maximum(np.linalg.eigvalsh(C), 0.0)
        of_basis = np.ones(k) if C is None else np.einsum("ia,ij,ja->a", basis, C, basis)
        groups = [of_features, np.outer(of_features, of_basis).ravel()][: 1 + (k > 0)]
        sizes = [d, d * k - k * (k - 1) // 2][: len(groups)]
        # No more directions than rows vary.
        spectra = [
            np.sort(v)[::-1][: min(p, int(weight))] for v, p in zip(groups, sizes, strict=True)
        ]
        variances = [weight * v * (p / len(v)) for v, p in zip(spectra, sizes, strict=True)]
        fitted = np.asarray(alpha[: len(groups)], np.float64)
        squares = np.array([w @ w, 2 * np.sum(M * M)][: len(groups)])
        loss = loss + float(fitted @ squares)
        return cls(loss, fitted, squares, variances, weight, sizes, model, units, noise)

    def of_groups(self, alpha: Alpha) -> np.ndarray:
        """Return the penalties of the groups, from those of w and M."""
        return np.asarray(alpha[: len(self.sizes)], np.float64)

    def at(self, log_alpha: np.ndarray, least: float = -inf) -> Evidence:
        """Return the evidence at some penalties."""
        alpha, mean = np.exp(log_alpha), np.array([v.mean() for v in self.variances])
        ratio = np.minimum((mean + self.fitted) / (mean + alpha), 1.0)
        S = self.loss + float(self.squares @ ((alpha - self.fitted) * ratio))
        S = max(S, EXACT * self.weight * self.units.target.power)
        half_log_det = sum(
            float(np.log1p(v / a).sum()) / 2 for v, a in zip(self.variances, alpha, strict=True)
        )
        fit, noise = log_likelihood(S, self)
        pairs = zip(self.variances, alpha, strict=True)
        determined = np.array([float(np.sum(v / (v + a))) for v, a in pairs])
        pull = over_noise(alpha * self.squares * ratio**2, S, self)
        gradient = (determined - pull) / 2
        return Evidence(fit - half_log_det, log_alpha, noise, determined, gradient)

    def model(self, alpha: Alpha) -> Model:
        """Return the fit."""
        return self.optimum

    def left_out(self, rows: Rows, alpha: Alpha) -> LeftOut:
        """Return what the errors of rows left out are made of, with equal leverages: one pass."""
        weight, residual = (
            np.concatenate(part)
            for part in zip(*rows.collect(_residuals, self.optimum, self.units), strict=True)
        )
        dof = float(np.sum(self.at(np.log(self.of_groups(alpha))).determined)) + 1
        leverage = np.minimum(weight * dof / weight.sum(), 1.0)
        return LeftOut(weight, residual, leverage)


def _residuals(chunk: Chunk, model: Model, units: Units) -> tuple[np.ndarray, np.ndarray]:
    """Return ω and r of the rows of positive weight of a chunk."""
    chunk = chunk.counting()
    r = units.standardised_target(chunk.y) - predict(model, Block(chunk.X, units))
    return chunk.weights, to_numpy(r).astype(np.float64)
