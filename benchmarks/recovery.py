"""What a fit of given rank finds: the exact model, or one with the statistical error.

    OMP_NUM_THREADS=1 python benchmarks/recovery.py exact [--seeds 20] [--only gaussian]
    OMP_NUM_THREADS=1 python benchmarks/recovery.py spectra [--seeds 10]
    OMP_NUM_THREADS=1 python benchmarks/recovery.py noise [--seeds 5]

"exact" prints a line per case without noise: how often the test NMSE is at most 1e-8 (hard case:
1e-4, since rare levels cannot be learned exactly), the passes and the CPU seconds. d = 200, k = 5,
M of both signs, w and b unknown, nothing tuned.
"spectra" prints the same share for Gaussian rows, by rank, by the ratio of the largest eigenvalue
of M to the smallest, and by rows per parameter; d = 60.
"noise" prints the excess risk with noise 1 over the Cramér–Rao bound σ²·dof/n, on the rows of the
fit (1 is the bound) and on new rows, where any unbiased least squares has another factor
n/(n − dof − 1).
"""

import argparse
import time
import warnings

import numpy as np

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom, nmse

TEST = 2000  # rows


def drawn(kind, parameter=None, signed=True):
    def draw(n, d, k, seed):
        options = {"distribution": kind, "parameter": parameter, "signed": signed}
        data = make_second_order(n, d, rank=k, n_test=TEST, random_state=seed, **options)
        return data.X, data.y, data.X_test, data.y_test

    return draw


def with_target(X, n, k, rng, values=1.0):
    """Return the first n rows and the others, with a target of rank k."""
    d = X.shape[1]
    Q = np.linalg.qr(rng.standard_normal((d, k)))[0]
    s = np.where(np.arange(k) % 2, -1.0, 1.0) * values
    y = 1 + X @ rng.standard_normal(d) / np.sqrt(d) + ((X @ Q) ** 2) @ s
    return X[:n], y[:n], X[n:], y[n:]


def ill_conditioned(features, matrix):
    """Gaussian rows; condition numbers of their covariance and of M."""

    def draw(n, d, k, seed):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((n + TEST, d)) * np.geomspace(1, features**-0.5, d)
        X = X @ np.linalg.qr(rng.standard_normal((d, d)))[0]
        return with_target(X, n, k, rng, np.geomspace(1, 1 / matrix, k))

    return draw


def hard_case(n, d, k, seed):
    """10 one-hot categoricals of 8 levels beside 40 correlated columns, half log-normal."""
    rng = np.random.default_rng(seed)
    levels = [rng.choice(8, n + TEST, p=rng.dirichlet(np.ones(8))) for _ in range(10)]
    A = rng.standard_normal((40, 40)) / np.sqrt(40)
    numeric = rng.standard_normal((n + TEST, 40)) @ A
    numeric[:, ::2] = np.exp(numeric[:, ::2])
    X = np.column_stack([*(np.eye(8)[level] for level in levels), numeric])
    return with_target(X, n, k, rng)


HARD = {"d": 120, "k": 4, "bar": 1e-4}
KINDS = {"Gaussian": "gaussian", "truncated": "truncated", "mixed": "mixed"}
CASES = [  # name, draw, rows as a multiple of dof or kd, and what is not as usual
    *((name, drawn(kind), 1.6, "dof", {}) for name, kind in KINDS.items()),
    *((name, drawn(kind), 4, "kd", {}) for name, kind in KINDS.items()),
    ("Bernoulli(.1)", drawn("bernoulli"), 2.5, "dof", {}),
    ("Bernoulli(.1), M > 0", drawn("bernoulli", signed=False), 2.5, "dof", {}),
    ("AR(1) .9", drawn("ar1", 0.9), 4, "kd", {}),
    ("covariance of condition 1e4", ill_conditioned(1e4, 1), 4, "kd", {}),
    ("M of condition 20", ill_conditioned(1, 20), 5, "kd", {}),
    ("rank 3 times too high", drawn("gaussian"), 20, "kd", {"times": 3}),
    *(("hard case", hard_case, n, "kd", HARD) for n in (10, 30)),
    *(("hard case, alpha = 1", hard_case, n, "kd", {**HARD, "alpha": 1.0}) for n in (10, 30)),
]


def exact(o):
    print("| features | rows | exact | passes, median / most | worst NMSE | CPU s |")
    print("|---" * 6 + "|")
    for name, draw, multiple, unit, special in CASES:
        if o.only.lower() not in name.lower():
            continue
        d, k = special.get("d", o.d), special.get("k", o.k)
        n = int(multiple * (k * d if unit == "kd" else degrees_of_freedom(d, k)))
        errors, passes, seconds = [], [], []
        for seed in range(o.seeds):
            X, y, X_test, y_test = draw(n, d, k, seed)
            # The function itself is judged, far outside the training rows as well.
            options = {"extrapolation": "free", "alpha": special.get("alpha", 0.0)}
            model = SecondOrderRegressor(k * special.get("times", 1), random_state=seed, **options)
            start = time.process_time()
            model.fit(X, y)
            seconds.append(time.process_time() - start)
            errors.append(nmse(y_test, model.predict(X_test)))
            passes.append(model.history_[-1].passes)
        found = sum(error <= special.get("bar", 1e-8) for error in errors)
        cells = f"{found}/{len(errors)} | {int(np.median(passes))} / {max(passes)} | "
        cells += f"{max(errors):.0e} | {np.median(seconds):.1f}"
        print(f"| {name} | {multiple} {unit} | {cells} |", flush=True)


def spectra(o):
    multiples = (1.2, 1.5, 2.0, 3.0)
    print("| rank | σ₁/σ_k | " + " | ".join(f"{m} dof" for m in multiples) + " | CPU s |")
    print("|---" * (3 + len(multiples)) + "|")
    for k in (1, 4, 20):
        for ratio in (1, 10, 100) if k > 1 else (1,):
            cells, start = [], time.process_time()
            for multiple in multiples:
                found = 0
                for seed in range(o.seeds):
                    n = int(multiple * degrees_of_freedom(o.d, k))
                    X, y, X_test, y_test = ill_conditioned(1, ratio)(n, o.d, k, seed)
                    model = SecondOrderRegressor(k, alpha=0.0, pairs=None, extrapolation="free")
                    found += nmse(y_test, model.fit(X, y).predict(X_test)) <= 1e-8
                cells.append(f"{found}/{o.seeds}")
            seconds = (time.process_time() - start) / len(multiples) / o.seeds
            print(f"| {k} | {ratio} | {' | '.join(cells)} | {seconds:.2f} |", flush=True)


def excess(kind, n, o):
    """Return the mean excess risks on training and on new rows, in units of σ²·dof/n."""
    ratios = []
    for seed in range(o.seeds):
        options = {"distribution": kind, "n_test": 5000, "random_state": seed}
        data = make_second_order(n, o.d, rank=o.k, **options)
        y = data.y + np.random.default_rng(seed).standard_normal(n)
        model = SecondOrderRegressor(o.k, random_state=0, alpha=0.0).fit(data.X, y)
        both = (data.X, data.y), (data.X_test, data.y_test)
        ratios.append([np.mean((model.predict(X) - f) ** 2) for X, f in both])
    return np.mean(ratios, axis=0) * n / degrees_of_freedom(o.d, o.k)


def noise(o):
    dof, kd = degrees_of_freedom(o.d, o.k), o.k * o.d
    print("| features | rows | on its own rows | on new rows | n/(n − dof − 1) |")
    print("|---" * 5 + "|")
    for kind in ("gaussian", "truncated", "ar1"):
        for multiple in (4, 10, 30, 100):
            n = multiple * kd
            seen, new = excess(kind, n, o)
            cells = f"{multiple}kd | {seen:.2f} | {new:.2f} | {n / (n - dof - 1):.2f}"
            print(f"| {kind} | {cells} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["exact", "spectra", "noise"])
    parser.add_argument("--seeds", type=int, help="default: 20, spectra 10, with noise 5")
    parser.add_argument("--only", default="", help="part of the name of an exact case")
    parser.add_argument("--d", type=int, help="default: 200, spectra 60, with noise 100")
    parser.add_argument("--k", type=int, help="default: 5, with noise 3")
    o = parser.parse_args()
    defaults = {"exact": (20, 200, 5), "spectra": (10, 60, 0), "noise": (5, 100, 3)}
    seeds, d, k = defaults[o.what]
    o.seeds, o.d, o.k = o.seeds or seeds, o.d or d, o.k or k
    warnings.simplefilter("ignore")
    {"exact": exact, "spectra": spectra, "noise": noise}[o.what](o)


if __name__ == "__main__":
    main()
