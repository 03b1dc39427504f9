r"""The variational posterior of a factorization machine on one-hot fields.

Each level has a normal distribution with a (k + 1)×(k + 1) covariance, independent of all others;
precisions and noise have gamma distributions. The bound of the log evidence rises with every
update. The mean of the posterior predictor is a plain factorization machine, because the factors of
two columns are independent: nothing is tuned, and components that the rows do not need are shrunk
to nothing, so that the rank is an upper bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quadlin.solve.field_machine import FieldMachine, Sweep, default_signs
from quadlin.solve.field_rows import field_rows, with_unseen


@dataclass(frozen=True)
class FieldFit:
    """A factorization machine, the mean of the posterior, and how it was found."""

    b: float
    w: np.ndarray  # (d,)
    V: np.ndarray  # (d, k)
    signs: np.ndarray  # (k,)
    noise: float  # standard deviation
    unseen: tuple[np.ndarray, np.ndarray]  # w (fields,) and V (fields, k) of levels never seen
    fields: tuple[np.ndarray, ...]
    converged: bool
    history: tuple[Sweep, ...]

    def predict(self, X: Any) -> np.ndarray:
        """Return the predictions of rows; one without a level of a field has an unseen one."""
        X = with_unseen(X, self.fields)
        w, V = (np.concatenate(parts) for parts in zip((self.w, self.V), self.unseen, strict=True))
        products = X @ V
        squares = X.multiply(X) @ (V**2 @ self.signs)
        f: np.ndarray = self.b + X @ w + (products**2 @ self.signs - squares) / 2
        return f


def fit_fields(
    X: Any,
    y: np.ndarray,
    fields: Sequence[np.ndarray],
    rank: int,
    *,
    weight: np.ndarray | None = None,
    signs: np.ndarray | None = None,
    max_sweeps: int = 100,
    tol: float = 1e-5,
    seed: Any = None,
) -> FieldFit:
    """Find the variational posterior of a factorization machine, given the rows.

    Parameters
    ----------
    X : CSR matrix or array (n, d)
        Rows. Every column is a level of a field or a function of the level of one. Numeric columns
        should have a scale near one.
    y : array (n,)
        Targets.
    fields : sequence of int array
        The columns of each one-hot field; every row has exactly one level of each.
    rank : int
        Largest number of components.
    weight : array (n,) or None
        Repetitions of each row.
    signs : array (rank,) or None
        Sign of each component. By default +1 where they do not matter, else +1 and −1 in turn.
    max_sweeps : int
        Most sweeps over the fields.
    tol : float
        The fit has converged when a sweep raises the bound by less than `tol` per row.
    seed : None, int or Generator
        Of the factors at the start.

    Returns
    -------
    FieldFit

    Raises
    ------
    ValueError
        If a field is not one-hot, or a column is not a function of the level of a field.

    Notes
    -----
    A sweep costs O((number of pairs of levels that meet)·k² + levels·k³) where all columns are
    functions of two fields, else O(n·k²) per field. Memory: O(levels·k²) beside the rows.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> user, item = rng.integers(30, size=2000), rng.integers(40, size=2000)
    >>> X = np.hstack([np.eye(30)[user], np.eye(40)[item]])
    >>> a, b = rng.standard_normal(30), rng.standard_normal(40)
    >>> y = a[user] * b[item] + 0.1 * rng.standard_normal(2000)
    >>> fit = fit_fields(X, y, [np.arange(30), 30 + np.arange(40)], rank=3, seed=0)
    >>> bool(np.mean((fit.predict(X) - a[user] * b[item]) ** 2) < 0.001)
    True
    """
    rows = field_rows(X, y, fields, weight)
    if rows.loose:
        raise ValueError(
            f"{len(rows.loose)} columns, the first of which is {rows.loose[0]}, are neither levels "
            "of a field nor a function of the level of one; only sampling can fit them."
        )
    rng = np.random.default_rng(seed)
    signs = default_signs(rows, rank) if signs is None else signs
    machine = FieldMachine(rows, signs, rng, sampled=False)
    history: list[Sweep] = []
    converged = False
    while len(history) < max_sweeps and not converged:
        machine.sweep()
        noise = rows.scale / np.sqrt(float(machine.noise.mean))
        loss = rows.scale**2 * machine.error / rows.n
        history.append(Sweep(len(history) + 1, loss, noise, machine.bound()))
        converged = len(history) > 1 and history[-1].bound - history[-2].bound < tol * rows.n
    b, w, V = machine.table(fields)
    d = rows.n_columns
    return FieldFit(
        b, w[:d], V[:d], machine.signs, noise, (w[d:], V[d:]),
        tuple(np.asarray(field) for field in fields), converged, tuple(history),
    )  # fmt: skip
