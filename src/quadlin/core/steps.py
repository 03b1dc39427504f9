"""Changes of a model within the tangent space of rank-k matrices, several at once."""

from dataclasses import dataclass

from quadlin.core.arrays import Array, namespace
from quadlin.core.block import Block
from quadlin.core.remembered import remembered
from quadlin.core.response import Assembly


@dataclass(frozen=True)
class Steps:
    """Changes i = 1 … m of a model: M + E Hᵢᵀ + Hᵢ Eᵀ, w + wᵢ, c + cᵢ."""

    E: Array  # (d, k), the model's own factor
    H: Array  # (d, m, k)
    w: Array  # (d, m)
    c: Array  # (m,)

    def __getitem__(self, part: slice) -> "Steps":
        return Steps(self.E, self.H[:, part, :], self.w[:, part], self.c[part])

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

    def changes(self, assembly: Assembly, products: Array, squares: Array | None) -> Array:
        """Return how each step changes the predictions, J tᵢ (n, m).

        From Z [E w H] and (Z∘Z)`left_out`.
        """
        return assembly.bilinear(products, squares, *self.bilinear())

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
    return steps.changes(assembly, *block.products(steps.columns(), assembly.left_out))
