"""How often 95% intervals cover the truth, in settings where that is promised and where not.

    OMP_NUM_THREADS=1 python benchmarks/coverage.py [--sets 100] [--only ridge] [--jobs 16]

For each setting, over many data sets: the share of entries of w, of coefficients of x_i·x_j, of the
noiseless f at new rows and of new observations y within t standard errors, t the 97.5% quantile of
Student's distribution for the rows that are left. A cell is marked with ! where the documentation
promises 95% and the share, less two of its standard errors, lies outside of 93–97%; cells in
brackets are not promised.
"""

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations_with_replacement
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from quadlin import SecondOrderClassifier, SecondOrderRegressor

QUANTITIES = ("w", "M", "f", "y")
LINKED = ("labels", "counts", "more counts")  # f are log-odds, or logarithms of means
D, NEW, BAR = 5, 200, (0.93, 0.97)


class Setting(NamedTuple):
    """How rows are drawn, and which intervals are promised to cover the truth."""

    name: str
    promised: str  # of QUANTITIES
    options: dict | None = None  # of the estimator
    rows: int = 500
    features: str = "normal"
    strength: float = 1.0  # of M
    noise: str = "normal"
    measured: str = "wMfy"
    weighted: str = ""
    dtype: type = np.float64


AUTO = {"rank": "auto", "alpha": "auto"}
SETTINGS = [
    Setting("normal features", "wMfy"),
    Setting("skewed features", "wMfy", features="skewed"),
    Setting("0/1 features", "wMfy", features="binary"),
    Setting("correlated features", "wMfy", features="correlated"),
    Setting("one-hot fields", "fy", features="levels", measured="fy"),
    Setting("ten rows per parameter", "wMfy", rows=150),
    Setting("four rows per parameter", "wMfy", rows=60),
    Setting("float32", "wMfy", dtype=np.float32),
    Setting("precisions as weights, of mean 1", "wMf", weighted="mean 1", measured="wMf"),
    Setting('precisions as weights, "robust"', "wMf", {"uncertainty": "robust"},
            weighted="any", measured="wMf"),
    Setting('alpha="auto"', "wMfy", {"alpha": "auto"}),
    Setting('rank="auto", alpha="auto", M strong', "wMfy", AUTO),
    Setting("unequal noise", "", noise="unequal"),
    Setting('unequal noise, "robust"', "wMf", {"uncertainty": "robust"}, noise="unequal"),
    Setting('loss="huber", normal noise', "wMfy", {"loss": "huber"}),
    Setting('loss="huber", t(3) noise', "wMfy", {"loss": "huber"}, noise="t"),
    Setting("labels", "wMf", noise="labels", rows=1000, measured="wMf"),
    Setting('labels, alpha="auto"', "wf", {"alpha": "auto"}, noise="labels", rows=1000,
            measured="wMf"),
    Setting('labels, rank="auto", alpha="auto"', "", AUTO, noise="labels", rows=1000,
            measured="wMf"),
    Setting("counts", "wf", noise="counts", measured="wMf"),
    Setting("counts that vary twice as much", "", noise="more counts", measured="wMf"),
    Setting('counts that vary twice as much, "robust"', "wMf", {"uncertainty": "robust"},
            noise="more counts", measured="wMf"),
    Setting("alpha=100", "", {"alpha": 100.0}),
    Setting('rank="auto", alpha="auto", M weak', "", AUTO, strength=0.1),
    Setting("rank 2, M = 0", "", strength=0.0),
    Setting("rank 3 where the truth has 2", "", {"rank": 3}),
    *(Setting(f"rank 0, {n} rows", "wfy", {"rank": 0}, n, strength=0.0, measured="wfy")
      for n in (7, 8, 12, 20)),
    *(Setting(f'rank 0, alpha="auto", {n} rows', "wfy" * (n > 12), {"rank": 0, "alpha": "auto"}, n,
              strength=0.0, measured="wfy") for n in (8, 12, 20, 40)),
]  # fmt: skip


def columns(kind, n, rng):
    Z = rng.standard_normal((n, D))
    if kind == "skewed":
        return 0.5 * rng.gamma(4.0, size=(n, D)) - 1
    if kind == "binary":
        return (Z > [-0.5, -0.2, 0.0, 0.2, 0.5]).astype(float)
    if kind == "correlated":
        return 0.7 * Z + 0.7 * Z[:, :1]
    if kind == "levels":
        first, second = rng.integers(0, 3, n), rng.integers(0, 2, n)
        return np.column_stack([np.eye(3)[first], np.eye(2)[second], Z[:, :2]])
    return Z + 0.3


def coverage(number, seed):
    warnings.simplefilter("ignore")
    setting, rng = SETTINGS[number], np.random.default_rng([seed, number])
    X = columns(setting.features, setting.rows + NEW, rng)
    d = X.shape[1]
    U, w = np.linalg.qr(rng.standard_normal((d, 2)))[0], rng.standard_normal(d)
    M = setting.strength * U @ np.diag([1.0, -1.0]) @ U.T
    diagonal = setting.features not in ("binary", "levels")
    if not diagonal:  # squares of 0/1 columns are the columns themselves
        M = 4 * (M - np.diag(np.where(np.arange(d) < D, np.diag(M), 0)))
    if setting.noise in LINKED:
        w, M = 0.4 * w, 0.4 * M
    f = 1 + X @ w + np.sum((X @ M) * X, axis=1)
    size, weight = np.ones(len(X)), None
    if setting.noise == "unequal":
        size = 0.3 + 0.7 * np.abs(X[:, 0])
    if setting.weighted:
        weight = rng.uniform(0.2, 5.0, len(X))
        size = 1 / np.sqrt(weight)
        weight = weight / weight[: setting.rows].mean() if setting.weighted == "mean 1" else weight
    noise = rng.standard_t(3, len(X)) if setting.noise == "t" else rng.standard_normal(len(X))
    y = f + size * noise
    if setting.noise == "labels":
        y = (rng.uniform(size=len(X)) < 1 / (1 + np.exp(-f))).astype(float)
    elif setting.noise == "counts":
        y = rng.poisson(np.exp(f)).astype(float)
    elif setting.noise == "more counts":  # a variance of twice the mean
        y = rng.negative_binomial(np.exp(f), 0.5).astype(float)
    seen, new = slice(0, setting.rows), slice(setting.rows, None)
    X = X.astype(setting.dtype)
    options = {"rank": 2, "alpha": 0.0, "uncertainty": True, "random_state": 0}
    options |= setting.options or {}
    kind = SecondOrderClassifier if setting.noise == "labels" else SecondOrderRegressor
    model = kind(**options, **({"loss": "poisson"} if "counts" in setting.noise else {}))
    weight = None if weight is None else weight[seen]
    model.fit(X[seen], y[seen].astype(setting.dtype), sample_weight=weight)
    pairs = [p for p in combinations_with_replacement(range(d), 2) if diagonal or p[0] != p[1]]
    quantile, sigma = norm.ppf(0.975), 0.0
    if setting.noise == "labels":
        guess, spread = model.decision_function(X[new], return_std=True)
    else:
        guess, spread = model.predict(X[new], return_std=True)
        if setting.noise in LINKED:  # from the mean, whose noise has its own variance, to log-means
            guess, spread = np.log(guess), np.sqrt(np.maximum(spread**2 - guess, 0.0)) / guess
        else:  # Student's quantile, since the noise is estimated
            low, high = model.predict_interval(X[new])
            quantile, sigma = np.median((high - low) / (2 * spread)), model.noise_
    both = {
        "w": (model.coef_ - w, model.coef_std_),
        "M": (
            np.array([model.interaction(i, j) - (1 + (i != j)) * M[i, j] for i, j in pairs]),
            np.array([model.interaction_std(i, j) for i, j in pairs]),
        ),
        "f": (guess - f[new], np.sqrt(np.maximum(spread**2 - sigma**2, 0.0))),
        "y": (guess - y[new], spread),
    }
    return [
        np.mean(np.abs(error) <= quantile * std) if name in setting.measured else np.nan
        for name, (error, std) in both.items()
    ]


def cell(setting, name, shares):
    if name not in setting.measured:
        return "–"
    mean, doubt = shares.mean(), 2 * shares.std() / np.sqrt(len(shares))
    if name not in setting.promised:
        return f"({mean:.1%})"
    good = mean + doubt >= BAR[0] and mean - doubt <= BAR[1]
    return f"{mean:.1%}{'' if good else ' !'}"


def settings(o):
    two_errors = 2 * np.sqrt(0.05 * 0.95 / o.sets / D)
    print(f"{o.sets} data sets per setting; two standard errors of a share are {two_errors:.1%}\n")
    print("| setting | promised | w | M | f | y |\n|---|---|---|---|---|---|", flush=True)
    chosen = [i for i, setting in enumerate(SETTINGS) if o.only in setting.name]
    with ProcessPoolExecutor(o.jobs, get_context("spawn")) as pool:
        # All settings are handed out at once, so that no process waits at the end of one.
        waiting = [[pool.submit(coverage, i, seed) for seed in range(o.sets)] for i in chosen]
        for i, futures in zip(chosen, waiting, strict=True):
            setting = SETTINGS[i]
            shares = np.array([future.result() for future in futures]).T
            cells = [cell(setting, name, row) for name, row in zip(QUANTITIES, shares, strict=True)]
            promised = ", ".join(setting.promised) or "nothing"
            print(f"| {setting.name} | {promised} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=100, help="data sets per setting")
    parser.add_argument("--only", default="", help="settings whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    settings(o)


if __name__ == "__main__":
    main()
