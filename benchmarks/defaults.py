"""The quality of an untuned fit: 83 different tables, scored on rows that no choice has seen.

Errors are RMSE / sd(y) on test rows: of the mean, of RidgeCV, of RidgeCV on all products (where
they fit into memory), of gradient boosting, of the oracle, which has the best rank and penalties
*on the test rows*, and of ours. Ratios are relative to the better of the two ridges, which is also
chosen on the test rows, and to the oracle; errors below FLOOR count as FLOOR. "fits" is our CPU
time divided by that of one fit with the rank, the penalties and the pairs that were chosen.

Tables of scikit-learn with fewer than 500 training rows are split ten times, since a single split
of 50 to 190 test rows changes the ratios by up to 10%. Their line has geometric means over the
splits, and the summary counts it once; the line below it has only the first split.

The peers are slow and do not change, so their errors are kept in --cache, outside the repository.

The summary tells which goals are met: at most 1.00 x the better ridge in the geometric mean and
1.05 x on any table, 1.03 x the oracle, never worse than the mean, and the CPU time of three fits,
each with the tables that miss it. Lines and summary are Markdown, to be pasted into the docs.

Run: OMP_NUM_THREADS=1 python benchmarks/defaults.py [--fast] [--only NAME] [--ours auto,cv]
     [--timed] [--jobs 16]
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
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from quadlin import SecondOrderRegressor, SecondOrderRegressorCV
from quadlin.core.block import Block
from quadlin.core.chunks import MemorySource
from quadlin.core.model import predict
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.fits.grid import Path as Fits
from quadlin.solve.lowrank.types import Options

TEST_ROWS = 3000
FLOOR = 1e-3  # an error this small is no error
PENALTIES = 10.0 ** np.arange(-6, 7.1, 0.5)
ENTRIES, SIDE = 3e7, 2500  # of the table of products, and its smaller side, at most
ORACLE_RANKS = (1, 2, 3, 4, 6, 8, 12, 16)
ORACLE_ENTRIES = 2e6  # of X: above, the oracle's grid is coarse
FEW_ROWS, SPLITS = 500, 10  # of training rows of a bundled table, that is split so many times then
FEW_FEATURES = 25  # up to which one walk finds the products that all candidates need
PEERS = ("mean", "ridge", "products", "boosting", "oracle")
BARS = {"ridges": 1.0, "worst": 1.05, "oracle": 1.03, "mean": 1.0, "fits": 3.0}


# Features: (n, d) from a generator.


def gaussian(rng, n, d):
    return rng.standard_normal((n, d))


def autoregressive(rho):
    def draw(rng, n, d):
        X = rng.standard_normal((n, d))
        for j in range(1, d):
            X[:, j] = rho * X[:, j - 1] + np.sqrt(1 - rho**2) * X[:, j]
        return X

    return draw


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


# Targets: f of standardised features.


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
    d = Z.shape[1]
    i, j = rng.integers(0, d, (2, 4))
    f = Z[:, :3].sum(axis=1) + (Z[:, i] * Z[:, j]) @ np.array([1.0, -1.0, 1.0, 0.7])
    return f


def curved(rng, Z):
    """Squares of some features, no products."""
    return (
        Z[:, 0]
        - 0.7 * Z[:, 1] ** 2
        + 0.5 * Z[:, 2] ** 2
        + Z @ (0.3 * rng.standard_normal(Z.shape[1]))
    )


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


def heavy_noise(rng, n):
    return rng.standard_t(3, n) / np.sqrt(3)


# name, n, d, features, target, ratio of signal to noise (of variances; inf: no noise)
TABLES = [
    ("gauss-k2", 2000, 30, gaussian, second_order(2), 4),
    ("gauss-k3-few", 400, 60, autoregressive(0.4), second_order(3), 4),
    ("gauss-k3-some", 800, 60, autoregressive(0.4), second_order(3), 4),
    ("gauss-k3-many", 2000, 60, autoregressive(0.4), second_order(3), 4),
    ("gauss-k3-all", 10000, 60, autoregressive(0.4), second_order(3), 4),
    ("gauss-k4-wide-few", 600, 100, gaussian, second_order(4), 3),
    ("gauss-k4-wide", 2500, 100, gaussian, second_order(4), 3),
    ("gauss-k5-exact", 1200, 50, gaussian, second_order(5), np.inf),
    ("ar-k2-exact", 900, 40, autoregressive(0.8), second_order(2), np.inf),
    ("binary-k2-exact", 1500, 40, binary, second_order(2), np.inf),
    ("linear-exact", 300, 40, common_causes, second_order(0), np.inf),
    ("full-exact", 600, 12, gaussian, second_order("full"), np.inf),
    ("tiny-linear", 40, 5, gaussian, second_order(0), 2),
    ("tiny-k1", 40, 8, gaussian, second_order(1), 3),
    ("tiny-noise", 45, 10, gaussian, pure_noise, 0),
    ("small-full", 60, 4, heavy_tails, second_order("full"), 5),
    ("small-wide", 60, 40, gaussian, second_order(1), 5),
    ("small-wider", 120, 200, common_causes, second_order(0), 5),
    ("noise-30", 500, 30, gaussian, pure_noise, 0),
    ("noise-200", 600, 200, common_causes, pure_noise, 0),
    ("noise-lognormal", 1000, 20, lognormal, pure_noise, 0),
    ("weak-linear", 800, 50, autoregressive(0.5), second_order(0), 0.1),
    ("weak-k1", 2000, 30, gaussian, second_order(1), 0.1),
    ("weak-k3", 5000, 60, autoregressive(0.4), second_order(3), 0.3),
    ("weak-full", 3000, 25, gaussian, second_order("full"), 0.3),
    ("strong-full", 1500, 30, gaussian, second_order("full"), 30),
    ("strong-full-few", 300, 30, gaussian, second_order("full"), 30),
    ("strong-k2", 300, 20, gaussian, second_order(2), 100),
    ("full-decaying", 2000, 40, autoregressive(0.5), second_order("full", decay=0.8), 5),
    ("k8", 6000, 80, gaussian, second_order(8), 2),
    ("k16-decaying", 8000, 100, gaussian, second_order(16, decay=0.85), 3),
    ("mostly-quadratic", 1500, 40, uniform, second_order(2, share=0.95), 2),
    ("hardly-quadratic", 1500, 40, gaussian, second_order(2, share=0.05), 2),
    ("sparse-linear", 500, 100, gaussian, second_order(1, share=0.3, density=0.05), 3),
    ("correlated-k3", 3000, 50, autoregressive(0.9), second_order(3), 5),
    ("causes-k2", 1000, 60, common_causes, second_order(2), 5),
    ("causes-k2-few", 250, 60, common_causes, second_order(2), 5),
    ("lognormal-k2", 2000, 20, lognormal, second_order(2), 3),
    ("lognormal-linear", 300, 30, lognormal, second_order(0), 3),
    ("lognormal-wide", 1500, 120, lognormal, second_order(1), 5),
    ("t3-k2", 2000, 30, heavy_tails, second_order(2), 4),
    ("t3-linear", 400, 30, heavy_tails, second_order(0), 2),
    ("t3-heavy-noise", 1500, 25, heavy_tails, second_order(1), 1),
    ("binary-k2", 2500, 40, binary, second_order(2), 3),
    ("binary-wide", 1000, 150, binary, second_order(1), 3),
    ("levels-linear", 800, 60, levels, second_order(0), 2),
    ("levels-k2", 4000, 60, levels, second_order(2), 3),
    ("levels-k2-few", 700, 96, levels, second_order(2), 4),
    ("levels-many", 20000, 300, levels, second_order(3), 2),
    ("mixed-k2", 2500, 60, mixed, second_order(2), 4),
    ("mixed-linear", 500, 60, mixed, second_order(0), 2),
    ("mixed-saturating", 3000, 48, mixed, saturating, 8),
    ("extreme-linear", 2300, 40, extreme_rows, second_order(0), 5),
    ("extreme-k1", 2300, 30, extreme_rows, second_order(1), 5),
    ("extreme-tanh", 2300, 60, extreme_rows, saturating, 5),
    ("cubes-steps", 1500, 25, extreme_entries, steps, 5),
    ("walk-linear", 600, 20, walk, second_order(0), 3),
    ("walk-k2", 1500, 20, walk, second_order(2), 5),
    ("walk-waves", 1000, 12, walk, waves, 5),
    ("redundant-k2", 1500, 40, redundant, second_order(2), 4),
    ("redundant-few", 150, 40, redundant, second_order(1), 4),
    ("redundant-exact", 1500, 30, redundant, second_order(2), np.inf),
    ("counts-k2", 3000, 25, counts, second_order(2), 3),
    ("counts-saturating", 2000, 15, counts, saturating, 5),
    ("pairs-40", 1000, 40, gaussian, few_pairs, 4),
    ("pairs-100", 2000, 100, gaussian, few_pairs, 4),
    ("curved-20", 500, 20, autoregressive(0.5), curved, 4),
    ("curved-60", 1000, 60, gaussian, curved, 4),
    ("waves-10", 1500, 10, uniform, waves, 10),
    ("steps-8", 3000, 8, gaussian, steps, 10),
    ("three-10", 2000, 10, gaussian, products_of_three, 5),
    ("three-wide", 1500, 50, autoregressive(0.3), products_of_three, 5),
    ("long-k2", 50000, 20, autoregressive(0.5), second_order(2), 2),
    ("long-wide-k4", 30000, 100, autoregressive(0.3), second_order(4), 1),
    ("long-lognormal", 50000, 10, lognormal, waves, 5),
    ("three-features", 200, 3, uniform, second_order("full"), 1),
    ("wide-k2", 3000, 300, gaussian, second_order(2), 4),
    ("wide-linear", 500, 300, autoregressive(0.7), second_order(0), 3),
]  # fmt: skip
BUNDLED = {
    "diabetes": load_diabetes,
    "digits": load_digits,
    "breast-cancer": load_breast_cancer,
    "wine": load_wine,
    "iris": load_iris,
}
FAST = [
    "gauss-k3-few",
    "gauss-k3-many",
    "gauss-k5-exact",
    "tiny-k1",
    "noise-30",
    "strong-full",
    "full-decaying",
    "lognormal-k2",
    "levels-k2-few",
    "extreme-tanh",
    "walk-waves",
    "diabetes",
]


def generated(name, n, d, features, target, ratio):
    """Return training and test rows; a few columns are in other units."""
    rng = np.random.default_rng(list(name.encode()))
    rows = n + TEST_ROWS
    X = features(rng, rows, d)
    sd = X.std(axis=0)
    f = target(rng, (X - X.mean(axis=0)) / np.where(sd > 0, sd, 1))
    noise = heavy_noise(rng, rows) if "heavy-noise" in name else rng.standard_normal(rows)
    y = noise if ratio == 0 else f + f.std() / np.sqrt(ratio) * noise
    X = X * 10 ** rng.uniform(-2, 2, d) + rng.uniform(-1, 1, d)
    # Rows in the order of time or of a feature are tested on rows of all times.
    order = rng.permutation(rows)
    train, test = np.sort(order[:n]), order[n:]
    return X[train], y[train], X[test], y[test]


def bundled(load, split=0):
    X, y = load(return_X_y=True)
    order = np.random.default_rng(split).permutation(len(y))
    train, test = np.sort(order[: 2 * len(y) // 3]), order[2 * len(y) // 3 :]
    return X[train], y[train].astype(float), X[test], y[test].astype(float)


def tables(names):
    """Yield the name and the rows of each table, of bundled ones those of the first split."""
    for name, *recipe in TABLES:
        if not names or name in names:
            yield name, generated(name, *recipe)
    for name, load in BUNDLED.items():
        if not names or name in names:
            yield name, bundled(load)


def splits(name):
    """Return the rows of all splits of a table."""
    ((_, rows),) = tables([name])
    if name not in BUNDLED or len(rows[1]) >= FEW_ROWS:
        return [rows]
    return [rows, *(bundled(BUNDLED[name], split) for split in range(1, SPLITS))]


# Peers: the predictions of the test rows.


def fitted_ridge(X, y):
    return make_pipeline(StandardScaler(), RidgeCV(PENALTIES)).fit(X, y)


def fitted_products(X, y):
    n, d = X.shape
    p = d * (d + 3) // 2
    if n * p > ENTRIES or min(n, p) > SIDE:
        return None
    steps = StandardScaler(), PolynomialFeatures(2, include_bias=False), StandardScaler()
    return make_pipeline(*steps, RidgeCV(PENALTIES)).fit(X, y)


def ridge(X, y, X_test):
    return fitted_ridge(X, y).predict(X_test)


def products(X, y, X_test):
    model = fitted_products(X, y)
    return None if model is None else model.predict(X_test)


def boosting(X, y, X_test):
    return HistGradientBoostingRegressor(random_state=0).fit(X, y).predict(X_test)


def oracle_error(X, y, X_test, y_test):
    """Return the best error on the test rows, and the rank and penalties that have it."""
    n, d = X.shape
    source = Rows.of(MemorySource(X, y))
    moments = source.reduce(survey)
    units = UnitsMaker("auto", True, X.dtype, [str(j) for j in range(d)])(
        moments.features, moments.target
    )
    options = Options(rank=1, max_iter=30, tol=1e-6)
    fits = Fits(source, units, options, n, float(n), 0)
    block = Block(X_test, units)
    scores = {}

    def score(rank, alphas):
        for alpha in alphas:
            f = units.target.mean + units.target.scale * predict(fits.model(rank, alpha), block)
            scores[rank, alpha] = relative_error(y_test, f)

    def best(rank=None):
        return min((p for p in scores if rank is None or p[0] == rank), key=scores.get)

    score(0, [(a, a) for a in 10.0 ** np.arange(-5, 7.1, 0.5)])
    firsts = {best(0)[1][0]}
    seconds = n * 10.0 ** np.arange(-6, 3.1)
    if fits.exact(False) is not None:
        score(d, [(a, b) for a in n * 10.0 ** np.arange(-6, 2.1) for b in seconds])
        _, (a, b) = best(d)
        score(d, [(a * f, b * g) for f in (0.3, 1, 3) for g in (0.3, 1, 3)])
        firsts.add(best(d)[1][0])
    most = max(1, 2 * n // d)
    ranks = [k for k in ORACLE_RANKS if k < d and k <= most]
    coarse = X.size > ORACLE_ENTRIES
    grid = n * 10.0 ** (np.arange(0, -5, -2.0) if coarse else np.arange(0.5, -6, -1))
    for k in reversed(ranks):
        score(k, [(a, b) for a in sorted(firsts) for b in grid])
    rank, (a, b) = best()
    if 0 < rank < d:
        score(rank, [(a * f, b * g) for f in (0.1, 1, 10) for g in (0.3, 1, 3)])
    return scores[best()], best()


def relative_error(y, f):
    return float(np.sqrt(np.mean((y - f) ** 2)) / y.std())


def peers(name, rows, cache):
    """Return the errors of all peers, from the cache if it has them."""
    X, y, X_test, y_test = rows
    key = hashlib.blake2b(X.tobytes() + y.tobytes() + y_test.tobytes(), digest_size=8).hexdigest()
    file = cache / f"{name}-{key}.json"
    errors = json.loads(file.read_text()) if file.exists() else {}
    ways = {"ridge": ridge, "products": products, "boosting": boosting}
    for peer, way in ways.items():
        if peer not in errors:
            f = way(X, y, X_test)
            errors[peer] = None if f is None else relative_error(y_test, f)
    errors["mean"] = relative_error(y_test, np.full(len(y_test), y.mean()))
    if "oracle" not in errors:
        error, (rank, alpha) = oracle_error(*rows)
        errors |= {
            "oracle": error,
            "oracle_rank": int(rank),
            "oracle_alpha": [float(a) for a in alpha],
        }
    cache.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(errors))
    return errors


# Ours: the predictions of the test rows, the rank and the penalties chosen, CPU seconds.


def timed(fit):
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit()
    return model, time.process_time() - start


def estimator(make):
    def way(X, y, X_test):
        model, seconds = timed(lambda: make().fit(X, y))
        chosen = getattr(model, "rank_", 0), getattr(model, "alpha_", (0.0, 0.0))
        report = getattr(model, "pairs_", None)
        pairs = [] if report is None else [(p.first, p.second) for p in report.pairs]
        return model.predict(X_test), *chosen, pairs, seconds

    return way


WAYS = {
    "default": estimator(SecondOrderRegressor),
    "rank 5": estimator(lambda: SecondOrderRegressor(5, alpha=0.0)),
    "cv": estimator(SecondOrderRegressorCV),
}


def one_fit(X, y, rank, alpha, pairs):
    """Return the CPU seconds of a fit with given rank, penalties and pairs."""
    return timed(lambda: SecondOrderRegressor(rank, alpha=alpha, pairs=pairs or None).fit(X, y))[1]


def scored(job):
    """Return the lines of a table, and by way our error over those of others and our CPU time."""
    name, ways, cache, timed_too = job
    rows = splits(name)
    each = [measured(name, split, ways, cache, timed_too) for split in rows]
    d, together = rows[0][0].shape[1], averaged(each)
    ratios = {way: (name, d, *together["ways"][way]["ratios"]) for way in ways}
    lines = [line(name, rows[0][0].shape, together)]
    if len(rows) > 1:
        lines.append(line(f"{name}, first split", rows[0][0].shape, each[0]))
    return "\n".join(lines), ratios


def measured(name, rows, ways, cache, timed_too):
    """Return the errors of peers and of our ways on one split, with the ratios of ours."""
    errors, (X, y, X_test, y_test) = peers(name, rows, cache), rows
    better = min(errors[p] for p in ("ridge", "products") if errors[p] is not None)
    ours = {}
    for way in ways:
        f, *chosen, seconds = WAYS[way](X, y, X_test)
        error = relative_error(y_test, f)
        floored = [max(e, FLOOR) for e in (error, better, errors["oracle"], errors["mean"])]
        fits = seconds / one_fit(X, y, *chosen) if timed_too else np.nan
        ratios = [*(floored[0] / e for e in floored[1:]), fits]
        ours[way] = {"error": error, "rank": chosen[0], "seconds": seconds, "ratios": ratios}
    return {"peers": errors, "ways": ours}


def averaged(each):
    """Return geometric means over splits; ranks are the medians."""

    def average(values):
        return None if None in values else float(np.exp(np.mean(np.log(values))))

    first = each[0]
    errors = {p: average([split["peers"][p] for split in each]) for p in PEERS}
    errors["oracle_rank"] = int(np.median([split["peers"]["oracle_rank"] for split in each]))
    ways = {}
    for way in first["ways"]:
        ours = [split["ways"][way] for split in each]
        ratios = [average(values) for values in zip(*(o["ratios"] for o in ours), strict=True)]
        ways[way] = {key: average([o[key] for o in ours]) for key in ("error", "seconds")}
        ways[way] |= {"rank": int(np.median([o["rank"] for o in ours])), "ratios": ratios}
    return {"peers": errors, "ways": ways}


def line(name, shape, result):
    """Return a line of the table."""
    errors = result["peers"]
    cells = [name, *map(str, shape)]
    cells += ["–" if errors[p] is None else f"{errors[p]:.3f}" for p in PEERS]
    cells.append(str(errors["oracle_rank"]))
    for ours in result["ways"].values():
        a, b, _, fits = ours["ratios"]
        cells += [f"{ours['error']:.4f}", str(ours["rank"]), f"{a:.3f}", f"{b:.3f}"]
        cells += [f"{ours['seconds']:.2f}", "–" if np.isnan(fits) else f"{fits:.1f}"]
    return f"| {' | '.join(cells)} |"


def header(ways):
    """Return the first two lines of the table."""
    names = ["table", "n", "d", "mean", "ridge", "products", "boosting", "oracle", "its rank"]
    for way in ways:
        names += [way, "rank", "/ better ridge", "/ oracle", "CPU s", "fits"]
    return f"| {' | '.join(names)} |\n|---|{'---:|' * (len(names) - 1)}"


def summary(way, ratios):
    """Return the figures of a method and the goals, as a list in Markdown."""
    names, d = [r[0] for r in ratios], np.array([r[1] for r in ratios])
    ridges, oracle, mean, fits = np.array([r[2:] for r in ratios], dtype=float).T

    def missed(values, bar):
        """Return how many tables miss a goal, and which, with the worst first."""
        worst = [m for m in np.argsort(-values) if values[m] > bar]
        shown = ", ".join(f"{names[m]} {values[m]:.3f}" for m in worst[:8])
        return f"{len(worst)} tables above {bar:g} x" + (f" ({shown})" if worst else "")

    def average(values):
        return np.exp(np.log(values).mean())

    lines = [
        f"**{way}**, {len(names)} tables:\n",
        f"- over the better ridge: geometric mean {average(ridges):.3f} (bar {BARS['ridges']:.2f})"
        f", {missed(ridges, BARS['worst'])} (bar 0)",
        f"- over the oracle: geometric mean {average(oracle):.3f} (bar {BARS['oracle']}), "
        f"{missed(oracle, 1.1)}",
        f"- over the mean: {missed(mean, BARS['mean'])} (bar 0)",
    ]
    if np.isfinite(fits).any():
        for few, which in ((d <= FEW_FEATURES, "up to"), (d > FEW_FEATURES, "more than")):
            if few.any():
                low, middle, high = np.nanpercentile(fits[few], [25, 50, 75])
                lines.append(
                    f"- CPU over a fit that is told, {which} {FEW_FEATURES} features: median "
                    f"{middle:.1f} (bar {BARS['fits']:g}), quartiles {low:.1f} and {high:.1f}, at "
                    f"most {np.nanmax(fits[few]):.1f}"
                )
        lines.append(
            f"- CPU over a fit that is told, all: median {np.nanmedian(fits):.1f}, "
            f"{np.mean(fits > BARS['fits']):.0%} of the tables above {BARS['fits']:g}"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="twelve tables")
    parser.add_argument("--only", default="", help="names of tables, with commas")
    parser.add_argument("--ours", default="default", help=f"of {', '.join(WAYS)}, with commas")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "quadlin-defaults"
    )
    parser.add_argument("--peers", action="store_true", help="fill the cache only")
    parser.add_argument("--timed", action="store_true", help="time one fit as well")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    every = [name for name, *_ in TABLES] + list(BUNDLED)
    names = arguments.only.split(",") if arguments.only else FAST if arguments.fast else every
    ways = [] if arguments.peers else arguments.ours.split(",")
    print(header(ways))
    jobs = [(name, ways, arguments.cache, arguments.timed) for name in every if name in names]
    ratios = {way: [] for way in ways}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for line, each in pool.map(scored, jobs):
            print(line, flush=True)
            for way, values in each.items():
                ratios[way].append(values)
    for way, each in ratios.items():
        print("\n" + summary(way, each))


if __name__ == "__main__":
    main()
