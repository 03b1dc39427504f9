"""Attacks by what tables rarely hold: redundant columns, rare labels and levels, tiny folds.

Also weights, counts and ranks out of any proportion, and rows whose form changes in mid-stream.
"""

import copy
import pickle
from functools import partial

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, LeaveOneOut, ShuffleSplit

from campaign_families.checks import in_sample, needed, require, same_after_a_file, seed_of, table
from campaign_families.odd_input import refused
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
)


def redundant_columns(rng):
    """Columns that others determine: no fit is worse than a constant, by dense or sparse rows."""
    n = int(rng.integers(5, 200))
    a = rng.standard_normal((n, 2)) + rng.choice([0.0, 0.0, 30.0])
    codes = np.eye(3)[rng.integers(0, 3, n)]
    how = str(rng.choice(["equal", "scaled", "a sum", "nearly equal", "levels", "opposite"]))
    X = {
        "equal": lambda: np.column_stack([a, a[:, 0]]),
        "scaled": lambda: np.column_stack([a, 3 * a[:, 0] + 1]),
        "a sum": lambda: np.column_stack([a, a.sum(axis=1)]),
        "nearly equal": lambda: np.column_stack([a, a[:, 0] + 1e-6 * rng.standard_normal(n)]),
        "levels": lambda: np.column_stack([codes, a[:, :1]]),
        "opposite": lambda: np.column_stack([codes[:, 0], 1 - codes[:, 0], a]),
    }[how]()
    dtype = (np.float64, np.float32)[rng.integers(2)]
    X = X.astype(dtype)
    scale = np.where(X.std(axis=0) > 0, X.std(axis=0), 1)
    Z = (X - X.mean(axis=0)) / scale
    f = Z @ rng.standard_normal(X.shape[1])
    f += rng.choice([-1.0, 1.0]) * (Z @ rng.standard_normal(X.shape[1])) ** 2
    y = (f + rng.choice([0.0, 0.5]) * rng.standard_normal(n)).astype(dtype)
    options = {
        "rank": int(rng.integers(1, 3)),
        "alpha": 0.0,
        "psd": bool(rng.uniform() < 0.4),
        "fit_linear": bool(rng.uniform() < 0.7),
        "polish": bool(rng.uniform() < 0.8),
        "whiten": str(rng.choice(["auto", "full", "lowrank", "none"])),
        "random_state": seed_of(rng),
    }
    options["alpha"] = 0.0 if options["polish"] else "auto"
    text = f"{how}, {n} rows of {np.dtype(dtype)}, {options}"
    rows = sparse.csr_array(X) if rng.uniform() < 0.3 else X
    model = SecondOrderRegressor(**options).fit(rows, y)
    spread = float(np.var(y.astype(float)))
    slack = (1e-6 if dtype is np.float64 else 2e-3) * spread
    errors = [np.mean((model.predict(form(X)).astype(float) - y) ** 2) for form in FORMS]
    require(max(errors) <= spread + slack, f"{text}: errors {errors}, variance {spread:.4g}")
    require(np.ptp(errors) <= 0.05 * spread + slack, f"{text}: sparse and dense {errors}")


FORMS = (lambda X: X, sparse.csr_array)


def rare_labels(rng):
    """Labels of few rows, of weight zero or missing in a batch: probabilities are numbers."""
    X, f = table(rng, n=int(rng.integers(4, 60)))
    n = len(f)
    y = np.searchsorted(np.quantile(f, [0.3, 0.6]), f) if rng.uniform() < 0.5 else f > np.median(f)
    y = np.array(y, dtype=[int, object, np.int8, float][rng.integers(4)])
    rare = int(rng.integers(n))
    y[rare] = y.max() + 1 if rng.uniform() < 0.5 else y[rare]
    weight = None if rng.uniform() < 0.4 else (rng.uniform(size=n) < 0.7) * 1.0
    if weight is not None and rng.uniform() < 0.3:
        weight[y == y[rare]] = 0
    X = X.astype((np.float64, np.float32)[rng.integers(2)])
    X = sparse.csr_array(X) if rng.uniform() < 0.3 else X
    kind = (SecondOrderClassifier, FactorizationMachineClassifier)[rng.integers(2)]
    labels = np.unique(y)
    chosen = [None, "balanced", {labels[0]: 3.0}, {labels[0]: 0.0}][rng.integers(4)]
    options = {
        "rank": "auto" if rng.uniform() < 0.3 else int(rng.integers(0, 3)),
        "alpha": ["auto", 0.0, 1.0][rng.integers(3)],
        "class_weight": chosen,
        "random_state": seed_of(rng),
    }
    model = kind(**options)
    text = f"{n} rows, {len(labels)} labels, {options}"
    if not refused(lambda: model.fit(X, y, sample_weight=weight), text):
        P = model.predict_proba(X)
        good = np.isfinite(P).all() and np.allclose(P.sum(axis=1), 1, atol=1e-5)
        require(good and (P >= 0).all(), f"{text}: probabilities are none")
        require(set(model.predict(X).tolist()) <= set(labels.tolist()), f"{text}: another label")
        same_after_a_file(model, lambda m: m.predict_proba(X))
    if chosen is None:
        stream = clone(model).set_params(batch_size=int(rng.integers(2, 20)))
        first, more = y.tolist().index(labels[0]), {"classes": labels}
        for part in (slice(first, first + 1), slice(0, n // 2), slice(n // 2, n)):
            if refused(partial(stream.partial_fit, X[part], y[part], **more), text):
                return
        require(np.isfinite(stream.predict_proba(X)).all(), f"{text}: a stream is not finite")


def rare_levels(rng):
    """Levels that are unseen, missing, alone in a column or of weight zero have a prediction."""
    pandas = needed("pandas")
    n = int(rng.integers(5, 80))
    frame = pandas.DataFrame(
        {
            "user": rng.integers(0, 6, n).astype(str),
            "item": rng.choice(["a", "b", "", " ", "nan"], n),
            "single": np.full(n, "only"),
        }
    )[["user", "item", "single"][: int(rng.integers(2, 4))]]
    y = rng.standard_normal(n) + (frame["item"] == "a")
    gaps = rng.uniform() < 0.4
    if gaps:
        frame.loc[rng.uniform(size=n) < 0.3, "item"] = [None, np.nan][rng.integers(2)]
    labels = bool(rng.uniform() < 0.4)
    target = (y > y.median()).to_numpy() if labels else y.to_numpy()
    weight = None if rng.uniform() < 0.5 else (frame["user"] != "3").to_numpy() * 1.0
    kinds = (FactorizationMachineRegressor, FactorizationMachineClassifier)
    options = {"rank": int(rng.integers(0, 4)), "random_state": seed_of(rng)}
    options["missing"] = "mean" if gaps and rng.uniform() < 0.7 else "error"
    model = kinds[labels](**options)
    text = f"{n} rows of {list(frame.columns)}, gaps {gaps}, {options}"
    if refused(lambda: model.fit(frame, target, sample_weight=weight), text):
        return
    answer = model.predict_proba if labels else model.predict
    other = frame.head(4).copy()
    other["user"] = ["7", "3", "", "0"][: len(other)]
    for rows in (frame, other, frame.head(1), frame.assign(user="9")):
        good = np.isfinite(answer(rows)).all()
        require(good, f"{text}: a prediction is not finite")
    if not gaps:
        odd = other.assign(item=None)
        if not refused(lambda: answer(odd), text):
            require(np.isfinite(answer(odd)).all(), f"{text}: a gap has no finite prediction")
    same_after_a_file(model, lambda m: m.predict(frame))


def odd_counts(rng):
    """Counts of zero but for a few, huge ones, and fractions: means are numbers, or refused."""
    X, f = table(rng, n=int(rng.integers(3, 120)))
    n = len(f)
    how = str(rng.choice(["one", "huge", "fractions", "mixed", "small"]))
    y = {
        "one": np.eye(n)[int(rng.integers(n))] * 10.0 ** rng.integers(0, 7),
        "huge": np.floor(1e12 * np.exp(f / (f.std() + 1e-9))),
        "fractions": np.exp(f / (f.std() + 1e-9)),
        "mixed": np.where(rng.uniform(size=n) < 0.7, 0, np.floor(10 ** rng.uniform(0, 9, n))),
        "small": (rng.uniform(size=n) < 0.1) * 1.0,
    }[how]
    weight = None if rng.uniform() < 0.6 else (rng.uniform(size=n) < 0.7) * 1.0
    X = X.astype((np.float64, np.float32)[rng.integers(2)])
    options = {
        "rank": "auto" if rng.uniform() < 0.4 else int(rng.integers(0, 3)),
        "alpha": ["auto", 0.0, 1.0][rng.integers(3)],
        "uncertainty": [False, True, "robust"][rng.integers(3)],
        "random_state": seed_of(rng),
    }
    model = SecondOrderRegressor(loss="poisson", **options)
    text = f"{how}, {n} rows, {options}"
    if refused(lambda: model.fit(X, y, sample_weight=weight), text):
        return
    mean = model.predict(X)
    require(np.isfinite(mean).all() and (mean >= 0).all(), f"{text}: a mean is no number ≥ 0")
    if (y if weight is None else y * weight).any():
        score = model.score(X, y, sample_weight=weight)
        slack = 1e-6 if X.dtype == np.float64 else 2e-3
        require(score >= -slack, f"{text}: score {score:.4g}")
    same_after_a_file(model, lambda m: m.predict(X))


def tiny_folds(rng):
    """Folds by groups, of one row, or of nearly all rows choose a model, or are refused."""
    X, f = table(rng, n=int(rng.integers(4, 40)), d=int(rng.integers(1, 5)))
    n = len(f)
    y = f + rng.standard_normal(n)
    groups = np.arange(n) % int(rng.integers(2, 6))
    folds = (
        GroupKFold(2),
        LeaveOneOut(),
        ShuffleSplit(2, test_size=max(1, n - 3), random_state=0),
        int(rng.integers(2, 5)),
    )
    which = int(rng.integers(4))
    weight = None if rng.uniform() < 0.5 else (rng.uniform(size=n) < 0.6) * 1.0
    ranks, alphas = [0, 1, 50][: int(rng.integers(1, 4))], [None, [0.0, 1.0], [1e-3]][which % 3]
    model = SecondOrderRegressorCV(ranks, alphas, cv=folds[which], random_state=seed_of(rng))
    more = {"groups": groups} if which == 0 else {}
    text = f"{n} rows, {folds[which]}, ranks {ranks}, alphas {alphas}"
    if refused(lambda: model.fit(X, y, sample_weight=weight, **more), text):
        return
    require(np.isfinite(model.predict(X)).all(), f"{text}: a prediction is not finite")
    same_after_a_file(model, lambda m: m.predict(X))


def changing_forms(rng):
    """Rows of another dtype or form go on with a stream as the same numbers would."""
    X, f = table(rng, n=int(rng.integers(40, 200)))
    X, y = X.astype(np.float32).astype(np.float64), f + rng.standard_normal(len(f))
    y = y.astype(np.float32).astype(np.float64)
    rank = int(rng.integers(0, 3))
    options = {"rank": rank, "alpha": 1.0, "batch_size": int(rng.integers(2, 40))}
    plain, other = (SecondOrderRegressor(**options, random_state=3) for _ in range(2))
    forms = (
        np.asarray,
        lambda A: A.astype(np.float32),
        np.asfortranarray,
        lambda A: A.astype(">f8"),
        lambda A: A.tolist(),
        lambda A: A.astype(object),
    )
    size = int(rng.integers(5, 50))
    ways = (copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: m)
    for start in range(0, len(y), size):
        part = slice(start, start + size)
        form = forms[rng.integers(len(forms))]
        plain.partial_fit(X[part], y[part])
        target = [y[part], y[part].astype(np.float32), y[part].tolist()][rng.integers(3)]
        other.partial_fit(form(X[part]), target)
        other = ways[rng.integers(len(ways))](other)
    require(other.n_samples_seen_ == len(y), f"{other.n_samples_seen_} rows of {len(y)}")
    apart = np.max(np.abs(plain.predict(X) - other.predict(X)))
    # Float32 sums differ in the seventh digit; a step that is judged by them may be taken or not.
    require(apart <= 0.05 * (np.ptp(y) + 1), f"{options}: streams end {apart:.3g} apart")


def refits(rng):
    """A fit after any other fit, with other options and rows, is that of a new estimator."""
    model = SecondOrderRegressor(random_state=0)
    for _ in range(3):
        X, f = table(rng, n=int(rng.integers(10, 90)))
        X = X.astype((np.float64, np.float32)[rng.integers(2)])
        y = f + rng.standard_normal(len(f))
        pairs = [None, 1][rng.integers(2)]
        model.set_params(
            rank=int(rng.integers(0, 3)),
            alpha=[1.0, 0.1][rng.integers(2)],
            loss=str(rng.choice(["squared", "squared", "huber"])),
            uncertainty=bool(rng.uniform() < 0.3),
            warm_start=bool(rng.uniform() < 0.3),
            fit_linear=bool(rng.uniform() < 0.8) or pairs is not None,
            pairs=pairs,
        )
        text = f"{model}, {X.shape} of {X.dtype}"
        if rng.uniform() < 0.3:
            model = clone(model).partial_fit(X, y) if rng.uniform() < 0.5 else model
        if refused(partial(model.fit, X, y), text):
            require(model.warm_start, f"{text}: refused")
            model = clone(model)
            continue
        require(np.isfinite(model.predict(X)).all(), f"{text}: a prediction is not finite")
        if not model.warm_start:
            new = clone(model).fit(X, y)
            require(np.array_equal(new.predict(X), model.predict(X)), f"{text}: another fit")


def out_of_proportion(rng):
    """Weights of 1e-300 or 1e300, ranks beyond the features, one row, one column."""
    n, d = int(rng.choice([1, 2, 3, 50])), int(rng.choice([1, 1, 2, 6]))
    X, y = rng.standard_normal((n, d)), rng.standard_normal(n)
    size = 10.0 ** float(rng.choice([-300, -100, -30, 0, 30, 100, 300]))
    weight = size * rng.uniform(0.5, 2, n)
    if rng.uniform() < 0.3:
        weight = 10.0 ** rng.uniform(-300, 300, n)
    rank = [0, 1, d, 1000, "auto"][rng.integers(5)]
    alpha = ["auto", 0.0, 1.0, 1e-300, 1e300][rng.integers(5)]
    kinds = (SecondOrderRegressor, FactorizationMachineRegressor, SecondOrderClassifier)
    kind = kinds[rng.integers(3)]
    labels = kind is SecondOrderClassifier
    target = y > np.median(y) if labels else y
    model = kind(rank=rank, alpha=alpha, random_state=seed_of(rng))
    text = f"{model}, {X.shape}, weights about {size:g}"
    if refused(lambda: model.fit(X, target, sample_weight=weight), text):
        return
    f = model.predict_proba(X) if labels else model.predict(X)
    require(np.isfinite(f).all(), f"{text}: a prediction is not finite")
    if not labels:
        shares = weight / weight.max()
        in_sample(model, X, y, shares, text)


# By name: the share of all cases, and the case.
ATTACKS = {
    "redundant": (0.02, redundant_columns),
    "rare labels": (0.01, rare_labels),
    "rare levels": (0.01, rare_levels),
    "odd counts": (0.01, odd_counts),
    "tiny folds": (0.01, tiny_folds),
    "changing forms": (0.01, changing_forms),
    "refits": (0.01, refits),
    "out of proportion": (0.01, out_of_proportion),
}
