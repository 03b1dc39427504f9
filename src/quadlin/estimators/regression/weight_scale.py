"""The scale of sample weights where a likelihood chooses penalties: weights become counts of rows.

Penalties of labels and counts are compared with a likelihood, in which each row counts, so weights
are first multiplied by `Tally.share`.
"""

from dataclasses import replace

import numpy as np

from quadlin.core.arrays import moved
from quadlin.core.chunks import MemorySource
from quadlin.core.messages import warn
from quadlin.core.moments import NOT_WHOLE, Tally
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitting import Job
from quadlin.estimators.regression.tasks import FitResult

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
    tally = rows.reduce(Tally.of)
    if not tally.weight > 0:
        return 1.0  # which is refused elsewhere
    if tally.unit != NOT_WHOLE and tally.observations > MANY * tally.counting:
        warn(
            f"The weights are whole numbers, so {tally.counting:,} rows count as "
            f"{tally.observations:,.0f} where penalties are chosen. If the weights are only "
            "relative, and not counts, divide them by their mean."
        )
    return tally.share


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
    n = rows.reduce(Tally.of).rows
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
