r"""The variational posterior of a factorization machine on one-hot fields.

Each level has a normal distribution with a (k + 1)×(k + 1) covariance, independent of all others;
precisions and noise have gamma distributions. The bound of the log evidence rises with every
update. The mean of the posterior predictor is a plain factorization machine, because the factors of
two columns are independent: nothing is tuned, and components that the rows do not need are shrunk
to nothing, so that the rank is an upper bound.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quadlin.solve.field_machine import FieldMachine, Sweep
from quadlin.solve.field_predict import Layout, predict_all
from quadlin.solve.field_rows import default_signs, field_rows


@dataclass(frozen=True)
class FieldFit:
    """A factorization machine, the mean of the posterior, and how it was found."""

    b: float
    w: np.ndarray  # (d,)
    V: np.ndarray  # (d, k)
    signs: np.ndarray  # (k,)
    noise: float  # standard deviation
    table: np.ndarray  # (1, d + fields, k + 1), what predicts; see `predict_all`
    layout: Layout
    converged: bool
    history: tuple[Sweep, ...]

    def predict(self, X: Any) -> np.ndarray:
        """Return the predictions of rows.

        The factorization machine (b, w, V) says the same of rows whose levels were all seen. A row
        without a level of a field counts as one of a level that was never seen.
        """
        return self.b + predict_all(X, self.layout, self.table, self.signs)[:, 0]


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
    for line, converged in sweeps(machine, max_sweeps, tol):  # noqa: B007
        history.append(line)
    b, table = machine.table(fields)
    columns = table[: rows.n_columns]
    layout = Layout(tuple(np.asarray(field) for field in fields), rows.parts)
    return FieldFit(
        b, columns[:, 0] - machine.within(), columns[:, 1:], machine.signs, history[-1].noise,
        table[None], layout, converged, tuple(history),
    )  # fmt: skip


def sweeps(machine: FieldMachine, max_sweeps: int, tol: float) -> Iterator[tuple[Sweep, bool]]:
    """Sweep until the bound rises by less than `tol` per row; also tell whether it did."""
    rows, before = machine.rows, -np.inf
    for number in range(1, max_sweeps + 1):
        machine.sweep()
        noise = rows.scale / np.sqrt(float(machine.noise.mean))
        line = Sweep(number, rows.scale**2 * machine.error / rows.n, noise, machine.bound())
        converged = line.bound - before < tol * rows.n
        yield line, converged
        if converged:
            return
        before = line.bound
