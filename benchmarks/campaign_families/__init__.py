"""Families of the campaign beside tables of numbers: each case is a function of its random numbers.

A case returns nothing, raises `BrokenPromiseError` where a promise is not kept, and may raise
errors in words. What a family needs may be missing; then `SkippedError` says what.
"""

import tempfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import KFold

from campaign_families.attacks import ATTACKS
from campaign_families.checks import (
    BrokenPromiseError,
    SkippedError,
    in_sample,
    needed,
    require,
    same_after_a_file,
    seed_of,
    table,
)
from campaign_families.everyday import EVERYDAY
from campaign_families.forgeries import forged_journals, forged_model_files
from campaign_families.forms import FORM_FAMILIES
from campaign_families.interruptions import INTERRUPTIONS
from campaign_families.measurements import MEASUREMENTS
from campaign_families.odd_input import ODD_INPUT
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    load,
    open_source,
    save,
    to_onnx,
)


def classifiers(rng):
    X, f = table(rng)
    n_classes = int(rng.integers(2, 4))
    noisy = f + rng.choice([0.1, 1, 5]) * (f.std() + 0.1) * rng.standard_normal(len(f))
    y = np.searchsorted(np.quantile(noisy, np.arange(1, n_classes) / n_classes), noisy)
    y = np.array(["no", "yes", "perhaps"])[y]
    if len(np.unique(y)) < 2:
        return
    weight = rng.uniform(0.1, 3, len(y)) if rng.uniform() < 0.3 else None
    kind = SecondOrderClassifier if rng.uniform() < 0.7 else FactorizationMachineClassifier
    options = {
        "rank": "auto" if rng.uniform() < 0.3 else int(rng.integers(0, 4)),
        "alpha": "auto" if rng.uniform() < 0.5 else float(10 ** rng.uniform(-2, 2)),
        "fit_intercept": bool(rng.uniform() < 0.85),
        "class_weight": "balanced" if rng.uniform() < 0.2 else None,
        "random_state": seed_of(rng),
    }
    model = kind(**options).fit(X, y, sample_weight=weight)
    P = model.predict_proba(X)
    require(np.isfinite(P).all() and (P >= 0).all(), "a probability is not a number from 0 to 1")
    require(np.allclose(P.sum(axis=1), 1), "probabilities do not add to 1")
    omega = np.ones(len(y)) if weight is None else weight
    if options["class_weight"] is None and options["fit_intercept"]:
        codes = np.searchsorted(model.classes_, y)
        loss = -np.average(np.log(np.maximum(P[np.arange(len(y)), codes], 1e-300)), weights=omega)
        shares = np.bincount(codes, omega) / omega.sum()
        constant = -np.sum(shares * np.log(shares))
        # Several classes are fitted one against the others, which a constant is not.
        slack = 1e-6 if n_classes == 2 else 0.05
        require(loss <= constant + slack, f"log-loss {loss:.4g}, of a constant {constant:.4g}")
    same = clone(model).fit(X, y, sample_weight=weight)
    require(np.array_equal(P, same.predict_proba(X)), "the same seed: other probabilities")
    same_after_a_file(model, lambda m: m.predict_proba(X))
    stream = clone(model)
    stream.set_params(batch_size=int(rng.integers(2, 60)))
    if stream.class_weight is None:
        for start in range(0, len(y), 37):
            part = slice(start, start + 37)
            try:
                stream.partial_fit(X[part], y[part], classes=np.unique(y))
            except ValueError as error:
                require("changed since" not in str(error), f"nothing changed: {error}")
                raise
        require(np.isfinite(stream.predict_proba(X)).all(), "a stream's probability is no number")


def cross_validation(rng):
    X, f = table(rng, n=int(rng.integers(20, 80)), d=int(rng.integers(1, 5)))
    y = f + rng.standard_normal(len(f))
    model = SecondOrderRegressorCV(
        ranks=[0, 1, 2][: int(rng.integers(1, 4))],
        alphas=None if rng.uniform() < 0.5 else [0.1, 10.0],
        cv=KFold(3, shuffle=True, random_state=0) if rng.uniform() < 0.5 else 3,
        random_state=seed_of(rng),
    ).fit(X, y)
    in_sample(model, X, y, None, "cross-validated")
    require(np.array_equal(model.predict(X), clone(model).fit(X, y).predict(X)), "other bits")
    same_after_a_file(model, lambda m: m.predict(X))


def pairs(rng):
    X, f = table(rng, d=int(rng.integers(2, 7)))
    d, y = X.shape[1], f + rng.choice([0.1, 3]) * rng.standard_normal(len(f))
    i, j = (int(a) for a in rng.choice(d, 2, replace=False))
    given = [[(i, j)], [(i, i), (i, j)], int(rng.integers(1, 5)), "auto"][rng.integers(4)]
    weight = rng.uniform(0.1, 3, len(y)) if rng.uniform() < 0.3 else None
    model = SecondOrderRegressor(
        rank=int(rng.integers(0, 3)),
        alpha="auto" if rng.uniform() < 0.5 else 0.1,
        pairs=given,
        uncertainty=bool(rng.uniform() < 0.3),
        random_state=seed_of(rng),
    ).fit(X, y, sample_weight=weight)
    in_sample(model, X, y, weight, f"pairs={given}")
    if isinstance(given, list):
        listed = {tuple(sorted((p.first, p.second))) for p in model.pairs_.pairs}
        wanted = {tuple(sorted((f"x{a}", f"x{b}"))) for a, b in given}
        require(listed <= wanted, f"pairs {listed - wanted} were not asked for")
    same_after_a_file(model, lambda m: m.predict(X))


def forged_files(rng):
    """Change a file at random: it is refused in words, or its model predicts numbers."""
    X, f = table(rng, n=60, d=3)
    kinds = (SecondOrderRegressor, FactorizationMachineRegressor)
    model = kinds[rng.integers(2)](rank=1, alpha=0.1, random_state=0)
    if rng.uniform() < 0.5:
        model.fit(X, f)
    else:
        model.partial_fit(X[:50], f[:50])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save(model, path)
        data = path.read_bytes()
        for _ in range(5):
            forged = bytearray(data)
            how = rng.integers(4)
            if how == 0:
                forged = forged[: rng.integers(len(data))]
            elif how == 1:
                forged += rng.bytes(int(rng.integers(1, 64)))
            elif how == 2:
                for _ in range(int(rng.integers(1, 6))):
                    forged[rng.integers(len(data))] = rng.integers(256)
            else:
                start = int(rng.integers(len(data)))
                forged[start : start + 8] = rng.bytes(8)
            path.write_bytes(bytes(forged))
            try:
                loaded = load(path)
            except ValueError as error:
                require(len(str(error)) > 20, f"refused without words: {error!r}")
                continue
            require(np.isfinite(loaded.predict(X)).all(), "a forged file predicts no number")


def dask_rows(rng):
    array = needed("dask.array")
    dask = needed("dask")
    X, f = table(rng)
    y = f + 0.1 * rng.standard_normal(len(f))
    rows = int(rng.integers(10, len(y) + 1))
    model = SecondOrderRegressor(rank=1, alpha=0.1, random_state=seed_of(rng))
    with dask.config.set(scheduler="synchronous"):
        far = clone(model).fit(array.from_array(X, chunks=(rows, -1)), array.from_array(y, rows))
    near = model.fit(X, y)
    apart = abs(far.history_[-1].loss - near.history_[-1].loss)
    require(apart <= 0.01 * np.var(y) + 1e-12, f"Dask: objectives {apart:.3g} apart")


def tensors(rng):
    with config_context(array_api_dispatch=True):
        fit_tensors(rng, "cpu")


def fit_tensors(rng, device):
    torch = needed("torch")
    X, f = table(rng)
    dtype = (np.float64, np.float32)[rng.integers(2)]
    X, y = X.astype(dtype), (f + 0.1 * rng.standard_normal(len(f))).astype(dtype)
    parts = {"fit_linear": bool(rng.uniform() < 0.8), "fit_intercept": bool(rng.uniform() < 0.8)}
    options = {"rank": int(rng.integers(0, 3)), "alpha": 0.1, "random_state": seed_of(rng)}
    near = SecondOrderRegressor(**options, **parts).fit(X, y)
    Xt, yt = (torch.asarray(a, device=device) for a in (X, y))
    far = SecondOrderRegressor(**options, **parts).fit(Xt, yt)
    apart = abs(far.history_[-1].loss - near.history_[-1].loss)
    power = np.mean(y.astype(float) ** 2)
    require(apart <= 0.05 * power + 1e-12, f"torch: objectives {apart:.3g} apart of {power:.3g}")
    require(bool(torch.isfinite(far.predict(Xt)).all()), "torch: a prediction is not finite")
    stream = SecondOrderRegressor(**options, **parts, batch_size=20)
    for start in range(0, len(y), 37):
        stream.partial_fit(Xt[start : start + 37], yt[start : start + 37])
    require(bool(torch.isfinite(stream.predict(Xt)).all()), "torch: a stream is not finite")


def gpu(rng):
    if not needed("torch").cuda.is_available():
        raise SkippedError("there is no GPU")
    with config_context(array_api_dispatch=True):
        fit_tensors(rng, "cuda")


def large_files(rng):
    """Fit a file and one of half its rows: a fit takes blocks of memory, whatever the file."""
    kind = ("npy", "hdf5", "zarr", "parquet")[rng.integers(4)]
    d, X = 12, rng.standard_normal((120_000, 12))
    y = X[:, 0] * X[:, 1] + rng.standard_normal(len(X))
    half, whole = (peak_of_a_fit(kind, X[:n], y[:n], d) for n in (60_000, 120_000))
    text = f"{kind}: {whole / 1e6:.1f} MB, {half / 1e6:.1f} for half of {X.nbytes / 1e6:.1f} MB"
    require(whole < half + X.nbytes / 4, text)


def peak_of_a_fit(kind, X, y, d):
    """Return the most bytes that a fit of a file took at a time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows.{kind}"
        if kind == "npy":
            np.save(path, X)
            rows = np.load(path, mmap_mode="r")
        elif kind == "hdf5":
            rows = needed("h5py").File(path, "w").create_dataset("X", data=X)
        elif kind == "zarr":
            rows = needed("zarr").create_array(path, shape=X.shape, dtype=X.dtype, chunks=(4000, d))
            rows[:] = X
        else:
            pyarrow, parquet = needed("pyarrow"), needed("pyarrow.parquet")
            columns = {f"x{j}": X[:, j] for j in range(d)} | {"y": y}
            parquet.write_table(pyarrow.table(columns), path, row_group_size=4000)
            rows = path
        target = "y" if kind == "parquet" else y
        source = open_source(rows, target=target, chunk_rows=4000)
        model = SecondOrderRegressor(rank=2, alpha=0.1, max_iter=2, random_state=0)
        tracemalloc.start()
        try:
            model.fit(source)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        error = model.history_[-1].loss
    require(error < 1.2, f"{kind}: objective {error:.3g}, noise 1")
    return peak


def threads(rng):
    """Fits at once in threads are the fits one after the other."""
    problems = []
    for _ in range(3):
        X, f = table(rng)
        problems.append((X, f + rng.standard_normal(len(f)), seed_of(rng)))

    def fitted(problem):
        X, y, seed = problem
        return SecondOrderRegressor(random_state=seed).fit(X, y).predict(X)

    alone = [fitted(p) for p in problems]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(fitted, problems))
    for a, b in zip(alone, together, strict=True):
        require(np.array_equal(a, b), "a fit beside others is another fit")


def onnx(rng):
    runtime = needed("onnxruntime")
    X, f = table(rng)
    y = f + rng.standard_normal(len(f))
    if rng.uniform() < 0.5 and len(np.unique(y > 0)) == 2:
        model = SecondOrderClassifier(rank=1, alpha=1.0, random_state=0).fit(X, y > 0)
        wanted = model.predict_proba(X)
    else:
        rank = int(rng.integers(0, 3))
        model = SecondOrderRegressor(rank=rank, random_state=0).fit(X, y)
        wanted = model.predict(X)
    session = runtime.InferenceSession(to_onnx(model).SerializeToString())
    answers = session.run(None, {session.get_inputs()[0].name: X})
    good = [a for a in answers if np.shape(a) == wanted.shape]
    require(bool(good), f"shapes {[np.shape(a) for a in answers]}, not {wanted.shape}")
    apart = min(float(np.max(np.abs(a - wanted))) for a in good)
    require(apart <= 1e-3 * (1 + np.abs(wanted).max()), f"onnxruntime differs by {apart:.3g}")


# By name: the share of all cases, and the case. What costs seconds is rare.
FAMILIES = {
    "classifiers": (0.07, classifiers),
    "cv": (0.02, cross_validation),
    "pairs": (0.04, pairs),
    "forged": (0.04, forged_files),
    "dask": (0.01, dask_rows),
    "torch": (0.02, tensors),
    "gpu": (0.005, gpu),
    "large": (0.005, large_files),
    "threads": (0.01, threads),
    "onnx": (0.02, onnx),
    **EVERYDAY,
    **FORM_FAMILIES,
    **INTERRUPTIONS,
    **MEASUREMENTS,
    **ODD_INPUT,
    "contents": (0.03, forged_model_files),
    "journals": (0.01, forged_journals),
    **ATTACKS,
}

__all__ = ["FAMILIES", "BrokenPromiseError", "SkippedError", "require"]
