"""Contexts by factorization machines, compared with myFM: ten fields, numbers and lists.

    OMP_NUM_THREADS=1 python benchmarks/contexts.py [--rows 10000] [--tables fields labels] \
        [--seeds 0 1 2]

The levels of ten fields follow a power law, so that most pairs of levels are unseen, and the last
field has no effect. The truth has a bias and factors of rank 3, of either sign, for each level.
"fields" has these alone; "number" adds a number whose slope depends on the level of the first
field; "lists" adds a list of up to eight of 300 labels, with weights 1/√length; "labels" are the
signs of the targets of "fields". A line per table and model, rank 8: the RMSE on 20,000 new rows
(log-loss for labels), its ratio to that of myFM, and the CPU seconds of the fit with its
predictions. myFM makes 200 sweeps with a group per field, of which it keeps 190; it is skipped if
it is not installed.
"""

import argparse
import time
import warnings
from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.metrics import log_loss

from quadlin import FactorizationMachineClassifier, FactorizationMachineRegressor

SIZES = (2000, 1500, 300, 100, 50, 24, 12, 7, 5, 3)
LABELS, LONGEST = 300, 8  # of lists
SIGNS = np.array([1.0, -1.0, 1.0])
NEW = 20_000
RANK, SWEEPS, KEPT = 8, 200, 190
TABLES = ("fields", "number", "lists", "labels")


class Table(NamedTuple):
    """Rows, the last `NEW` of which are new, and the columns of each group."""

    X: csr_matrix
    y: np.ndarray
    groups: list[int]  # number of columns of each


def make(kind: str, n: int, seed: int) -> Table:
    """Return generated contexts."""
    rng, N = np.random.default_rng(seed), n + NEW
    parts, total, squares, y = [], np.zeros((N, 3)), np.zeros((N, 3)), rng.normal(size=N)

    def add(X: csr_matrix, informative: bool = True) -> None:
        nonlocal total, squares, y
        parts.append(X)
        if informative:
            V = rng.normal(0, 0.35, (X.shape[1], 3))
            y = y + X @ rng.normal(0, 0.3, X.shape[1])
            total, squares = total + X @ V, squares + X.multiply(X) @ V**2

    for size in SIZES:
        level = np.minimum(rng.pareto(1.0, N) * size / 20, size - 1).astype(int)
        if size == SIZES[0]:
            first = level
        one_hot = csr_matrix((np.ones(N), level, np.arange(N + 1)), shape=(N, size))
        add(one_hot, informative=size != SIZES[-1])
    if kind == "lists":
        lengths = rng.integers(1, LONGEST + 1, N)
        labels, weights = (
            rng.integers(LABELS, size=lengths.sum()),
            np.repeat(lengths**-0.5, lengths),
        )
        add(csr_matrix((weights, labels, np.append(0, np.cumsum(lengths))), shape=(N, LABELS)))
    if kind == "number":
        number = rng.normal(size=N)
        parts.append(csr_matrix(number[:, None]))
        y = y + rng.normal(0, 0.7, SIZES[0])[first] * number
    y = y + (total**2 - squares) @ SIGNS / 2
    y = (y > np.median(y)).astype(int) if kind == "labels" else y
    return Table(csr_matrix(hstack(parts)), y, [part.shape[1] for part in parts])


def ours(table: Table, draws: int | None) -> np.ndarray:
    """Return the predictions of this library for the new rows."""
    ends = np.cumsum(table.groups)
    fields = [list(range(e - s, e)) for e, s in zip(ends, table.groups, strict=True)][: len(SIZES)]
    labels = table.y.dtype.kind == "i"
    kind = FactorizationMachineClassifier if labels else FactorizationMachineRegressor
    model = kind(RANK, categorical_features=fields, draws=draws, random_state=0)
    model.fit(table.X[:-NEW], table.y[:-NEW])
    new = table.X[-NEW:]
    return np.asarray(model.predict_proba(new)[:, 1] if labels else model.predict(new))


def theirs(table: Table) -> np.ndarray:
    """Return the predictions of myFM for the new rows."""
    import myfm

    labels = table.y.dtype.kind == "i"
    model = (myfm.MyFMClassifier if labels else myfm.MyFMRegressor)(RANK, random_seed=0)
    train, new = table.X[:-NEW], table.X[-NEW:]
    options = {"n_iter": SWEEPS, "n_kept_samples": KEPT, "group_shapes": table.groups}
    with redirect_stderr(StringIO()):
        model.fit(train, table.y[:-NEW], **options)
        return np.asarray(model.predict_proba(new) if labels else model.predict(new))


def main() -> None:
    """Print a line per table and model, means over seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000])
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--draws", type=int, help="also fit this library with so many draws")
    args = parser.parse_args()
    models = {"myFM": theirs} if find_spec("myfm") else {}
    models["quadlin"] = lambda table: ours(table, None)
    if args.draws:
        models["with draws"] = lambda table: ours(table, args.draws)
    warnings.simplefilter("ignore", UserWarning)
    print(
        f"{'table':8} {'rows':>8} {'model':10} {'error':>8} {'ratio':>6} {'CPU s':>7}", flush=True
    )
    for kind in args.tables:
        for n in args.rows:
            peer = np.nan
            for name, predict in models.items():
                errors, seconds = [], []
                for seed in args.seeds:
                    table = make(kind, n, seed)
                    begun = time.process_time()
                    predicted, y = predict(table), table.y[-NEW:]
                    seconds.append(time.process_time() - begun)
                    squared = np.sqrt(np.mean((y - predicted) ** 2))
                    errors.append(log_loss(y, predicted) if kind == "labels" else squared)
                error = float(np.mean(errors))
                peer = error if name == "myFM" else peer
                line = f"{error:8.4f} {error / peer:6.3f} {np.mean(seconds):7.1f}"
                print(f"{kind:8} {n:8} {name:10} {line}", flush=True)


if __name__ == "__main__":
    main()
