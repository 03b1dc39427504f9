"""A fit or stream that was killed goes on from its checkpoint and ends at the same model."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csr_array

from contract.interrupting import calls_of
from contract.tables import low_rank
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    load,
    open_source,
    save,
)

TABLE = low_rank(300, 5, 2, sigma=0.4)
X, Y = TABLE.X, TABLE.y
RNG = np.random.default_rng(0)
RATINGS = pd.DataFrame(
    {"user": RNG.integers(0, 12, 300).astype(str), "film": RNG.integers(0, 8, 300).astype(str)}
)


def regressor(rank=2, alpha=1.0, **options):
    return SecondOrderRegressor(rank, alpha=alpha, random_state=0, **options)


FITS = {
    "given": (regressor, X, Y),
    "default": (lambda: SecondOrderRegressor(random_state=0), X, Y),
    "huber": (lambda: regressor(loss="huber"), X, Y),
    "standard errors": (lambda: regressor(uncertainty=True), X, Y),
    "sparse": (lambda: regressor(), csr_array(np.where(X > 0, X, 0)), Y),
    "labels": (lambda: SecondOrderClassifier(1, random_state=0), X, Y > 0),
    "ratings": (lambda: FactorizationMachineRegressor(1, random_state=0), RATINGS, Y),
    "likes": (lambda: FactorizationMachineClassifier(1, random_state=0), RATINGS, Y > 0),
}


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint"


def shown(model, rows):
    return (model.decision_function if hasattr(model, "classes_") else model.predict)(rows)


@cache
def uninterrupted(name):
    make, rows, target = FITS[name]
    return shown(make().fit(rows, target), rows)


def same(got, expected, close=1e-7):
    np.testing.assert_allclose(got, expected, rtol=close, atol=close)


SMOKE = ("given", "labels")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.smoke] * (name in SMOKE)) for name in FITS]
)
def test_an_interrupted_fit_goes_on_and_ends_at_the_same_model(name, path):
    make, rows, target = FITS[name]
    calls = calls_of(lambda: make().fit(rows, target, checkpoint=path))
    for share in (0.3, 0.6, 0.9):
        path.unlink()
        with pytest.raises(KeyboardInterrupt):
            calls_of(lambda: make().fit(rows, target, checkpoint=path), int(share * calls))
        # Steps that begin elsewhere end where a step no longer changes much: `tol`.
        same(shown(make().fit(rows, target, checkpoint=path), rows), uninterrupted(name), 1e-3)


def test_a_fit_goes_on_from_the_last_completed_step(path):
    first = regressor(alpha=0.0).fit(X, Y, checkpoint=path)
    again = regressor(alpha=0.0).fit(X, Y, checkpoint=str(path))
    assert again.history_[-1].passes <= first.history_[-1].passes
    same(again.predict(X), first.predict(X), 1e-3)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("flip", [False, True], ids=["cut", "flipped"])
@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8, 0.999])
def test_a_damaged_checkpoint_leads_to_the_same_model_or_is_refused(share, flip, path):
    regressor().fit(X, Y, checkpoint=path)
    data = bytearray(path.read_bytes())
    place = int(share * len(data))
    data[place] ^= 0x10 * flip
    path.write_bytes(data if flip else data[:place])
    try:
        model = regressor().fit(X, Y, checkpoint=path)
    except ValueError as error:
        refusal = str(error)
    else:
        same(model.predict(X), uninterrupted("given"))
        return
    assert str(path) in refusal


@pytest.mark.parametrize("data", [b"my only copy", b"PK\x03\x04", bytes(1000)])
def test_a_file_that_is_no_checkpoint_is_refused_and_left_alone(data, path):
    path.write_bytes(data)
    with pytest.raises(ValueError, match=path.name):
        regressor().fit(X, Y, checkpoint=path)
    assert path.read_bytes() == data


OTHERS = {
    "options": (lambda p: regressor(1).fit(X, Y, checkpoint=p), "options"),
    "seed": (lambda p: regressor().set_params(random_state=1).fit(X, Y, checkpoint=p), "options"),
    "features": (lambda p: regressor().fit(X + 1e-9, Y, checkpoint=p), "rows"),
    "targets": (lambda p: regressor().fit(X, -Y, checkpoint=p), "rows"),
    "weights": (lambda p: regressor().fit(X, Y, 1.0 + (Y > 0), checkpoint=p), "rows"),
    "fewer rows": (lambda p: regressor().fit(X[:200], Y[:200], checkpoint=p), "rows"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_another_fit_is_refused_and_left_alone(other, path):
    regressor().fit(X, Y, checkpoint=path)
    before = path.read_bytes()
    fit, mentions = OTHERS[other]
    with pytest.raises(ValueError, match=mentions):
        fit(path)
    assert path.read_bytes() == before
    same(regressor().fit(X, Y, checkpoint=path).predict(X), uninterrupted("given"))


def test_a_checkpoint_of_another_start_is_refused(path):
    first, second = (regressor(warm_start=True).fit(X, sign * Y) for sign in (1, -1))
    first.fit(X, Y + X[:, 0], checkpoint=path)
    with pytest.raises(ValueError, match="start"):
        second.fit(X, Y + X[:, 0], checkpoint=path)


def test_rows_that_cannot_be_recognised_are_refused(path):
    frame = pl.DataFrame(X, schema=list("abcde")).with_columns(y=pl.Series(Y))
    for source in (open_source(frame.lazy(), target="y"), open_source(lambda: iter([(X, Y)]))):
        with pytest.raises(ValueError, match="rows"):
            regressor().fit(source, checkpoint=path)
    models = [regressor().fit(open_source(frame, target="y"), checkpoint=path) for _ in range(2)]
    same(models[1].predict(frame[:, :5]), models[0].predict(frame[:, :5]))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs Unix")
def test_a_checkpoint_is_a_regular_file_in_a_folder_that_is_there(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(ValueError, match=Path(place).name):
            regressor().fit(X, Y, checkpoint=place)
    with pytest.raises((ValueError, OSError), match="folder"):
        regressor().fit(X, Y, checkpoint=tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        regressor().fit(X, Y, checkpoint=tmp_path / "nowhere" / "checkpoint")


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from contract.interrupting import calls_of
from contract.test_checkpoints import X, Y, regressor
path = sys.argv[2]
calls_of(lambda: regressor().fit(X, Y, checkpoint=path), int(sys.argv[3]), lambda: os._exit(7))
"""


@pytest.mark.slow
def test_a_killed_process_loses_nothing_that_it_wrote(path):
    calls = calls_of(lambda: regressor().fit(X, Y, checkpoint=path))
    path.unlink()
    tests = str(Path(__file__).parents[1])
    for share in (0.4, 0.8):
        command = [sys.executable, "-c", KILLED, tests, str(path), str(int(share * calls))]
        assert subprocess.run(command, check=False).returncode == 7
    same(regressor().fit(X, Y, checkpoint=path).predict(X), uninterrupted("given"))


# ---- Streams


class PowerCut(Exception):  # noqa: N818 it is what happens
    """The end of a process."""


def rows_until(stop, y=Y, size=25):
    for start in range(0, len(y), size):
        if start >= stop:
            raise PowerCut
        yield X[start : start + size], y[start : start + size]


def streamed(stop, path=None, y=Y, **options):
    model = regressor(**{"rank": 1, "max_memory": "minimal", "alpha": "auto", **options})
    return model.partial_fit(open_source(rows_until(stop, y), chunk_rows=25), checkpoint=path)


@pytest.mark.parametrize("memory", ["auto", "minimal"])
def test_an_interrupted_stream_goes_on_and_ends_at_the_same_model(memory, path):
    options = {"max_memory": memory, "alpha": "auto" if memory == "minimal" else 0.0}
    whole = streamed(1000, **options)
    for stop in (50, 200, 250):
        with pytest.raises(PowerCut):
            streamed(stop, path, **options)
    assert path.exists()
    again = streamed(1000, path, **options)
    same(again.predict(X), whole.predict(X))
    assert again.n_samples_seen_ == len(Y)
    assert os.listdir(path.parent) == [path.name]


def test_a_stream_of_other_rows_or_options_is_refused(path):
    with pytest.raises(PowerCut):
        streamed(200, path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="rows"):
        streamed(1000, path, -Y)
    with pytest.raises(ValueError, match="options"):
        streamed(1000, path, fit_intercept=False)
    with pytest.raises(ValueError, match="rows"):
        streamed(100, path, Y[:100])
    assert path.read_bytes() == before


def test_a_checkpoint_is_no_model_and_a_model_is_no_checkpoint(path):
    with pytest.raises(PowerCut):
        streamed(200, path)
    with pytest.raises(ValueError, match="checkpoint"):
        load(path)
    save(regressor().fit(X, Y), path)
    with pytest.raises(ValueError, match=path.name):
        streamed(1000, path)
    with pytest.raises(ValueError, match=path.name):
        regressor().fit(X, Y, checkpoint=path)


def test_each_week_is_learned_with_a_checkpoint_of_its_own(tmp_path):
    model, plain = regressor(1, alpha=0.0), regressor(1, alpha=0.0)
    for week in np.split(np.arange(300), 3):
        source = open_source(X[week], target=Y[week])
        model.partial_fit(source, checkpoint=tmp_path / "week")
        save(model, tmp_path / "model")
        (tmp_path / "week").unlink(missing_ok=True)
        model = load(tmp_path / "model")
        plain.partial_fit(X[week], Y[week])
    assert model.n_samples_seen_ == 300
    same(model.predict(X), plain.predict(X))
