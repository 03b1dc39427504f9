"""How often the fit finds the exact model, and in how many passes.

Each line is a case of d = 200, k = 5, M of both signs, w and b unknown, no noise and nothing tuned.
Exact means a test NMSE of at most 1e-8 (1e-4 for the hard case: rare levels cannot be learned
exactly). Run: python benchmarks/recovery.py [--seeds 20] [--only gaussian] [--d 200 --k 5]
"""

import argparse
import time
import warnings

import numpy as np

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom, nmse

TEST = 2000


def drawn(kind, parameter=None, signed=True):
    def draw(n, d, k, seed):
        data = make_second_order(
            n,
            d,
            rank=k,
            distribution=kind,
            parameter=parameter,
            signed=signed,
            n_test=TEST,
            random_state=seed,
        )
        return data.X, data.y, data.X_test, data.y_test

    return draw


def target(X, rng, k, values=None):
    d = X.shape[1]
    Q = np.linalg.qr(rng.standard_normal((d, k)))[0]
    s = np.where(np.arange(k) % 2, -1.0, 1.0) * (np.ones(k) if values is None else values)
    return 1 + X @ rng.standard_normal(d) / np.sqrt(d) + ((X @ Q) ** 2) @ s


def ill_conditioned_features(n, d, k, seed):
    """Gaussian rows whose covariance has condition number 1e4."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((d, d)))[0]
    X = rng.standard_normal((n + TEST, d)) * np.logspace(0, -2, d) @ V.T
    return split(X, target(X, rng, k), n)


def ill_conditioned_matrix(n, d, k, seed):
    """Gaussian rows, M with eigenvalues from 1 to 1/20."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n + TEST, d))
    return split(X, target(X, rng, k, np.logspace(0, -np.log10(20), k)), n)


def hard_case(n, d, k, seed):
    """10 one-hot categoricals of 8 levels beside 40 correlated columns, half log-normal."""
    rng = np.random.default_rng(seed)
    rows = n + TEST
    levels = [rng.choice(8, rows, p=rng.dirichlet(np.ones(8))) for _ in range(10)]
    one_hot = np.column_stack([np.eye(8)[level] for level in levels])
    A = rng.standard_normal((40, 40)) / np.sqrt(40)
    numeric = rng.standard_normal((rows, 40)) @ A
    numeric[:, ::2] = np.exp(numeric[:, ::2])
    X = np.column_stack([one_hot, numeric])
    return split(X, target(X, rng, k), n)


def seen_levels(n, d, k, seed):
    """The hard case, tested on rows whose levels were all seen at least 20 times."""
    X, y, X_test, y_test = hard_case(n, d, k, seed)
    rare = X[:, :80].sum(axis=0) < 20
    keep = ~np.any(X_test[:, :80][:, rare] > 0, axis=1)
    return X, y, X_test[keep], y_test[keep]


def split(X, y, n):
    return X[:n], y[:n], X[n:], y[n:]


# name, draw, rows as (multiple, of what), d and k where they are not the usual, bar
CASES = [
    ("Gaussian", drawn("gaussian"), (1.6, "dof"), {}, 1e-8),
    ("truncated", drawn("truncated"), (1.6, "dof"), {}, 1e-8),
    ("mixed", drawn("mixed"), (1.6, "dof"), {}, 1e-8),
    ("Gaussian", drawn("gaussian"), (4, "kd"), {}, 1e-8),
    ("truncated", drawn("truncated"), (4, "kd"), {}, 1e-8),
    ("mixed", drawn("mixed"), (4, "kd"), {}, 1e-8),
    ("Bernoulli(.1)", drawn("bernoulli"), (2.5, "dof"), {}, 1e-8),
    ("Bernoulli(.1), M > 0", drawn("bernoulli", signed=False), (2.5, "dof"), {}, 1e-8),
    ("AR(1) .9", drawn("ar1", 0.9), (4, "kd"), {}, 1e-8),
    ("covariance of condition 1e4", ill_conditioned_features, (4, "kd"), {}, 1e-8),
    ("M of condition 20", ill_conditioned_matrix, (5, "kd"), {}, 1e-8),
    ("rank 3 times too high", drawn("gaussian"), (20, "kd"), {"fit_rank": 3}, 1e-8),
    ("hard case", hard_case, (10, "kd"), {"d": 120, "k": 4}, 1e-4),
    ("hard case", hard_case, (30, "kd"), {"d": 120, "k": 4}, 1e-4),
    ("hard case, alpha = 1", hard_case, (10, "kd"), {"d": 120, "k": 4, "alpha": 1.0}, 1e-4),
    ("hard case, alpha = 1", hard_case, (30, "kd"), {"d": 120, "k": 4, "alpha": 1.0}, 1e-4),
    ("hard case, levels seen 20 times", seen_levels, (10, "kd"), {"d": 120, "k": 4}, 1e-4),
    ("hard case, levels seen 20 times", seen_levels, (30, "kd"), {"d": 120, "k": 4}, 1e-4),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--d", type=int, default=200)
    parser.add_argument("--k", type=int, default=5)
    options = parser.parse_args()
    print("| features | rows | exact | passes, median / most | worst NMSE | seconds a fit |")
    print("|---|---|---|---|---|---|")
    for name, draw, (multiple, unit), special, bar in CASES:
        if options.only.lower() not in name.lower():
            continue
        d, k = special.get("d", options.d), special.get("k", options.k)
        n = int(multiple * (k * d if unit == "kd" else degrees_of_freedom(d, k)))
        errors, passes, seconds = [], [], []
        for seed in range(options.first, options.first + options.seeds):
            X, y, X_test, y_test = draw(n, d, k, seed)
            rank, alpha = k * special.get("fit_rank", 1), special.get("alpha", 0.0)
            # The function itself is judged, far outside the training rows as well.
            free = {"extrapolation": "free", "random_state": seed}
            model = SecondOrderRegressor(rank, alpha=alpha, **free)
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(X, y)
            seconds.append(time.perf_counter() - start)
            errors.append(nmse(y_test, model.predict(X_test)))
            passes.append(model.history_[-1].passes)
        exact = sum(error <= bar for error in errors)
        print(
            f"| {name} | {multiple} {unit} | {exact}/{len(errors)} | "
            f"{int(np.median(passes))} / {max(passes)} | {max(errors):.0e} | "
            f"{np.median(seconds):.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
