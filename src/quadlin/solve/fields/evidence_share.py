"""How many rows weighted or repeated rows count as, where a posterior learns from them.

To give a row twice, or a weight of 2, does not make its noise better known. Weights are relative:
with W the weight of each distinct row (x, y), all together count as (ΣW)²/ΣW² rows. Rows that come
again by themselves, as do those of a few categories with few different targets, are no copies.
"""

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from quadlin.core.moments import whole_unit

FEW_COPIES = 0.9  # share of distinct rows, above which equal weights are left as they are
BY_THEMSELVES = 0.5  # share of distinct rows whose x has other targets too
# Chance that two rows have the same target, above which rows of the same x are often equal; and
# above which all rows are.
SOME_TARGETS, ONE_TARGET = 0.05, 0.5


def evidence_share(source: Any) -> float:
    """Return what the weights of rows in memory are multiplied by to count them."""
    y = np.asarray(source.y, dtype=np.float64)
    weight = np.ones(len(y)) if source.weight is None else np.asarray(source.weight, np.float64)
    counting = np.flatnonzero(weight > 0)
    weight, X = weight[counting], csr_matrix(source.X)[counting]
    direction = np.random.default_rng(0).standard_normal(X.shape[1])
    x = np.unique(X @ direction, return_inverse=True)[1].astype(np.int64).ravel()
    values, target = np.unique(y[counting], return_inverse=True)
    rows, row = np.unique(x * len(values) + target.ravel(), return_inverse=True)
    equal = weight.min() == weight.max()
    if equal and len(rows) >= FEW_COPIES * len(weight):
        return float(1 / weight[0])
    of_x = np.bincount(rows // len(values))  # distinct targets of each x
    shares = np.bincount(rows % len(values)) / len(rows)
    same, several = float(shares @ shares), np.mean(of_x[rows // len(values)] > 1)
    if same > ONE_TARGET or (same > SOME_TARGETS and several > BY_THEMSELVES):
        unit = whole_unit(weight)
        return float(weight.sum() / (weight @ weight)) if unit is None else 1 / unit
    total = np.bincount(row.ravel(), weight)
    return float(total.sum() / (total @ total))
