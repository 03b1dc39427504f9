"""Files of arrays: what was written is read, and whatever else is there is refused."""

import json
import multiprocessing
import os
import struct
import time
from threading import Thread

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quadlin.files.tensors import FileFormatError, read_tensors, write_tensors

TENSORS = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(4, np.float32), "c": np.arange(3)}
HEADER = {"name": "Zürich", "numbers": [1, 2.5, None, True], "deep": {"x": {}}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.safetensors"


@pytest.fixture
def good(path):
    write_tensors(path, TENSORS, HEADER)
    return path.read_bytes()


DTYPES = [np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False} if dtype in DTYPES[:2] else None,
    )
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(-1e300, 1e300) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tensors=st.dictionaries(st.text(min_size=1, max_size=8), ARRAYS, max_size=4),
    header=st.dictionaries(st.text(), VALUES, max_size=3),
)
def test_what_was_written_is_read(path, tensors, header):
    tensors = {f"_{name}": array.T for name, array in tensors.items()}
    write_tensors(path, tensors, header)
    first = path.read_bytes()
    read, again = read_tensors(path)
    assert again == header
    assert read.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(read[name], array, strict=True)
    write_tensors(path, dict(reversed(tensors.items())), dict(reversed(header.items())))
    assert path.read_bytes() == first


@pytest.mark.parametrize("wrong", [float("inf"), {1, 2}, b"bytes"], ids=repr)
def test_what_could_not_be_read_is_not_written(path, wrong):
    path.write_bytes(b"old")
    for tensors, header in (({"a": np.array([wrong])}, {}), ({}, {"a": wrong})):
        with pytest.raises((ValueError, TypeError)):
            write_tensors(path, tensors, header)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    "change",
    [
        *({"dtype": "F16"}, {"dtype": "I64"}, {"shape": [3, 2]}, {"shape": [2**62, 2**62]}),
        *({"shape": [0, 2**62]}, {"data_offsets": [0, 2**60]}, {"data_offsets": [16, 64]}),
    ],
)
def test_an_index_that_lies_is_refused_before_memory_is_taken(path, good, change):
    (size,) = struct.unpack("<Q", good[:8])
    outer = json.loads(good[8 : 8 + size])
    outer["a"].update(change)
    text = json.dumps(outer).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + good[8 + size :])
    with pytest.raises(FileFormatError, match=path.name):
        read_tensors(path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_never_read_as_another(path, good, data):
    place = st.integers(0, len(good))
    start, stop = sorted((data.draw(place), data.draw(place)))
    path.write_bytes(good[:start] + data.draw(st.binary(max_size=64)) + good[stop:])
    try:
        tensors, header = read_tensors(path)
    except FileFormatError:
        return
    assert header == HEADER  # what is left is damage without a meaning, such as to white space
    assert all((tensors[name] == TENSORS[name]).all() for name in TENSORS)


def write_for_ever(path, ready):
    for i in range(10**9):
        write_tensors(path, {"a": np.full(40_000, float(i))}, {"i": i})
        ready.set()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs SIGKILL")
def test_a_writer_killed_at_any_moment_leaves_a_whole_file(path):
    rng, fork = np.random.default_rng(0), multiprocessing.get_context("fork")
    for _ in range(8):
        ready = fork.Event()
        process = fork.Process(target=write_for_ever, args=(path, ready))
        process.start()
        assert ready.wait(60)
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.join()
        tensors, header = read_tensors(path)
        assert (tensors["a"] == header["i"]).all()


def test_of_two_writers_at_once_each_leaves_a_whole_file(path):
    def write(value):
        for _ in range(20):
            write_tensors(path, {"x": np.full(1000, value)}, {"value": value})

    write(0.0)
    writers = [Thread(target=write, args=(value,)) for value in (1.0, 2.0)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        arrays, header = read_tensors(path)
        assert (arrays["x"] == header["value"]).all()
    assert read_tensors(path)[1]["value"] in (1.0, 2.0)
