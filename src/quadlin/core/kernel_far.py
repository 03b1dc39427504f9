"""Which columns are too far from zero to be centred inside a product."""

from quadlin.core.arrays import Array, namespace
from quadlin.core.units import Units

# Z Q = X(D Q) − 1(νᵀQ) subtracts what the means contribute after it has been rounded. With unit
# roundoff u, entries of Z of size 1 and ν the means over the standard deviations, it errs by about
# u|ν| in a product and by u(1 + |ν|)² in a square; and where all columns of Q point along ν, the
# sums that cancel are as large as ‖ν‖, so that they err by u‖ν‖ (times √d/6 for the rounding of d
# additions). A column beyond the first line, or all of them where ‖ν‖ is beyond the second, is
# therefore centred outright: (x − μ) is exact to u|x − μ|. Below the lines squares err by less than
# 5e-7 in float32 and 1e-12 in float64, products by less than 2e-6 and 5e-12 in the worst direction,
# and by u|ν_j| in others. In float32 the lines lie where a fit takes as many steps as with rows
# that are centred outright: with means of 5σ it takes up to three times as many. A sparse column
# with |ν_j| > 1 has more entries than zeros, so that centring it at most doubles it.
FAR = {4: 1.0, 8: 100.0}  # |ν_j|, by the bytes of a number
FAR_TOGETHER = {4: 8.0, 8: 1e4}  # ‖ν‖
FEW = 8  # far columns are held apart if they are less than one in so many, else all are centred


def far_columns(nu: Array) -> Array:
    """Mark the columns that are standardised outright."""
    return namespace(nu).abs(nu) > FAR[_bytes(nu)]


def many_far(nu: Array) -> bool:
    """Tell whether the columns of dense rows are better centred outright, all of them."""
    xp, far = namespace(nu), far_columns(nu)
    together = float(xp.sum(xp.where(far, xp.zeros_like(nu), nu * nu)))
    count = int(xp.sum(xp.astype(far, xp.int64)))
    return together > FAR_TOGETHER[_bytes(nu)] ** 2 or FEW * count > far.shape[0]


def wild(units: Units) -> bool:
    """Tell whether squares, in the user's units, may leave the range of numbers."""
    xp, scale = namespace(units.scale), units.scale
    root = float(xp.finfo(scale.dtype).max) ** (1 / 3)
    small = (scale > 0) & (scale < 1 / root)
    return bool(xp.any(small | (scale > root) | (xp.abs(units.mean) > root)))


def _bytes(a: Array) -> int:
    return int(namespace(a).finfo(a.dtype).bits) // 8
