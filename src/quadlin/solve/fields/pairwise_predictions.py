r"""Predictions for all pairs of two tables, such as users and items, without a row for each pair.

A row whose columns are split into two sides, z = (u, i), has

.. math:: f(u, i) = a_u + b_i + \langle p_u, q_i \rangle,

because only products of a column of one side with a column of the other involve both sides. So all
n·m predictions are one matrix product of thin factors.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from quadlin.core.arrays import mapped, remembered, to_numpy
from quadlin.core.block import Block
from quadlin.core.losses import probability
from quadlin.core.model import Model, assembly_of, columns_of, evaluate
from quadlin.core.units import Units
from quadlin.solve.fields.draws import Draws, factor_sums, predict_all
from quadlin.solve.fits.fit_state import FitState

SCORES = 2**22  # numbers of a block of scores
FACTORS = 2**24  # numbers of a block of factors
LEAST = 1e-15  # smallest mean probability over draws, so that its logarithm is finite


class Side(NamedTuple):
    """Rows of one side: what each adds alone, and its factor in products with the other side.

    For S draws of log-odds there are S of each, since probabilities are averaged over them.
    """

    alone: np.ndarray  # (n,), or (n, S)
    factor: np.ndarray  # (n, m), or (n, S, m)


class Half(NamedTuple):
    """Rows of some of the features."""

    X: Any  # (n, width), dense or CSR
    features: np.ndarray  # (width,), positions among the d features of the model


def sides_of(
    state: FitState, features: tuple[np.ndarray, np.ndarray]
) -> tuple[Callable[[Any], Side], Callable[[Any], Side]]:
    """Return two functions, one per side, that turn rows of its features into a `Side` of a model.

    Parameters
    ----------
    state : FitState
        The model and its units.
    features : two arrays
        The features of each side; together they are all features.
    """
    first, second = _parts(state, *features)
    model, y = first[0], first[1].target.scale

    def left(X: Any) -> Side:
        alone, products = _alone(*first, X)
        return Side(y * alone, products)

    def right(X: Any) -> Side:
        alone, products = _alone(*second, X)
        return Side(y * alone, 2 * y * model.s * products)

    return left, right


def sides_of_draws(
    draws: Draws, features: tuple[np.ndarray, np.ndarray]
) -> tuple[Callable[[Any], Side], Callable[[Any], Side]]:
    """Return such functions for the mean over draws, whose factors are concatenated.

    Draws of log-odds are kept separate, because their probabilities are averaged.
    """
    S = len(draws.tables)

    def side(columns: np.ndarray, X: Any, last: bool) -> Side:
        fields, table = _of_side(draws, columns)
        alone, factor = predict_all(X, fields, table, draws.signs), factor_sums(X, fields, table)
        if last:
            factor = factor * draws.signs
        else:
            alone = alone + draws.intercepts
        if draws.labels:
            return Side(alone, factor)
        factor = factor.reshape(len(factor), -1)
        return Side(alone.mean(axis=1), factor / S if last else factor)

    return (
        lambda X: side(features[0], X, last=False),
        lambda X: side(features[1], X, last=True),
    )


class Best(NamedTuple):
    """The best pairs, user by user, the highest score first."""

    users: np.ndarray  # (pairs,), positions
    items: np.ndarray
    ranks: np.ndarray  # 1 for the best item of a user
    scores: np.ndarray


def best_pairs(
    users: Any, left: Callable[[Any], Side], items: Side, n: int, excluded: Any = None
) -> Best:
    """Return the n items of highest score for each user.

    Parameters
    ----------
    users : rows (n_users, width)
        Rows of the first side.
    left : callable
        Turns such rows into their `Side`.
    items : Side
        The side of all items.
    n : int
        Maximum number of items per user.
    excluded : CSR matrix (n_users, n_items) or None
        Pairs with an entry are left out.

    Returns
    -------
    Best

    Notes
    -----
    Memory: the factors of all items, and blocks of `SCORES` scores and `FACTORS` factors.
    """
    step = max(1, min(1024, FACTORS // max(1, int(np.prod(items.factor.shape[1:])))))
    parts = [
        _best_of_block(start, left(users[start : start + step]), items, n, excluded)
        for start in range(0, users.shape[0], step)
    ]
    return Best(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _best_of_block(start: int, users: Side, items: Side, n: int, excluded: Any) -> Best:
    rows, count = len(users.alone), len(items.alone)
    scores: np.ndarray = np.empty((rows, 0))
    places: np.ndarray = np.empty((rows, 0), dtype=np.intp)

    def reorder(order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(places, order, axis=1)

    step = max(n, SCORES // rows)
    for first in range(0, count, step):
        at = slice(first, min(first + step, count))
        block = _scores(users, items, at)
        if excluded is not None:
            block[excluded[start : start + rows, at].nonzero()] = -np.inf
        positions = np.broadcast_to(np.arange(at.start, at.stop), block.shape)
        scores, places = np.hstack([scores, block]), np.hstack([places, positions])
        if scores.shape[1] > n:
            scores, places = reorder(np.argpartition(-scores, n - 1, axis=1)[:, :n])
    scores, places = reorder(np.lexsort((places, -scores)))  # ties in the order of the items
    user, rank = np.nonzero(np.isfinite(scores))
    return Best(start + user, places[user, rank], 1 + rank, scores[user, rank])


def _scores(users: Side, items: Side, at: slice) -> np.ndarray:
    """Return the predictions of users (rows) for some items (columns)."""
    if users.alone.ndim == 1:
        return np.asarray(
            users.alone[:, None] + items.alone[at] + users.factor @ items.factor[at].T
        )
    total = np.zeros((len(users.alone), len(items.alone[at])))
    for draw in range(users.alone.shape[1]):
        f = users.factor[:, draw] @ items.factor[at, draw].T
        f = f + users.alone[:, draw, None] + items.alone[at, draw]
        total += probability(f)
    share = np.clip(total / users.alone.shape[1], LEAST, 1 - LEAST)
    return np.asarray(np.log(share) - np.log1p(-share))


def _alone(model: Model, units: Units, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return f(z) and Z U of rows of the features to which a model was restricted."""
    assembly = assembly_of(model)
    products, squares = Block(X, units).products(columns_of(model), assembly.left_out)
    return evaluate(model, assembly, products, squares)[:, 0], products[:, : len(model.s)]


def _restricted(model: Model, units: Units, c: np.ndarray) -> tuple[Model, Units]:
    """Return the part of a model that involves only some features."""
    part = Model(model.U[c], model.s, model.w[c], 0.0, model.free[c])
    return part, mapped(lambda a: a[c] if isinstance(a, np.ndarray) else a, units)


@remembered
def _parts(
    state: FitState, first: np.ndarray, second: np.ndarray
) -> tuple[tuple[Model, Units], tuple[Model, Units]]:
    """Return the parts of both sides, of which the first has the constant."""
    model, units = _in_numpy(state.model), _in_numpy(state.units)
    parts = [_restricted(model, units, c) for c in (first, second)]
    c = model.c + units.target.mean / units.target.scale
    return (replace(parts[0][0], c=c), parts[0][1]), parts[1]


def _in_numpy(parts: Any) -> Any:
    return mapped(
        lambda a: to_numpy(a).astype(np.float64) if hasattr(a, "__dlpack__") else a, parts
    )


def _of_side(draws: Draws, columns: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the fields and the tables of the columns of one side, renumbered."""
    d = draws.tables.shape[1] - len(draws.fields)
    place = np.full(d, -1)
    place[columns] = np.arange(len(columns))
    on_side = [i for i, field in enumerate(draws.fields) if place[field[0]] >= 0]
    fields = [place[draws.fields[i]] for i in on_side]
    return fields, draws.tables[:, [*columns, *(d + i for i in on_side)]]
