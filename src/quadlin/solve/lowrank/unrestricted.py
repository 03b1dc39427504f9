"""The optimum of a problem that is linear in its parameters: rank 0, or all products.

Conjugate gradients get close to it in a few passes, but never reach it. The normal equations of few
parameters take one pass, and give the optimum whichever parts are fitted and however strongly
features are correlated.
"""

from quadlin.core.arrays import namespace
from quadlin.core.model import Model
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.lowrank.exact import EXACT_COLUMNS, EXACT_FEATURES
from quadlin.solve.lowrank.product_gram import GRAM_WORK
from quadlin.solve.lowrank.tangent_gram import tangent_gram
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
    else:
        small = products <= EXACT_COLUMNS and n_rows * products**2 <= GRAM_WORK
        if options.rank < d or options.psd or not small:
            return None
    identity = namespace(units.scale).eye(d, dtype=units.scale.dtype, device=units.scale.device)
    return tangent_gram(rows, units, options, identity[:, : options.rank]).model(
        units, options.alpha
    )
