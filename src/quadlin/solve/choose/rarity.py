"""How much more strongly columns are shrunk that have the same value in most rows.

Words of a text, clicks and purchases are zero in most rows, some of them much more often than
others. A ridge on standardised columns shrinks common and rare ones alike, a ridge on raw columns
shrinks rare ones more. Which is right depends on what the columns mean, so the rows decide: the
penalty ρ² of a column of spread v is proportional to v^(−2p), where p is the one of largest
evidence in ridge regression on a sample of the rows. It does not depend on the units of columns.
"""

from dataclasses import replace
from typing import TypeVar

import numpy as np
from scipy.linalg import eigh, svd
from scipy.sparse import diags_array, issparse

from quadlin.core.arrays import Array, moved, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.losses import LOSSES
from quadlin.core.moments import Survey, Tally
from quadlin.core.rows import Rows
from quadlin.core.units import Units, spread_of
from quadlin.solve.choose.wide_rows import can_sweep
from quadlin.solve.lowrank.design import EXACT_COLUMNS
from quadlin.solve.lowrank.linear_model import EXACT
from quadlin.solve.lowrank.observations import NO_WEIGHT, content_keys
from quadlin.solve.lowrank.sample import sample_of, stacked
from quadlin.solve.lowrank.types import Plan

POWERS = 0.5, 1.0  # that are compared with the usual penalties
SAMPLE_ROWS = 800  # that decide; their matrix (n, n) is decomposed once per power
SPREAD = 0.2  # of a column; if all have more (0/1 in 4% to 96% of the rows), nothing is chosen
FEWEST = 50  # rows; fewer decide nothing
CLEARLY = 1.0  # log evidence by which a larger power must be better
PENALTIES = np.exp(np.arange(-10.0, 10.1, 0.5))  # α/n
BLOCK = 4000  # columns of dense rows that are standardised together
MOST_ROWS = 200_000  # whose content is compared
FAR = 1e3  # standard deviations between zero and the mean: products of sparse rows lose the rest

P = TypeVar("P", bound=Plan)


def with_rarity(rows: Rows, plan: P, surveyed: Survey) -> P:
    """Return the plan with the penalties of rare columns chosen, if they are to be chosen.

    Cost: three passes, and O(n³) for a sample of n = 800 rows; nothing without rare columns.
    """
    if not plan.automatic.rarity:
        return plan
    plan = replace(plan, automatic=replace(plan.automatic, rarity=False))
    if can_sweep(rows, _plain_units(plan, surveyed), plan.options):  # by sweeps of raw columns
        return replace(plan, make_units=replace(plan.make_units, rarity=1.0))
    usual, n_rows = replace(plan.make_units, rarity=None), surveyed.tally.counting
    if n_rows < FEWEST or not _may_differ(plan, surveyed):
        return replace(plan, make_units=usual)
    makers = [usual, *(replace(usual, rarity=p) for p in POWERS)]
    plain = [replace(maker, loss="squared") for maker in makers]
    units = [make(surveyed.features, surveyed.target) for make in plain]
    chunks = _sampled(rows, units[0], surveyed.tally).collect(Chunk.counting)
    X, weight = stacked(tuple(c.X for c in chunks)), np.concatenate([c.weights for c in chunks])
    y = np.concatenate([to_numpy(c.y) for c in chunks]).astype(np.float64)
    Y = LOSSES[usual.loss].regressed(y)
    weight = surveyed.tally.share * weight
    share = 1 - 1 / Y.shape[1] if Y.shape[1] > 1 else 1.0  # of K classes, K − 1 say all
    evidence = [share * log_evidence(X, Y, weight, each) for each in units]
    best = 0
    for number in range(1, len(makers)) if len(Y) >= FEWEST else ():
        best = number if evidence[number] > evidence[best] + CLEARLY else best
    return replace(plan, make_units=makers[best])


def without_squares(rows: Rows, plan: P, surveyed: Survey) -> P:
    """Return the plan without squares if ``squares="auto"`` and the rows are wide, sparse and few.

    They say little about the squares of more columns than fit in a matrix, and without them sweeps
    choose rank and penalties.
    """
    maker, options = plan.make_units, plan.options
    if maker.squares != "auto" or len(maker.names) < EXACT_COLUMNS:
        return plan
    few = surveyed.tally.counting < options.dof(len(maker.names), options.rank)
    wide = replace(plan, make_units=replace(maker, wide=True))
    swept = can_sweep(rows, _plain_units(wide, surveyed), options)
    return wide if swept and (few or plan.automatic.alpha) else plan


def _plain_units(plan: Plan, surveyed: Survey) -> Units:
    """Return the units of the rows for least squares."""
    return replace(plan.make_units, loss="squared")(surveyed.features, surveyed.target)


def _sampled(rows: Rows, units: Units, tally: Tally) -> Rows:
    """Return a sample of the rows: two passes.

    The content of all columns decides which rows are drawn, so their order does not matter (unless
    there are very many). A few columns are not enough, since most rows have zeros there.
    """
    if tally.rows > MOST_ROWS:  # keys of all of them would take too much memory
        rows = sample_of(rows, 10 * SAMPLE_ROWS / tally.rows, tally.rows)
    keys = content_keys(rows, units)
    counting = np.sort(keys[keys < NO_WEIGHT])
    drawn = keys <= counting[min(SAMPLE_ROWS, len(counting)) - 1]
    return rows.reweighted(moved(drawn.astype(float), units.scale))


def _may_differ(plan: Plan, surveyed: Survey) -> bool:
    """Tell whether the model is a plain one, and some column has the same value in most rows."""
    options, features, fields = plan.options, surveyed.features, plan.make_units.fields
    varies = features.varies(plan.make_units.dtype)
    spread, outside = to_numpy(spread_of(features, varies)), to_numpy(varies).copy()
    for field in fields:
        outside[field] = False
    plain = options.fit_linear and options.fit_intercept and options.solver == "auto"
    return plain and bool(np.any(spread[outside] < SPREAD))


def log_evidence(X: Array, Y: np.ndarray, weight: np.ndarray, units: Units) -> float:
    """Return the largest log evidence of ridge regression, up to a constant: O(n²·min(n, d)).

    Columns of Y (n, m) share the penalty, but not the noise.
    """
    N = weight.sum() - 1
    Y = np.sqrt(weight)[:, None] * (Y - weight @ Y / weight.sum())
    vectors, values = _spectrum(X, weight, units)
    squares, power = (vectors.T @ Y) ** 2, (Y**2).sum(axis=0)
    ratios = values / (PENALTIES[:, None] * (N + 1))
    S = power - (ratios / (1 + ratios)) @ squares
    log_S = np.log(np.maximum(S, EXACT * power)[:, power > 0])
    return float(np.max(-(N * log_S + np.log1p(ratios).sum(axis=1)[:, None]).sum(axis=1) / 2))


def _spectrum(X: Array, weight: np.ndarray, units: Units) -> tuple[np.ndarray, np.ndarray]:
    """Return left singular vectors and squared singular values of weighted, centred columns z/ρ."""
    rho, (n, d) = to_numpy(units.penalty_scale).astype(np.float64), X.shape
    root, share = np.sqrt(weight)[:, None], weight / weight.sum()
    if n < d:
        if issparse(X):
            near = np.abs(to_numpy(units.nu)) < FAR
            A = X.astype(np.float64) @ diags_array(np.where(near, to_numpy(units.scale) / rho, 0.0))
            K = (A @ A.T).toarray()
        else:
            K = np.zeros((n, n))
            for columns in np.array_split(np.arange(d), 1 + d // BLOCK):
                Z = to_numpy(units.standardised(X, columns)).astype(np.float64) / rho[columns]
                K += Z @ Z.T
        K -= share @ K
        K -= (K @ share)[:, None]
        values, vectors = eigh(root * K * root.T, driver="evd", check_finite=False)
        return vectors, np.maximum(values, 0.0)
    Z = to_numpy(units.standardised(X)).astype(np.float64) / rho
    vectors, sizes, _ = svd(root * (Z - share @ Z), full_matrices=False, check_finite=False)
    return vectors, sizes**2
