"""The same numbers in another form: arrays, frames, sparse formats, targets, copies, pipelines."""

import copy
import pickle
import tempfile
from decimal import Decimal

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from campaign_families.checks import needed, require, seed_of
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
)


def whole_numbers(rng):
    """Return small integers, which every form can hold, a target of two values and one of many."""
    n, d = int(rng.integers(30, 90)), int(rng.integers(2, 5))
    X = rng.integers(-4, 5, (n, d)) * (rng.uniform(size=(n, d)) < 0.7)
    X[:, 0] = np.arange(n) % 5 - 2
    f = X[:, 0] * X[:, -1] + X[:, 0] + rng.integers(-2, 3, n)
    return X.astype(np.float64), f.astype(np.float64)


def estimator_of(rng):
    """Return an estimator of any kind, and whether it predicts labels and counts."""
    kinds = (
        SecondOrderRegressor,
        FactorizationMachineRegressor,
        SecondOrderClassifier,
        FactorizationMachineClassifier,
        SecondOrderRegressorCV,
    )
    kind = kinds[rng.integers(5)]
    if kind is SecondOrderRegressorCV:
        return kind(ranks=[0, 1], alphas=[1.0], cv=3, random_state=seed_of(rng)), "numbers"
    alpha = 1.0 if rng.uniform() < 0.7 else "auto"
    options = {"rank": int(rng.integers(0, 3)), "alpha": alpha, "random_state": seed_of(rng)}
    if kind is SecondOrderRegressor and rng.uniform() < 0.3:
        return kind(**options, loss="poisson"), "counts"
    return kind(**options), "labels" if "Classifier" in kind.__name__ else "numbers"


def strided(X):
    wide = np.zeros((2 * len(X), 3 * X.shape[1]))
    wide[::2, ::3] = X
    return wide[::2, ::3]


def read_only(X):
    X = X.copy()
    X.flags.writeable = False
    return X


def mapped(X):
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file.name, X)
        return np.load(file.name, mmap_mode="r")


def with_duplicates(X):
    """Return entries in two parts each, and some that are zero."""
    i, j = np.nonzero(np.ones_like(X))
    half = np.tile(X[i, j] / 2, 2)
    return sparse.coo_array((half, (np.tile(i, 2), np.tile(j, 2))), shape=X.shape)


def long_indices(X):
    X = sparse.csr_array(X)
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


def names_of(X):
    return [f"x{j}" for j in range(X.shape[1])]


def frame(X, dtype="float64"):
    return needed("pandas").DataFrame(X, columns=names_of(X)).astype(dtype)


def polars_frame(X):
    return needed("polars").DataFrame(dict(zip(names_of(X), X.T, strict=True)))


def arrow_table(X):
    return needed("pyarrow").table(dict(zip(names_of(X), X.T, strict=True)))


# Forms that hold the same numbers; those of 16 bits and less are numbers all the same.
FORMS = {
    "a list": lambda X: X.tolist(),
    "Fortran's order": np.asfortranarray,
    "strides": strided,
    "negative strides": lambda X: X[::-1, ::-1].copy()[::-1, ::-1],
    "read-only": read_only,
    "a memory map": mapped,
    "int8": lambda X: X.astype(np.int8),
    "int64": lambda X: X.astype(np.int64),
    "float16": lambda X: X.astype(np.float16),
    "big-endian": lambda X: X.astype(">f8"),
    "objects": lambda X: X.astype(object),
    "long double": lambda X: X.astype(np.longdouble),
    "csr": sparse.csr_matrix,
    "csc": sparse.csc_array,
    "coo with duplicates": with_duplicates,
    "int64 indices": long_indices,
    "lil": sparse.lil_array,
    "a frame": frame,
    "a frame of Int64": lambda X: frame(X, "Int64"),
    "a frame of float32": lambda X: frame(X, "float32"),
    "a frame of Arrow": lambda X: frame(X, "int64[pyarrow]"),
    "polars": polars_frame,
    "an Arrow table": arrow_table,
}
TARGETS = {
    "a list": lambda y: y.tolist(),
    "a column": lambda y: y[:, None],
    "int8": lambda y: y.astype(np.int8),
    "a series": lambda y: needed("pandas").Series(y, index=np.arange(len(y))[::-1]),
    "a series of Int64": lambda y: needed("pandas").Series(y).astype("Int64"),
    "polars": lambda y: needed("polars").Series(y),
    "decimals": lambda y: [Decimal(int(v)) for v in y],
    "read-only": read_only,
    "strides": lambda y: np.repeat(y, 2)[::2],
}


def answer(model, X, kind):
    """Return what a fit says, as numbers."""
    return model.predict_proba(X) if kind == "labels" else model.predict(X)


def forms(rng):
    """Rows and targets in another form are the same fit."""
    X, y = whole_numbers(rng)
    model, kind = estimator_of(rng)
    y = {"labels": (y > np.median(y)) * 1.0, "counts": np.abs(y), "numbers": y}[kind]
    if len(np.unique(y)) < 2:
        return
    form, shape = (list(a)[rng.integers(len(a))] for a in (FORMS, TARGETS))
    other_X, other_y = FORMS[form](X), TARGETS[shape](y)
    kept, near = X.copy(), clone(model).fit(X, y)
    text = f"{type(model).__name__}({kind}): X as {form}, y as {shape}"
    far = clone(model).fit(other_X, other_y)
    apart = np.max(np.abs(answer(far, other_X, kind) - answer(near, X, kind)))
    # Sparse rows and float32 take other ways to the same optimum.
    require(apart <= 0.02 * (1 + np.ptp(y)), f"{text}: predictions {apart:.3g} apart")
    require(np.array_equal(X, kept), f"{text}: the rows were changed")


def copies(rng):
    """Copies of a stream by any means go on as it does, and it does not learn from theirs."""
    X, y = whole_numbers(rng)
    kind = (SecondOrderRegressor, FactorizationMachineRegressor)[rng.integers(2)]
    model = kind(rank=1, alpha=1.0, batch_size=10, random_state=seed_of(rng))
    first = int(rng.integers(5, len(y) - 4))
    model.partial_fit(X[:first], y[:first])
    before = model.predict(X)
    ways = (copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m)))
    other = ways[rng.integers(3)](model)
    other.partial_fit(X[first:], y[first:])
    require(np.array_equal(before, model.predict(X)), "a copy's rows were learned here as well")
    model.partial_fit(X[first:], y[first:])
    apart = np.abs(model.predict(X) - other.predict(X)).max()
    require(apart <= 1e-9 * np.ptp(y), f"a copy of a stream goes on {apart:.3g} apart")


def pipelines(rng):
    """Pipelines that hand frames on, and searches over grids, are fits as well."""
    pandas = needed("pandas")
    X, y = whole_numbers(rng)
    table = pandas.DataFrame(X, columns=names_of(X), index=rng.permutation(len(y)))
    inner = SecondOrderRegressor(rank=1, alpha=1.0, random_state=seed_of(rng))
    pipeline = make_pipeline(StandardScaler(), inner).set_output(transform="pandas")
    good = np.isfinite(pipeline.fit(table, y).predict(table)).all()
    require(good, "a pipeline predicts no number")
    search = GridSearchCV(clone(inner), {"rank": [0, 1], "alpha": [0.1, "auto"]}, cv=3)
    search.fit(table, y)
    require(np.isfinite(search.cv_results_["mean_test_score"]).all(), "a grid has no scores")


def weights(rng):
    """Weights of zero are rows left out, and their scale does not matter without a penalty."""
    X, y = whole_numbers(rng)
    kept = rng.uniform(size=len(y)) < 0.8
    kept[:20] = True
    kind = (SecondOrderRegressor, FactorizationMachineRegressor)[rng.integers(2)]
    options = {"rank": int(rng.integers(0, 2)), "alpha": "auto", "random_state": seed_of(rng)}
    scale = 10.0 ** rng.integers(-12, 13)
    near = kind(**options).fit(X[kept], y[kept])
    far = kind(**options).fit(X, y, sample_weight=scale * kept)
    apart = abs(near.history_[-1].loss - far.history_[-1].loss)
    text = f"weights of {scale:g} and 0: objectives {apart:.3g} apart of {np.var(y):.3g}"
    require(apart <= 0.05 * np.var(y) + 1e-9, text)


FORM_FAMILIES = {
    "forms": (0.03, forms),
    "copies": (0.01, copies),
    "pipelines": (0.005, pipelines),
    "weights": (0.02, weights),
}
