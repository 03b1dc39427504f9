"""Real and random tables: the cross-validated error, compared with ridge regression.

For each table: the error of Ridge and of Ridge on PolynomialFeatures(2) (where that fits into
memory; on products as they are and on standardised ones, the better counts), each at its best
penalty on a wide grid, and of SecondOrderRegressorCV with its defaults, all with the same folds.
The goal is a ratio to the better of the two of at most 1.02, without a warning. With --nested, all
choices, also that between the two ridges, are made within each of five outer folds, and the errors
are those of rows that no choice has seen.
"passes" is the cost of the whole path, including the refit, and "cold" that of its points of low
rank from scratch: the cost of some of them, fitted alone, times their number.

Run: OMP_NUM_THREADS=1 python benchmarks/tables.py [--nested] [--tables 20]
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, make_friedman1
from sklearn.model_selection import KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from quadlin import SecondOrderRegressor, SecondOrderRegressorCV

PENALTIES = 10.0 ** np.arange(-4, 6.1, 0.5)
FITS = 6e7  # entries of the table of products
COLD = 12  # points that are fitted from scratch, for comparison


def random_table(seed):
    """n and d log-uniform; features of every kind; a target from pure noise to dense products."""
    rng = np.random.default_rng(seed)
    n = round(10 ** rng.uniform(np.log10(30), np.log10(3000)))
    d = round(10 ** rng.uniform(np.log10(2), np.log10(300)))
    X = rng.standard_normal((n, d))
    kind = rng.integers(0, 5, d)
    if rng.uniform() < 0.5:  # a few common causes
        X = X + 2 * rng.standard_normal((n, 3)) @ rng.standard_normal((3, d))
    X = X / X.std(axis=0)
    X = np.where(kind == 1, X > 0.5, X)  # two values
    X = np.where(kind == 2, np.exp(X), X)  # a heavy tail
    X = np.where(kind == 3, np.floor(2 * X), X)  # counts
    Z = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-9)
    rank = int(rng.choice([0, 1, 2, 5, d]))
    shape = rng.integers(0, 3)
    f = Z @ (rng.standard_normal(d) * (rng.uniform(size=d) < 0.5))
    f = f / max(f.std(), 1e-9)
    if rank:
        U = rng.standard_normal((d, min(rank, d))) / np.sqrt(d)
        quadratic = ((Z @ U) ** 2) @ rng.choice([-1.0, 1.0], U.shape[1])
        f = f + rng.uniform(0.3, 2) * quadratic / max(quadratic.std(), 1e-9)
    if shape == 1:
        f = np.tanh(f)
    if shape == 2:
        f = f + np.sin(2 * Z[:, 0])
    noise = rng.choice([0.1, 0.5, 1, 3]) * f.std() * rng.standard_normal(n)
    return f"random {seed}", X * 10 ** rng.uniform(-3, 3, d), f + noise


def tables(count):
    yield ("diabetes", *load_diabetes(return_X_y=True))
    yield ("Friedman 1", *make_friedman1(500, 10, noise=1.0, random_state=0))
    X, y = load_digits(return_X_y=True)
    yield "digits", X, y.astype(float)
    for seed in range(count):
        yield random_table(seed)


def peers(n, d):
    """Return the input of Ridge: the features, or also all products of two."""
    products = PolynomialFeatures(2, include_bias=False)
    yield StandardScaler()
    if n * d * (d + 3) / 2 <= FITS:
        yield make_pipeline(StandardScaler(), products)
        yield make_pipeline(StandardScaler(), products, StandardScaler())


def ridge_path(transform, X, y, X_test):
    """Return the predictions of Ridge after the transform, for every penalty: (penalties, rows)."""
    A, B = transform.fit_transform(X), transform.transform(X_test)
    centre = A.mean(axis=0)
    A, B, mean = A - centre, B - centre, y.mean()
    if A.shape[1] <= A.shape[0]:
        values, V = np.linalg.eigh(A.T @ A)
        left, right = B @ V, V.T @ (A.T @ (y - mean))
    else:
        values, V = np.linalg.eigh(A @ A.T)
        left, right = (B @ A.T) @ V, V.T @ (y - mean)
    return np.array([mean + left @ (right / (np.maximum(values, 0) + a)) for a in PENALTIES])


def ridge_errors(transform, X, y, folds):
    """Return the cross-validated error for every penalty."""
    splits = folds.split(X)
    parts = [
        np.mean((ridge_path(transform, X[i], y[i], X[j]) - y[j]) ** 2, axis=1) for i, j in splits
    ]
    return np.mean(parts, axis=0)


def nested_errors(transform, X, y, folds):
    """Return, for each outer fold, the error that chose the penalty and that on unseen rows."""
    pairs = []
    for i, j in folds.split(X):
        inner = ridge_errors(transform, X[i], y[i], folds)
        f = ridge_path(transform, X[i], y[i], X[j])[inner.argmin()]
        pairs.append((inner.min(), np.mean((f - y[j]) ** 2)))
    return np.array(pairs)


def peer_errors(X, y, folds, nested):
    """Return the error of Ridge, of Ridge on products, and of the better by the same folds."""
    transforms = list(peers(*X.shape))
    if not nested:
        errors = [ridge_errors(t, X, y, folds).min() for t in transforms]
        return errors[0], min(errors[1:], default=np.inf), min(errors)
    errors = np.array([nested_errors(t, X, y, folds) for t in transforms])  # (peers, folds, 2)
    chosen = errors[:, :, 0].argmin(axis=0)
    means = errors[:, :, 1].mean(axis=1)
    better = errors[chosen, np.arange(len(chosen)), 1].mean()
    return means[0], min(means[1:], default=np.inf), better


def own_error(X, y, folds, nested):
    """Return our error, the model and its CPU seconds; a warning is an error."""
    ours = SecondOrderRegressorCV(cv=folds, random_state=0)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="A handful of rows have extreme values")
        model = clone(ours).fit(X, y)
        seconds = time.process_time() - start
        if not nested:
            return -model.best_score_, model, seconds
        squares = "neg_mean_squared_error"
        error = -cross_val_score(ours, X, y, cv=folds, scoring=squares).mean()
    return error, model, seconds


def cold_passes(model, X, y):
    """Return the passes of the points of the path if each is fitted alone."""
    d = X.shape[1]
    points = [p for p in model.cv_results_["params"] if 0 < p["rank"] < d]
    if not points:
        return 0.0
    sample = points[:: max(1, len(points) // COLD)]
    taken = []
    for params in sample:
        fit = SecondOrderRegressor(
            **{"rank": 5, "alpha": 0.0, **params}, random_state=0, tol=1e-4, max_iter=8
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            taken.append(fit.fit(X, y).history_[-1].passes)
    splits = sum(name.startswith("split") for name in model.cv_results_)
    return float(np.mean(taken)) * len(points) * splits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--nested", action="store_true")
    parser.add_argument("--most", type=float, default=np.inf, help="entries of X, to skip others")
    arguments = parser.parse_args()
    folds = KFold(5, shuffle=True, random_state=0)
    print("table          n    d     ridge  products      ours  ratio rank passes   cold   CPU s")
    ratios = []
    for name, X, y in tables(arguments.tables):
        if X.size > arguments.most:
            continue
        ridge, products, better = peer_errors(X, y, folds, arguments.nested)
        ours, model, seconds = own_error(X, y, folds, arguments.nested)
        assert np.isfinite(model.predict(X)).all()
        ratios.append(ours / better)
        print(
            f"{name:10s} {X.shape[0]:5d} {X.shape[1]:4d} {ridge:9.4g} {products:9.4g} {ours:9.4g} "
            f"{ratios[-1]:6.3f} {model.rank_:4d} {model.n_passes_:6d} "
            f"{cold_passes(model, X, y):6.0f} {seconds:7.1f}",
            flush=True,
        )
    good = np.mean(np.asarray(ratios) <= 1.02)
    mean = np.exp(np.mean(np.log(ratios)))
    print(f"ratio ≤ 1.02 in {good:.0%} of {len(ratios)}; geometric mean {mean:.3f}")


if __name__ == "__main__":
    main()
