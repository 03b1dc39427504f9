"""Rows made of one-hot fields, with and without columns beside them."""

from typing import NamedTuple

import numpy as np

from quadlin.solve.fields.field_machine import FieldMachine, Sweep
from quadlin.solve.fields.field_predict import Layout, predict_all
from quadlin.solve.fields.field_rows import default_signs, field_rows
from quadlin.solve.fields.gibbs import draw
from quadlin.solve.fields.variational import sweeps

USERS, ITEMS, KINDS, DAYS = 7, 9, 3, 4


def table(kind, seed=0, n=150):
    """Return rows of users and items; "side": kinds, ages and genres of them; "more": days too.

    "near" is "side" with ages that grow and with genres that some rows lack.
    """
    rng = np.random.default_rng(seed)
    user, item = rng.integers(USERS - 1, size=n), rng.integers(ITEMS, size=n)  # one user unseen
    blocks = [np.eye(USERS)[user], np.eye(ITEMS)[item]]
    if kind != "two":
        of_user, age = rng.permutation(np.arange(USERS) % KINDS), rng.standard_normal(USERS)
        genres = (rng.random((ITEMS, 4)) < 0.4) | np.eye(ITEMS, 4, dtype=bool)
        blocks += [np.eye(KINDS)[of_user[user]], age[user, None], genres[item]]
    if kind == "near":
        blocks[3] = blocks[3] + 0.1 * rng.integers(0, 3, size=(n, 1))
        blocks[4] = blocks[4] & (np.arange(n) % 40 > 0)[:, None]
    if kind in ("more", "loose"):
        blocks += [np.eye(DAYS)[rng.integers(DAYS, size=n)]]
    if kind == "loose":
        blocks += [rng.standard_normal((n, 2)), rng.random((n, 1)) < 0.3]
    X = np.hstack(blocks)
    sizes = np.cumsum([0] + [block.shape[1] for block in blocks])
    one_hot = [0, 1] + ([2] if kind != "two" else []) + ([5] if kind in ("more", "loose") else [])
    fields = [np.arange(sizes[i], sizes[i + 1]) for i in one_hot]
    weight = rng.integers(0, 4, size=n).astype(float)
    y = rng.standard_normal(n)
    y = (y - weight @ y / weight.sum()) / np.sqrt(np.cov(y, fweights=weight.astype(int), ddof=0))
    return X, y, fields, weight


def ratings(n=3000, users=60, items=80, rank=2, noise=0.5, seed=0):
    rng = np.random.default_rng(seed)
    user, item = rng.integers(users, size=n), rng.integers(items, size=n)
    w, V = rng.standard_normal(users + items), rng.standard_normal((users + items, rank))
    cells = w[:users, None] + w[users:] + V[:users] @ V[users:].T
    X = np.hstack([np.eye(users)[user], np.eye(items)[item]])
    y = cells[user, item] + noise * rng.standard_normal(n)
    return X, y, [np.arange(users), users + np.arange(items)], cells


X, Y, FIELDS, CELLS = ratings()


def every_cell(users=60, items=80):
    return np.hstack([np.repeat(np.eye(users), items, axis=0), np.tile(np.eye(items), (users, 1))])


class VariationalFit(NamedTuple):
    """The mean of the posterior of a factorization machine, and how it was found."""

    b: float
    table: np.ndarray  # (d + fields, k + 1), see `predict_all`
    signs: np.ndarray
    layout: Layout
    history: list[Sweep]

    def predict(self, X):
        return self.b + predict_all(X, self.layout, self.table[None], self.signs)[:, 0]


def machine_of_rows(X, y, fields, rank, weight=None, seed=None):
    rows = field_rows(X, y, fields, weight)
    return FieldMachine(rows, default_signs(rows, rank), np.random.default_rng(seed), False)


def variational_fit(X, y, fields, rank, *, weight=None, max_sweeps=100, tol=1e-5, seed=None):
    machine = machine_of_rows(X, y, fields, rank, weight, seed)
    history = [line for line, _ in sweeps(machine, max_sweeps, tol)]
    layout = Layout(tuple(fields), machine.rows.parts)
    return VariationalFit(*machine.table(fields), machine.signs, layout, history)


def sample(X, y, fields, rank, *, weight=None, draws=200, seed=None, **options):
    """Draw factorization machines from their posterior, after 20 sweeps of variational fitting."""
    chain = machine_of_rows(X, y, fields, rank, weight, seed)
    for _ in range(20):
        chain.sweep()
    return draw(chain, fields, draws, **options)
