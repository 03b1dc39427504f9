"""The columns that are fitted in any case, projected out of products and response."""

from dataclasses import dataclass, replace

import numpy as np

JITTER = 1e-11  # of a column's power: columns that others explain are as good as left out


@dataclass(frozen=True)
class Projected:
    """What is left of products and response after the base is projected out of them."""

    rest: np.ndarray  # (m + 1, m + 1)
    onto: np.ndarray  # (base, m + 1), the coefficients of the projection
    inverse: np.ndarray  # (base, base)

    def beta(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients with these products, base first, and the inverse Gram matrix."""
        size = np.sqrt(np.maximum(np.diag(self.rest)[index], 1e-300))
        S = self.rest[np.ix_(index, index)] / np.outer(size, size)
        S = np.linalg.pinv(S, rcond=1e-9, hermitian=True) / np.outer(size, size)
        gamma, P = S @ self.rest[index, -1], self.onto[:, index]
        corner = -P @ S
        inverse = np.block([[self.inverse + P @ S @ P.T, corner], [corner.T, S]])
        return np.concatenate([self.onto[:, -1] - P @ gamma, gamma]), inverse


@dataclass(frozen=True)
class Penalty:
    r"""The ridge :math:`\alpha_w |\rho \circ (w + \beta)|^2` on w, and that on M."""

    alpha: tuple[float, float]  # on w and on M
    scale: np.ndarray  # (q,), ρ² of the features that are looked at
    w: np.ndarray  # (q,), the model's coefficients, to which β is added

    def beside(self, w: np.ndarray) -> "Penalty":
        """Return the penalty beside other coefficients."""
        return replace(self, w=w)

    def projected(self, gram: np.ndarray, base: int, i: np.ndarray, j: np.ndarray) -> Projected:
        """Project the base out of products and response, with the ridge on all of them."""
        (first, second), rho, d = self.alpha, self.scale, len(self.w)
        ridge, pull = np.zeros(len(gram) - 1), np.zeros(len(gram) - 1)
        ridge[1 : d + 1] = first * rho
        ridge[d + 1 : base] = 4 * second * np.tile(rho, (base - 1 - d) // max(d, 1))
        ridge[base:] = second * (1 + (i == j)) * rho[i] * rho[j]
        pull[1 : d + 1] = first * rho * self.w
        gram = gram + np.diag(np.append(ridge, pull[1 : d + 1] @ self.w))
        gram[:-1, -1] -= pull
        gram[-1, :-1] -= pull
        power = np.diag(gram)[:base]
        size = np.sqrt(np.where(power > 0, power, 1.0))
        scaled = gram[:base, :base] / np.outer(size, size) + JITTER * np.eye(base)
        inverse = np.linalg.inv(scaled) / np.outer(size, size)
        onto = inverse @ gram[:base, base:]
        rest = gram[base:, base:] - gram[:base, base:].T @ onto
        return Projected((rest + rest.T) / 2, onto, (inverse + inverse.T) / 2)
