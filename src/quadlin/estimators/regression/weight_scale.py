"""The scale of sample weights, which says nothing about how many rows there are.

Where penalties are chosen, rows count as evidence. Weights that are not whole numbers are relative:
together they count as (Σω)²/Σω² rows. Whole numbers count labels, as those of a table of counts do,
in units of their greatest common divisor.
"""

from dataclasses import replace
from math import gcd

import numpy as np

from quadlin.core.arrays import moved, to_numpy
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.messages import warn
from quadlin.core.moments import Tally, whole_unit
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitting import Job
from quadlin.estimators.regression.tasks import FitResult

NOT_WHOLE = -1
MANY = 1.5  # times the number of rows: weights that count so many are worth a word


def with_counting_weights(job: Job) -> tuple[Job, float]:
    """Return the job with weights that count rows, and what they were multiplied by."""
    share = _count_share(job.rows, job.source)
    rows, source = _reweighted(job.rows, job.source, share)
    return replace(job, rows=rows, source=source), share


def _count_share(rows: Rows, source: MemorySource | Source) -> float:
    """Return the factor by which weights count rows; one pass, if there may be weights."""
    if isinstance(source, MemorySource) and source.weight is None and rows.values is None:
        return 1.0
    units, tallies = zip(*rows.collect(_whole_unit), strict=True)
    tally: Tally = sum(tallies[1:], start=tallies[0])
    if not tally.weight > 0:
        return 1.0  # which is refused elsewhere
    if NOT_WHOLE in units:
        return tally.effective / tally.weight
    share = 1.0 / gcd(*units)
    if share * tally.weight > MANY * tally.counting:
        warn(
            f"The weights are whole numbers, so {tally.counting:,} rows count as "
            f"{share * tally.weight:,.0f} where penalties are chosen. If the weights are only "
            "relative, and not counts, divide them by their mean."
        )
    return share


def _whole_unit(chunk: Chunk) -> tuple[int, Tally]:
    """Return the greatest common divisor of the weights, if they are whole, and their sums."""
    if chunk.weight is None:
        return 1, Tally.of(chunk)
    unit = whole_unit(to_numpy(chunk.weight).astype(np.float64))
    return NOT_WHOLE if unit is None else unit, Tally.of(chunk)


def _reweighted(
    rows: Rows, source: MemorySource | Source, share: float
) -> tuple[Rows, MemorySource | Source]:
    """Return rows whose weights are multiplied by a number."""
    if share == 1:
        return rows, source
    if isinstance(source, MemorySource):
        given = source.weight
        like = source.y if given is None else given
        factors = moved(np.full(source.X.shape[0], share), like)
        weighted = factors if given is None else given * factors
        return rows.reweighted(factors), replace(source, weight=weighted)
    n = sum(tally.rows for _, tally in rows.collect(_whole_unit))
    return rows.reweighted(np.full(n, share)), source


def in_given_weights(fitted: Fitted, share: float) -> Fitted:
    """Return a fit of rows whose weights were multiplied as one of the weights that were given."""
    if share == 1:
        return fitted
    assert isinstance(fitted.learned, FitResult)
    state, tally = fitted.state, fitted.learned.tally
    features, target = (
        replace(moments, weight=moments.weight / share)
        for moments in (state.features, state.target)
    )
    first, second = fitted.options.alpha
    options = replace(fitted.options, alpha=(first / share, second / share))
    state = replace(state, features=features, target=target)
    tally = replace(
        tally, weight=tally.weight / share, squared_weight=tally.squared_weight / share**2
    )
    learned = replace(fitted.learned, current=state, chosen=options, tally=tally)
    return replace(fitted, learned=learned)
