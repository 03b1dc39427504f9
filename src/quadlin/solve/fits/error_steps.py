"""Changes of a model whose squares sum to the covariance of its error."""

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.model import Steps, changes
from quadlin.core.sums import ELEMENTS
from quadlin.core.units import Units


class ErrorSteps(Steps):
    """Steps tᵢ with Σ tᵢtᵢᵀ the covariance of (c, w, M): a functional L has variance Σ L(tᵢ)²."""

    @classmethod
    def of(cls, steps: Steps) -> "ErrorSteps":
        """Return steps as a covariance."""
        return cls(steps.E, steps.H, steps.w, steps.c)

    def of_predictions(self, block: Block, units: Units) -> Array:
        """Return the variances of f(z), (n,)."""
        xp, (_, m, k) = namespace(self.E), self.H.shape
        size = max(1, ELEMENTS // max(1, block.n_rows * max(1, k)))
        variance = xp.zeros(block.n_rows, dtype=self.E.dtype, device=self.E.device)
        for start in range(0, m, size):
            variance = variance + _squares(changes(block, self[start : start + size], units.free))
        return variance

    def of_coefficients(self, units: Units) -> tuple[Array, float]:
        """Return the variances of D(w − 2Mν), (d,), and of the value at x = 0."""
        xp = namespace(self.E)
        given = (units.scale, units.mean, units.rest, units.free)
        D, mean, rest, free = (xp.astype(a, xp.float64) for a in given)
        t = Steps(*(xp.astype(a, xp.float64) for a in (self.E, self.H, self.w, self.c)))
        nu = mean * D + rest
        along = t.times(nu, free)
        b = t.c - free @ t.diagonals() - nu @ t.w + nu @ along  # c − Σ_F m − νᵀw + νᵀMν
        return _squares(D[:, None] * (t.w - 2 * along)), float(_squares(b))

    def of_interaction(self, i: int, j: int, units: Units) -> float:
        """Return the variance of the entry ij of M."""
        del units  # these steps are measured from the means of groups
        return float(_squares(self.H[j, :, :] @ self.E[i, :] + self.H[i, :, :] @ self.E[j, :]))


def _squares(values: Array) -> Array:
    """Return Σ Lᵢ² of functionals L of the steps, (…, m)."""
    return namespace(values).sum(values * values, axis=-1)
