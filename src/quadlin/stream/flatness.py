r"""How flat a loss is along the size of its predictions, and a step along it.

Rows whose label is nearly certain have next to no curvature :math:`h = p(1 - p)`, and these are
the rows of large log-odds. So the size of the log-odds is the direction in which a likelihood is
flattest, and steps that count on one curvature for all directions are too short along it. The
curvature along :math:`f \mapsto \bar f + (1 + \theta)(f - \bar f)` is three sums over rows.
"""

from dataclasses import dataclass, replace

from quadlin.core.arrays import namespace
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Additive
from quadlin.core.losses import curvature, mean_of
from quadlin.core.model import Model, predict
from quadlin.core.sums import standardised_target
from quadlin.core.units import Units

FAR = 0.5  # the largest change of size in one step


@dataclass(frozen=True)
class Flatness(Additive):
    """Sums over rows at a model: curvatures h, predictions f and half slopes r of the loss."""

    h: float = 0.0  # Σωh
    hf: float = 0.0  # Σωhf
    hff: float = 0.0  # Σωhf²
    r: float = 0.0  # Σωr
    rf: float = 0.0  # Σωrf

    def step(self) -> tuple[float, float]:
        """Return θ, where the loss has its minimum to second order, and the f̄ it is about."""
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
    y = xp.astype(standardised_target(chunk, units), xp.float64)
    h, r = omega * curvature(f, loss), omega * (mean_of(loss, f) - y)
    return Flatness(
        float(xp.sum(h)), float(h @ f), float(h @ (f * f)), float(xp.sum(r)), float(r @ f)
    )


def resized(model: Model, flat: Flatness, length: float) -> Model:
    """Return the model after a share of the step along its size."""
    theta, mean = flat.step()
    size = 1 + length * theta
    c = mean + size * (model.c - mean)
    return replace(model, s=size * model.s, w=size * model.w, c=c)
