"""Random problems that hold the library to its promises, through the public API.

    python benchmarks/fuzz.py [--seeds 200] [--family counts] [--law weights] [--jobs 2] [--first 0]

A family draws a problem (rows, targets, weights and an estimator) from a seed, and names the laws
that hold for it. A fit must give a model, or one clear error before any result: a ValueError or
TypeError that says what is wrong. A model must obey the laws of its family: finite predictions, no
larger error on its rows than a constant, the same predictions after `save` and `load`, weights as
repetitions, no influence of units, of the order of rows or of their container, and so on. Failures
are printed with a command that reproduces them; the exit code is 1 if there is any. At last a line
per family: cases, errors at the door, failures, CPU seconds.
"""

import argparse
import collections
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import polars
from scipy import sparse
from sklearn.base import clone

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    load,
    save,
)

SAME = 0.05  # of the variance: fits that differ by rounding may end in another optimum
LIMIT = 120  # CPU seconds of a case


class OutOfTimeError(BaseException):
    """A case takes too long; not an Exception, which a case may catch."""


def require(good, text):
    if not good:
        raise AssertionError(text)


@dataclass(frozen=True)
class Problem:
    """What is fitted, and to what."""

    X: object  # rows: an array, CSR or a frame
    y: object
    model: object  # not fitted
    weight: np.ndarray | None = None
    kind: str = "numbers"  # or "labels", "counts"
    words: str = ""  # what was drawn

    def fit(self, X=None, y=None, weight=None):
        """Fit a copy of the model, to other rows if they are given."""
        if X is None:
            X, y, weight = self.X, self.y, self.weight
        return clone(self.model).fit(X, y, **({} if weight is None else {"sample_weight": weight}))

    def answer(self, model, X=None):
        """Return what a model says about rows, as numbers."""
        X = self.X if X is None else X
        return model.predict_proba(X) if self.kind == "labels" else model.predict(X)

    @property
    def omega(self):
        return np.ones(len(self.y)) if self.weight is None else np.asarray(self.weight, float)

    @property
    def spread(self):
        """The error of the best constant, in the unit of `error`."""
        y = np.asarray(self.y)
        if self.kind == "labels":
            shares = np.bincount(np.unique(y, return_inverse=True)[1], self.omega)
            shares = shares[shares > 0] / shares.sum()
            return float(-np.sum(shares * np.log(shares)))
        return self.mean_error(np.full(len(y), np.average(y.astype(float), weights=self.omega)))

    def mean_error(self, f):
        y = np.asarray(self.y)
        if self.kind == "labels":
            column = np.searchsorted(np.unique(y), y)
            losses = -np.log(np.maximum(f[np.arange(len(y)), column], 1e-300))
        elif self.kind == "counts":
            y, f = y.astype(float), np.maximum(np.asarray(f, float), 1e-300)
            losses = 2 * (np.where(y > 0, y * np.log(np.where(y > 0, y, 1) / f), 0) - y + f)
        else:
            losses = (np.asarray(f, float) - y.astype(float)) ** 2
        return float(np.average(losses, weights=self.omega))

    @property
    def dense(self):
        return self.X.toarray() if sparse.issparse(self.X) else self.X

    @property
    def digits(self):
        return 2e-3 if getattr(self.X, "dtype", None) == np.float32 else 1e-6

    @property
    def rounding(self):
        """An error that rounding explains."""
        power = 0.0 if self.kind == "labels" else np.mean(np.abs(np.asarray(self.y, float)))
        return self.digits * self.spread + 1e-12 * (1 + power**2)


# Laws: functions of a problem and its model.


def finite(p, model):
    f = np.asarray(p.answer(model))
    require(np.isfinite(f).all(), "a prediction is not finite")
    if p.kind == "labels":
        good = (f >= 0).all() and np.allclose(f.sum(axis=1), 1, atol=1e-5)
        require(good, "probabilities do not add to 1")
    if p.kind == "counts":
        require((f >= 0).all(), "a mean of counts is negative")


def elsewhere(p, model):
    """Rows elsewhere have finite predictions, and a row alone has that of the table."""
    X, f = p.dense, p.answer(model)
    for row in (X[:1] * 0, X[:1] * X.dtype.type(3)):
        require(np.isfinite(p.answer(model, row)).all(), "a row elsewhere is not finite")
    apart = np.max(np.abs(p.answer(model, X[:1])[0] - f[0])) / (np.abs(f).max() + np.sqrt(p.spread))
    require(apart <= p.digits, f"a row alone is predicted {apart:.3g} apart")


def constant(p, model):
    """No fit is worse on its rows than the best constant."""
    error = p.mean_error(p.answer(model))
    text = f"error {error:.6g} on the training rows, a constant has {p.spread:.6g}"
    slack = {"labels": 1e-6, "counts": 2 / len(p.y)}.get(p.kind, 0.0)  # a mean is never zero
    if p.kind == "labels" and len(np.unique(p.y)) > 2:
        slack = 0.05  # several classes are fitted one against the others, which a constant is not
    require(error <= p.spread * (1 + 1e-6) + p.rounding + slack, text)


def saved(p, model):
    with tempfile.TemporaryDirectory() as folder:
        save(model, Path(folder) / "model")
        loaded = load(Path(folder) / "model")
    for how, other in (("save", loaded), ("pickle", pickle.loads(pickle.dumps(model)))):
        require(np.array_equal(p.answer(other), p.answer(model)), f"{how}: other predictions")
        require(other.get_params().keys() == model.get_params().keys(), f"{how}: other options")


def seed(p, model):
    require(np.array_equal(p.answer(p.fit()), p.answer(model)), "the same seed: other predictions")


def same_error(p, model, other, text):
    """Require the same error on the training rows, but for another optimum near by."""
    first, second = (p.mean_error(f) for f in (p.answer(model), other))
    words = f"{text}: errors {first:.6g} and {second:.6g}, of a constant {p.spread:.6g}"
    require(abs(first - second) <= SAME * p.spread + p.rounding, words)


def order(p, model):
    places = np.random.default_rng(0).permutation(len(p.y))
    weight = None if p.weight is None else p.weight[places]
    other = p.fit(p.X[places], p.y[places], weight)
    same_error(p, model, p.answer(other), "rows in another order")


def weights(p, model):
    """Whole weights are repetitions of rows, and weights of zero are rows left out."""
    times = np.random.default_rng(0).integers(0, 4, len(p.y))
    times[: len(np.unique(p.y)) if p.kind == "labels" else 2] = 1
    index = np.repeat(np.arange(len(p.y)), times)
    repeated = replace(p, X=p.X[index], y=p.y[index], weight=None)
    if p.kind == "labels" and len(np.unique(repeated.y)) < len(np.unique(p.y)):
        return
    weighted = p.fit(p.X, p.y, times.astype(float))
    same_error(repeated, repeated.fit(), repeated.answer(weighted), "rows repeated")


def units(p, model):
    """Other units of features change nothing, and those of a target change its unit."""
    X = p.dense
    scale = 2.0 ** np.random.default_rng(0).integers(-9, 9, X.shape[1])
    scale = np.where(((X == 0) | (X == 1)).all(axis=0), 1.0, scale).astype(X.dtype)  # levels
    other = p.fit(X * scale, p.y, p.weight)
    same_error(p, model, p.answer(other, X * scale), "features rescaled")
    if p.kind == "numbers":
        other = p.fit(p.X, p.y * p.y.dtype.type(1024), p.weight)
        same_error(p, model, p.answer(other) / 1024, "a target rescaled")


def frame_of(X):
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])


CONTAINERS = {
    "csr": sparse.csr_array,
    "Fortran order": np.asfortranarray,
    "strides": lambda X: np.repeat(X, 2, axis=0)[::2],
    "a list": lambda X: X.tolist(),
    "big-endian": lambda X: X.astype(X.dtype.newbyteorder(">")),
    "a frame": frame_of,
    "polars": lambda X: polars.from_pandas(frame_of(X)),
    "Arrow": lambda X: polars.from_pandas(frame_of(X)).to_arrow(),
}


def container(p, model):
    """The same numbers in another container are the same fit, and are left as they were."""
    name = pick(np.random.default_rng(len(p.y)), CONTAINERS)
    rows, kept = CONTAINERS[name](p.dense), p.dense.copy()
    same_error(p, model, p.answer(p.fit(rows, p.y, p.weight), rows), name)
    require(np.array_equal(p.dense, kept, equal_nan=True), f"{name}: the rows were changed")


def stream(p, model):
    """A stream of the rows has finite predictions, and learns each row once."""
    other = clone(p.model)
    classes = {"classes": np.unique(p.y)} if p.kind == "labels" else {}
    for start in range(0, len(p.y), 37):
        part = slice(start, start + 37)
        weight = {} if p.weight is None else {"sample_weight": p.weight[part]}
        other.partial_fit(p.X[part], p.y[part], **classes, **weight)
    require(np.isfinite(p.answer(other)).all(), "a prediction of a stream is not finite")
    rows = np.count_nonzero(p.omega)
    require(other.n_samples_seen_ == rows, f"{other.n_samples_seen_} rows of {rows}")
    if p.kind == "numbers":
        constant(p, other)


LAWS = {law.__name__: law for law in (
    finite, elsewhere, constant, saved, seed, order, weights, units, container, stream,
)}  # fmt: skip
COMPARED = ("order", "weights", "units", "container")  # laws that compare two optima


# Families: functions of a random generator that return a problem.


COLUMNS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "log-normal": lambda rng, n: rng.lognormal(0, rng.uniform(0.5, 2), n),
    "0/1": lambda rng, n: (rng.uniform(size=n) < rng.uniform(0.02, 0.5)).astype(float),
    "constant": lambda rng, n: np.full(n, rng.choice([0.0, 3.0, 1e6])),
    "huge": lambda rng, n: 1e9 * rng.standard_normal(n),
    "far": lambda rng, n: 1e4 + rng.standard_normal(n),
    "codes": lambda rng, n: rng.integers(0, 6, n).astype(float),
    "one-hot": lambda rng, n: np.eye(6)[rng.integers(0, 6, n)],
}
PLAIN = ("0/1", "log-normal", "codes")
NOISE = {  # of a signal f and normal numbers e
    "some": lambda rng, f, e: f + 0.3 * e,
    "much": lambda rng, f, e: f + 3 * e,
    "gross": lambda rng, f, e: f + np.where(rng.uniform(size=len(f)) < 0.05, 1e4 * e, 0.1 * e),
    "only": lambda rng, f, e: e,
    "none": lambda rng, f, e: f,
}


def pick(rng, choices):
    choices = list(choices)
    return choices[int(rng.integers(len(choices)))]


def draw_rows(rng, kinds=COLUMNS, most=6, least=20):
    """Return rows of columns of some kinds, and a quadratic function of them."""
    n = int(np.exp(rng.uniform(np.log(least), np.log(15 * least))))
    wanted = rng.uniform(size=rng.integers(1, most)) < 0.5
    names = [pick(rng, kinds) if other else "normal" for other in wanted]
    X = np.column_stack([COLUMNS[name](rng, n).reshape(n, -1) for name in names])
    if rng.uniform() < 0.2:  # a column that others determine
        a, b = X[:, 0], X[:, -1]
        X = np.column_stack([X, pick(rng, [a, 3 * a + 1, a + b, np.where(a > a.mean(), a, -a)])])
    sd, d = X.std(0), X.shape[1]
    Z = (X - X.mean(0)) / np.where(sd > 1e-6 * np.abs(X.mean(0)), sd, 1.0)
    U = rng.standard_normal((d, rng.integers(0, 3)))
    f = Z @ rng.standard_normal(d) + (Z @ U) ** 2 @ rng.choice([-1.0, 1.0], U.shape[1])
    return X, f, f"{X.shape} of {', '.join(names)}"


def draw_weight(rng, n):
    if rng.uniform() < 0.65:
        return None
    weight = pick(rng, [rng.integers(0, 4, n), rng.uniform(0.1, 5, n)]).astype(float)
    weight[:3] = 1.0
    return weight


def draw_options(rng, ranks=4):
    chosen = rng.uniform() < 0.4
    return {
        "rank": "auto" if chosen and rng.uniform() < 0.6 else int(rng.integers(0, ranks)),
        "alpha": "auto" if chosen else float(10 ** rng.uniform(-2, 2)),
        "random_state": int(rng.integers(1000)),
    }


def tables(rng):
    X, f, words = draw_rows(rng, most=8)
    noise = pick(rng, NOISE)
    y = NOISE[noise](rng, f, rng.standard_normal(len(f)) * (f.std() or 1.0))
    y, weight = y * rng.choice([1.0, 1.0, 1e-8, 1e8]), draw_weight(rng, len(y))
    if rng.uniform() < 0.2:
        X, y = X.astype(np.float32), y.astype(np.float32)
    X = sparse.csr_array(X) if rng.uniform() < 0.25 else X
    options = draw_options(rng, 6)
    kind = SecondOrderRegressor if rng.uniform() < 0.85 else FactorizationMachineRegressor
    return Problem(X, y, kind(**options), weight, words=f"{words}, noise {noise}")


def labels(rng):
    X, f, words = draw_rows(rng, (*PLAIN, "far", "one-hot"))
    f = f + pick(rng, [0.1, 1, 5]) * (f.std() + 0.1) * rng.standard_normal(len(f))
    classes = pick(rng, [("no", "yes"), (0, 1), (-1, 2), (False, True), ("a", "b", "c")])
    shares = np.quantile(f, np.arange(1, len(classes)) / len(classes))
    y = np.array(classes)[np.searchsorted(shares, f)]
    kind = SecondOrderClassifier if rng.uniform() < 0.7 else FactorizationMachineClassifier
    options = draw_options(rng)
    return Problem(X, y, kind(**options), draw_weight(rng, len(y)), "labels", words)


def counts(rng):
    X, f, words = draw_rows(rng, (*PLAIN, "far"))
    f = np.clip(f / (f.std() + 1e-9) * rng.uniform(0.1, 1.5) + rng.uniform(-1, 3), -3, 5)
    y = rng.poisson(np.exp(f)).astype(float)
    how = pick(rng, ["Poisson", "Poisson", "one", "huge", "zero"])
    y = {"one": np.eye(len(y))[0] * 1e4, "huge": 1e9 * y, "zero": 0 * y}.get(how, y)
    options = draw_options(rng) | {"loss": "poisson"}
    weight = draw_weight(rng, len(y))
    return Problem(X, y, SecondOrderRegressor(**options), weight, "counts", f"{words}, {how}")


def pairs(rng):
    X, f, words = draw_rows(rng, PLAIN)
    d, y = X.shape[1], f + rng.standard_normal(len(f))
    given = pick(rng, [[(0, d - 1)], int(rng.integers(1, 5)), "auto"])
    model = SecondOrderRegressor(pairs=given, **draw_options(rng, 3))
    return Problem(X, y, model, draw_weight(rng, len(y)), words=f"{words}, pairs={given}")


def extremes(rng):
    """Few rows, ranks beyond the features, penalties and weights of 1e-300 to 1e300."""
    n, d = pick(rng, [2, 3, 50]), pick(rng, [1, 2, 6])
    X, y = rng.standard_normal((n, d)), rng.standard_normal(n)
    size = 10.0 ** pick(rng, [-300, -30, 0, 30, 300])
    weight = pick(rng, [None, size * rng.uniform(0.5, 2, n), size * np.eye(n)[0] + 1e-3])
    options = {"rank": pick(rng, [0, 1, d, 1000, "auto"]), "random_state": 0}
    options["alpha"] = pick(rng, ["auto", 0.0, 1.0, 1e-300, 1e300])
    kind = pick(rng, [SecondOrderRegressor, FactorizationMachineRegressor])
    return Problem(X, y, kind(**options), weight, words=f"{X.shape}, weights about {size:g}")


def frames(rng):
    """Frames with text, categories, booleans, nullable columns, dates and gaps."""
    n = int(rng.integers(30, 120))
    codes, x = rng.integers(0, 5, n), rng.standard_normal(n)
    columns = {
        "town": rng.choice(["Bonn", "Köln", "a,b", 'x"y', ""], n),
        "kind": pd.Categorical.from_codes(codes % 2, ["a", "b", "never"]),
        "flag": codes > 2,
        "Int64": pd.array(codes, dtype="Int64"),
        "boolean": pd.array(codes > 2, dtype="boolean"),
        "rare": np.where(np.arange(n) == 0, "once", "often"),
    }
    columns["dates"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(codes, unit="D")  # refused
    names = [str(name) for name in rng.choice(list(columns), 3, replace=False)]
    frame = pd.DataFrame({"x": x} | {name: columns[name] for name in names})
    if rng.uniform() < 0.4:
        frame.loc[rng.uniform(size=n) < 0.2, "x"] = np.nan
    y, options = x * (codes > 2) + rng.standard_normal(n), draw_options(rng, 3)
    return Problem(frame, y, SecondOrderRegressor(missing="mean", **options), words=f"{names}")


def ids(rng):
    """Users and items as text, some of them rare."""
    n, width, rank = (int(rng.integers(*ends)) for ends in ((20, 200), (2, 30), (0, 4)))
    codes = pd.DataFrame({"user": rng.integers(0, width, n), "item": rng.integers(0, 9, n)})
    y = rng.standard_normal(width)[codes["user"]] + 0.5 * rng.standard_normal(n)
    frame, words = codes.astype(str), f"{n} rows, {width} users"
    if rng.uniform() < 0.4:
        model = FactorizationMachineClassifier(rank, random_state=0)
        return Problem(frame, y > np.median(y), model, kind="labels", words=words)
    model = FactorizationMachineRegressor(rank, draws=pick(rng, [None, None, 3]), random_state=0)
    return Problem(frame, y, model, words=words)


ARRAYS = ("finite", "elsewhere", "constant", "saved", "seed", *COMPARED)
FAMILIES = {  # name: how a problem is drawn, and its laws
    "tables": (tables, (*ARRAYS, "stream")),
    "labels": (labels, (*ARRAYS, "stream")),
    "counts": (counts, ("finite", "elsewhere", "constant", "saved", "seed", "order")),
    "pairs": (pairs, ARRAYS),
    "extremes": (extremes, ("finite", "constant", "saved", "seed")),
    "frames": (frames, ("finite", "constant", "saved", "seed")),
    "ids": (ids, ("finite", "constant", "saved", "seed")),
}


def is_comparable(p):
    """Tell whether fits of the same rows in another form have comparable errors.

    Penalties that are chosen from few rows, or without noise, have no best size: rounding decides.
    """
    options = p.model.get_params()
    rank, d = options.get("rank", 0), p.X.shape[1]
    parameters = (1 + (1 if rank == "auto" else rank)) * d + 1
    exact = "noise none" in p.words or len(p.y) < 3 * parameters
    return not (exact and "auto" in (rank, options.get("alpha")))


def is_clear(error):
    """Tell whether an error is a message of the library or of scikit-learn."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = any(name in last.filename for name in ("quadlin", "sklearn"))
    raised = ours and "raise" in (last.line or "") and len(str(error)) > 20
    return isinstance(error, (ValueError, TypeError)) and raised


def describe(error):
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


def examine(family, number, only=""):
    """Return the failures of a case, and whether it was refused at the door."""
    draw, laws = FAMILIES[family]
    problem, failures = draw(np.random.default_rng([2026, number])), []
    drawn = f"{problem.model}, {problem.words}"
    try:
        model = problem.fit()
    except Exception as error:
        return ([], True) if is_clear(error) else ([("fit", f"{describe(error)}; {drawn}")], False)
    for name in (law for law in laws if only in law):
        if name in COMPARED and not is_comparable(problem):
            continue
        try:
            LAWS[name](problem, model)
        except Exception as error:
            failures.append((name, f"{describe(error)}; {drawn}"))
    return failures, False


def out_of_time(*_):
    raise OutOfTimeError


def run(task):
    """Examine a case in limited CPU time: family, number, failures, refused, seconds."""
    family, number, only = task
    start, refused = time.process_time(), False
    signal.signal(signal.SIGPROF, out_of_time)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)
            warnings.filterwarnings("ignore", ".*encountered in matmul", RuntimeWarning)
            failures, refused = examine(family, number, only)
    except OutOfTimeError:
        failures = [("time", f"more than {LIMIT} CPU s")]
    except Exception as error:
        failures = [("draw", f"{type(error).__name__}: {error}")]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return family, number, failures, refused, time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="cases of each family")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--law", default="", choices=["", *LAWS], help="this law alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    o = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # read by each process when it starts
    numbers = range(o.first, o.first + o.seeds)
    tasks = [(family, number, o.law) for family in o.family for number in numbers]
    sums = collections.defaultdict(lambda: np.zeros(4))
    with ProcessPoolExecutor(o.jobs, get_context("spawn")) as pool:
        for family, number, failures, refused, seconds in pool.map(run, tasks, chunksize=4):
            sums[family] += [1, refused, bool(failures), seconds]
            for law, words in failures:
                command = f"python benchmarks/fuzz.py --family {family} --first {number} --seeds 1"
                law_option = f" --law {law}" if law in LAWS else ""
                print(f"{family}: {law}: {words}\n  {command}{law_option}", flush=True)
    for family, (cases, refused, failed, seconds) in sums.items():
        print(f"{family}: {cases:.0f} cases, {refused:.0f} errors at the door, {failed:.0f} "
              f"failed, {seconds:.1f} CPU s")  # fmt: skip
    return int(any(failed for _, _, failed, _ in sums.values()))


if __name__ == "__main__":
    sys.exit(main())
