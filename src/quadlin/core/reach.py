"""How far from the rows of the fit predictions follow a row."""

from dataclasses import dataclass
from math import inf
from typing import Any

from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array, namespace, unflagged
from quadlin.core.moments import Moments

FAR = 3.0  # times the farthest that a row of the fit can be from the mean


@dataclass(frozen=True)
class Reach:
    r"""The values of each feature that predictions follow, :math:`\mu \pm 3\,(n\phi)^{1/4} \sigma`.

    :math:`z^4 \le \sum z^4 = n\phi`, so that no row of the fit is farther than a third of that
    from the mean: all of them, and rows three times as far out, are within reach. Predictions of
    rows beyond are kept within the same limits of the target. Known from moments alone, it needs
    no pass of its own and goes on with a stream.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.arange(100.0)[:, None]
    >>> reach = Reach.of(Moments.of(X), Moments.of(X), 100, X.dtype)
    >>> rows = np.array([[120.0], [1e6]])
    >>> reach.beyond(rows), float(reach.low[0].round()), float(reach.high[0].round())
    (array([False,  True]), -268.0, 367.0)
    >>> reach.within(rows).ravel().round().tolist()
    [120.0, 367.0]
    """

    low: Array  # (d,)
    high: Array  # (d,)
    lowest: float  # prediction of a row beyond
    highest: float

    @classmethod
    def of(cls, features: Moments, target: Moments, n_rows: int, dtype: Any) -> "Reach":
        """Return the reach of a fit to so many rows of these moments."""
        xp = namespace(features.mean)
        low, high = _limits(features, n_rows)
        varies = features.varies(dtype)  # constants are not modelled
        low, high = (xp.where(varies, a, b) for a, b in ((low, -inf), (high, inf)))
        bounds = (float(a[0]) for a in _limits(target, n_rows))
        return cls(xp.astype(low, dtype), xp.astype(high, dtype), *bounds)

    @unflagged
    def beyond(self, X: Array) -> Array:
        """Return which rows (n,) have a feature out of reach; entries that are not stored are 0."""
        xp = namespace(self.low)
        if issparse(X):
            far = (X.data < self.low[X.indices]) | (X.data > self.high[X.indices])
            marks = csr_array((far.astype(float), X.indices, X.indptr), shape=X.shape)
            return marks.sum(axis=1) > 0
        return xp.any((self.low > X) | (self.high < X), axis=1)

    def bounded(self, y: Array, beyond: Array) -> Array:
        """Return predictions, those of rows beyond within the limits of the target."""
        xp = namespace(y)
        return xp.where(beyond, xp.clip(y, min=self.lowest, max=self.highest), y)

    @unflagged
    def within(self, X: Array) -> Array:
        """Return the rows with features that are out of reach moved to its end; else X itself."""
        if not bool(namespace(self.low).any(self.beyond(X))):
            return X
        if issparse(X):
            low, high = self.low[X.indices], self.high[X.indices]
            return csr_array((X.data.clip(low, high), X.indices, X.indptr), shape=X.shape)
        xp = namespace(X)
        return xp.where(self.low > X, self.low, xp.where(self.high < X, self.high, X))


def _limits(moments: Moments, n_rows: int) -> tuple[Array, Array]:
    width = FAR * (n_rows * moments.phi) ** 0.25 * namespace(moments.var).sqrt(moments.var)
    return moments.mean - width, moments.mean + width
