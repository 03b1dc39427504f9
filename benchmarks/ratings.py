"""Ratings by factorization machines on one-hot fields, compared with myFM and simpler models.

Users rate items: both follow a power law, each has a bias and a factor, and the noise is most of
the variance. Tables: "random" (a tenth of the rows is held out), "cold" (a tenth of the users and
of the items keep at most three ratings, the test rows are their others) and "side" (cold, with the
age and the occupation of users and the genres of items, on which biases and factors depend).

    python benchmarks/ratings.py
    python benchmarks/ratings.py --tables side --seeds 0 --slow

prints a line per model: RMSE on the test rows, its ratio to that of myFM, and CPU seconds of fit
and prediction. "oracle" is the truth without the noise. With `--fits 4` these are means over four
random states, and the smallest and largest RMSE are printed too. `--slow` adds twice the rank, and
estimators of the library: with their defaults, with the best of several penalties on the test rows,
and cross-validated.
"""

import argparse
import time
import warnings

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import Ridge

from quadlin import FactorizationMachineRegressor, SecondOrderRegressorCV

USERS, ITEMS, GENRES, JOBS = 943, 1682, 18, 21
ROWS, RANK, TRUE_RANK, NOISE = 100_000, 8, 6, 0.85
SWEEPS = 200  # of myFM: its examples take 100 to 512 and keep all
TABLES = ("random", "cold", "side")
DRAWS = 300  # of the library
CALL = 10_000  # rows of a call of partial_fit
PENALTIES = (10.0, 30.0, 100.0)


def one_hot(index, size):
    n = len(index)
    return csr_matrix((np.ones(n), (np.arange(n), index)), shape=(n, size))


def ratings(table, seed, n=ROWS):
    """Return rows, targets, targets without noise, whether in the test, field and group sizes."""
    rng = np.random.default_rng(seed)
    popular = [1 / (20 + np.arange(size)) ** power for size, power in ((USERS, 0.7), (ITEMS, 1.0))]
    user, item = (rng.choice(len(p), n, p=p / p.sum()) for p in popular)
    user, item = rng.permutation(USERS)[user], rng.permutation(ITEMS)[item]
    w = [0.42 * rng.standard_normal(USERS), 0.5 * rng.standard_normal(ITEMS)]
    V = [rng.standard_normal((size, TRUE_RANK)) for size in (USERS, ITEMS)]
    age, job = rng.standard_normal(USERS), rng.integers(JOBS, size=USERS)
    genres = rng.random((ITEMS, GENRES)) < 0.12
    if table == "side":
        w[0] += 0.1 * age + 0.1 * rng.standard_normal(JOBS)[job]
        w[1] += genres @ (0.2 * rng.standard_normal(GENRES))
        V[0] += 0.3 * np.outer(age, rng.standard_normal(TRUE_RANK))
        V[0] += 0.4 * rng.standard_normal((JOBS, TRUE_RANK))[job]
        V[1] += genres @ (0.5 * rng.standard_normal((GENRES, TRUE_RANK)))
    size = 0.8 ** np.arange(TRUE_RANK)
    f = (
        3.5
        + w[0][user]
        + w[1][item]
        + (V[0][user] * V[1][item]) @ (0.5 * np.sqrt(size / size.sum()))
    )
    y = f + NOISE * rng.standard_normal(n)
    test = rng.random(n) < 0.1
    if table != "random":
        test = np.zeros(n, dtype=bool)
        for index, count in ((user, USERS), (item, ITEMS)):
            cold = rng.permutation(count) < count // 10
            order = np.argsort(index, kind="stable")
            ordered = index[order]
            place = np.arange(n) - np.searchsorted(ordered, ordered)
            test[order[cold[ordered] & (place >= rng.integers(4, size=count)[ordered])]] = True
    blocks, groups = [one_hot(user, USERS), one_hot(item, ITEMS)], [USERS, ITEMS]
    fields = [np.arange(USERS), USERS + np.arange(ITEMS)]
    if table == "side":
        blocks += [one_hot(job[user], JOBS), csr_matrix(age[user, None]), csr_matrix(genres[item])]
        groups += [JOBS, 1, GENRES]
        fields.append(USERS + ITEMS + np.arange(JOBS))
    X = csr_matrix(hstack(blocks), dtype=float)
    return X, y, f, test, fields, groups


def gibbs(X, y, X_test, y_test, fields, groups, state):
    model = FactorizationMachineRegressor(RANK, fields=fields, draws=DRAWS, random_state=state)
    return model.fit(X, y).predict(X_test)


def variational(X, y, X_test, y_test, fields, groups, state):
    model = FactorizationMachineRegressor(RANK, fields=fields, random_state=state)
    return model.fit(X, y).predict(X_test)


def streamed(X, y, X_test, y_test, fields, groups, state):
    model = FactorizationMachineRegressor(RANK, fields=fields, random_state=state)
    for start in range(0, len(y), CALL):
        model.partial_fit(X[start : start + CALL], y[start : start + CALL])
    return model.predict(X_test)


def variational_twice_the_rank(X, y, X_test, y_test, fields, groups, state):
    model = FactorizationMachineRegressor(2 * RANK, fields=fields, random_state=state)
    return model.fit(X, y).predict(X_test)


def biases(X, y, X_test, y_test, fields, groups, state):
    inner = np.random.default_rng(state).random(len(y)) < 0.9

    def predict(alpha, rows, new):
        return Ridge(alpha, solver="sparse_cg").fit(X[rows], y[rows]).predict(new)

    def error(alpha):
        return np.mean((predict(alpha, inner, X[~inner]) - y[~inner]) ** 2)

    return predict(min((1.0, 3.0, 10.0), key=error), np.ones(len(y), dtype=bool), X_test)


def myfm(X, y, X_test, y_test, fields, groups, state):
    from myfm import MyFMRegressor

    model = MyFMRegressor(rank=RANK, random_seed=state)
    model.fit(X, y, n_iter=SWEEPS, n_kept_samples=SWEEPS - 10, group_shapes=groups)
    return model.predict(X_test)


def default_estimator(X, y, X_test, y_test, fields, groups, state):
    return FactorizationMachineRegressor(random_state=state).fit(X, y).predict(X_test)


def best_penalty_on_the_test_rows(X, y, X_test, y_test, fields, groups, state):
    fits = [
        FactorizationMachineRegressor(RANK, alpha=alpha, random_state=state)
        .fit(X, y)
        .predict(X_test)
        for alpha in PENALTIES
    ]
    return min(fits, key=lambda f: np.mean((f - y_test) ** 2))


def cross_validated(X, y, X_test, y_test, fields, groups, state):
    return SecondOrderRegressorCV(random_state=state).fit(X, y).predict(X_test)


MODELS = (myfm, gibbs, variational, streamed, biases)
SLOW = (
    variational_twice_the_rank,
    default_estimator,
    best_penalty_on_the_test_rows,
    cross_validated,
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--fits", type=int, default=1)
    parser.add_argument("--slow", action="store_true")
    options = parser.parse_args()
    for table in options.tables:
        for seed in options.seeds:
            X, y, f, test, fields, groups = ratings(table, seed, options.rows)
            y_test = y[test]

            def rmse(prediction, y_test=y_test):
                return float(np.sqrt(np.mean((prediction - y_test) ** 2)))

            print(f"{table}, seed {seed}: {(~test).sum()} rows, {test.sum()} test rows", flush=True)
            print(f"  oracle {rmse(f[test]):.4f}, mean {rmse(y[~test].mean()):.4f}", flush=True)
            base = float("nan")
            for model in MODELS + (SLOW if options.slow else ()):
                start, errors = time.process_time(), []
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        for state in range(options.fits):
                            data = X[~test], y[~test], X[test], y_test, fields, groups
                            errors.append(rmse(model(*data, state)))
                except ImportError as error:
                    print(f"  {model.__name__} is skipped: {error}", flush=True)
                    continue
                seconds, error = (time.process_time() - start) / options.fits, np.mean(errors)
                base = error if model is myfm else base
                spread = f" {min(errors):.4f} to {max(errors):.4f}" if options.fits > 1 else ""
                name = model.__name__.replace("_", " ")
                ratio = error / base
                print(f"  {name:32} {error:.4f} {ratio:8.4f} {seconds:8.1f} s{spread}", flush=True)


if __name__ == "__main__":
    main()
