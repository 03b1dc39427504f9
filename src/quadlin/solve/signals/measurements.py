"""Measurement vectors as an operator: products with A and Aᴴ, counted and conditioned."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator

from quadlin.core.chunks import BLOCK_ELEMENTS
from quadlin.core.rows import Walks

MOST_WHITENED = 2000  # most columns for which a d×d matrix is formed
POWER_STEPS = 20
PROBES = 10  # random signs that estimate the sizes of columns
LOOSE = 1e-3  # of a product: more than rounding of float32 explains
DIRECTIONS, DIGITS = 3, 5  # of the products that compare rows: as many digits as float32 has
EDGE_SLACK = 1.2  # of the largest eigenvalue of a random Gram matrix, which fluctuates


@dataclass(frozen=True)
class Measurements:
    r"""Rows aᵢ with new unknowns v, :math:`z = Bv`, such that √Ω·AB has singular values of about 1.

    B is a d×r matrix, with which they are 1, or a diagonal (d,), with which the largest is 1. The
    rank is r, or d less the columns that are zero.
    """

    A: Any  # (n, d): array, sparse matrix or LinearOperator
    B: np.ndarray
    is_real: bool  # whether the signal is real
    counter: Walks = field(default_factory=Walks)
    zero_columns: int = 0  # that a diagonal B keeps

    @property
    def rank(self) -> int:
        """Return how many unknowns are measured."""
        return self.width - self.zero_columns

    @property
    def width(self) -> int:
        """Return the number of unknowns."""
        return int(self.B.shape[-1])

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype of the unknowns."""
        return unknowns_dtype(self.A, self.is_real)

    def signal(self, v: np.ndarray) -> np.ndarray:
        """Return z = Bv."""
        z = self.B @ v if self.B.ndim == 2 else (self.B * v.T).T
        return np.asarray(z, dtype=self.dtype)

    def forward(self, v: np.ndarray) -> np.ndarray:
        """Return A B v: one pass over A."""
        self.counter.count += 1
        return np.asarray(self.A @ self.signal(v))

    def adjoint(self, u: np.ndarray) -> np.ndarray:
        """Return (AB)ᴴu, or its real part if the signal is real: one pass over A."""
        self.counter.count += 1
        z = adjoint(self.A, u)
        z = z.real if self.is_real else z
        return np.asarray(self.B.conj().T @ z if self.B.ndim == 2 else (self.B * z.T).T)

    def random(self, rng: np.random.Generator, columns: int | None = None) -> np.ndarray:
        """Return random unknowns (r,), or (r, columns), which do not depend on the basis B."""
        d = int(self.A.shape[1])
        shape = (d,) if columns is None else (d, columns)
        z = rng.standard_normal(shape)
        z = z if self.is_real else z + 1j * rng.standard_normal(shape)
        if self.B.ndim == 2:
            z = (self.B / np.linalg.norm(self.B, axis=0)).conj().T @ z
        else:
            z = ((self.B > 0) * z.T).T
        return np.asarray(z, dtype=self.dtype)


def adjoint(A: Any, u: np.ndarray) -> np.ndarray:
    """Return Aᴴu without a conjugated copy of A."""
    if isinstance(A, LinearOperator):
        try:
            return np.asarray(A.rmatvec(u))
        except NotImplementedError as error:
            raise ValueError(
                "The operator A needs both products: matvec, A @ z, and rmatvec, its conjugate "
                "transpose, Aᴴ @ u."
            ) from error
    # In the precision of A, so that A is not copied to that of u.
    u = u.astype(np.result_type(A.dtype, np.complex64 if np.iscomplexobj(u) else np.float32))
    return np.asarray(A.T @ u.conj()).conj()


def in_double(numbers: np.ndarray) -> np.ndarray:
    """Return real or complex numbers in double precision."""
    return np.asarray(numbers, dtype=np.result_type(numbers.dtype, np.float64))


def unknowns_dtype(A: Any, is_real: bool) -> np.dtype:
    """Return the dtype of signals; float32 stays float32."""
    dtype = np.result_type(A.dtype, np.float32)
    return np.empty(0, dtype=dtype).real.dtype if is_real else dtype


def conditioned(
    A: Any, weight: np.ndarray, is_real: bool, rng: np.random.Generator
) -> Measurements:
    """Return the measurements with unknowns in which they are well conditioned.

    An array of up to 2,000 columns uses the matrix AᴴΩA: one pass, O(nd²). Otherwise, and for a
    LinearOperator, only the sizes of the columns and the norm are used: 60 products. The columns
    should then be about orthogonal.
    """
    d = int(A.shape[1])
    if isinstance(A, LinearOperator) or d > MOST_WHITENED:
        return _scaled(Measurements(A, np.ones(d), is_real), weight, rng)
    gram = _gram(A, weight)
    values, vectors = np.linalg.eigh(gram.real if is_real else gram)
    eps = float(np.finfo(unknowns_dtype(A, is_real)).eps)
    kept = values > d * eps * max(float(values[-1]), 0.0)
    if kept.all() and _is_random(values, weight):
        return Measurements(A, np.full(d, values[-1] ** -0.5), is_real, Walks(1))
    return Measurements(A, vectors[:, kept] / np.sqrt(values[kept]), is_real, Walks(1))


def _is_random(values: np.ndarray, weight: np.ndarray) -> bool:
    """Tell whether a Gram matrix is that of independent columns, whose spread is due to few rows.

    Its eigenvalues then lie in (1 ± √(d/n))² of their mean (Marchenko and Pastur). Whitening would
    only mix the noise of the Gram matrix into a spectral start, which costs d/4 measurements.
    """
    d, n = len(values), float(np.sum(weight) ** 2 / np.sum(weight**2))
    edge = (1 + np.sqrt(d / n)) ** 2
    return bool(values[-1] <= EDGE_SLACK * edge * np.mean(values))


def _scaled(plain: Measurements, weight: np.ndarray, rng: np.random.Generator) -> Measurements:
    """Scale columns to equal size, estimated by E v∘(AᴴΩA v) for random signs v, and to norm 1."""
    diagonal = np.zeros(plain.width)
    for _ in range(PROBES):
        signs = rng.choice([-1.0, 1.0], size=plain.width)
        if not plain.is_real:  # a real vector would not reveal a missing conjugation
            signs = signs * rng.choice([1, 1j], size=plain.width)
        signs = signs.astype(plain.dtype)
        forward = in_double(plain.forward(signs))
        back = plain.adjoint(weight * forward)
        _check_adjoint(float(np.sum(weight * abs(forward) ** 2)), np.vdot(signs, back))
        diagonal += (signs.conj() * back).real / PROBES
    mean = float(np.mean(diagonal))
    if not mean > 0:
        return plain
    unseen = np.abs(diagonal) <= plain.width * np.finfo(plain.dtype).eps * mean
    scaled = replace(
        plain,
        B=~unseen / np.sqrt(np.where(unseen, 1.0, diagonal)),
        zero_columns=int(np.count_nonzero(unseen)),
    )
    return replace(scaled, B=scaled.B / np.sqrt(_norm(scaled, weight, scaled.random(rng))))


def _check_adjoint(size: float, product: complex) -> None:
    """Check that products match: v·Aᴴ(ΩAv) must be the squared norm of √Ω·Av."""
    if not abs(product - size) <= LOOSE * size:
        raise ValueError(
            "The operator's rmatvec is not the conjugate transpose of its matvec: for some v, "
            f"v·Aᴴ(A v) is {product:.4g}, but the squared norm of A v is {size:.4g}. Conjugate and "
            "transpose in rmatvec, and scale both by the same number."
        )


def distinct_rows(A: Any, weight: np.ndarray, *others: Any) -> int:
    """Return the number of different measurements: a row and its multiples measure the same.

    Rows are compared by three products with random vectors. If there are `others`, a row of A and
    the same row of each other array are one measurement.
    """
    columns, rng = [], np.random.default_rng(0)
    for X in (A, *others):
        d = int(X.shape[1])
        G = rng.standard_normal((d, DIRECTIONS)).astype(unknowns_dtype(X, True))
        by_one = isinstance(X, LinearOperator)  # it may take only single vectors
        P = np.stack([X @ g for g in G.T], axis=1) if by_one else np.asarray(X @ G)
        P = in_double(P)
        size = np.linalg.norm(P, axis=1)
        phase = P[:, 0].conj() / np.maximum(np.abs(P[:, 0]), np.finfo(np.float64).tiny)
        P = np.round(P * (phase / np.where(size > 0, size, 1.0))[:, None], DIGITS) + 0.0
        columns += [P.real, P.imag] if np.iscomplexobj(P) else [P]
        weight = weight * (size > 0)
    return len(np.unique(np.hstack(columns)[weight > 0], axis=0))


def _norm(measure: Measurements, weight: np.ndarray, v: np.ndarray) -> float:
    """Return the largest eigenvalue of (AB)ᴴΩAB, by power iteration."""
    size = 0.0
    for _ in range(POWER_STEPS):
        v = measure.adjoint(weight * measure.forward(v))
        size = float(np.linalg.norm(v))
        if not size > 0:
            break
        v = v / size
    return size


def _gram(A: Any, weight: np.ndarray) -> np.ndarray:
    """Return AᴴΩA, summed over blocks of rows."""
    n, d = A.shape
    wide = np.result_type(A.dtype, np.float64)
    total = np.zeros((d, d), dtype=wide)
    rows = max(1, BLOCK_ELEMENTS // max(d, 1))
    for first in range(0, n, rows):
        block = A[first : first + rows].astype(wide)
        omega = weight[first : first + rows, None]
        if issparse(block):
            total += (block.conj().T @ block.multiply(omega)).toarray()
        else:
            total += block.conj().T @ (omega * block)
    return total
