r"""How much more, or less, counts vary than Poisson's law says.

.. math:: \phi = \frac{1}{n - \gamma} \sum_i \omega_i \frac{(y_i - \mu_i)^2}{\mu_i}

of n rows, where a fit has determined γ parameters. Real counts often have φ far from 1: Poisson's
likelihood is then overconfident, or underconfident, by that factor, and the evidence prefers
penalties that are too small, or too large. With weights ω/φ it is right again.
"""

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.losses import mean_of
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units

LEAST_FREEDOM = 0.2  # of the rows, that the noise has at least
LEAST = 1e-6  # that counts are taken to vary


def dispersion(rows: Rows, model: Model, units: Units, determined: float, n_rows: float) -> float:
    """Return φ about a fit that has determined so many parameters: one pass."""
    total = float(np.sum(rows.collect(_pearson, model, units)))
    return max(total / max(n_rows - determined, LEAST_FREEDOM * n_rows), LEAST)


def _pearson(chunk: Chunk, model: Model, units: Units) -> float:
    f = to_numpy(predict(model, Block(chunk.X, units))).astype(np.float64)
    y, mean = to_numpy(chunk.y).astype(np.float64), mean_of("poisson", f)
    return float(np.sum(chunk.weights * (y - mean) ** 2 / np.maximum(mean, 1e-300)))
