r"""Steps of constant length from small batches, and the mean of where they lead.

With the Hessian known only nearly, as for correlated features in O(rd) memory, a mean of Newton
steps converges as :math:`N^{-\lambda}`, λ the smallest eigenvalue of the preconditioned Hessian.
The mean of the *models* along a walk of constant steps has the error of least squares whatever λ
is, once the walk has forgotten its start (Polyak and Ruppert). Later models count more, as
:math:`\sqrt t`: that forgets the start sooner, and costs an eighth of the rows in the end.
"""

from dataclasses import replace

from quadlin.core.arrays import lead, namespace
from quadlin.core.model import Model, tied
from quadlin.core.units import Units
from quadlin.solve.lowrank.types import Options

LENGTH = 0.07
GROWTH = 0.5  # weights of the models are as this power of their number
WALK_ROWS = 2  # per parameter, of a batch


def mean_share(weight: float, so_far: float) -> float:
    """Return the share of the newest model in the mean; `so_far` includes its batch."""
    return (1 + GROWTH) * weight / (so_far + GROWTH * weight)


def mean_of(mean: Model, newest: Model, share: float, units: Units, options: Options) -> Model:
    """Return (1 − share)·mean + share·newest, M truncated to its rank.

    Predictions are linear in (c, w, M). What the truncation takes off is of second order in the
    distance of the two.
    """
    xp, k = namespace(mean.U), mean.s.shape[0]
    c, w = ((1 - share) * a + share * b for a, b in ((mean.c, newest.c), (mean.w, newest.w)))
    V, R = xp.linalg.qr(xp.concat([mean.U, newest.U], axis=1))
    s = xp.concat([(1 - share) * mean.s, share * newest.s])
    values, vectors = lead((R * s) @ R.T, k, options.psd)
    model = replace(mean, U=V @ vectors, s=values, w=w, c=c)
    return tied(model, units, options.fit_linear, options.fit_intercept)
