"""The optimum of a problem that is linear in its parameters: rank 0, or all products.

Conjugate gradients get close to it in a few passes, but never reach it. The normal equations of few
parameters take one pass, and give the optimum whichever parts are fitted and however strongly
features are correlated.
"""

from dataclasses import replace

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.model import Model, constant_model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.exact import EXACT_COLUMNS, EXACT_FEATURES, Exact, products_of
from quadlin.solve.lowrank.landscape import Landscape, linear_parts, pseudo_inverse
from quadlin.solve.lowrank.restarts import GRAM_WORK
from quadlin.solve.lowrank.types import Options


def unrestricted_optimum(rows: Rows, units: Units, options: Options, n_rows: float) -> Model | None:
    """Return the optimum of rank 0 or d: one pass; None for other ranks or too large problems.

    Also None if the rows do not determine all products: of the many optima, steps from a constant
    lead to a smaller one.
    """
    d, entries = int(units.scale.shape[0]), rows.engine.source.entries
    products = (d + 1) * (d + 2) // 2
    if options.loss != "squared" or n_rows <= (products if options.rank else d + 1):
        return None
    if options.rank == 0:
        dense = entries is None or 2 * entries >= n_rows * d  # for sparse rows, passes cost less
        if d > EXACT_FEATURES or not (dense or n_rows * d**2 <= GRAM_WORK):
            return None
        gram = to_numpy(Exact(rows, units, EXACT_COLUMNS, linear=True).gram)
        return linear_optimum(gram, units, options)
    small = products <= EXACT_COLUMNS and n_rows * products**2 <= GRAM_WORK
    if options.rank < d or options.psd or not small:
        return None
    landscape = Landscape(products_of(rows, units), units, options)
    return landscape.unrestricted(units) if landscape.determined else None


def linear_optimum(gram: np.ndarray, units: Units, options: Options) -> Model:
    """Return the best linear model from the products of (1, z, y)."""
    nu, rho = (to_numpy(a).astype(np.float64) for a in (units.nu, units.penalty_scale))
    none, d = np.zeros(0, dtype=np.int64), len(nu)
    _, span = linear_parts(nu, none, none, np.zeros(0), options.fit_linear, options.fit_intercept)
    ridge = np.append(0.0, options.alpha[0] * rho**2)
    G = (gram[: d + 1, : d + 1] + np.diag(ridge)) / gram[0, 0]
    best = span @ (pseudo_inverse(span.T @ G @ span) @ (span.T @ gram[: d + 1, -1] / gram[0, 0]))
    return replace(constant_model(units, 0, float(best[0])), w=units.array(best[1:]))
