"""Which columns are too far from zero to be centred inside a product."""

from quadlin.core.arrays import Array, namespace

# Z Q = X(D Q) − 1(νᵀQ) subtracts what the means contribute after it has been rounded. With unit
# roundoff u, entries of Z of size 1 and ν the means over the standard deviations, it errs by about
# u|ν| in a product and by u(1 + |ν|)² in a square; and where all columns of Q point along ν, the
# sums that cancel are as large as ‖ν‖, so that they err by u‖ν‖ (times √d/6 for the rounding of d
# additions). A column beyond the first line, or all of them where ‖ν‖ is beyond the second, is
# therefore centred outright: (x − μ) is exact to u|x − μ|. Below the lines squares err by less than
# 5e-6 in float32 and 1e-12 in float64, products by less than 2e-5 and 5e-12 in the worst direction,
# and by u|ν_j| in others.
FAR = {4: 8.0, 8: 100.0}  # |ν_j|, by the bytes of a number
FAR_TOGETHER = {4: 64.0, 8: 1e4}  # ‖ν‖
FEW = 8  # far columns are held apart if they are less than one in so many, else all are centred


def far_columns(scale: Array, nu: Array, sparse: bool) -> Array | None:
    """Mark the columns that are standardised outright; None where there are none."""
    xp, size = namespace(scale), namespace(scale).finfo(scale.dtype).bits // 8
    far = xp.abs(nu) > FAR[size]
    if not sparse:
        far = far | wild(scale)
        together = float(xp.sum(xp.where(far, xp.zeros_like(nu), nu * nu)))
        count = int(xp.sum(xp.astype(far, xp.int64)))
        if together > FAR_TOGETHER[size] ** 2 or FEW * count > far.shape[0]:
            return xp.ones_like(far)
    return far if bool(xp.any(far)) else None


def wild(scale: Array) -> Array:
    """Mark columns whose squares, in the user's units, may leave the range of numbers."""
    root = float(namespace(scale).finfo(scale.dtype).max) ** (1 / 3)
    return (scale > root) | ((scale > 0) & (scale < 1 / root))
