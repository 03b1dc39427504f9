"""Forged files whose digests are right: models, streams, checkpoints and journals of every kind.

One or two values of a good file are replaced by others: a number of an array, or anything in the
header. It must then be refused in words, or load to a model that predicts, explains itself and
goes on in words or numbers.
"""

import copy
import json
import tempfile
import warnings
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from campaign_families.checks import BrokenPromiseError, needed, require
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    load,
    open_source,
    save,
)
from quadlin.storage.journal import MAGIC
from quadlin.storage.records import FRAME
from quadlin.storage.tensor_file import read_tensors, write_tensors

FORGERIES = 12  # of one file in a case
JUNK = (
    *(None, True, -1, 0, 1, 2, 3, 10**6, 2**62, 2**64, 10**400, -0.5, 0.0, 1e308, -1e308, 1e-320),
    *("", "nan", "inf", "x", "Sums", "Survey", "os.system", "auto", "<f8", "converged", "squared"),
    *([], {}, [[]], [1], [0, 2**62], [-1], {"array": "coef"}, {"dtype": "float32"}, [[0, 1]]),
    *({"tuple": [1, 2]}, ["a"], ["a", "a"], "a" * 300, "\x1b[31m", [None], [1e308, -1e308]),
)
NUMBERS = (0.0, -1.0, 1.0, 1e-320, 1e308, -1e308, 1e160, -1e-3, 3.5)


def rows(seed=0, n=90):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.standard_normal((n, 3)), rng.uniform(size=n) < 0.4])
    return X, X[:, 0] * X[:, 1] + X[:, 2] + 0.3 * rng.standard_normal(n)


def frame_of(n=90):
    pandas, rng = needed("pandas"), np.random.default_rng(1)
    frame = pandas.DataFrame(
        {"user": rng.choice(list("abc"), n), "item": rng.choice(["x", "y"], n)}
    )
    return frame, rng.standard_normal(n) + (frame["user"] == "a").to_numpy()


def streamed(model, X, y, **more):
    for start in range(0, len(y), 30):
        model.partial_fit(X[start : start + 30], y[start : start + 30], **more)
    return model


X, Y = rows()
LABELS = np.array(["no", "yes", "perhaps"])[np.digitize(Y, [-0.5, 0.7])]
SURE = {"uncertainty": True, "random_state": 0}
MODELS = {
    "sure": lambda: SecondOrderRegressor(rank=2, alpha=0.1, whiten="full", **SURE).fit(X, Y),
    "robust": lambda: SecondOrderRegressor(rank=1, alpha=1.0, uncertainty="robust").fit(X, Y),
    "default": lambda: SecondOrderRegressor(random_state=0, uncertainty=True).fit(X, Y),
    "pairs": lambda: SecondOrderRegressor(1, pairs=[(0, 1), (0, 0)], **SURE).fit(X, Y),
    "searched pairs": lambda: SecondOrderRegressor(0, pairs=2, **SURE).fit(X, Y),
    "huber": lambda: SecondOrderRegressor(1, alpha=0.1, loss="huber", **SURE).fit(X, Y),
    "counts": lambda: SecondOrderRegressor(1, loss="poisson", **SURE).fit(X, np.round(np.exp(Y))),
    "cv": lambda: SecondOrderRegressorCV([0, 1], [0.1, 1.0], cv=2).fit(X, Y),
    "automatic cv": lambda: SecondOrderRegressorCV(cv=2, random_state=0).fit(X, Y),
    "stream": lambda: streamed(SecondOrderRegressor(1, alpha=0.1, batch_size=20), X, Y),
    "automatic stream": lambda: streamed(SecondOrderRegressor(batch_size=20), X, Y),
    "stream with pairs": lambda: streamed(SecondOrderRegressor(0, pairs=2, batch_size=20), X, Y),
    "stream of few": lambda: SecondOrderRegressor(1, alpha=0.1).partial_fit(X[:9], Y[:9]),
    "strict stream": lambda: streamed(
        SecondOrderRegressor(1, alpha=0.0, batch_size=20, max_memory="minimal"), X, Y
    ),
    "sparse stream": lambda: streamed(
        SecondOrderRegressor(1, alpha=0.1, batch_size=20), csr_array(X), Y
    ),
    "classes": lambda: SecondOrderClassifier(1, alpha=1.0).fit(X, LABELS),
    "sure labels": lambda: SecondOrderClassifier(1, alpha=1.0, **SURE).fit(X, Y > 0),
    "automatic labels": lambda: SecondOrderClassifier(random_state=0).fit(X, Y > 0),
    "labels with pairs": lambda: SecondOrderClassifier(0, pairs=2, random_state=0).fit(X, Y > 0),
    "stream of labels": lambda: streamed(
        SecondOrderClassifier(1, alpha=1.0, batch_size=20), X, LABELS, classes=np.unique(LABELS)
    ),
    "levels": lambda: FactorizationMachineRegressor(2).fit(*frame_of()),
    "draws": lambda: FactorizationMachineRegressor(2, draws=3, random_state=0).fit(*frame_of()),
    "labels of levels": lambda: FactorizationMachineClassifier(1, random_state=0).fit(
        frame_of()[0], frame_of()[1] > 0
    ),
    "gaps": lambda: SecondOrderRegressor(1, alpha=1.0, missing="mean").fit(
        np.where(X > 1.5, np.nan, X), Y
    ),
}


@cache
def honest(kind):
    """Return the arrays and the header of a good file."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "file"
        if kind in MODELS:
            save(MODELS[kind](), path)
            return read_tensors(path)
        learn_with_a_checkpoint(path)
        return read_tensors(path, "checkpoint")


def learn_with_a_checkpoint(path):
    source = open_source(X, target=Y, chunk_rows=30)
    return SecondOrderRegressor(1, alpha=0.1, batch_size=20).partial_fit(source, checkpoint=path)


JOURNALS = {
    "fit": {"rank": 1, "alpha": 0.1},
    "automatic fit": {"rank": "auto"},
    "fit with errors": {"rank": 1, "alpha": 1.0, "uncertainty": True},
    "fit with pairs": {"rank": 0, "pairs": 2},
    "huber fit": {"rank": 1, "alpha": 0.1, "loss": "huber"},
    "fit by moments": {"rank": 1, "polish": False, "whiten": "full"},
}


def fit_with_a_journal(kind, path):
    model = SecondOrderRegressor(**JOURNALS[kind], random_state=0, max_iter=5)
    return model.fit(X, Y, checkpoint=path)


@cache
def honest_records(kind):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "journal"
        fit_with_a_journal(kind, path)
        data, records = path.read_bytes()[len(MAGIC) :], []
    while data:
        length, size, _ = FRAME.unpack(data[: FRAME.size])
        text, data = data[FRAME.size : FRAME.size + length], data[FRAME.size + length :]
        records.append((json.loads(text), data[:size]))
        data = data[size:]
    return records


def places(value, at=()):
    if at:
        yield at
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*at, key))


def changed(value, at, new):
    if not at:
        return new
    value = copy.copy(value)
    value[at[0]] = changed(value[at[0]], at[1:], new)
    return value


def forged_content(content, rng):
    at = list(places(content))
    return changed(content, at[rng.integers(len(at))], JUNK[rng.integers(len(JUNK))])


def forged_arrays(arrays, rng):
    names = [name for name, a in arrays.items() if a.size and a.dtype.kind in "fi"]
    if not names:
        return arrays
    name = names[rng.integers(len(names))]
    array, number = arrays[name].copy(), NUMBERS[rng.integers(len(NUMBERS))]
    with np.errstate(all="ignore"):
        number = np.clip(number, -(2.0**31), 2.0**31 - 1) if array.dtype.kind == "i" else number
        places = rng.integers(array.size, size=int(rng.choice([1, array.size])))
        array.flat[places] = number
    return {**arrays, name: np.where(np.isfinite(array), array, 1).astype(array.dtype)}


def forged_model_files(rng):
    kinds = [*MODELS, "checkpoint"]
    kind = kinds[rng.integers(len(kinds))]
    arrays, header = honest(kind)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        for _ in range(FORGERIES):
            tensors, content = arrays, header
            for _ in range(int(rng.choice([1, 1, 2]))):
                if rng.uniform() < 0.5:
                    tensors = forged_arrays(tensors, rng)
                else:
                    content = forged_content(content, rng)
            write_tensors(path, tensors, content, "model" if kind in MODELS else "checkpoint")
            if kind in MODELS:
                held(kind, lambda: look_at(load(path), kind))
            else:
                held(kind, lambda: look_at(learn_with_a_checkpoint(path), kind))


def forged_journals(rng):
    kind = list(JOURNALS)[rng.integers(len(JOURNALS))]
    good = honest_records(kind)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        for _ in range(FORGERIES // 3):
            records = list(good)
            for _ in range(int(rng.choice([1, 1, 2]))):
                which = int(rng.integers(len(records)))
                content, body = records[which]
                if rng.uniform() < 0.5 and len(body) >= 8:
                    numbers = np.frombuffer(body[: len(body) // 8 * 8], "<f8").copy()
                    numbers[rng.integers(len(numbers))] = rng.choice([*NUMBERS, np.nan, np.inf])
                    body = numbers.tobytes() + body[numbers.nbytes :]
                else:
                    content = forged_content(content, rng)
                records[which] = (content, body)
            texts = [(json.dumps(content).encode(), body) for content, body in records]
            frames = [
                FRAME.pack(len(t), len(b), blake2b(t + b, digest_size=16).digest()) + t + b
                for t, b in texts
            ]
            path.write_bytes(MAGIC + b"".join(frames))
            held(kind, lambda: look_at(fit_with_a_journal(kind, path), kind))


def held(kind, attempt):
    """Require that an attempt ends without an error, or with one in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            attempt()
        except BrokenPromiseError:
            raise
        except ValueError as error:
            require(len(str(error)) > 20, f"{kind}: refused without words: {error!r}")
            if str(error).startswith("array must not"):  # words of scipy's, from the depths
                raise RuntimeError(f"{kind}: {error}") from error
        # Anything else is a violation, with its traceback.


def look_at(model, kind):
    """Use a model in every way; numbers must be numbers."""
    given = frame_of()[0] if "levels" in kind or kind == "draws" else X
    require(np.isfinite(numbers_of(model, given)).all(), f"{kind}: a prediction is no number")
    law = getattr(model.fitted_, "law", None)
    if law is not None and not hasattr(model, "classes_"):
        std = model.predict(given, return_std=True)[1]
        good = law.left < 1 or (np.isfinite(std).all() and (std >= 0).all())
        require(good, f"{kind}: a standard error is no number")
    require(len(str(model.diagnose())) > 0, f"{kind}: no diagnosis")
    text = str(model.summary())
    require("\x1b" not in text, f"{kind}: a control character in the summary")
    repr(model)
    if "stream" in kind:
        more = {"classes": np.unique(LABELS)} if "labels" in kind else {}
        target = LABELS if more else Y
        model.partial_fit(csr_array(X) if "sparse" in kind else X, target, **more)
        require(np.isfinite(numbers_of(model, given)).all(), f"{kind}: no number later on")


def numbers_of(model, given):
    return model.predict_proba(given) if hasattr(model, "classes_") else model.predict(given)
