"""Which features have a square that differs from a linear term."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.moments import TAU_FREE, Moments


@dataclass(frozen=True)
class MipReport:
    """Which features have a diagonal of M distinguishable from w (the paper's MIP, per feature).

    Examples
    --------
    >>> import numpy as np
    >>> X = np.column_stack([np.arange(8.0), np.arange(8) % 2, np.ones(8)])
    >>> print(mip_report(Moments.of(X), ["age", "member", "unit"]))
    feature      τ  kind
    age      0.762  free
    member   0.000  two-valued
    unit     0.000  constant
    """

    names: Sequence[str]
    tau: Array  # (d,)
    kind: Sequence[str]  # "free", "nearly two-valued", "two-valued" or "constant"

    def __str__(self) -> str:
        width = max(map(len, ["feature", *self.names]))
        lines = [f"{'feature':<{width}}  {'τ':>5}  kind"]
        lines += [
            f"{name:<{width}}  {float(tau):5.3f}  {kind}"
            for name, tau, kind in zip(self.names, to_numpy(self.tau), self.kind, strict=True)
        ]
        return "\n".join(lines)


def mip_report(
    moments: Moments | Any, names: Sequence[str] | None = None, dtype: Any = None
) -> MipReport:
    """Tell which features have a diagonal of M that can be estimated.

    Parameters
    ----------
    moments : Moments, or rows as an array, CSR or a frame of numbers
        The moments of the features, or the features themselves.
    names : sequence of str or None
        Names of the features; None takes those of a frame, or x0, x1, …
    dtype : dtype or None
        The dtype of the fit. A feature that varies by less than its rounding counts as constant;
        None is float64.

    Returns
    -------
    MipReport

    Examples
    --------
    >>> import numpy as np
    >>> list(mip_report(np.array([[0.0, 1.0], [1.0, 2.0], [0.0, 4.0], [1.0, 7.0]])).kind)
    ['two-valued', 'free']
    """
    if not isinstance(moments, Moments):
        if names is None and hasattr(moments, "columns"):
            names = [str(name) for name in moments.columns]
        moments = Moments.of(_numbers(moments))
    xp = namespace(moments.tau)
    varies = moments.varies(xp.float64 if dtype is None else dtype)
    columns = (varies, moments.two_valued, moments.tau < TAU_FREE)
    kinds = [
        "constant" if not v else "two-valued" if two else "nearly two-valued" if small else "free"
        for v, two, small in zip(*map(to_numpy, columns), strict=True)
    ]
    names = names if names is not None else [f"x{j}" for j in range(len(kinds))]
    return MipReport(list(names), moments.tau, kinds)


def _numbers(rows: Any) -> Array:
    """Return rows as an array of numbers, or as CSR."""
    if issparse(rows):
        return csr_array(rows)
    try:
        X = rows if is_array_api_obj(rows) else np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        X = None
    if X is None or X.ndim != 2 or X.shape[0] == 0:
        raise TypeError(
            "mip_report takes Moments, or rows of numbers (n_samples, n_features); text columns "
            f"have no moments. It was given a {type(rows).__name__}."
        )
    return X
