"""Ratings and lists of ten by factorization machines, compared with myFM and simpler models.

    OMP_NUM_THREADS=1 python benchmarks/ratings.py [--tables random cold side] [--seeds 0 1]

943 users rate 1,682 films 100,000 times; both follow a power law, have biases and factors of rank
6, and the noise (0.85) is most of the variance. "random" holds out a tenth of the ratings, "cold"
tests users and films of at most three ratings, and "side" adds age, job and genres, on which the
truth depends. A line per model, rank 8: RMSE on the test rows, its ratio to that of myFM, CPU
seconds of a fit with its predictions, and for 100 users the NDCG@10 and the AUC of likes (4 and
above) of films that they have not rated, by their true expected ratings. myFM makes 200 sweeps, of
which it keeps 190, with the same columns; it is skipped if it is not installed.
"""

import argparse
import time
import warnings
from contextlib import redirect_stderr
from io import StringIO
from itertools import product

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from quadlin import FactorizationMachineRegressor

USERS, FILMS, GENRES, JOBS = 943, 1682, 18, 21
RANK, TRUE_RANK, NOISE = 8, 6, 0.85
SWEEPS, DRAWS, CALL = 200, 300, 10_000  # of myFM; of quadlin; rows of a call of partial_fit
LISTED, TOP, LIKE = 100, 10, 4.0


def drawn(table, seed, n):
    """Return users, films, the numbers of those of each rating, ratings, tests, and the truth."""
    rng = np.random.default_rng(seed)
    age, job = rng.standard_normal(USERS), rng.integers(JOBS, size=USERS)
    genres = (rng.random((FILMS, GENRES)) < 0.12).astype(float)
    bias, liked = 0.42 * rng.standard_normal(USERS), 0.5 * rng.standard_normal(FILMS)
    taste, style = (rng.standard_normal((size, TRUE_RANK)) for size in (USERS, FILMS))
    users = pd.DataFrame({"user": [f"u{u}" for u in range(USERS)]})
    films = pd.DataFrame({"film": [f"f{f}" for f in range(FILMS)]})
    if table == "side":
        users["age"], users["job"] = age, [f"j{j}" for j in job]
        films[[f"genre {g}" for g in range(GENRES)]] = genres
        bias += 0.1 * age + 0.1 * rng.standard_normal(JOBS)[job]
        liked += genres @ (0.2 * rng.standard_normal(GENRES))
        taste += 0.3 * np.outer(age, rng.standard_normal(TRUE_RANK))
        taste += 0.4 * rng.standard_normal((JOBS, TRUE_RANK))[job]
        style += genres @ (0.5 * rng.standard_normal((GENRES, TRUE_RANK)))
    size = 0.8 ** np.arange(TRUE_RANK)
    truth = 3.5 + bias[:, None] + liked + (taste * 0.5 * np.sqrt(size / size.sum())) @ style.T
    index, test = [], rng.random(n) < 0.1
    for count, power in ((USERS, 0.7), (FILMS, 1.0)):
        p = 1 / (20 + np.arange(count)) ** power
        index.append(rng.permutation(count)[rng.choice(count, n, p=p / p.sum())])
    if table == "cold":  # a tenth of the users and films keeps at most three ratings
        place = [pd.Series(i).groupby(i).cumcount().to_numpy() for i in index]
        cold = [rng.random(count)[i] < 0.1 for i, count in zip(index, (USERS, FILMS), strict=True)]
        test = np.any([c & (p >= rng.integers(4)) for c, p in zip(cold, place, strict=True)], 0)
    y = truth[tuple(index)] + NOISE * rng.standard_normal(n)
    return users, films, np.array(index), y, test, truth


def one_hot(X):
    """Return text as 0/1 columns beside the numbers, and the widths of groups of columns."""
    text = X.select_dtypes(exclude="number")
    encoder = OneHotEncoder().fit(text)
    columns = hstack([encoder.transform(text), csr_matrix(X.drop(columns=text.columns))])
    numbers = [1, GENRES] if "age" in X else []
    return csr_matrix(columns), [len(levels) for levels in encoder.categories_] + numbers


def machine(X, y, new, state, **options):
    """Return predictions of `FactorizationMachineRegressor`."""
    return FactorizationMachineRegressor(RANK, random_state=state, **options).fit(X, y).predict(new)


def draws(X, y, new, state):
    return machine(X, y, new, state, draws=DRAWS)


def streamed(X, y, new, state):
    """Every rating is seen once."""
    model = FactorizationMachineRegressor(RANK, random_state=state)
    for start in range(0, len(y), CALL):
        model.partial_fit(X[start : start + CALL], y[start : start + CALL])
    return model.predict(new)


def myfm(X, y, new, state):
    from myfm import MyFMRegressor

    both, groups = one_hot(pd.concat([X, new]))
    options = {"n_iter": SWEEPS, "n_kept_samples": SWEEPS - 10, "group_shapes": groups}
    with redirect_stderr(StringIO()):  # its progress bar
        model = MyFMRegressor(rank=RANK, random_seed=state).fit(both[: len(y)], y, **options)
    return model.predict(both[len(y) :])


def biases(X, y, new, state):
    """Ridge regression, the best of three penalties for a tenth of the ratings."""
    both, _ = one_hot(pd.concat([X, new]))
    inner = np.random.default_rng(state).random(len(y)) < 0.9

    def predict(alpha, rows, to):
        return Ridge(alpha, solver="sparse_cg").fit(both[rows], y[rows]).predict(both[to])

    held, rest = np.flatnonzero(~inner), np.flatnonzero(inner)
    best = min((1.0, 3.0, 10.0), key=lambda alpha: rmse(predict(alpha, rest, held), y[held]))
    return predict(best, np.arange(len(y)), np.arange(len(y), both.shape[0]))


def rmse(a, b):
    return float(np.sqrt(np.mean((np.asarray(a) - np.asarray(b)) ** 2)))


def score_lists(F, truth, seen):
    """Return NDCG@10 and AUC of pairs that were not rated, given scores and truth (U, F)."""
    discount = 1 / np.log2(2 + np.arange(TOP))
    gains, aucs = [], []
    for f, t, taken in zip(F, truth, seen, strict=True):
        f, t = f[~taken], t[~taken]
        gain = 2**t - 1
        gains.append(gain[np.argsort(-f)[:TOP]] @ discount / (np.sort(gain)[::-1][:TOP] @ discount))
        if 0 < np.sum(t >= LIKE) < len(t):
            aucs.append(roc_auc_score(t >= LIKE, f))
    return np.mean(gains), np.mean(aucs)


def compare(table, seed, o):
    users, films, (user, film), y, test, truth = drawn(table, seed, o.rows)
    rows = users.iloc[user].reset_index(drop=True).join(films.iloc[film].reset_index(drop=True))
    listed = np.sort(np.random.default_rng(seed).permutation(USERS)[:LISTED])
    seen = np.zeros(truth.shape, dtype=bool)
    seen[user[~test], film[~test]] = True
    new = pd.concat([rows[test], users.iloc[listed].merge(films, how="cross")])
    base, n = np.nan, test.sum()
    print(f"{table}, seed {seed}: {(~test).sum():,} ratings, {n:,} to test; RMSE of the truth "
          f"{rmse(truth[user, film][test], y[test]):.4f}, of the mean "
          f"{rmse(y[~test].mean(), y[test]):.4f}", flush=True)  # fmt: skip
    for model in (myfm, draws, machine, streamed, biases):
        start, errors, lists = time.process_time(), [], []
        try:
            for state in range(o.fits):
                f = np.asarray(model(rows[~test], y[~test], new, state))
                errors.append(rmse(f[:n], y[test]))
                lists.append(score_lists(f[n:].reshape(LISTED, -1), truth[listed], seen[listed]))
        except ImportError as error:
            print(f"  {model.__name__} is skipped: {error}", flush=True)
            continue
        seconds, error = (time.process_time() - start) / o.fits, np.mean(errors)
        base = error if model is myfm else base
        ndcg, auc = np.mean(lists, axis=0)
        print(f"  {model.__name__:9} RMSE {error:.4f}, {error / base:.4f} of myFM, {seconds:.1f} "
              f"CPU s, NDCG@10 {ndcg:.4f}, AUC {auc:.4f}", flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tables = ("random", "cold", "side")
    parser.add_argument("--tables", nargs="+", choices=tables, default=tables)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--fits", type=int, default=1, help="random states of each model")
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    for table, seed in product(o.tables, o.seeds):
        compare(table, seed, o)


if __name__ == "__main__":
    main()
