"""Top-10 lists from ratings: RMSE, AUC of likes and NDCG@10, compared with myFM.

943 users (age and job) rate 1,682 films (genres, several per film) 100,000 times, popular films
more often; biases and factors depend on these columns, the noise is .85. A random tenth of the
ratings is for testing. Likes are ratings of 4 and above. The lists are of films that the user has
not rated yet, for 100 users: NDCG@10 compares the true expected ratings of the list (gain
2^rating − 1) with those of the best one, and AUC of new pairs tells true likes from all others.

    python benchmarks/recommend.py
    python benchmarks/recommend.py --seeds 0 --draws 300

prints a line per model, and CPU seconds of the fit and of the lists. myFM gets 200 sweeps, of
which it keeps 190, and the same columns; it is skipped if it is not installed.
"""

import argparse
import time
import warnings
from contextlib import redirect_stderr
from io import StringIO

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from quadlin import FactorizationMachineRegressor

USERS, FILMS, JOBS, GENRES = 943, 1682, 21, 18
ROWS, RANK, NOISE = 100_000, 6, 0.85
LISTED, TOP, LIKE = 100, 10, 4.0
SWEEPS = 200


def problem(seed, rows):
    """Return users, films, the ratings, which of them are for testing, and the truth (U, F)."""
    rng = np.random.default_rng(seed)
    age, job = rng.standard_normal(USERS), rng.integers(JOBS, size=USERS)
    genres = rng.random((FILMS, GENRES)) < 0.12
    bias = 0.42 * rng.standard_normal(USERS) + 0.1 * age + 0.1 * rng.standard_normal(JOBS)[job]
    liked = 0.5 * rng.standard_normal(FILMS) + genres @ (0.2 * rng.standard_normal(GENRES))
    taste = rng.standard_normal((USERS, RANK)) + 0.3 * np.outer(age, rng.standard_normal(RANK))
    taste += 0.4 * rng.standard_normal((JOBS, RANK))[job]
    style = rng.standard_normal((FILMS, RANK))
    style += genres @ (0.5 * rng.standard_normal((GENRES, RANK)))
    size = 0.8 ** np.arange(RANK)
    truth = 3.5 + bias[:, None] + liked + (taste * 0.5 * np.sqrt(size / size.sum())) @ style.T
    index = []
    for count, power in ((USERS, 0.7), (FILMS, 1.0)):
        p = 1 / (20 + np.arange(count)) ** power
        index.append(rng.permutation(count)[rng.choice(count, rows, p=p / p.sum())])
    users = pd.DataFrame({"user": [f"u{u}" for u in range(USERS)], "age": age})
    users["job"] = [f"j{j}" for j in job]
    films = pd.DataFrame({"film": [f"f{f}" for f in range(FILMS)]})
    films["genres"] = ["|".join(f"g{g}" for g in np.flatnonzero(row)) for row in genres]
    table = users.iloc[index[0]].reset_index(drop=True)
    table = table.join(films.iloc[index[1]].reset_index(drop=True))
    table["rating"] = truth[index[0], index[1]] + NOISE * rng.standard_normal(rows)
    return users, films, table, rng.random(rows) < 0.1, truth


class MyFM:
    """myFM on the columns that quadlin's encoder makes, as an estimator that recommends."""

    def __init__(self, encoder):
        from myfm import MyFMRegressor

        self.encoder, self.model = encoder, MyFMRegressor(rank=8, random_seed=0)

    def fit(self, rows, y):
        X, _ = self.encoder.encode(rows)
        widths = [len(self.encoder.only([name])[1]) for name in self.encoder.input_names]
        options = {"n_iter": SWEEPS, "n_kept_samples": SWEEPS - 10, "group_shapes": widths}
        with redirect_stderr(StringIO()):  # its progress bar
            self.model.fit(X.astype(np.float64), np.asarray(y), **options)
        return self

    def predict(self, rows):
        return self.model.predict(self.encoder.encode(rows)[0].astype(np.float64))

    def scores(self, users, films):
        columns = list(self.encoder.input_names)
        pairs = users.merge(films, how="cross")[columns]
        return self.predict(pairs).reshape(len(users), len(films))


def scores(machine, users, films):
    """Return the predictions of all pairs (U, F), from the factors of `recommend`."""
    if isinstance(machine, MyFM):
        return machine.scores(users, films)
    best = machine.recommend(users, films, len(films))
    place = {film: i for i, film in enumerate(films.film)}
    F = np.empty((len(users), len(films)))
    F[np.arange(len(users)).repeat(len(films)), best.film.map(place)] = best.prediction
    return F


def measures(F, truth, seen):
    """Return NDCG@10 and AUC of pairs that were not rated, given scores and truth (U, F)."""
    discount = 1 / np.log2(2 + np.arange(TOP))
    gains, aucs = [], []
    for f, t, taken in zip(F, truth, seen, strict=True):
        f, t = f[~taken], t[~taken]
        gain = 2**t - 1
        best = np.sort(gain)[::-1][:TOP] @ discount
        gains.append(gain[np.argsort(-f)[:TOP]] @ discount / best)
        if 0 < np.sum(t >= LIKE) < len(t):
            aucs.append(roc_auc_score(t >= LIKE, f))
    return float(np.mean(gains)), float(np.mean(aucs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--draws", type=int, default=200)
    options = parser.parse_args()
    for seed in options.seeds:
        users, films, table, test, truth = problem(seed, options.rows)
        train, held = table[~test], table[test]
        columns = [name for name in table.columns if name != "rating"]
        listed = np.random.default_rng(seed).permutation(USERS)[:LISTED]
        seen = np.zeros((USERS, FILMS), dtype=bool)
        at = {u: i for i, u in enumerate(users.user)}, {f: i for i, f in enumerate(films.film)}
        seen[train.user.map(at[0]), train.film.map(at[1])] = True
        print(f"seed {seed}: {len(train)} ratings, {len(held)} to test", flush=True)
        head = ("model", "RMSE", "AUC", "NDCG@10", "AUC of new pairs", "fit s", "lists s")
        print("  {:28} {:>7} {:>7} {:>8} {:>17} {:>7} {:>8}".format(*head), flush=True)
        default = FactorizationMachineRegressor(multi_hot=["genres"], random_state=0)
        drawn = FactorizationMachineRegressor(
            multi_hot=["genres"], draws=options.draws, random_state=0
        )
        models = [("default", default), (f"draws={options.draws}", drawn), ("myFM", None)]
        for name, machine in models:
            try:
                machine = MyFM(default.encoder_) if machine is None else machine
            except ImportError as error:
                print(f"  {name} is skipped: {error}", flush=True)
                continue
            start = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                machine.fit(train[columns], train.rating)
                fitted = time.process_time()
                F = scores(machine, users.iloc[listed], films)
                end = time.process_time()
                f = np.asarray(machine.predict(held[columns]))
            rmse = float(np.sqrt(np.mean((f - held.rating) ** 2)))
            auc = float(roc_auc_score(held.rating >= LIKE, f))
            ndcg, new = measures(F, truth[listed], seen[listed])
            print(
                f"  {name:28} {rmse:7.4f} {auc:7.4f} {ndcg:8.4f} {new:17.4f} "
                f"{fitted - start:7.1f} {end - fitted:8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
