"""A fit that is killed goes on where it was and ends at the same model, to the last bit."""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import sklearn
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import KFold

import quadlin
from quadlin import SecondOrderRegressor, SecondOrderRegressorCV, open_source
from quadlin.core.engine import Additive
from quadlin.datasets import make_second_order
from quadlin.storage import CheckpointError, Journal
from quadlin.storage import stream_checkpoint as streams
from quadlin.storage.journal import SUMS
from quadlin.storage.tensor_file import read_tensors, write_tensors

SOURCE = Path(quadlin.__file__).parent
DATA = make_second_order(1500, 10, rank=2, noise=0.5, random_state=0)


def fit(path=None, X=DATA.X, y=DATA.y, **options):
    options = {"rank": 2, "random_state": 0, **options}
    return SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options}).fit(X, y, checkpoint=path)


def same(a, b):
    for name in ("coef_", "components_", "eigenvalues_", "intercept_"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert a.status_ is b.status_
    assert a.history_ == b.history_


@pytest.fixture
def passes(monkeypatch):
    """How many sums were carried out, not read back; one number per row is not recorded."""
    from quadlin.core import rows

    count = []
    original = rows.Rows._carried

    def counted(self, fn, *rest):
        if fn is not rows._listed:
            count.append(1)
        return original(self, fn, *rest)

    monkeypatch.setattr(rows.Rows, "_carried", counted)
    return count


OPTIONS = [
    {},
    {"polish": False},
    {"rank": "auto"},
    {"loss": "huber"},
    {"uncertainty": True, "alpha": 1.0},
    {"random_state": None},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_fit_is_read_back_to_the_last_bit(tmp_path, passes, options):
    path = tmp_path / "journal"
    first = fit(path, **options)
    once = len(passes)
    again = fit(path, **options)
    assert len(passes) == once  # every sum was known
    same(first, again)
    if "random_state" not in options:
        same(first, fit(**options))  # and writing it down changed nothing
    assert os.listdir(tmp_path) == ["journal"]


@given(st.floats(0, 1), st.booleans())
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_journal_cut_or_damaged_anywhere_leads_to_the_same_model(tmp_path, share, flip):
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    first = fit(path)
    data = bytearray(path.read_bytes())
    head = len(data) // 8  # the header is in there, which is another test
    place = head + int(share * (len(data) - 1 - head))
    if flip:
        data[place] ^= 0x10
        path.write_bytes(data)
    else:
        path.write_bytes(data[:place])
    same(first, fit(path))
    same(first, fit(path))  # and the journal was mended


@given(st.binary(max_size=300), st.integers(0, 200))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path, junk, cut):
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    identity = {"rows": "x", "options": {"a": 1}}
    Journal(path, identity, 5).close()
    whole = path.read_bytes()
    data = whole[:cut] + junk
    path.write_bytes(data)
    if data[: len(whole)] == whole:
        journal = Journal(path, identity, 7)
        assert journal.seed == 5
        assert journal("sum", lambda: 3.0) == 3.0
        journal.close()
        return
    with pytest.raises(CheckpointError, match="journal"):
        Journal(path, identity, 7)
    assert path.read_bytes() == data


def test_another_fit_is_refused_in_words(tmp_path):
    path = tmp_path / "journal"
    fit(path)
    with pytest.raises(CheckpointError, match="other options"):
        fit(path, rank=3)
    with pytest.raises(CheckpointError, match="other options"):
        fit(path, random_state=1)
    with pytest.raises(CheckpointError, match="other rows"):
        fit(path, X=DATA.X + 1e-9)
    with pytest.raises(CheckpointError, match="other rows"):
        SecondOrderRegressor(2, random_state=0, alpha=0.0).fit(
            DATA.X, DATA.y, sample_weight=np.full(1500, 2.0), checkpoint=path
        )
    same(fit(path), fit())


def test_two_fits_do_not_share_a_journal(tmp_path):
    identity = {"rows": "x"}
    journal = Journal(tmp_path / "journal", identity, 0)
    with pytest.raises(CheckpointError, match="another fit"):
        Journal(tmp_path / "journal", identity, 0)
    journal.close()
    with pytest.raises((CheckpointError, IsADirectoryError), match="folder"):
        Journal(tmp_path, identity, 0)
    with pytest.raises(FileNotFoundError, match="folder"):
        Journal(tmp_path / "none" / "journal", identity, 0)


def test_torch_and_sparse_rows_and_cross_validation_are_read_back(tmp_path):
    from scipy.sparse import csr_array

    X = torch.asarray(DATA.X, dtype=torch.float32)
    with sklearn.config_context(array_api_dispatch=True):
        a, b = (fit(tmp_path / "torch", X=X, y=torch.asarray(DATA.y)) for _ in range(2))
        assert torch.equal(a.predict(X), b.predict(X))
    S = csr_array(np.where(DATA.X > 1, DATA.X, 0))
    same(*(fit(tmp_path / "sparse", X=S) for _ in range(2)))
    cv = [
        SecondOrderRegressorCV(ranks=[1, 2], alphas=[1.0], cv=3, random_state=0).fit(
            DATA.X, DATA.y, checkpoint=tmp_path / "cv"
        )
        for _ in range(2)
    ]
    same(*cv)


def test_torch_and_sparse_sums_are_not_computed_again(tmp_path, passes):
    from scipy.sparse import csr_array

    X = torch.asarray(DATA.X, dtype=torch.float32)
    with sklearn.config_context(array_api_dispatch=True):
        for rows, y in ((X, torch.asarray(DATA.y)), (csr_array(DATA.X), DATA.y)):
            path = tmp_path / type(rows).__name__
            fit(path, X=rows, y=y, uncertainty=True)
            once = len(passes)
            fit(path, X=rows, y=y, uncertainty=True)
            assert len(passes) == once


SCRIPT = """
import sys, numpy as np, quadlin
X, y = np.load(sys.argv[1] + "/X.npy"), np.load(sys.argv[1] + "/y.npy")
if sys.argv[2] == "stream":
    model = quadlin.SecondOrderRegressor(3, batch_size=2000, random_state=0)
    rows = quadlin.open_source(X, target=y, chunk_rows=97)
    model.partial_fit(rows, checkpoint=sys.argv[1] + "/c")
else:
    model = quadlin.SecondOrderRegressor(3, random_state=0, tol=1e-12)
    model.fit(X, y, checkpoint=sys.argv[1] + "/c")
quadlin.save(model, sys.argv[1] + "/model")
"""


@pytest.mark.parametrize("how", ["fit", "stream"])
def test_a_fit_killed_at_any_moment_ends_at_the_same_model(tmp_path, how, monkeypatch):
    # benchmarks/kills.py does it 20 times; here some moments of one fit.
    from quadlin import load

    data = make_second_order(30_000, 30, rank=3, noise=1.0, random_state=0)
    np.save(tmp_path / "X.npy", data.X)
    np.save(tmp_path / "y.npy", data.y)
    if how == "stream":
        script = "import quadlin.storage.stream_checkpoint as c; c.WRITE_SECONDS = 0.0\n" + SCRIPT
    else:
        script = SCRIPT
    command = [sys.executable, "-c", script, str(tmp_path), how]
    subprocess.run(command, check=True)
    expected = load(tmp_path / "model")
    (tmp_path / "model").unlink()
    (tmp_path / "c").unlink()
    kills = 0
    rng = np.random.default_rng(0)
    for _ in range(40):
        process = subprocess.Popen(command)
        while not (tmp_path / "c").exists() and process.poll() is None:
            time.sleep(0.002)
        # The first kills come early in the fit, on any machine; the last start runs to its end.
        time.sleep(float(rng.uniform(0, 0.03 if kills < 2 else 0.15)) if kills < 5 else 60)
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            break
        kills += 1
        if kills >= 5:
            subprocess.run(command, check=True)
            break
    assert kills >= 2, "the fit was too quick to be killed"
    same(load(tmp_path / "model"), expected)
    left = {"X.npy", "y.npy", "model", "c"}
    assert set(os.listdir(tmp_path)) == left


def test_a_stream_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "WRITE_SECONDS", 0.0)
    options = {"rank": 2, "batch_size": 300, "random_state": 0}
    source = open_source(DATA.X, target=DATA.y, chunk_rows=70)
    whole = SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options}).partial_fit(source)

    class PowerError(Exception):
        pass

    def until(stop):
        model = SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options})
        seen, original = 0, streams.StreamCheckpoint.note

        def note(self, now=False):
            nonlocal seen
            seen += 1
            if seen == stop:
                raise PowerError
            original(self, now)

        monkeypatch.setattr(streams.StreamCheckpoint, "note", note)
        try:
            return model.partial_fit(source, checkpoint=tmp_path / "state")
        except PowerError:
            return None
        finally:
            monkeypatch.setattr(streams.StreamCheckpoint, "note", original)

    assert until(3) is None  # within the first batch: nothing to keep yet
    assert until(9) is None
    assert (tmp_path / "state").exists()
    assert until(5) is None
    done = until(-1)
    same(done, whole)
    assert done.n_samples_seen_ == 1500
    with pytest.raises(CheckpointError, match="other options"):
        SecondOrderRegressor(3, batch_size=300, random_state=0, alpha=0.0).partial_fit(
            source, checkpoint=tmp_path / "state"
        )


def test_an_interrupted_fit_goes_on(tmp_path, monkeypatch):
    # Ctrl-C in the third pass.
    from quadlin.core.rows import Rows

    original, count = Rows._carried, []

    def interrupted(*args):
        count.append(1)
        if len(count) == 3:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(Rows, "_carried", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "journal")
    monkeypatch.setattr(Rows, "_carried", original)
    same(fit(tmp_path / "journal"), fit())


def test_sums_of_another_start_weights_or_shape_are_not_taken_over(tmp_path):
    from scipy.sparse import csr_array

    other = make_second_order(1500, 10, rank=2, noise=0.5, random_state=1)
    path = tmp_path / "journal"
    for start in (other.y, -other.y):
        model = SecondOrderRegressor(2, warm_start=True, random_state=0, alpha=0.0).fit(
            other.X, start
        )
        if path.exists():
            with pytest.raises(CheckpointError, match="other start"):
                model.fit(DATA.X, DATA.y, checkpoint=path)
        else:
            model.fit(DATA.X, DATA.y, checkpoint=path)
    S = csr_array(np.where(DATA.X > 1, DATA.X, 0.0))
    fit(tmp_path / "sparse", X=S)
    wider = csr_array((S.data, S.indices, S.indptr), shape=(1500, 12))
    with pytest.raises(CheckpointError, match="other rows"):
        fit(tmp_path / "sparse", X=wider)
    # Folds without a seed are other folds each time: found out by their weights.
    shuffled = {"ranks": [1, 2], "alphas": [1.0], "random_state": 0}
    for seed in (0, 1):
        kept, free = (
            SecondOrderRegressorCV(
                cv=KFold(3, shuffle=True, random_state=np.random.RandomState(seed)), **shuffled
            )
            for _ in range(2)
        )
        kept.fit(DATA.X, DATA.y, checkpoint=tmp_path / "cv")
        assert kept.best_score_ == free.fit(DATA.X, DATA.y).best_score_


def test_rows_that_cannot_be_told_from_others_are_refused(tmp_path):
    import polars as pl

    frame = pl.DataFrame(DATA.X, schema=[f"f{j}" for j in range(10)]).with_columns(
        y=pl.Series(DATA.y)
    )
    for rows in (frame.lazy(), lambda: iter([(DATA.X, DATA.y)])):
        target = "y" if isinstance(rows, pl.LazyFrame) else None
        source = open_source(rows, target=target)
        with pytest.raises(CheckpointError, match="must be able to recognise its rows"):
            SecondOrderRegressor(2, alpha=0.0).fit(source, checkpoint=tmp_path / "journal")
    same(
        *(
            SecondOrderRegressor(2, random_state=0, alpha=0.0).fit(
                open_source(frame, target="y"), checkpoint=tmp_path / "frame"
            )
            for _ in range(2)
        )
    )
    with pytest.raises(CheckpointError, match="other rows"):
        SecondOrderRegressor(2, random_state=0, alpha=0.0).fit(
            open_source(frame.with_columns(y=-pl.col("y")), target="y"),
            checkpoint=tmp_path / "frame",
        )


def test_a_stream_of_other_rows_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "WRITE_SECONDS", 0.0)

    def stream(y):
        rows = ((DATA.X[i : i + 100], y[i : i + 100]) for i in range(0, 1500, 100))
        model = SecondOrderRegressor(2, batch_size=300, random_state=0, alpha=0.0)
        return model.partial_fit(open_source(rows), checkpoint=tmp_path / "state")

    first = stream(DATA.y)
    same(stream(DATA.y), first)
    with pytest.raises(CheckpointError, match="other rows"):
        stream(-DATA.y)


@pytest.mark.parametrize(
    "lie",
    [
        {"identity": None},
        {"identity": [1]},
        {"seen": -1},
        {"seen": 1e9},
        {"seen": "7"},
        {"digest": 3},
        {"state": None},
        {"state": {}},
    ],
)
def test_a_checkpoint_of_a_stream_that_lies_is_refused_in_words(tmp_path, lie):
    def stream():
        model = SecondOrderRegressor(2, batch_size=300, random_state=0, alpha=0.0)
        source = open_source(DATA.X, target=DATA.y, chunk_rows=500)
        return model.partial_fit(source, checkpoint=tmp_path / "state")

    stream()
    arrays, header = read_tensors(tmp_path / "state", kind="checkpoint")
    write_tensors(tmp_path / "state", arrays, {**header, **lie}, kind="checkpoint")
    with pytest.raises(CheckpointError, match="start again"):
        stream()


def test_a_fit_within_a_fit_is_no_part_of_its_journal(tmp_path, monkeypatch):
    from quadlin.estimators.regression import fitting

    original = fitting.fit_choosing
    inner = []

    def with_another_fit(*args):
        if not inner:
            inner.append(None)
            inner.append(fit(rank=1))
        return original(*args)

    monkeypatch.setattr(fitting, "fit_choosing", with_another_fit)
    first = fit(tmp_path / "journal", rank="auto")
    size = os.path.getsize(tmp_path / "journal")
    monkeypatch.setattr(fitting, "fit_choosing", original)
    same(fit(tmp_path / "journal", rank="auto"), first)
    assert os.path.getsize(tmp_path / "journal") == size


def test_every_sum_over_rows_can_be_read_back():
    # Tally is a part of Survey; sparse rows that occur together are summed by find_pairs alone,
    # which keeps no journal.
    elsewhere = {"Tally", "TogetherScores"}
    for room in ("core", "data", "solve"):
        for module in (SOURCE / room).glob("*.py"):
            if not module.stem.startswith(("_", "triton")):
                importlib.import_module(f"quadlin.{room}.{module.stem}")
    sums = {
        kind.__name__
        for kind in Additive.__subclasses__()
        if kind.__module__.split(".")[1] in ("core", "data", "solve")
    }
    assert sums - elsewhere <= SUMS.keys()
