r"""The regression of features, a low-rank part that moves, and products, with robust errors.

The columns that are always fitted are projected out of products and response. The leverage of a row
is that without products, which is the same for all of them, plus what the products add: tᵀSt, where
t is the row of the products less their projections, and S the inverse of their Gram matrix.
"""

from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.special import stdtr

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.core.model import Model, constant_model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.pairs.products import (
    DenseRows,
    ProductMoments,
    RegressionColumns,
    base_leverages,
    joint_gram,
    product_moments,
    total,
)

MOST_FEATURES = 3000  # three d×d matrices are kept
MOST_TANGENT = 1500  # columns of L's tangent space that are projected out
JITTER = 1e-11  # of a column's power: columns that others explain are practically left out
NEW = 1e-6  # of the largest variance: the least that a direction must have
LEAST_FREEDOM = 0.1  # rows behind a standard error, less one
UNSEEN = 1e-10  # of the largest eigenvalue: directions in which the rows do not vary


@dataclass(frozen=True)
class Projected:
    """Products and response with the base projected out of them."""

    rest: np.ndarray  # (m + 1, m + 1)
    onto: np.ndarray  # (base, m + 1), the coefficients of the projection
    inverse: np.ndarray  # (base, base), on the space that its columns span

    def solved(self, columns: RegressionColumns, index: np.ndarray) -> "Solution":
        """Return the regression with these products, which are those of the columns."""
        size = np.sqrt(np.maximum(np.diag(self.rest)[index], 1e-300))
        S = self.rest[np.ix_(index, index)] / np.outer(size, size)
        S = np.linalg.pinv(S, rcond=1e-9, hermitian=True) / np.outer(size, size)
        gamma, P = S @ self.rest[index, -1], self.onto[:, index]
        beta = np.concatenate([self.onto[:, -1] - P @ gamma, gamma])
        return Solution(columns, beta, P, S)


def inverse_of(gram: np.ndarray) -> np.ndarray:
    """Return the inverse of a Gram matrix of columns of unit power, on the space that they span.

    Columns that others explain, such as the levels of a field or rotations of U, leave directions
    in which the rows do not vary; coefficients along them are zero.
    """
    try:
        root = cholesky(gram, lower=True)
        if np.diag(root).min(initial=1.0) ** 2 > UNSEEN:
            inverse = cho_solve((root, True), np.eye(len(gram)))
            return np.asarray((inverse + inverse.T) / 2)
    except LinAlgError:
        pass
    W = uncorrelated(gram, UNSEEN)
    return np.asarray(W @ W.T)


def uncorrelated(second: np.ndarray, least: float = NEW) -> np.ndarray:
    """Return W (d, q) such that the columns of ZW are uncorrelated and of variance 1.

    Directions with less than the share `least` of the largest variance are left out.
    """
    values, V = np.linalg.eigh(second)
    determined = values > least * values.max(initial=0.0)
    whitener: np.ndarray = V[:, determined] / np.sqrt(values[determined])
    return whitener


@dataclass(frozen=True)
class Penalty:
    r"""The ridge :math:`\alpha_w |\rho \circ w|^2 + 2 \alpha_L \|\rho\rho^\top \circ L\|^2
    + 2 \alpha_S \|\rho\rho^\top \circ S\|^2` along w + β, L + UHᵀ + HUᵀ and S."""

    alpha: tuple[float, float, float]  # on w, on L and on the products
    scale: np.ndarray  # (q,), ρ² of the features of the search
    w: np.ndarray  # (q,), the model's coefficients, to which β is added
    U: np.ndarray  # (q, k), of L, or (q, 0) if it stays as it is
    s: np.ndarray  # (k,)

    def of_model(self, w: np.ndarray, U: np.ndarray, s: np.ndarray) -> "Penalty":
        """Return the penalty for another model."""
        return replace(self, w=w, U=U, s=s)

    def projected(
        self,
        gram: np.ndarray,
        base: int,
        i: np.ndarray,
        j: np.ndarray,
        inverse: np.ndarray | None = None,
    ) -> Projected:
        """Project the base out of products and response, with the ridge on all of them.

        `inverse` is that of the base and its ridge, if it has been computed.
        """
        gram = gram + self.matrix(len(gram), base, i, j)
        if inverse is None:
            power = np.diag(gram)[:base]
            size = np.sqrt(np.where(power > 0, power, 1.0))
            inverse = inverse_of(gram[:base, :base] / np.outer(size, size)) / np.outer(size, size)
        onto = inverse @ gram[:base, base:]
        rest = gram[base:, base:] - gram[:base, base:].T @ onto
        return Projected((rest + rest.T) / 2, onto, inverse)

    def matrix(self, size: int, base: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Return the ridge as a quadratic form of β, H and products, and of the response's 1.

        It uses ‖ρρᵀ∘(UHᵀ + HUᵀ)‖² = 2 tr(G HᵀρH) + 2 tr((UᵀρH)²) with ρ = diag(ρ²) and G = UᵀρU.
        """
        (first, second, third), rho, d = self.alpha, self.scale, len(self.w)
        R = np.zeros((size, size))
        at = np.arange(size)
        R[at[1 : d + 1], at[1 : d + 1]] = first * rho
        R[at[base:-1], at[base:-1]] = third * (1 + (i == j)) * rho[i] * rho[j]
        pull = np.zeros(size)
        pull[1 : d + 1] = first * rho * self.w
        power = first * float(rho @ self.w**2)
        if second and self.U.shape[1]:
            weighted = rho[:, None] * self.U
            G = self.U.T @ weighted
            crossed = np.einsum("lb,ma->albm", weighted, weighted)
            same = np.einsum("ab,lm->albm", G, np.diag(rho))
            R[d + 1 : base, d + 1 : base] = 4 * second * (same + crossed).reshape(base - d - 1, -1)
            sG = self.s[:, None] * G
            pull[d + 1 : base] = 4 * second * (weighted @ sG).T.ravel()
            power += 2 * second * float(np.sum(sG * sG.T))
        R[-1, :] = R[:, -1] = -pull
        R[-1, -1] = power
        return R


class PairRegression:
    """The Gram matrix of the columns that are always fitted, and of products on request.

    Parameters
    ----------
    rows, units
        The rows and their units.
    model : Model or None
        The model so far. Its w is fitted again together with the pairs, and L may move a little;
        None is the constant.
    alpha : (float, float, float)
        Ridge on w, on L and on the products.
    features : array or None
        Positions of the features of the search; None is all, at most 3,000. Others stay as in
        `model`.
    moments : ProductMoments or None
        The moments of these features, if they were summed before; None takes a pass.
    """

    def __init__(
        self,
        rows: Rows,
        units: Units,
        model: Model | None,
        alpha: tuple[float, float, float],
        features: np.ndarray | None,
        moments: ProductMoments | None,
    ) -> None:
        everything = np.arange(units.scale.shape[0])
        features = everything if features is None else np.sort(features)
        self.d = len(features)
        if self.d > MOST_FEATURES:
            raise ValueError(
                f"The search for pairs takes at most {MOST_FEATURES:,} features, but there are "
                f"{self.d:,}. Select features."
            )
        model = constant_model(units, 0, units.target.centre) if model is None else model
        k = model.U.shape[1]
        tangent = 0 < k < self.d == len(everything) and self.d * k <= MOST_TANGENT
        self.rows, self.units = rows, units
        self.columns = RegressionColumns(units, model, features, tangent)
        scale = to_numpy(units.penalty_scale)[features].astype(float) ** 2
        self.penalty = Penalty(alpha, scale, *self._fitted())
        if moments is None:
            moments = rows.reduce(product_moments, self.columns)
        self.moments = moments
        self.weight = moments.weight
        self.power = self.weight * units.target.power
        self.base = to_numpy(rows.reduce(joint_gram, self.columns).gram)
        self._last: tuple[bytes, np.ndarray] | None = None  # products, and the matrix with them
        self._inverse: np.ndarray | None = None  # of the columns that are always fitted
        self._leverages: np.ndarray | None = None  # of the rows, for these columns
        projected = self.projected_base()
        self.base_loss = float(projected.rest[-1, -1])
        self.base_dof = float(np.sum(projected.inverse * self.base[:-1, :-1]))
        self.freedom = max(self.weight - self.base_dof, 1.0)

    def normal(self, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the Gram matrix of all columns and the response, and its ridge: one pass."""
        i, j = self.among(i, j)
        gram = self.gram(i, j)
        return gram, self.penalty.matrix(len(gram), self.columns.base, i, j)

    def moved(self, model: Model, i: np.ndarray, j: np.ndarray) -> Self:
        """Return the same with another L of the same rank, and sums of some products: one pass.

        The loss and the degrees of freedom without products stay those of the first L.
        """
        other = copy(self)
        other.columns = replace(self.columns, model=model)
        other.penalty = self.penalty.of_model(*other._fitted())
        first, second = self.among(i, j)
        columns, b = other.columns.with_pairs(first, second), self.columns.base
        gram = to_numpy(self.rows.reduce(joint_gram, columns).gram)
        kept = np.r_[:b, len(gram) - 1]
        other.base, other._last = gram[np.ix_(kept, kept)], (_key(first, second), gram)
        other._inverse = other._leverages = None
        return other

    def among(self, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of features among those of the search."""
        first, second = np.searchsorted(self.columns.features, [i, j])
        return first, second

    def gram(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Return the Gram matrix with some products: one pass, unless they are the last or none."""
        b = self.columns.base
        if not len(i):
            return self.base
        if self._last is None or self._last[0] != _key(i, j):
            columns = self.columns.with_pairs(i, j)
            tall = to_numpy(self.rows.reduce(joint_gram, columns, b).gram)
            gram = np.block([[self.base[:b, :b], tall[:b]], [tall[:b].T, tall[b:]]])
            self._last = _key(i, j), gram
        return self._last[1]

    def projected(self, i: np.ndarray, j: np.ndarray) -> Projected:
        """Return products and response, with everything else projected out of them."""
        gram, base = self.gram(i, j), self.columns.base
        projected = self.penalty.projected(gram, base, i, j, self._inverse)
        self._inverse = projected.inverse
        return projected

    @property
    def leverages(self) -> np.ndarray:
        """Return the leverages of rows of weight 1 without products: one pass for all products."""
        if self._leverages is None:
            args = self.columns, self.projected_base().inverse
            self._leverages = np.concatenate(self.rows.collect(base_leverages, *args))
        return self._leverages

    def projected_base(self) -> Projected:
        """Return the response, with everything except products projected out of it."""
        return self.projected(self.columns.i, self.columns.j)

    def _fitted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return w of the features of the search, and L if it may move."""
        at, model = self.columns.features, self.columns.model
        k = model.U.shape[1] if self.columns.tangent else 0
        U, s, w = (to_numpy(v).astype(float) for v in (model.U[:, :k], model.s[:k], model.w))
        return w[at], U[at], s


def _key(i: np.ndarray, j: np.ndarray) -> bytes:
    return np.stack([i, j]).astype(np.int64).tobytes()


@dataclass(frozen=True)
class Solution:
    """The coefficients of a regression with some products, and the inverse of its Gram matrix.

    The inverse is that of the base, which is the same for all products, plus [−P, I]ᵀ S [−P, I].
    """

    columns: RegressionColumns
    beta: np.ndarray  # of all columns, base first
    onto: np.ndarray  # (base, m), P: the projection of the products onto the base
    inverse: np.ndarray  # (m, m), S: of the products with the base projected out

    @property
    def coef(self) -> np.ndarray:
        """Return the coefficients of the products."""
        return self.beta[self.columns.base :]

    @property
    def apart(self) -> np.ndarray:
        """Return [−P, I]ᵀ, (base + m, m): the products less their projections."""
        return np.concatenate([-self.onto, np.eye(len(self.inverse))])


@dataclass(frozen=True)
class Scores(Additive):
    """Moments of the residual with every product, and sums for errors of the chosen products."""

    loss: float  # Σω r²
    moments: Array  # (d, d), Σω r z_i z_j
    spread: Array  # (m,), Σω (a_m r / (1 − h))²: a_m influence of a row on β_m, h its leverage
    squares: Array  # (m,), Σω a_m²
    fourths: Array  # (m,), Σω a_m⁴


@dataclass(frozen=True)
class RobustErrors:
    """HC3 standard errors: the residual of a row is that of a fit without the row."""

    std: np.ndarray  # (m,)
    freedom: np.ndarray  # (m,), the number of rows that determine the standard error, less one
    unit_variance: np.ndarray  # (m,), of the coefficient, for noise of variance 1

    @classmethod
    def of(cls, score: Scores, noise: float | None = None) -> "RobustErrors":
        """Return the standard errors from the sums of a pass; not robust if `noise` is known.

        With a the influence of the rows on a coefficient, (Σa²)²/Σa⁴ is the number of rows that
        determine it: all of them if their influences are equal, one if the others have none.
        """
        spread, squares, fourths = (
            np.maximum(to_numpy(a), 1e-300) for a in (score.spread, score.squares, score.fourths)
        )
        spread = spread if noise is None else noise * squares
        freedom = np.maximum(squares**2 / fourths - 1, LEAST_FREEDOM)
        return cls(np.sqrt(spread), freedom, squares)

    def log_tail(self, coef: np.ndarray) -> np.ndarray:
        """Return log P(T > |t|) of each coefficient, T of Student's distribution."""
        with np.errstate(divide="ignore"):
            tail: np.ndarray = np.log(stdtr(self.freedom, -np.abs(coef) / self.std))
        return tail


def residual_moments(chunk: Chunk, columns: RegressionColumns, beta: Array | None = None) -> Scores:
    """Sum the moments of a residual over one chunk, without errors of products."""
    none = np.zeros(0)
    pieces = columns.pieces(chunk)
    return total(Scores(*piece.moments(piece.residual(beta)), *3 * (none,)) for piece in pieces)


def scores(
    chunk_and_leverages: tuple[Chunk, np.ndarray],
    fit: Solution,
    look: bool,
    contrast: np.ndarray | None = None,
) -> Scores:
    """Sum over one chunk, with the leverages of its rows without products.

    Moments with all products are summed only if `look`; otherwise only errors are. They are those
    of the rows of `contrast` times the coefficients, if it is given.
    """

    def of(piece: DenseRows) -> Scores:
        r, influence, leverage = _influences(piece, fit)
        # Of a fit without the row, or without one of the observations that it stands for.
        one = namespace(r).clip(piece.omega, max=1.0) * leverage
        left_out = r / (1 - namespace(r).clip(one, max=1 - 1e-9))
        if contrast is not None:
            influence = influence @ namespace(r).asarray(contrast.T, device=r.device)
        squared, omega = influence**2, piece.omega
        spread, squares = (omega * left_out**2) @ squared, omega @ squared
        return Scores(*piece.moments(r, look), spread, squares, omega @ squared**2)

    return total(of(piece) for piece in fit.columns.pieces(*chunk_and_leverages))


def weighted_residuals(
    chunk_and_leverages: tuple[Chunk, np.ndarray], fit: Solution
) -> list[np.ndarray]:
    """Return ω, r and 1 − h of the rows of positive weight, from leverages without products."""

    def of(piece: DenseRows) -> np.ndarray:
        r, _, leverage = _influences(piece, fit)
        parts = np.stack([to_numpy(a) for a in (piece.omega, r, 1 - piece.omega * leverage)])
        return parts[:, parts[0] > 0]

    return [of(piece) for piece in fit.columns.pieces(*chunk_and_leverages)]


def _influences(piece: DenseRows, fit: Solution) -> tuple[Array, Array, Array]:
    """Return the residuals, the influences of rows on products, and leverages with products."""
    A, xp = piece.A, namespace(piece.A)
    apart, inverse = (xp.asarray(a, device=A.device) for a in (fit.apart, fit.inverse))
    rest = A @ apart
    influence = rest @ inverse
    return piece.residual(fit.beta), influence, piece.numbers + xp.sum(rest * influence, axis=1)
