r"""Steps of constant length from small batches, the mean of the models, and their size.

If the Hessian is known only approximately, as for correlated features in O(rd) memory, a mean of
Newton steps converges as :math:`N^{-\lambda}`, where λ is the smallest eigenvalue of the
preconditioned Hessian. The mean of the *models* along a walk of constant steps has the error of
least squares whatever λ is, once the walk has forgotten its start (Polyak and Ruppert). Later
models have larger weights, proportional to :math:`\sqrt t`: the start is forgotten sooner, and an
eighth more rows are needed in the end.

Rows whose label is nearly certain have next to no curvature :math:`h = p(1 - p)`, and these are
the rows of large log-odds. So a likelihood is flattest along the size of the log-odds, and steps
that assume one curvature for all directions are too short along it. The curvature along
:math:`f \mapsto \bar f + (1 + \theta)(f - \bar f)` takes three sums over rows.
"""

from dataclasses import dataclass, replace

from quadlin.core.arrays import lead, namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.core.losses import curvature, mean_of
from quadlin.core.model import Model, predict, tied
from quadlin.core.units import Units
from quadlin.solve.lowrank.types import Options

LENGTH = 0.07  # of a step, where 1 is a full Newton step
GROWTH = 0.5  # the weight of a model is its number to this power
WALK_ROWS = 2  # rows per parameter in a batch
FAR = 0.5  # the largest change of size in one step


def mean_share(weight: float, so_far: float) -> float:
    """Return the share of the newest model in the mean; `so_far` includes its batch."""
    return (1 + GROWTH) * weight / (so_far + GROWTH * weight)


def averaged(mean: Model, newest: Model, share: float, units: Units, options: Options) -> Model:
    """Return (1 − share)·mean + share·newest, M truncated to its rank.

    Predictions are linear in (c, w, M). The truncation removes terms of second order in the
    distance of the two.
    """
    xp, k = namespace(mean.U), mean.s.shape[0]
    c, w = ((1 - share) * a + share * b for a, b in ((mean.c, newest.c), (mean.w, newest.w)))
    V, R = xp.linalg.qr(xp.concat([mean.U, newest.U], axis=1))
    s = xp.concat([(1 - share) * mean.s, share * newest.s])
    values, vectors = lead((R * s) @ R.T, k, options.psd)
    model = replace(mean, U=V @ vectors, s=values, w=w, c=c)
    return tied(model, units, options.fit_linear, options.fit_intercept)


@dataclass(frozen=True)
class Flatness(Additive):
    """Sums over rows at a model: curvatures h, predictions f and half slopes r of the loss."""

    h: float = 0.0  # Σωh
    hf: float = 0.0  # Σωhf
    hff: float = 0.0  # Σωhf²
    r: float = 0.0  # Σωr
    rf: float = 0.0  # Σωrf

    def step(self) -> tuple[float, float]:
        """Return the θ of the smallest loss, to second order, and f̄."""
        if not self.h > 0:
            return 0.0, 0.0
        mean = self.hf / self.h
        curved, slope = self.hff - mean * self.hf, self.rf - mean * self.r
        theta = -slope / curved if curved > 0 else 0.0
        return min(FAR, max(-FAR, theta)), mean


NOT_ASKED = Flatness()


def flatness_of(chunk: Chunk, model: Model, units: Units, loss: str) -> Flatness:
    """Sum over the rows of a chunk."""
    xp = namespace(model.U)
    f = xp.astype(predict(model, Block(chunk.X, units)), xp.float64)
    omega = xp.ones_like(f) if chunk.weight is None else xp.astype(chunk.weight, xp.float64)
    y = xp.astype(units.standardised_target(chunk.y), xp.float64)
    h, r = omega * curvature(f, loss), omega * (mean_of(loss, f) - y)
    return Flatness(
        float(xp.sum(h)), float(h @ f), float(h @ (f * f)), float(xp.sum(r)), float(r @ f)
    )


def resized(model: Model, flat: Flatness, length: float) -> Model:
    """Return the model after a step of this length along its size."""
    theta, mean = flat.step()
    size = 1 + length * theta
    c = mean + size * (model.c - mean)
    return replace(model, s=size * model.s, w=size * model.w, c=c)
