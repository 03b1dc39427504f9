"""The columns that are fitted in any case, projected out of products and response."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky, eigh

JITTER = 1e-11  # of a column's power: columns that others explain are as good as left out
UNSEEN = 1e-10  # of the largest eigenvalue: directions that no row has a part in


@dataclass(frozen=True)
class Coefficients:
    """The coefficients of a regression with some products, and the inverse of its Gram matrix.

    The inverse is that of the base, which is the same for all products, plus [−P, I]ᵀ S [−P, I].
    """

    beta: np.ndarray  # of all columns, base first
    onto: np.ndarray  # (base, m), P: the projection of the products onto the base
    inverse: np.ndarray  # (m, m), S: of what is left of the products beside the base

    @property
    def apart(self) -> np.ndarray:
        """Return [−P, I]ᵀ, (base + m, m): the products less their projections."""
        return np.concatenate([-self.onto, np.eye(len(self.inverse))])


@dataclass(frozen=True)
class Projected:
    """What is left of products and response after the base is projected out of them."""

    rest: np.ndarray  # (m + 1, m + 1)
    onto: np.ndarray  # (base, m + 1), the coefficients of the projection
    inverse: np.ndarray  # (base, base), on the space that its columns span

    def solved(self, index: np.ndarray) -> "Coefficients":
        """Return the regression with these products."""
        size = np.sqrt(np.maximum(np.diag(self.rest)[index], 1e-300))
        S = self.rest[np.ix_(index, index)] / np.outer(size, size)
        S = np.linalg.pinv(S, rcond=1e-9, hermitian=True) / np.outer(size, size)
        gamma, P = S @ self.rest[index, -1], self.onto[:, index]
        return Coefficients(np.concatenate([self.onto[:, -1] - P @ gamma, gamma]), P, S)


def inverse_of(gram: np.ndarray) -> np.ndarray:
    """Return the inverse of a Gram matrix of columns of unit power, on the space that they span.

    Columns that others explain, such as the levels of a field or turns of U among its directions,
    leave directions that no row has a part in; what is fitted along them is zero.
    """
    try:
        root = cholesky(gram, lower=True)
        if np.diag(root).min(initial=1.0) ** 2 > UNSEEN:
            inverse = cho_solve((root, True), np.eye(len(gram)))
            return np.asarray((inverse + inverse.T) / 2)
    except LinAlgError:
        pass
    values, V = eigh(gram)
    seen = values > UNSEEN * values.max(initial=0.0)
    W = V[:, seen] / np.sqrt(values[seen])
    return np.asarray(W @ W.T)


@dataclass(frozen=True)
class Penalty:
    r"""The ridge :math:`\alpha_w |\rho \circ w|^2 + 2 \alpha_L \|\rho\rho^\top \circ L\|^2
    + 2 \alpha_S \|\rho\rho^\top \circ S\|^2` along w + β, L + UHᵀ + HUᵀ and S."""

    alpha: tuple[float, float, float]  # on w, on L and on the products
    scale: np.ndarray  # (q,), ρ² of the features that are looked at
    w: np.ndarray  # (q,), the model's coefficients, to which β is added
    U: np.ndarray  # (q, k), of L, or (q, 0) where it stays as it is
    s: np.ndarray  # (k,)

    def beside(self, w: np.ndarray, U: np.ndarray, s: np.ndarray) -> "Penalty":
        """Return the penalty beside another model."""
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

        `inverse` is that of the base and its ridge, where it is there already.
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

        As ‖ρρᵀ∘(UHᵀ + HUᵀ)‖² = 2 tr(G HᵀρH) + 2 tr((UᵀρH)²) with ρ = diag(ρ²) and G = UᵀρU.
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
            turned = np.einsum("lb,ma->albm", weighted, weighted)
            same = np.einsum("ab,lm->albm", G, np.diag(rho))
            R[d + 1 : base, d + 1 : base] = 4 * second * (same + turned).reshape(base - d - 1, -1)
            sG = self.s[:, None] * G
            pull[d + 1 : base] = 4 * second * (weighted @ sG).T.ravel()
            power += 2 * second * float(np.sum(sG * sG.T))
        R[-1, :] = R[:, -1] = -pull
        R[-1, -1] = power
        return R
