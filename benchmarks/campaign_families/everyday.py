"""Cases of what people bring: frames with text, dates and gaps, counts, ratings, messy files."""

import bz2
import gzip
import tempfile
from pathlib import Path

import numpy as np
from scipy.special import expit
from sklearn.base import clone

from campaign_families.checks import in_sample, needed, require, same_after_a_file, seed_of, table
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    load,
    open_source,
    save,
)


def counts(rng):
    """Poisson's law: finite means, no worse than a constant, intervals that are numbers."""
    X, f = table(rng)
    f = np.clip(f / (f.std() + 1e-9) * rng.uniform(0.1, 1.5) + rng.uniform(-1, 3), -3, 5)
    y = rng.poisson(np.exp(f)).astype(float)
    if not y.any():
        return
    weight = rng.uniform(0.1, 3, len(y)) if rng.uniform() < 0.3 else None
    model = SecondOrderRegressor(
        rank="auto" if rng.uniform() < 0.3 else int(rng.integers(0, 3)),
        alpha="auto" if rng.uniform() < 0.5 else float(10 ** rng.uniform(-2, 2)),
        loss="poisson",
        uncertainty=[False, True, "robust"][rng.integers(3)],
        random_state=seed_of(rng),
    ).fit(X, y, sample_weight=weight)
    mean = model.predict(X)
    require(np.isfinite(mean).all() and (mean >= 0).all(), "a mean is not a number ≥ 0")
    require(model.score(X, y, sample_weight=weight) >= -1e-6, "worse than a constant")
    if model.uncertainty:
        std = model.predict(X, return_std=True)[1]
        good = np.isnan(std) if model.fitted_.law.left < 1 else np.isfinite(std) & (std >= 0)
        require(good.all(), "a standard error is not a number")
    require(np.array_equal(mean, clone(model).fit(X, y, weight).predict(X)), "other bits")
    same_after_a_file(model, lambda m: m.predict(X))


def sure_classifiers(rng):
    """Classifiers with standard errors, of labels of any kind."""
    X, f = table(rng, n=int(rng.integers(40, 200)))
    p = expit(2 * f / (f.std() + 1e-9))
    one = rng.uniform(size=len(p)) < p
    if len(np.unique(one)) < 2:
        return
    labels = [("no", "yes"), (0, 1), (-1, 2), (False, True), ("1", "10")][rng.integers(5)]
    y = np.array(labels)[one.astype(int)]
    kind = (SecondOrderClassifier, FactorizationMachineClassifier)[rng.integers(2)]
    model = kind(
        rank=int(rng.integers(0, 3)),
        alpha="auto" if rng.uniform() < 0.5 else float(10 ** rng.uniform(-1, 2)),
        uncertainty=[True, "robust"][rng.integers(2)],
        random_state=seed_of(rng),
    ).fit(X, y)
    require(set(model.classes_.tolist()) == set(np.unique(y).tolist()), "other classes")
    require(set(model.predict(X).tolist()) <= set(np.unique(y).tolist()), "another label")
    require(np.isfinite(model.predict_proba(X)).all(), "a probability is not a number")
    spread = model.fitted_.predict_error(X)
    require(np.isfinite(spread).all() and (spread >= 0).all(), "a spread is not a number")
    loaded = same_after_a_file(model, lambda m: m.predict_proba(X))
    require(np.array_equal(loaded.classes_, model.classes_), "saved and loaded: other classes")


def frames(rng):
    """Frames with text, categories, booleans, lists of labels and gaps, columns in any order."""
    pandas = needed("pandas")
    n = int(rng.integers(30, 150))
    frame = pandas.DataFrame(
        {
            "size": rng.lognormal(size=n),
            "größe": rng.standard_normal(n).astype(np.float32),
            "count": rng.integers(0, 9, n),
            "town": rng.choice(["Bonn", "Köln", "a,b", 'x"y', "new\nline"], n),
            "kind": pandas.Categorical(rng.choice(["a", "b"], n), categories=["a", "b", "never"]),
            "member": rng.uniform(size=n) < 0.3,
            "nullable": pandas.array(rng.integers(0, 5, n), dtype="Int64"),
            "genres": rng.choice(["drama|war", "war", "", "drama"], n),
        }
    )
    y = frame["size"].to_numpy() * (frame["town"] == "Bonn") + rng.standard_normal(n)
    gaps = rng.uniform() < 0.5
    if gaps:
        frame.loc[rng.uniform(size=n) < 0.2, "size"] = np.nan
        frame.loc[rng.uniform(size=n) < 0.1, "town"] = None
    model = SecondOrderRegressor(
        rank=int(rng.integers(0, 3)),
        alpha="auto" if rng.uniform() < 0.5 else 1.0,
        multi_hot=["genres"],
        missing="mean" if gaps else "error",
        random_state=seed_of(rng),
    ).fit(frame, y)
    in_sample(model, frame, y.to_numpy(), None, "a frame")
    other = frame.sample(frac=1, axis=1, random_state=seed_of(rng))
    try:
        same = np.array_equal(model.predict(other), model.predict(frame))
    except ValueError as error:  # scikit-learn refuses columns in another order, in words
        same = "order" in str(error)
    require(same, "columns in another order: other predictions")
    same_after_a_file(model, lambda m: m.predict(frame))
    unseen = frame.head(3).assign(town="elsewhere")
    require(np.isfinite(model.predict(unseen)).all(), "an unseen level has no prediction")
    stream = clone(model).set_params(batch_size=20)
    for start in range(0, n, 37):
        stream.partial_fit(frame.iloc[start : start + 37], y[start : start + 37])
    require(np.isfinite(stream.predict(frame)).all(), "a stream of a frame is not finite")


def ratings(rng):
    """Recommend what is best by `predict`, never what is to be left out, and few or many items."""
    pandas = needed("pandas")
    users, items, n = int(rng.integers(2, 9)), int(rng.integers(2, 12)), int(rng.integers(30, 150))
    frame = pandas.DataFrame(
        {"user": rng.integers(0, users, n).astype(str), "item": rng.integers(0, items, n)}
    )
    frame["item"] = "i" + frame["item"].astype(str)
    y = rng.standard_normal(users)[frame["user"].astype(int)] + rng.standard_normal(n)
    model = FactorizationMachineRegressor(
        rank=int(rng.integers(1, 4)),
        draws=int(rng.integers(2, 6)) if rng.uniform() < 0.3 else None,
        random_state=seed_of(rng),
    ).fit(frame, y)
    everyone, everything = frame[["user"]].drop_duplicates(), frame[["item"]].drop_duplicates()
    best = model.recommend(everyone, everything, n=3, exclude=frame)
    rated = set(map(tuple, frame[["user", "item"]].to_numpy().tolist()))
    pairs = list(map(tuple, best[["user", "item"]].to_numpy().tolist()))
    require(not rated & set(pairs), "a known pair is recommended")
    require(len(set(pairs)) == len(pairs), "a pair is recommended twice")
    if len(best):
        apart = np.abs(model.predict(best[["user", "item"]]) - best["prediction"].to_numpy()).max()
        require(apart <= 1e-6 * (1 + np.abs(y).max()), f"recommend differs by {apart:.3g}")
    same_after_a_file(model, lambda m: m.predict(frame))


def minimal_streams(rng):
    """Streams that keep no row, and streams that go on after a fit with pairs or a file."""
    X, f = table(rng, n=int(rng.integers(100, 1500)), d=int(rng.integers(1, 5)))
    y = f + rng.choice([0.1, 1, 5]) * rng.standard_normal(len(f))
    minimal = rng.uniform() < 0.5
    options = {"max_memory": "minimal", "alpha": 0.0} if minimal else {"alpha": "auto"}
    model = SecondOrderRegressor(
        rank=int(rng.integers(1, 3)), batch_size=20, random_state=seed_of(rng), **options
    )
    first = len(y) // 2
    if not minimal:
        model.set_params(rank="auto").fit(X[:first], y[:first])
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0 if minimal else first, len(y), 61):
            model.partial_fit(X[start : start + 61], y[start : start + 61])
            if rng.uniform() < 0.1:
                before = model.predict(X[:9])
                save(model, Path(folder) / "model")
                model = load(Path(folder) / "model")
                require(np.array_equal(before, model.predict(X[:9])), "another model after a file")
    error = np.mean((model.predict(X) - y) ** 2)
    require(error <= 1.5 * np.var(y) + 1e-12, f"error {error:.3g}, variance {np.var(y):.3g}")


def messy_files(rng):
    """The same table as text in many dialects, compressed or not, is the same model."""
    n, d = int(rng.integers(30, 90)), int(rng.integers(1, 4))
    X = np.round(rng.standard_normal((n, d)), 3)
    town = rng.choice(["Bonn", "Köln, am Rhein", 'the "one"', "two\nlines"], n)
    y = np.round(X[:, 0] + (town == "Bonn") + 0.1 * rng.standard_normal(n), 3)
    mark, decimal = [(",", "."), (";", "."), (";", ","), ("\t", ".")][rng.integers(4)]
    end = ["\n", "\r\n"][rng.integers(2)]

    def number(x):
        return repr(float(x)).replace(".", decimal)

    lines = [mark.join([*(f"x{j}" for j in range(d)), '"the town"', "y"])]
    quoted = ['"' + t.replace('"', '""') + '"' for t in town]
    lines += [
        mark.join([*map(number, x), t, number(v)]) for x, t, v in zip(X, quoted, y, strict=True)
    ]
    data = (end.join(lines) + end * int(rng.integers(0, 3))).encode()
    data = [b"", b"\xef\xbb\xbf"][rng.integers(2)] + data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        pack = rng.integers(3)
        if pack:
            path = path.with_name(f"rows.csv.{('gz', 'bz2')[pack - 1]}")
            data = (gzip, bz2)[pack - 1].compress(data)
        path.write_bytes(data)
        options = {} if decimal == "." else {"decimal": ","}
        source = open_source(path, target="y", chunk_rows=int(rng.integers(7, n + 1)), **options)
        model = SecondOrderRegressor(rank=1, alpha=1.0, random_state=0).fit(source)
        names = list(source.names) if hasattr(source, "names") else []
    require(model.n_samples_seen_ == n, f"{model.n_samples_seen_} rows of {n}; {names}")
    pandas = needed("pandas")
    frame = pandas.DataFrame({f"x{j}": X[:, j] for j in range(d)} | {"the town": town})
    near = SecondOrderRegressor(rank=1, alpha=1.0, random_state=0).fit(frame, y)
    apart = abs(near.history_[-1].loss - model.history_[-1].loss)
    require(apart <= 0.01 * np.var(y) + 1e-12, f"a file and a frame: objectives {apart:.3g} apart")


# By name: the share of all cases, and the case.
EVERYDAY = {
    "counts": (0.03, counts),
    "sure": (0.03, sure_classifiers),
    "frames": (0.03, frames),
    "ratings": (0.02, ratings),
    "minimal": (0.03, minimal_streams),
    "messy": (0.03, messy_files),
}
