"""Correlations of the features of a stream that keeps no row: a probe, then a power iteration."""

from dataclasses import replace

import numpy as np

from quadlin.core.arrays import Array, lead, namespace, orthonormal
from quadlin.core.moments import Moments
from quadlin.core.units import Units
from quadlin.solve.lowrank.moment_estimates import OVERSAMPLING
from quadlin.solve.lowrank.whitening import (
    Identity,
    Whitener,
    low_rank_whitener,
    off_diagonal_energy,
    probes,
)
from quadlin.stream.power_iteration import Stage, Start

RATIO, EXCESS = 2.0, 0.05  # of ‖Σ − I‖²/d: above them a walk is better than a mean of steps
ROUNDS = 3  # batches of the power iteration, after the one that shows whether it is needed


def first_probe(units: Units, rank: int, seed: int) -> Start:
    """Return the start of the stage that shows whether features are correlated."""
    width = min(units.scale.shape[0], rank + OVERSAMPLING)
    Q = probes(units, width, np.random.default_rng([seed, width]))
    return Start(Stage.correlations, batches=ROUNDS, Q=Q)


def correlation_step(
    start: Start, units: Units, features: Moments, always: bool
) -> tuple[Start, Whitener | None]:
    """Take one step of the power iteration for Σ; also return the whitener once it is known.

    For features that are not correlated, that is the identity, at once, unless `always` is true.

    `features` are the moments of this batch, whose covariances belong with its own variances. If
    correlations are strong, little variance remains beside them, and variances of earlier rows
    would hide that.
    """
    Q, total = start.Q, start.spread
    assert Q is not None
    assert total is not None
    xp = namespace(Q)
    centre = xp.astype((features.mean - units.mean) * units.scale - units.rest, Q.dtype)
    variances = xp.astype(units.scale**2 * features.var, Q.dtype)
    centred = total.action / total.weight - centre[:, None] * (centre @ Q)
    if start.batches == ROUNDS and not always:
        probed = replace(total, action=total.weight * centred)
        energy, independent = off_diagonal_energy(probed, variances, Q)
        if energy < RATIO * independent or energy - independent < EXCESS:
            return start, Identity()
    if start.batches == 0:
        values, vectors = lead(Q.T @ centred, Q.shape[1], psd=True)
        return start, low_rank_whitener(Q @ vectors, values, variances, 0 * variances)
    block = _spanning(centred)
    return replace(start, batches=start.batches - 1, Q=block, spread=None), None


def _spanning(image: Array) -> Array:
    """Return an orthonormal basis of the image."""
    xp = namespace(image)
    size = xp.max(xp.abs(image))
    return orthonormal(image / xp.where(size > 0, size, 1.0))
