"""Random problems and options that test everything the library promises.

Each case is a table, options and a form of the rows, all drawn from its number. Every table must
keep the promises of `ALWAYS`, and two more that cost a fit or a file each. Five of six cases belong
to other families: classifiers, pairs, forged files and others (`campaign_families`). A violation
immediately prints a few lines that reproduce it. Run: python benchmarks/campaign.py
[--cases 1000] [--seed 0] [--jobs 2] [--seconds 600] [--family tables] [--only saved]
"""

import argparse
import collections
import itertools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from campaign_families import FAMILIES, BrokenPromiseError, SkippedError, require
from scipy.sparse import csr_array, issparse

from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderRegressor,
    Status,
    load,
    open_source,
    save,
    to_onnx,
)
from quadlin.metrics import degrees_of_freedom

ROUNDING = {np.dtype(np.float64): 1e-6, np.dtype(np.float32): 2e-3}  # of the variance of y
WAITING = 10  # times the CPU time that a case may take: it hangs, or the machine is very busy
OTHER_OPTIMUM = 0.05  # of the variance: fits that differ by rounding may end in another optimum


@dataclass(frozen=True)
class Case:
    """A table and options; the same number is the same case."""

    number: int
    kinds: tuple
    noise: str
    X: object
    y: np.ndarray
    weight: np.ndarray | None
    estimator: type
    options: dict
    batch: int

    def model(self, **options):
        return self.estimator(**{**self.options, **options})

    def fit(self, X=None, y=None, weight=None, engine=None, **options):
        if X is None:
            X, y, weight = self.X, self.y, self.weight
        return self.model(**options).fit(X, y, sample_weight=weight, engine=engine)

    @cached_property
    def omega(self):
        return np.ones(len(self.y)) if self.weight is None else self.weight.astype(float)

    @cached_property
    def spread(self):
        """The error of the best constant, or of zero without an intercept."""
        y = self.y.astype(float)
        centre = np.average(y, weights=self.omega) if self.options["fit_intercept"] else 0.0
        return float(np.average((y - centre) ** 2, weights=self.omega))

    @property
    def tolerance(self):
        y = self.y.astype(float)
        return ROUNDING[self.X.dtype] * (self.spread + 1e-6 * np.mean(y**2)) + 1e-290

    def error(self, model):
        r = model.predict(self.X).astype(float) - self.y
        return float(np.average(r**2, weights=self.omega))

    def reproducer(self):
        given = ", ".join(f"{k}={v!r}" for k, v in self.options.items())
        form = "sparse" if issparse(self.X) else "dense"
        weights = "no weights" if self.weight is None else "weights"
        return (
            f"# {self.X.shape} {form} {self.X.dtype} of {', '.join(self.kinds)}; {self.noise} "
            f"noise; {weights}\n"
            f"# {self.estimator.__name__}({given})\n"
            "import sys; sys.path.insert(0, 'benchmarks'); from campaign import case_of\n"
            f"case = case_of({self.number}); model = case.fit()"
        )


def column(kind, n, rng):
    codes = rng.integers(0, 6, n)
    return {
        "normal": lambda: rng.standard_normal(n),
        "log-normal": lambda: rng.lognormal(0, rng.uniform(0.5, 2), n),
        "two-valued": lambda: rng.choice([-1.0, 3.0], n, p=[0.3, 0.7]),
        "0/1": lambda: (rng.uniform(size=n) < rng.uniform(0.02, 0.5)).astype(float),
        "constant": lambda: np.full(n, rng.choice([0.0, 3.0, 1e6])),
        "huge": lambda: 1e9 * rng.standard_normal(n),
        "small": lambda: 1e-9 * rng.standard_normal(n),
        "far": lambda: 1e4 + rng.standard_normal(n),
        "codes": lambda: codes.astype(float),
        "one-hot": lambda: np.eye(6)[codes][:, : rng.integers(2, 7)],
    }[kind]()


KINDS = ("normal", "normal", "normal", "log-normal", "two-valued", "0/1", "constant", "huge",
         "small", "far", "codes", "one-hot", "duplicate")  # fmt: skip


def case_of(number):
    rng = np.random.default_rng([20260, number])
    n, kinds = int(np.exp(rng.uniform(np.log(2), np.log(400)))), []
    columns = []
    for _ in range(rng.integers(1, 9)):
        kind = str(rng.choice(KINDS)) if rng.uniform() < 0.6 else "normal"
        if kind == "duplicate" and columns:
            columns.append(columns[rng.integers(len(columns))])
        else:
            kind = "normal" if kind == "duplicate" else kind
            columns.append(column(kind, n, rng).reshape(n, -1))
        kinds.append(kind)
    X = np.column_stack(columns)
    Z = (X - X.mean(0)) / np.where(X.std(0) > 1e-6 * np.abs(X.mean(0)), X.std(0), 1.0)
    w, U = rng.standard_normal(X.shape[1]), rng.standard_normal((X.shape[1], rng.integers(0, 4)))
    f = rng.uniform(-9, 9) + Z @ w + (Z @ U) ** 2 @ rng.choice([-1.0, 1.0], U.shape[1])
    noise = str(rng.choice(["none", "some", "much", "heavy", "gross", "only"]))
    e = rng.standard_normal(n) * (f.std() or 1.0)
    y = {
        "none": f,
        "some": f + 0.3 * e,
        "much": f + 3 * e,
        "heavy": f + rng.standard_t(2, n),
        "gross": f + np.where(rng.uniform(size=n) < 0.05, 1e4 * e, 0.1 * e),
        "only": e,
    }[noise] * rng.choice([1.0, 1.0, 1e-8, 1e8])
    weight = None
    if rng.uniform() < 0.35:
        choices = (rng.integers(0, 4, n), rng.uniform(0.1, 5, n), rng.uniform(size=n) < 0.7)
        weight = choices[rng.integers(3)].astype(float)
        weight[rng.integers(n)] = 1.0
    if rng.uniform() < 0.2:
        X, y = X.astype(np.float32), y.astype(np.float32)
    if rng.uniform() < 0.25:
        X = csr_array(X)
    polish = rng.uniform() < 0.85
    options = {
        "rank": "auto" if rng.uniform() < 0.3 else int(rng.integers(0, 6)),
        "alpha": "auto",
        "diagonal": str(rng.choice(["auto", "auto", "zero"])),
        "loss": "huber" if rng.uniform() < 0.06 else "squared",
        "fit_linear": bool(rng.uniform() < 0.85),
        "fit_intercept": bool(rng.uniform() < 0.85),
        "psd": bool(rng.uniform() < 0.1),
        "polish": bool(polish),
        "step": str(rng.choice(["guarded", "plain"])) if not polish else "guarded",
        "uncertainty": [False, True, "robust"][rng.integers(3)],
        "warm_start": bool(rng.uniform() < 0.2),
        "whiten": str(rng.choice(["auto", "full", "lowrank", "none"], p=[0.7, 0.1, 0.1, 0.1])),
        "random_state": int(rng.integers(1000)),
    }
    if polish and rng.uniform() < 0.5:
        options["alpha"] = float(10 ** rng.uniform(-3, 3)) if rng.uniform() < 0.6 else 0.0
    estimator = SecondOrderRegressor
    if rng.uniform() < 0.15:
        estimator = FactorizationMachineRegressor
        options.pop("diagonal")
    batch = int(rng.integers(2, 60))
    return Case(number, tuple(kinds), noise, X, y, weight, estimator, options, batch)


def promised_descent(case):
    return case.options["step"] == "guarded"


# Promises that every fit must keep.


def numbers_are_finite(case, model):
    for name in ("coef_", "intercept_", "eigenvalues_", "components_"):
        require(np.isfinite(getattr(model, name)).all(), f"{name} is not finite")
    require(np.isfinite(model.predict(case.X)).all(), "a prediction is not finite")


def rows_elsewhere_are_predicted(case, model):
    X = case.X.toarray() if issparse(case.X) else case.X
    for new in (X[:1], X[:2] * 0, X[:2] * X.dtype.type(3)):
        require(np.isfinite(model.predict(new)).all(), "a prediction of another row is not finite")


def not_worse_than_a_constant(case, model):
    if not promised_descent(case):
        return
    if case.options["loss"] == "squared":
        error = case.error(model)
        text = f"error {error:.6g} on the training rows, a constant has {case.spread:.6g}"
        require(error <= case.spread * (1 + 1e-6) + case.tolerance, text)
    elif case.options["fit_intercept"]:
        y = case.y.astype(float)
        r = np.abs(model.predict(case.X) - y)
        constant = np.abs(y - np.quantile(y, 0.5, weights=case.omega, method="inverted_cdf"))
        scale = 1.345 * 1.4826 * np.quantile(r, 0.5, weights=case.omega, method="inverted_cdf")

        def huber(r):
            inside = r <= scale
            loss = np.where(inside, np.minimum(r, scale) ** 2, scale * (2 * r - scale))
            return float(np.average(loss, weights=case.omega))

        rounding = 1e-6 * np.abs(y).max() * (scale + 1e-6 * np.abs(y).max())
        text = f"Huber loss {huber(r):.6g}, the median has {huber(constant):.6g}"
        require(huber(r) <= 1.001 * huber(constant) + rounding, text)


def the_history_never_rises(case, model):
    losses = [record.loss for record in model.history_]
    passes = [record.passes for record in model.history_]
    require(passes == sorted(passes), "passes fall")
    if model.fitted_.noise is not None:  # of a posterior, whose sweeps raise a bound instead
        return
    if promised_descent(case):
        require(np.isfinite(losses).all(), "a loss is not finite")
        rises = [b - a for a, b in itertools.pairwise(losses)]
        worst = max(rises, default=0.0)
        require(worst <= 1e-6 * losses[0] + case.tolerance, f"the history rises by {worst:.3g}")


def the_status_is_consistent(case, model):
    require(isinstance(model.status_, Status), "no status")
    require(model.status_ not in (Status.interrupted, Status.stopped), f"{model.status_}")
    require(1 <= model.n_iter_ <= model.max_iter, f"{model.n_iter_} steps")
    if promised_descent(case):
        require(model.status_ is not Status.diverged, "a guarded fit diverged")


def spreads_are_numbers(case, model):
    law = model.fitted_.law
    if law is None:
        require(not case.options["uncertainty"], "standard errors are missing")
        return
    f, std = model.predict(case.X, return_std=True)
    require(np.array_equal(f, model.predict(case.X)), "return_std changes predictions")
    stds = np.concatenate([std, np.ravel(model.coef_std_), [model.intercept_std_]])
    if law.left >= 1:
        require(np.isfinite(stds).all() and (stds >= 0).all(), "a standard error is not a number")
        require((std >= model.noise_ * (1 - 1e-5)).all(), "an observation is surer than the noise")
    else:
        require(np.isnan(std).all(), "standard errors without rows to tell them by")


ALWAYS = (
    numbers_are_finite,
    rows_elsewhere_are_predicted,
    not_worse_than_a_constant,
    the_history_never_rises,
    the_status_is_consistent,
    spreads_are_numbers,
)

# Promises that cost another fit, or a file.


def same_bits(a, b, text):
    for name in ("coef_", "intercept_", "eigenvalues_", "components_"):
        require(np.array_equal(getattr(a, name), getattr(b, name)), f"{text}: other {name}")


def same_objective(case, a, b, text):
    """Compare the objectives of two fits, which may stop or end in optima a little apart."""
    first, second = (m.history_[-1].loss for m in (a, b))
    apart = abs(first - second)
    good = apart <= OTHER_OPTIMUM * case.spread + case.tolerance
    require(good, f"{text}: objective {first:.6g} and {second:.6g}, variance {case.spread:.6g}")


def comparable(case):
    """Tell whether fits of the same rows in another form have comparable objectives."""
    held_out = case.options["rank"] == "auto" and case.options["alpha"] != "auto"
    rank = 1 if case.options["rank"] == "auto" else case.options["rank"]
    # The moment estimation sequence alone is for many rows: of few, it ends where a step no longer
    # helps, which rounding decides.
    few = not case.options["polish"] and len(case.y) < 10 * (rank + 1) * case.X.shape[1]
    squared = case.options["loss"] == "squared"
    told = not held_out and not few and not flat_evidence(case)
    return promised_descent(case) and squared and told


def flat_evidence(case):
    """Tell whether the evidence of penalties is the same for all that are small enough.

    That is so if there are fewer rows than parameters, and no noise: S = αyᵀK⁻¹y of an exact fit
    and |A| = |K|α^(p − n) cancel in −n log S + p log α − log|A|. Then chosen penalties have no best
    size, and objectives cannot be compared. With given penalties they can.
    """
    if case.options["alpha"] != "auto" or case.noise != "none":
        return False
    X = case.X.toarray() if issparse(case.X) else case.X
    rows = np.unique(X[case.omega > 0], axis=0)
    d = int(np.count_nonzero(np.ptp(rows, axis=0)))
    parts = {"linear": case.options["fit_linear"], "intercept": case.options["fit_intercept"]}
    rank = 1 if case.options["rank"] == "auto" else min(case.options["rank"], d)
    return len(rows) < degrees_of_freedom(d, rank, **parts)


def the_same_seed_gives_the_same_bits(case, model):
    same_bits(model, case.fit(), "the same seed")


def the_order_of_rows_does_not_matter(case, model):
    order = np.random.default_rng(case.number).permutation(len(case.y))
    weight = None if case.weight is None else case.weight[order]
    same_objective(case, model, case.fit(case.X[order], case.y[order], weight), "rows in disorder")


def weights_are_repetitions(case, model):
    if case.options["rank"] == "auto":  # the largest rank is told by the number of different rows
        return
    times = np.random.default_rng(case.number).integers(0, 4, len(case.y))
    times[:2] = 1
    index = np.repeat(np.arange(len(case.y)), times)
    repeated = replace(case, X=case.X[index], y=case.y[index], weight=None)
    if not comparable(repeated):  # fewer rows
        return
    weighted = case.fit(case.X, case.y, times.astype(float))
    same_objective(repeated, weighted, repeated.fit(), "rows repeated")


def sparse_rows_are_dense_rows(case, model):
    other = case.X.toarray() if issparse(case.X) else csr_array(case.X)
    same_objective(case, model, case.fit(other, case.y, case.weight), "rows sparse")


def features_have_no_units(case, model):
    X = case.X.toarray() if issparse(case.X) else case.X
    scale = 2.0 ** np.random.default_rng(case.number).integers(-9, 9, X.shape[1])
    scale = np.where(((X == 0) | (X == 1)).all(axis=0), 1.0, scale)  # levels are 0 and 1
    scaled = case.X * scale.astype(case.X.dtype)
    scaled = csr_array(scaled) if issparse(case.X) else scaled
    same_objective(case, model, case.fit(scaled, case.y, case.weight), "features rescaled")


def threads_change_nothing(case, model):
    same_objective(case, model, case.fit(case.X, case.y, case.weight, engine=2), "two threads")


def a_saved_model_is_the_same(case, model):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        try:
            save(model, path)
        except ValueError as error:
            require(False, f"not saved: {error}")
        loaded = load(path)
    same_bits(model, loaded, "saved and loaded")
    require(np.array_equal(model.predict(case.X), loaded.predict(case.X)), "other predictions")
    if model.fitted_.law is not None:
        stds = [m.predict(case.X, return_std=True)[1] for m in (model, loaded)]
        require(np.array_equal(*stds, equal_nan=True), "other standard deviations")


def a_warm_start_is_no_worse(case, model):
    before = model.history_[-1].loss
    warm = case.fit(warm_start=True)
    after = warm.fit(case.X, case.y, sample_weight=case.weight).history_[-1].loss
    text = f"from {before:.6g} to {after:.6g}, variance {case.spread:.6g}"
    require(after <= before + OTHER_OPTIMUM * case.spread + case.tolerance, text)
    numbers_are_finite(case, warm)
    the_history_never_rises(case, warm)


def a_stream_is_no_worse_than_a_constant(case, model):
    options = {"loss": "squared", "uncertainty": False, "batch_size": case.batch}
    stream = case.model(**{**options, "step": "guarded"})
    for start in range(0, len(case.y), 37):
        part = slice(start, start + 37)
        weight = None if case.weight is None else case.weight[part]
        stream.partial_fit(case.X[part], case.y[part], sample_weight=weight)
    numbers_are_finite(case, stream)
    error = case.error(stream)
    text = f"error {error:.6g} after {len(case.y)} rows, variance {case.spread:.6g}"
    # So few rows are all in the sample by which a stream judges what it shows.
    require(error <= case.spread * (1 + 1e-6) + case.tolerance, text)


def files_are_arrays(case, model):
    X = case.X.toarray() if issparse(case.X) else case.X
    kind = ("npy", "hdf5", "zarr", "parquet")[case.number % 4]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows.{kind}"
        if kind == "npy":
            np.save(path, X)
            source = open_source(np.load(path, mmap_mode="r"), target=case.y, weight=case.weight)
        elif kind == "hdf5":
            h5py = __import__("h5py")
            source = h5py.File(path, "w").create_dataset("X", data=X)
            source = open_source(source, target=case.y, weight=case.weight)
        elif kind == "zarr":
            zarr = __import__("zarr")
            source = zarr.create_array(path, shape=X.shape, dtype=X.dtype)
            source[:] = X
            source = open_source(source, target=case.y, weight=case.weight)
        else:
            pyarrow, parquet = __import__("pyarrow"), __import__("pyarrow.parquet").parquet
            weight = {} if case.weight is None else {"weight": case.weight}
            columns = {f"x{j}": X[:, j] for j in range(X.shape[1])}
            parquet.write_table(pyarrow.table({**columns, **weight, "y": case.y}), path)
            source = open_source(path, target="y", weight="weight" if weight else None)
        fitted = case.model(fields=None).fit(source)
    same_objective(case, case.fit(X, case.y, case.weight, fields=None), fitted, kind)


def onnx_predicts_the_same(case, model):
    runtime = __import__("onnxruntime")
    X = case.X.toarray() if issparse(case.X) else case.X
    session = runtime.InferenceSession(to_onnx(model).SerializeToString())
    answer = session.run(["y"], {"X": X})[0]
    f = model.predict(X)
    apart = np.max(np.abs(answer - f))
    good = apart <= 1e3 * ROUNDING[case.X.dtype] * (np.max(np.abs(f)) + np.sqrt(case.spread))
    require(good, f"onnxruntime differs by {apart:.3g} where predictions reach {np.abs(f).max():g}")


SOMETIMES = (
    the_same_seed_gives_the_same_bits,
    a_saved_model_is_the_same,
    a_stream_is_no_worse_than_a_constant,
    onnx_predicts_the_same,
)
COMPARED = (
    the_order_of_rows_does_not_matter,
    weights_are_repetitions,
    sparse_rows_are_dense_rows,
    features_have_no_units,
    threads_change_nothing,
    a_warm_start_is_no_worse,
    files_are_arrays,
)


def clear(error):
    """Tell whether an error is a message of the library, not an internal failure."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = "raise" in (last.line or "") and (
        "quadlin" in last.filename or "sklearn" in last.filename
    )
    saved = "cannot be saved" not in str(error)  # every model that was fitted can be
    return isinstance(error, ValueError) and ours and saved and len(str(error)) > 20


def examine(number, only=""):
    """Return the violations of a table, (promise, words), and the refusals."""
    case, violations, refusals = case_of(number), [], []
    more = SOMETIMES + (COMPARED if comparable(case) else ())
    chosen = np.random.default_rng([number, 1]).permutation(len(more))[:2]
    promises = [*ALWAYS, *(more[i] for i in chosen)]
    if only:
        promises = [p for p in ALWAYS + more if only in p.__name__]
    with quiet():
        model = None
        for promise in ("fit", *promises):
            name = promise if promise == "fit" else promise.__name__
            try:
                if promise == "fit":
                    model = case.fit()
                else:
                    promise(case, model)
            except Exception as error:
                note(name, error, violations, refusals)
            if model is None:
                break
    return case, violations, refusals


@contextmanager
def quiet():
    """Ignore warnings, except for those of numbers out of range, which become errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", RuntimeWarning)
        warnings.filterwarnings("ignore", ".*encountered in matmul", RuntimeWarning)
        yield


def note(name, error, violations, refusals):
    """Add an error to the violations or, if it is a clear message, to the refusals."""
    if isinstance(error, BrokenPromiseError):
        violations.append((name, str(error)))
        return
    where = traceback.extract_tb(error.__traceback__)[-1]
    words = f"{type(error).__name__}: {error} ({Path(where.filename).name})"
    expected = clear(error) or isinstance(error, SkippedError)
    (refusals if expected else violations).append((name, words))


def family_of(number):
    """Return the family that a case belongs to."""
    place, total = np.random.default_rng([number, 2]).uniform(), 0.0
    for name, (share, _) in FAMILIES.items():
        total += share
        if place < total:
            return name
    return "tables"


def examine_any(task):
    """Examine a case of any family, for a limited time: (family, violations, refusals, lines)."""
    number, family, only, limit = task
    family = family or family_of(number)
    start, violations, refusals = time.perf_counter(), [], []
    case = None
    lines = (
        "import sys; sys.path.insert(0, 'benchmarks'); import numpy as np\n"
        f"from campaign_families import FAMILIES; FAMILIES[{family!r}][1]("
        f"np.random.default_rng([20261, {number}]))"
    )
    for kind in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(kind, out_of_time)
    signal.setitimer(signal.ITIMER_PROF, limit)
    signal.alarm(WAITING * limit)
    try:
        if family == "tables":
            case, violations, refusals = examine(number, only)
        else:
            with quiet():
                FAMILIES[family][1](np.random.default_rng([20261, number]))
    except OutOfTimeError:
        violations.append(("time", f"case {number} took longer than {limit} s"))
    except Exception as error:
        note(family, error, violations, refusals)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    if family == "tables":
        lines = (case or case_of(number)).reproducer() if violations else ""
    return family, violations, refusals, lines, time.perf_counter() - start


class OutOfTimeError(BaseException):
    """A case takes too long; not an Exception, which a case may catch."""


def out_of_time(_signal, _frame):
    raise OutOfTimeError


class Summary:
    """What came out so far, printed as it comes."""

    def __init__(self, total):
        self.total, self.start, self.printed = total, time.perf_counter(), 0.0
        self.cases, self.broken, self.refused = (collections.Counter() for _ in range(3))
        self.seconds = collections.Counter()

    def add(self, family, violations, refusals, lines, seconds):
        self.cases[family] += 1
        self.seconds[family] += seconds
        for promise, words in violations:
            self.broken[promise] += 1
            print(f"\n{promise}: {words}\n{lines}", flush=True)
        self.refused.update(f"{promise}: {words}"[:150] for promise, words in refusals)
        if time.perf_counter() - self.printed > 10:
            self.print_progress()

    def print_progress(self):
        self.printed, done = time.perf_counter(), self.cases.total()
        passed = self.printed - self.start
        print(f"{done} of {self.total} cases, {self.broken.total()} violations, {passed:.0f} s",
              flush=True)  # fmt: skip

    def print_all(self):
        self.print_progress()
        for family, count in self.cases.most_common():
            print(f"  {count:6d}  {family}, {self.seconds[family] / count:.2f} s a case")
        for promise, count in self.broken.most_common():
            print(f"  {count:6d}  violations of {promise}")
        print(f"{self.refused.total()} refusals in words, the most common:")
        for words, count in self.refused.most_common(8):
            print(f"  {count:6d}  {words}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first case")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after that long")
    parser.add_argument("--family", default="", choices=["", "tables", *FAMILIES])
    parser.add_argument("--only", default="", help="promises whose name contains this, always")
    parser.add_argument("--limit", type=int, default=120, help="CPU seconds that a case may take")
    a = parser.parse_args()
    os.environ.setdefault("SCIPY_ARRAY_API", "1")  # read by each process when it starts
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    family = "tables" if a.only else a.family
    numbers = range(a.seed, a.seed + a.cases)
    tasks = ((number, family, a.only, a.limit) for number in numbers)
    summary, end = Summary(a.cases), time.perf_counter() + a.seconds
    context = multiprocessing.get_context("spawn")
    with context.Pool(a.jobs, maxtasksperchild=500) as pool:
        results = pool.imap_unordered(examine_any, tasks)
        while summary.cases.total() < a.cases:
            left = end - time.perf_counter()
            if left <= 0:
                print("The time is up.")
                break
            try:
                summary.add(*results.next(timeout=min(10.0, left)))
            except multiprocessing.TimeoutError:
                summary.print_progress()
        pool.terminate()
    summary.print_all()
    return 1 if summary.broken else 0


if __name__ == "__main__":
    sys.exit(main())
