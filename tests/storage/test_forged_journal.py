"""Journals that lie, with digests that are right: a record is taken, left aside, or refused."""

import json
import os
import random
import re
import struct
import warnings
from hashlib import blake2b

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from problems import changed, places
from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.storage import CheckpointError
from quadlin.storage.journal import FORMER_MAGIC, MAGIC
from quadlin.storage.records import FRAME, FrameError, read_frame, write_frame

DATA = make_second_order(120, 3, rank=1, noise=0.5, random_state=0)
FORGED = int(os.environ.get("QUADLIN_FORGED", "300"))


@pytest.fixture(scope="module", autouse=True)
def without_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


OPTIONS = [
    {},
    {"polish": False, "whiten": "full"},
    {"uncertainty": True, "alpha": 1.0},
    {"whiten": "lowrank", "diagonal": "zero"},
    {"loss": "huber", "rank": 2},
]


def fit(path=None, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        options = {"rank": 1, "random_state": 0, "max_iter": 4, **options}
        model = SecondOrderRegressor(**{"rank": 5, "alpha": 0.0, **options})
        return model.fit(DATA.X, DATA.y, checkpoint=path)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return records_of(tmp_path_factory.mktemp("journal") / "journal")


def records_of(path, **options):
    """The records of a good journal, its head first: JSON and bytes of arrays."""
    fit(path, **options)
    data, records = path.read_bytes()[len(MAGIC) :], []
    while data:
        length, size, _ = FRAME.unpack(data[: FRAME.size])
        text, data = data[FRAME.size : FRAME.size + length], data[FRAME.size + length :]
        records.append((json.loads(text), data[:size]))
        data = data[size:]
    return records


def framed(text, body):
    digest = blake2b(text + body, digest_size=16).digest()
    return FRAME.pack(len(text), len(body), digest) + text + body


def written(path, records):
    texts = [text if isinstance(text, bytes) else json.dumps(text).encode() for text, _ in records]
    bodies = [body for _, body in records]
    path.write_bytes(MAGIC + b"".join(map(framed, texts, bodies)))


def ends_well(path, **options):
    """The fit ends with a model that predicts numbers, or in words."""
    try:
        model = fit(path, **options)
    except ValueError as error:
        refusal = error
    else:
        assert np.isfinite(model.predict(DATA.X)).all()
        return model
    if isinstance(refusal, CheckpointError):
        assert str(path) in str(refusal)
        assert "again" in str(refusal)  # what to do
    else:  # forged moments, as if a column were so large, or varied by so little
        assert re.search("too large to square|too little to be squared", str(refusal))
    return None


JUNK = [
    *(None, True, -1, 0, 1, 2, 3, 10**6, 2**62, 2**64, 10**400, -0.5, 0.0, 1e308, -1e308, 1e-320),
    *("", "nan", "inf", "x", "Sums", "Survey", "os.system", "<f8", "<c16", "|O", "f8,(2,2)f8"),
    *([], {}, [[]], [1], [0, 2**62], [-1], {"array": "sum.weight"}, {"dtype": "float32"}),
    *(float("nan"), float("inf"), "f8,", "(", "5,", ">f8", "<U2", [3, 3], [1, 3]),
]
NUMBERS = [0.0, -1.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), 1e160]


@pytest.mark.parametrize("seed", range(len(OPTIONS)))
def test_whatever_a_record_says_the_fit_ends_with_a_model_or_in_words(tmp_path, seed):
    choose, options = random.Random(seed), OPTIONS[seed]
    honest = records_of(tmp_path / "honest", **options)
    for _ in range(FORGED // len(OPTIONS)):
        records = list(honest)
        for _ in range(choose.choice([1, 1, 2])):
            which = choose.randrange(len(records))
            content, body = records[which]
            if choose.random() < 0.4 and len(body) >= 8:  # a number in an array
                place = 8 * choose.randrange(len(body) // 8)
                number = struct.pack("<d", choose.choice(NUMBERS))
                body = body[:place] + number + body[place + 8 :]
            else:
                content = changed(
                    content, choose.choice(list(places(content))), choose.choice(JUNK)
                )
            records[which] = (content, body)
        written(tmp_path / "journal", records)
        ends_well(tmp_path / "journal", **options)


def same_as_ever(model):
    expected = fit()
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    np.testing.assert_array_equal(model.components_, expected.components_)


@pytest.mark.parametrize(
    "text", [b"[" * 10**5 + b"]" * 10**5, b'{"a":' * 10**5, b"1", b"", b"\xff"]
)
def test_a_record_that_is_no_record_is_left_aside(tmp_path, honest, text):
    written(tmp_path / "journal", [*honest[:3], (text, b""), *honest[3:]])
    same_as_ever(ends_well(tmp_path / "journal"))
    written(tmp_path / "journal", [(text, b""), *honest[1:]])
    assert ends_well(tmp_path / "journal") is None  # the head itself: refused


@pytest.mark.parametrize("which", range(1, 4))
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_sums_that_are_not_finite_are_computed_again(tmp_path, honest, which, number):
    content, body = honest[which]
    forged = struct.pack("<d", number) * (len(body) // 8)
    written(tmp_path / "journal", [*honest[:which], (content, forged), *honest[which + 1 :]])
    same_as_ever(ends_well(tmp_path / "journal"))


@pytest.mark.parametrize(
    "index",
    [
        [["a", "<f8", [2**62, 2**62]]],
        [["a", "<f8", [0, 2**62]]],
        [["a", "<f8", [10**400]]],
        [["a", "<f8", [-1]]],
        [["a", "<f8", [True]]],
        [["a", "<f8", [1.0]]],
        [["a", "<f8", 1]],
        [["a", "f8,(2", [1]]],
        [["a", "|O", [1]]],
        [["a", ["<f8"], [1]]],
        [[1, "<f8", [1]]],
        [["a", "<f8", [1] * 100]],
        [["a"]],
        [1],
        None,
    ],
)
def test_an_index_that_lies_is_refused_before_memory_is_taken(tmp_path, index):
    (tmp_path / "frame").write_bytes(framed(json.dumps([{}, index]).encode(), bytes(8)))
    with open(tmp_path / "frame", "rb") as file, pytest.raises(FrameError):
        read_frame(file)


def test_a_record_is_read_as_it_was_written(tmp_path):
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.zeros((0, 4), np.float32),
        "c": np.ones(()),
    }
    with open(tmp_path / "frames", "w+b") as file:
        for i in range(3):
            write_frame(file, {"i": i}, arrays)
        file.seek(0)
        for i in range(3):
            content, again = read_frame(file)
            assert content == {"i": i}
            for name, a in arrays.items():
                np.testing.assert_array_equal(again[name], a, strict=True)
        with pytest.raises(FrameError):
            read_frame(file)


def test_a_failure_after_recorded_sums_names_the_journal(tmp_path, monkeypatch):
    from quadlin.core.rows import Rows

    fit(tmp_path / "journal")
    data = (tmp_path / "journal").read_bytes()
    (tmp_path / "journal").write_bytes(data[:-10])

    def fail(*args):
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr(Rows, "_carried", fail)
    with pytest.raises(
        CheckpointError, match=r"continued from .*journal.*Delete it to start again"
    ):
        fit(tmp_path / "journal")
    with pytest.raises(np.linalg.LinAlgError):  # without recorded sums it is the fit's own failure
        fit(tmp_path / "new")


def test_a_journal_of_an_earlier_version_is_refused_in_words(tmp_path):
    (tmp_path / "journal").write_bytes(FORMER_MAGIC + b"anything")
    with pytest.raises(CheckpointError, match=r"earlier version.*Delete it to start again"):
        fit(tmp_path / "journal")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs Unix")
def test_a_pipe_or_a_device_is_no_journal(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(CheckpointError, match="device or a pipe"):
            fit(path)
