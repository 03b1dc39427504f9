"""Arrays of any array-API library: linear algebra, nested containers, and a cache of one value."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from operator import is_not
from typing import Any, TypeVar

import array_api_compat.numpy as numpy_namespace
import numpy as np
from array_api_compat import array_namespace, is_cupy_array, to_device
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array, issparse

Array = Any  # an array of whichever namespace the caller brought
Namespace = Any

# On some processors linear algebra libraries set floating-point flags although all inputs and
# results are finite, and numpy would warn each time. Values that must be finite are checked.
unflagged = np.errstate(all="ignore")


def namespace(*arrays: Array) -> Namespace:
    """Return the namespace that the arrays share; sparse matrices of scipy count as numpy's."""
    if set(map(type, arrays)) == {np.ndarray}:  # the usual case, fast for every block
        return numpy_namespace
    dense = [a for a in arrays if a is not None and not issparse(a)]
    return array_namespace(*dense) if dense else numpy_namespace


def moved(a: Array, like: Array) -> Array:
    """Return `a` in float64, in the namespace and on the device of `like`."""
    xp = namespace(like)
    if namespace(a) is not xp:
        a = xp.from_dlpack(a) if hasattr(a, "__dlpack__") else a
    device = None if issparse(like) else like.device
    return xp.astype(xp.asarray(a, device=device), xp.float64)


def is_numpy(a: Array) -> bool:
    """Tell whether `a` is a numpy array or one of scipy's sparse ones."""
    return namespace(a) is numpy_namespace


def to_numpy(a: Array) -> np.ndarray:
    """Return `a` as a numpy array, from whatever device it is on."""
    if hasattr(a, "cpu"):
        return np.asarray(a.cpu())
    if is_cupy_array(a):
        return np.asarray(a.get())
    try:
        return np.asarray(a)
    except RuntimeError:  # of a namespace whose arrays must be moved first
        return np.asarray(to_device(a, namespace(a).__array_namespace_info__().default_device()))


def refuse_broken_sparse(X: Any, name: str = "X") -> None:
    """Check that indices of sparse rows point into them, which scipy does not."""
    if not issparse(X) or X.format not in ("csr", "csc"):
        return
    pointers, indices = X.indptr, X.indices
    sound = pointers[0] == 0 and pointers[-1] <= min(len(indices), len(X.data))
    sound = sound and bool(np.all(pointers[1:] >= pointers[:-1]))
    across = X.shape[1 if X.format == "csr" else 0]
    if not sound or (len(indices) and not 0 <= indices.min() <= indices.max() < across):
        raise ValueError(
            f"{name} is a broken sparse array: its indices or pointers lie outside of its shape "
            f"{X.shape}. {name}.check_format() says where; build it again from its entries, "
            "scipy.sparse.coo_array((data, (rows, columns)), shape)."
        )


def canonical(X: csr_array) -> csr_array:
    """Return CSR with sorted entries and no duplicates; a copy only if X has others.

    The arrays themselves are checked, since the flag that scipy keeps may be out of date.
    """
    checked = csr_array((X.data, X.indices, X.indptr), shape=X.shape)
    if not checked.has_canonical_format:
        checked = checked.copy()
        checked.sum_duplicates()
    return checked


def assembled(parts: Any, shape: tuple[int, int], dtype: np.dtype) -> csr_array:
    """Return CSR from parts (rows, columns, values) in the order of their columns."""
    size = sum(len(rows) for rows, _, _ in parts)
    index = np.int32 if max(size, *shape) <= np.iinfo(np.int32).max else np.int64
    indptr = np.zeros(shape[0] + 1, index)
    for rows, _, _ in parts:
        indptr[1 + rows] += 1
    np.cumsum(indptr, out=indptr)
    free, indices, data = indptr[:-1].copy(), np.empty(size, index), np.empty(size, dtype)
    for rows, columns, values in parts:
        spot = free[rows]
        indices[spot], data[spot] = columns, values
        free[rows] += 1
    return csr_array((data, indices, indptr), shape=shape)


def orthonormal(A: Array) -> Array:
    """Return an orthonormal basis that contains the span of the columns of `A` (d, q), q ≤ d."""
    return qr(A)[0]


def qr(A: Array) -> tuple[Array, Array]:
    """Return A = QR (d, q) (q, q) with orthonormal Q."""
    return namespace(A).linalg.qr(A)  # type: ignore[no-any-return]


def diagonal(v: Array) -> Array:
    """Return the square matrix with `v` on its diagonal."""
    return namespace(v).eye(v.shape[0], dtype=v.dtype, device=v.device) * v[:, None]


def symmetric(A: Array) -> Array:
    """Return the symmetric part of a square matrix."""
    return (A + A.T) / 2


def solved(A: Array, b: Array) -> Array:
    """Return A⁻¹b for a symmetric positive definite A, by Cholesky in numpy."""
    if not is_numpy(A):
        return namespace(A).linalg.solve(A, b)
    try:
        return cho_solve(cho_factor(A, check_finite=False), b, check_finite=False)
    except np.linalg.LinAlgError:  # not positive definite, by rounding
        pass
    try:
        return np.linalg.solve(A, b)
    except np.linalg.LinAlgError:  # singular, by rounding
        return np.linalg.lstsq(A, b)[0]


def lead(S: Array, rank: int, psd: bool = False) -> tuple[Array, Array]:
    """Return the `rank` eigenpairs of symmetric `S` largest in size (the largest ≥ 0 if `psd`)."""
    xp = namespace(S)
    values, vectors = xp.linalg.eigh(symmetric(S))
    if psd:
        values = xp.clip(values, min=0)
    top = xp.argsort(xp.abs(values), descending=True)[:rank]
    return xp.take(values, top), xp.take(vectors, top, axis=1)


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return nested tuples, lists and dataclasses with `change` applied to what they hold.

    Examples
    --------
    >>> mapped(lambda leaf: -leaf, (1, [2, 3]))
    (-1, [-2, -3])
    """
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(*(mapped(change, getattr(value, f.name)) for f in fields(value)))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(change, item) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(mapped(change, item) for item in value)
    return change(value)


def to_host(leaf: Any) -> Any:
    """Return an array of any library as numpy's, and everything else as it is."""
    return to_numpy(leaf) if hasattr(leaf, "__dlpack__") else leaf


def moved_to(leaf: Any, xp: Namespace, device: Any) -> Any:
    """Return an array of numpy's as one of another library, and everything else as it is."""
    return xp.asarray(leaf, device=device) if isinstance(leaf, np.ndarray) else leaf


def _unwritable(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        leaf.flags.writeable = False
    return leaf


T = TypeVar("T")
_last: dict[Any, tuple[tuple[tuple[Any, ...], Any], ...]] = {}  # arguments and values, by function
KEPT = 8  # values of a function: models that take turns to predict, such as those of classes


def remembered(fn: Callable[..., T]) -> Callable[..., T]:
    """Return an earlier value again if all arguments, given by position, are the very same objects.

    For functions of O(kd) numbers that do not change: the last few arguments and values are kept
    until the pass over the rows ends. NumPy arrays among the values cannot be written to. Any
    number of threads may call it.

    Examples
    --------
    >>> calls = []
    >>> double = remembered(lambda v: calls.append(v) or [2 * x for x in v])
    >>> v = [1, 2]
    >>> double(v) is double(v), double([1, 2]), len(calls)
    (True, [2, 4], 2)
    """

    @wraps(fn)
    def inner(*args: Any) -> T:
        last = _last.get(inner, ())
        for known, value in last:
            if len(known) == len(args) and not any(map(is_not, known, args)):
                result: T = value
                return result
        result = mapped(_unwritable, fn(*args))
        _last[inner] = ((args, result), *last[: KEPT - 1])  # as one, so that threads agree
        return result

    return inner


def forget_all() -> None:
    """Clear what `remembered` keeps, so that nothing computed for a pass stays in memory."""
    _last.clear()
