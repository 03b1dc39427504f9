"""The journal of a fit: sums are read back, and records that lie are left aside or refused."""

import json
import os
import random
import struct
from hashlib import blake2b

import numpy as np
import pytest

from problems import changed, places
from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.storage import CheckpointError, Journal
from quadlin.storage.journal import MAGIC
from quadlin.storage.records import FRAME, FrameError, read_frame

DATA = make_second_order(120, 3, rank=1, noise=0.5, random_state=0)
JUNK = [
    *(None, True, -1, 0, 3, 2**62, 10**400, -0.5, 1e308, 1e-320, float("nan"), float("inf"), ""),
    *("nan", "Sums", "os.system", "|O", "f8,(2,2)f8", ">f8", [], {}, [[]], [0, 2**62], [-1]),
]


def fit(path=None, **options):
    model = SecondOrderRegressor(1, alpha=1.0, random_state=0, **options)
    return model.fit(DATA.X, DATA.y, checkpoint=path)


def written(path, records):
    """Write a journal whose digests are right."""
    with path.open("wb") as file:
        file.write(MAGIC)
        for content, body in records:
            text = json.dumps(content).encode()
            digest = blake2b(text + body, digest_size=16).digest()
            file.write(FRAME.pack(len(text), len(body), digest) + text + body)


def records_of(path):
    """Return the records of a journal, its head first: JSON and bytes of arrays."""
    data, records = path.read_bytes()[len(MAGIC) :], []
    while data:
        length, size, _ = FRAME.unpack(data[: FRAME.size])
        text, data = data[FRAME.size : FRAME.size + length], data[FRAME.size + length :]
        records.append((json.loads(text), data[:size]))
        data = data[size:]
    return records


def test_a_sum_is_computed_once_and_a_journal_has_one_writer(tmp_path):
    path, asked = tmp_path / "journal", ("mean", (1, 2), "rows")
    journal = Journal(path, {"rows": "x"}, 5)
    assert journal(asked, lambda: 3.0) == 3.0
    with pytest.raises(CheckpointError, match="another fit"):
        Journal(path, {"rows": "x"}, 5)
    journal.close()
    again = Journal(path, {"rows": "x"}, 7)
    assert again.seed == 5
    assert again(asked, lambda: pytest.fail("it was known")) == 3.0
    assert again(("mean", (1, 3), "rows"), lambda: 4.0) == 4.0
    again.close()


@pytest.mark.filterwarnings("ignore::UserWarning")  # forged sums are those of odd tables
@pytest.mark.parametrize("options", [{}, {"uncertainty": True}, {"loss": "huber"}], ids=str)
def test_whatever_a_record_says_the_fit_ends_with_a_model_or_in_words(
    tmp_path, options, monkeypatch
):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    path, choose = tmp_path / "journal", random.Random(0)
    fit(path, **options)
    honest = records_of(path)
    for _ in range(60):
        which = choose.randrange(len(honest))
        content, body = honest[which]
        if choose.random() < 0.4 and len(body) >= 8:  # a number in an array
            number = struct.pack("<d", choose.choice([0.0, -1.0, 1e308, float("nan"), 1e160]))
            place = 8 * choose.randrange(len(body) // 8)
            body = body[:place] + number + body[place + 8 :]
        else:
            content = changed(content, choose.choice([*places(content)]), choose.choice(JUNK))
        written(path, [*honest[:which], (content, body), *honest[which + 1 :]])
        try:
            model = fit(path, **options)
        except ValueError as error:
            told = str(error)
        else:
            assert np.isfinite(model.predict(DATA.X)).all()
            continue
        # Of forged moments, as if a column were so large or varied by so little.
        assert any(words in told for words in (str(path), "too large", "too little"))


@pytest.mark.parametrize("shape", [[2**62, 2**62], [0, 2**62], [-1], [True], [1.0], 1, [1] * 100])
def test_an_index_that_lies_is_refused_before_memory_is_taken(tmp_path, shape):
    written(tmp_path / "frame", [([{}, [["a", "<f8", shape]]], bytes(8))])
    with open(tmp_path / "frame", "rb") as file:
        file.seek(len(MAGIC))
        with pytest.raises(FrameError):
            read_frame(file)
