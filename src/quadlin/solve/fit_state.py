"""What is known of rows that were learned from, and a fit to rows that can be walked again."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from quadlin.core.arrays import Array, diagonal, namespace
from quadlin.core.chunks import Chunk
from quadlin.core.model import (
    Model,
    RawModel,
    in_units,
    positive,
    to_raw,
    with_rank,
)
from quadlin.core.moments import Moments
from quadlin.core.standardise import UnitsMaker
from quadlin.core.survey import Survey, survey
from quadlin.core.units import Units
from quadlin.solve.levels import settled
from quadlin.solve.polish import fit_rows
from quadlin.solve.types import Options, Record, Solution, Status
from quadlin.solve.whitening import Full, Identity, LowRank, Whitener


@dataclass(frozen=True)
class Learned:
    """What is known after some whole batches."""

    model: Model
    units: Units
    features: Moments
    target: Moments
    history: tuple[Record, ...]
    status: Status
    white: Whitener
    pace: float = 1.0  # of the steps, halved when one went wrong
    before: Model | None = None  # the last step, in the same units, to go back to

    @cached_property
    def raw(self) -> RawModel:
        """Return the model in the user's units."""
        return to_raw(self.model, self.units)


def learn_table(
    source: Iterable[Chunk],
    options: Options,
    make_units: UnitsMaker,
    seed: int,
    warm: Learned | None = None,
    on_step: Callable[[Learned], bool] | None = None,
    known: Survey | None = None,
) -> Learned:
    """Fit rows that can be walked again, from scratch or from what is known already."""
    known = survey(source) if known is None else known
    features, target = known.features, known.target
    units = make_units(features, target)
    start = None
    if warm is not None and warm.model.w.shape == units.scale.shape:
        start = in_units(warm.model, warm.units, units)
        start = with_rank(positive(start) if options.psd else start, options.rank)

    def learned(s: Solution, white: Whitener) -> Learned:
        white = open_to(units.scale == 0, white)
        model = settled(s.model, units, make_units.fields) if options.loose else s.model
        return Learned(model, units, features, target, s.history, s.status, white)

    hook = None if on_step is None else lambda solution: on_step(learned(solution, Identity()))
    rng = np.random.default_rng(seed)
    return learned(*fit_rows(source, units, options, features.weight, rng, start, hook))


def open_to(constant: Array, white: Whitener) -> Whitener:
    """Return the whitener with B = I for features that were constant, for when they vary.

    They have no correlation with others, so that nothing else changes.
    """
    xp = namespace(constant)
    if isinstance(white, Identity) or not bool(xp.any(constant)):
        return white
    if isinstance(white, LowRank):
        return replace(white, h=xp.where(constant, 1.0, white.h))
    known = xp.astype(~constant, white.V.dtype)
    V = known[:, None] * white.V
    own = diagonal(1 - known)
    size, vectors = xp.linalg.eigh((V * white.size) @ V.T + own)
    values = xp.sum(vectors * (((V * white.values) @ V.T + own) @ vectors), axis=0)
    return Full(vectors, values, size)
