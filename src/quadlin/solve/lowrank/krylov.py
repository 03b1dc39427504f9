"""Krylov methods: linear systems by conjugate gradients, leading eigenpairs by block Krylov."""

from collections.abc import Callable
from math import inf
from typing import Any, TypeVar

from quadlin.core.arrays import Array, namespace, orthonormal, symmetric

V = TypeVar("V", bound=Any)  # anything that can be added, and multiplied by a number


def conjugate_gradients(
    apply: Callable[[V], V],
    b: V,
    inner: Callable[[V, V], float],
    tol: float,
    cap: int,
    precondition: Callable[[V], V] | None = None,
    damping: float = 0.0,
    least: float = 0.0,
    goal: float = inf,
) -> tuple[V, bool]:
    """Solve (A + damping·P⁻¹) x = b; return x, and whether `tol` is met in `cap` products with A.

    A is positive semi-definite in the inner product, P the preconditioner. The residual is measured
    in the norm of P. The iteration stops at a direction x without curvature, xᵀAx ≤ `least`·xᵀx. It
    also stops, as if `tol` were met, when 2bᵀx − xᵀAx reaches `goal`.
    """
    x: Any = 0.0 * b
    h = b
    z = h if precondition is None else precondition(h)
    direction, undone = z, h  # undone: P⁻¹ · direction, for the damping
    size = inner(h, z)
    small, gained = tol**2 * size, 0.0
    for _ in range(cap):
        if not size > small or gained >= goal:
            break
        product = apply(direction)
        if damping:
            product = product + damping * undone
        growth = inner(direction, product)
        if not growth > (least * inner(direction, direction) if least else 0.0):
            return x, False
        x, h = x + (size / growth) * direction, h - (size / growth) * product
        gained += size * (size / growth)
        z = h if precondition is None else precondition(h)
        size, before = inner(h, z), size
        direction = z + (size / before) * direction
        undone = h + (size / before) * undone
    return x, size <= small or gained >= goal


def block_krylov(apply: Callable[[Array], Array], start: Array, blocks: int) -> tuple[Array, Array]:
    """Return an orthonormal basis Q of span{S, AS, A²S, …} and QᵀAQ, for a symmetric A.

    Plain subspace iteration needs about five times as many products with A as `blocks`.
    `start` S (d, q) is random. Memory: blocks · q · d numbers.
    """
    xp, d = namespace(start), start.shape[0]
    basis = block = orthonormal(start)
    columns: list[Array] = []
    while True:
        product = apply(block)
        columns.append(basis.T @ product)
        room = d - basis.shape[1]
        if len(columns) == blocks or room <= 0:
            return basis, _from_upper_blocks(columns)
        block = product[:, : min(block.shape[1], room)]
        for _ in range(2):  # twice is enough
            block = orthonormal(block - basis @ (basis.T @ block))
        basis = xp.concat([basis, block], axis=1)


def _from_upper_blocks(columns: list[Array]) -> Array:
    """Assemble a symmetric matrix from block columns that end at their diagonal block."""
    last = columns[-1]
    size = last.shape[0]
    S = namespace(last).zeros((size, size), dtype=last.dtype, device=last.device)
    right = 0
    for column in columns:
        left, right = right, right + column.shape[1]
        S[: column.shape[0], left:right] = column
        S[left:right, : column.shape[0]] = column.T
        S[left:right, left:right] = symmetric(column[left:right, :])
    return S
