"""Changes of a model within the tangent space of rank-k matrices, several at once."""

from dataclasses import dataclass

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.model import assembled


@dataclass(frozen=True)
class Steps:
    """Changes i = 1 … m of a model: M + E Hᵢᵀ + Hᵢ Eᵀ, w + wᵢ, c + cᵢ."""

    E: Array  # (d, k), the model's own factor
    H: Array  # (d, m, k)
    w: Array  # (d, m)
    c: Array  # (m,)

    def __getitem__(self, part: slice) -> "Steps":
        return Steps(self.E, self.H[:, part, :], self.w[:, part], self.c[part])

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


def changes(block: Block, steps: Steps, free: Array) -> tuple[Array, Array]:
    """Return how each step changes the predictions, J tᵢ (n, m), and Z E (n, k)."""
    xp = namespace(steps.E)
    d, m, k = steps.H.shape
    columns = [steps.E, steps.w, xp.reshape(steps.H, (d, m * k))]
    products = block.matmul(xp.concat(columns, axis=1))
    ZE, Zw = products[:, :k], products[:, k : k + m]
    ZH = xp.reshape(products[:, k + m :], (products.shape[0], m, k))
    quadratic = 2 * xp.sum(ZE[:, None, :] * ZH, axis=2)
    return assembled(block, steps.c, Zw, quadratic, steps.diagonals(), free), ZE
