r"""Draws of a factorization machine: their predictions, their spread, and lists of the best pairs.

A row whose columns are split into two sides, z = (u, i), has

.. math:: f(u, i) = a_u + b_i + \langle p_u, q_i \rangle,

because only products of a column of one side with a column of the other involve both sides. So all
n·m predictions of a machine are one matrix product of thin factors, without a row for each pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, hstack
from scipy.special import logsumexp

from quadlin.core.arrays import mapped, remembered, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import BLOCK_ELEMENTS
from quadlin.core.losses import probability
from quadlin.core.model import Steps, predict, to_raw
from quadlin.core.rows import Rows
from quadlin.solve.fields.machine import DOUBLE, Learned
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.uncertainty import Uncertainty


class Half(NamedTuple):
    """Rows of some of the features, such as those of users."""

    X: Any  # (n, d), CSR, with zeros for all other features
    features: np.ndarray  # their positions, or a mask


@dataclass(frozen=True)
class Draws:
    """Draws of a factorization machine, in the user's units."""

    intercepts: np.ndarray  # (S,)
    tables: np.ndarray  # (S, d + fields, k + 1): (w, v) of each column, and of levels never seen
    signs: np.ndarray  # (k,)
    noises: np.ndarray  # (S,), standard deviations
    fields: tuple[np.ndarray, ...]  # the columns of each
    labels: bool = False  # whether they are log-odds, averaged as probabilities

    @property
    def noise(self) -> float:
        """The standard deviation of the noise."""
        return float(np.sqrt(np.mean(self.noises**2)))

    @cached_property
    def _squares(self) -> np.ndarray:
        return np.ascontiguousarray((self.tables[:, :, 1:] ** 2 @ self._signs).T)

    @property
    def _signs(self) -> np.ndarray:
        return self.signs.astype(self.tables.dtype)

    @cached_property
    def _field(self) -> np.ndarray:
        """The field of each column (d,)."""
        field = np.full(self.tables.shape[1] - len(self.fields), len(self.fields))
        for g, columns in enumerate(self.fields):
            field[columns] = g
        return field

    def sums(self, X: Any, features: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the predictions of rows (n, S) without intercepts, and sums of factors (n, S, k).

        Rows may have only some of the features. One without a level of a field that is among these
        is treated as one with a level never seen.
        """
        S, d, K = self.tables.shape
        flat = np.ascontiguousarray(self.tables.transpose(1, 0, 2)).reshape(d, -1)
        rows = self._with_unseen(csr_matrix(X), features)
        total = np.asarray(rows @ flat).reshape(-1, S, K)
        w, total = total[:, :, 0], total[:, :, 1:]
        return w + (total**2 @ self._signs - rows.multiply(rows) @ self._squares) / 2, total

    def _with_unseen(self, X: csr_matrix, features: np.ndarray | None) -> csr_matrix:
        """Return rows with another column for each field, 1 for a level never seen."""
        X, field, G = X.astype(self.tables.dtype), self._field, len(self.fields)
        if not G:
            return X
        shape, known = (X.shape[0], G + 1), field if features is None else field[features]
        levels = csr_matrix((X.data, field[X.indices], X.indptr), shape).toarray()[:, :G]
        return csr_matrix(hstack([X, np.isin(np.arange(G), known) * (1 - levels)]))

    def new_pairs(self, X: csr_matrix) -> csr_matrix:
        """Return rows whose fields come from different rows: where draws differ most."""
        n, parts = X.shape[0], []
        for g in range(len(self.fields) + 1):
            own = csr_matrix(self._field == g).astype(X.dtype)
            parts.append(X[(np.arange(n) + 7 * g) % n].multiply(own))
        return csr_matrix(sum(parts[1:], parts[0]))

    def predict_all(self, X: Any) -> np.ndarray:
        """Return the predictions of all draws (n, S)."""
        step = max(1, BLOCK_ELEMENTS // self.tables[:, 0].size)
        X = csr_matrix(X)
        parts = [self.sums(X[at : at + step])[0] for at in range(0, max(1, X.shape[0]), step)]
        return np.asarray(self.intercepts + np.concatenate(parts))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the posterior mean of new rows and, if `return_std`, the predictive deviation.

        For labels it is the log-odds of their posterior mean probability.
        """
        f = self.predict_all(X)
        mean = mean_log_odds(f) if self.labels else np.mean(f, axis=1)
        return (mean, np.sqrt(np.var(f, axis=1) + self.noise**2)) if return_std else mean

    def side(self, half: Half, last: bool, sign: float) -> "Side":
        """Return one side of sign·f; the `last` one has the signs, the other the intercepts."""
        alone, factor = self.sums(*half)
        if last:
            factor = factor * self.signs
        else:
            alone, factor = alone + self.intercepts, sign * factor
        if self.labels:
            return Side(sign * alone, factor)
        S = len(self.intercepts)
        factor = factor.reshape(len(factor), -1) / (S if last else 1)
        return Side(sign * alone.mean(axis=1), factor)

    def best_pairs(
        self, users: Half, items: Half, n: int, excluded: Any = None, sign: float = 1.0
    ) -> "Best":
        """Return the n items of highest sign·f for each user.

        Pairs with an entry in `excluded`, CSR (users, items), are left out. Memory: the factors of
        all items, and blocks of scores and factors.
        """
        right, parts = self.side(items, True, sign), []
        step = max(1, BLOCK_ELEMENTS // max(1, right.factor[0].size, len(right.alone)))
        for start in range(0, users.X.shape[0], step):
            at = slice(start, start + step)
            scores = _scores(self.side(Half(users.X[at], users.features), False, sign), right)
            if excluded is not None:
                scores[excluded[at].nonzero()] = -np.inf
            parts.append(_best_of(scores, n, start))
        return Best(*(np.concatenate(each) for each in zip(*parts, strict=True)))


class Side(NamedTuple):
    """Rows of one side: what each adds alone, and its factor in products with the other side.

    For S draws of log-odds there are S of each, since probabilities are averaged over them; for
    others, means over draws, whose factors are concatenated.
    """

    alone: np.ndarray  # (n,), or (n, S)
    factor: np.ndarray  # (n, m), or (n, S, m)


class Best(NamedTuple):
    """The best pairs, user by user, the highest score first."""

    users: np.ndarray  # (pairs,), positions
    items: np.ndarray
    ranks: np.ndarray  # 1 for the best item of a user
    scores: np.ndarray


@remembered
def as_draws(state: FitState) -> Draws:
    """Return a model without squares as a single draw."""
    model, units = mapped(
        lambda a: to_numpy(a).astype(np.float64) if hasattr(a, "__dlpack__") else a,
        (state.model, state.units),
    )
    raw = to_raw(model, units)
    factors = raw.components.T * np.sqrt(2 * np.abs(raw.eigenvalues))
    table = np.column_stack([raw.coef, factors])[None]
    return Draws(np.array([raw.intercept]), table, np.sign(raw.eigenvalues), np.zeros(1), ())


def draws_of(
    kept: Sequence[Learned], fields: Sequence[np.ndarray], rng: np.random.Generator
) -> Draws:
    """Return draws in the user's units, with levels never seen drawn from their priors.

    Every second draw has the deviations of the one before it with the other sign, so that their
    mean is that of the prior.
    """
    z, raw = np.zeros(0), []
    for number, each in enumerate(kept):
        means, precisions = (a[: len(fields)] for a in (each.priors.mean, each.priors.precision))
        z = -z if number % 2 else rng.standard_normal(precisions.shape)
        raw.append(each.raw(fields, means + z / np.sqrt(precisions)))
    first = kept[0]
    return Draws(
        np.array([b for b, _ in raw]),
        np.array([table for _, table in raw], dtype=np.float32),
        first.signs,
        np.array([each.deviation for each in kept]),
        tuple(np.asarray(field) for field in fields),
        first.labels,
    )


def mean_log_odds(f: np.ndarray) -> np.ndarray:
    """Return the log-odds of the mean probability over draws of log-odds (n, S)."""
    yes, no = (logsumexp(-np.logaddexp(0.0, sign * f), axis=1) for sign in (-1, 1))
    return np.asarray(yes - no)


def _best_of(scores: np.ndarray, n: int, first: int) -> Best:
    """Return the n best items (columns) of users (rows), who are numbered from `first`."""
    places = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    if scores.shape[1] > n:
        places = np.argpartition(-scores, n - 1, axis=1)[:, :n]
    scores = np.take_along_axis(scores, places, axis=1)
    order = np.lexsort((places, -scores))  # ties in the order of the items
    scores, places = (np.take_along_axis(a, order, axis=1) for a in (scores, places))
    user, rank = np.nonzero(np.isfinite(scores))
    return Best(first + user, places[user, rank], 1 + rank, scores[user, rank])


def _scores(users: Side, items: Side) -> np.ndarray:
    """Return the predictions of users (rows) for items (columns)."""
    if users.alone.ndim == 1:
        return np.asarray(users.alone[:, None] + items.alone + users.factor @ items.factor.T)
    total = np.zeros((len(users.alone), len(items.alone)))
    for draw in range(users.alone.shape[1]):
        f = users.factor[:, draw] @ items.factor[:, draw].T
        total += probability(f + users.alone[:, draw, None] + items.alone[:, draw])
    least = DOUBLE  # so that the logarithm is finite
    share = np.clip(total / users.alone.shape[1], least, 1 - least)
    return np.asarray(np.log(share) - np.log1p(-share))


def law_of_draws(
    rows: Rows,
    state: FitState,
    n: float,
    drawn: Sequence[Learned],
    fields: Sequence[np.ndarray],
    rng: np.random.Generator,
    law: Uncertainty | None = None,
) -> Uncertainty:
    """Return a law whose errors of predictions are those of draws, on average over new rows.

    Without one, its steps are the draws themselves. Its errors are scaled, since draws also differ
    from the model beyond its tangent space: the mean square of their predictions' distances from
    its own, and the noise, are those of the draws. The rows are n observations.
    """
    units, draws = state.units, draws_of(drawn, fields, rng)
    X = csr_matrix(next(iter(rows.walk())).X[: max(1, BLOCK_ELEMENTS // draws.tables[:, 0].size)])
    shift, scale = units.target.mean, units.target.scale
    noise = draws.noise / scale
    if law is None:
        leverage = float(np.mean(np.var(draws.predict_all(X) / scale, axis=1))) / noise**2
        dof = min(n * leverage, n - 1)
        spread = _steps(state, drawn, fields)
        law = Uncertainty(units, spread, noise, 1.0, dof, n - dof, False)
    X = draws.new_pairs(X)
    f, model = draws.predict_all(X), to_numpy(predict(state.model, Block(X, units)))
    mean = float(np.mean(((f - shift) / scale - model[:, None]) ** 2))
    now = float(np.mean(law.predict_std(Block(X, units)) ** 2))
    factor = np.sqrt(mean / now) if now > 0 else 1.0
    return replace(law, error=law.error * factor, noise=noise)


def _steps(state: FitState, drawn: Sequence[Learned], fields: Sequence[np.ndarray]) -> Steps:
    """Return the deviations of draws from their mean, each divided by the root of their number.

    Levels are measured from the mean of their field over the rows, not from that of the prior.
    M changes by D within the tangent space of the model: U Hᵀ + H Uᵀ with H = DU − ½UUᵀDU.
    """
    model, units = state.model, state.units
    U, shares = to_numpy(model.U).astype(np.float64), to_numpy(state.features.mean)
    parts = []
    for each in drawn:
        draw = each.model(fields, units, shares)
        DU = (draw.U * draw.s) @ (draw.U.T @ U)
        parts.append((DU - U @ (U.T @ DU) / 2, draw.w, np.array(draw.c)))
    steps = []
    for part in zip(*parts, strict=True):
        deviations = (np.stack(part) - np.mean(part, axis=0)) / np.sqrt(len(parts))
        steps.append(np.moveaxis(deviations, 0, min(1, part[0].ndim)).astype(model.U.dtype))
    return Steps(model.U, *steps)
