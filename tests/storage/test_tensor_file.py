import json
import multiprocessing
import os
import struct
import sys
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quadlin.storage import atomic
from quadlin.storage import tensor_file as store
from quadlin.storage.atomic import atomic_write
from quadlin.storage.tensor_file import FileFormatError, read_tensors, write_tensors

pytest.importorskip("safetensors")
EXAMPLES = int(os.environ.get("QUADLIN_FUZZ_EXAMPLES", "150"))
TENSORS = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(4, np.float32), "c": np.arange(3)}
HEADER = {"name": "Zürich", "numbers": [1, 2.5, None, True], "deep": {"x": {}}}

# ---- Files made by hand, as another program could


def parts(data):
    """The header of safetensors as an object, and the bytes after it."""
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def joined(outer, body):
    text = json.dumps(outer).encode()
    return struct.pack("<Q", len(text)) + text + body


def with_header(data, change):
    """The file with another header of quadlin, `change` of the old one."""
    outer, body = parts(data)
    outer["__metadata__"]["quadlin"] = change(outer["__metadata__"]["quadlin"])
    return joined(outer, body)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.safetensors"


@pytest.fixture
def good(path):
    write_tensors(path, TENSORS, HEADER)
    return path.read_bytes()


def refused(path, data, match=None):
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=match) as caught:
        read_tensors(path)
    assert str(path) in str(caught.value)


DTYPES = [np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements=(
            {"allow_nan": False, "allow_infinity": False} if np.dtype(dtype).kind == "f" else None
        ),
    )
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=20)
@given(
    tensors=st.dictionaries(st.text(min_size=1, max_size=8), ARRAYS, max_size=4),
    header=st.dictionaries(st.text(), VALUES, max_size=3),
    transposed=st.booleans(),
)
def test_what_was_written_is_read(tmp_path_factory, tensors, header, transposed):
    tensors.pop("__metadata__", None)
    if transposed:
        tensors = {name: a.T for name, a in tensors.items()}
    path = tmp_path_factory.mktemp("store") / "file"
    write_tensors(path, tensors, header)
    read, again = read_tensors(path)
    assert again == header
    assert read.keys() == tensors.keys()
    for name, a in tensors.items():
        assert read[name].dtype == a.dtype
        assert read[name].flags.writeable
        np.testing.assert_array_equal(read[name], a)


def test_the_same_contents_make_the_same_bytes(path, good):
    write_tensors(path, dict(reversed(TENSORS.items())), dict(reversed(HEADER.items())))
    assert path.read_bytes() == good


def test_big_endian_and_strided_arrays_are_written_as_plain_ones(path):
    write_tensors(path, {"a": np.arange(4, dtype=">f8"), "b": np.arange(6.0)[::2]}, {})
    read, _ = read_tensors(path)
    assert read["a"].tolist() == [0, 1, 2, 3]
    assert read["b"].tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("tensors", "header", "kind"),
    [
        ({"a": np.array([np.nan])}, {}, ValueError),
        ({"a": np.array(["text"])}, {}, TypeError),
        ({"a": np.array([None])}, {}, TypeError),
        ({}, {"a": float("inf")}, ValueError),
        ({}, {"a": object()}, TypeError),
    ],
)
def test_what_could_not_be_read_is_not_written(path, tensors, header, kind):
    path.write_bytes(b"old")
    with pytest.raises(kind):
        write_tensors(path, tensors, header)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


# ---- Files that are refused


def test_a_missing_file_a_folder_and_a_pipe_are_named_for_what_they_are(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_tensors(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_tensors(tmp_path / "none" / "below")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_tensors(tmp_path)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write_tensors(tmp_path, {}, {})
    with pytest.raises(FileNotFoundError, match="Make it first"):
        write_tensors(tmp_path / "none" / "file", {}, {})
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(FileFormatError, match="pipe"):
            read_tensors(tmp_path / "pipe")


def test_another_kind_is_refused_in_words(path):
    write_tensors(path, {}, {}, kind="checkpoint")
    assert read_tensors(path, kind="checkpoint") == ({}, {})
    with pytest.raises(FileFormatError, match="It holds a 'checkpoint', not a 'model'"):
        read_tensors(path)


def test_a_file_of_safetensors_that_is_not_ours_is_refused(path):
    from safetensors.numpy import save_file

    save_file({"a": np.ones(2)}, path)
    refused(path, path.read_bytes(), "header of quadlin is missing")
    save_file({"a": np.ones(2)}, path, metadata={"quadlin": "[]"})
    refused(path, path.read_bytes(), "does not name the format")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 7,
        b"PK\x03\x04 and so on, as a zip file begins",
        b"\x80\x04\x95 a pickle",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2**27) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 100_000) + b"[" * 100_000,
    ],
)
def test_other_files_are_refused(path, data):
    refused(path, data)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.replace('"format_version":1', '"format_version":2'), "Upgrade quadlin"),
        (lambda t: t.replace('"format_version":1', '"format_version":true'), "version"),
        (lambda t: t.replace('"format_version":1', '"format_version":0'), "version"),
        (lambda t: t.replace('"kind":"model"', '"kind":[]'), "what it holds"),
        (lambda t: t.replace("2.5", "NaN"), "NaN is not JSON"),
        (lambda t: t.replace("2.5", "-Infinity"), "not JSON"),
        (lambda t: t.replace("2.5", "1e999"), "JSON"),
        (lambda t: t.replace("2.5", "[" * 100_000 + "]" * 100_000), "JSON"),
        (lambda t: t.replace("2.5", "9" * 5000), "JSON"),
        (lambda t: t.replace("2.5", "2.25"), "checksum"),
        (lambda t: t[:-1], "JSON"),
        (lambda t: t.replace('"sha256"', '"sha255"'), "checksum"),
        (lambda t: "[1]", "format"),
        (lambda t: "{}", "format"),
    ],
)
def test_headers_that_are_wrong_are_refused_for_what_is_wrong(path, good, change, match):
    refused(path, with_header(good, change), match)


def test_a_header_that_is_too_large_is_neither_read_nor_written(path, good, monkeypatch):
    monkeypatch.setattr(store, "HEADER_LIMIT", 100)
    refused(path, good, "larger than")
    with pytest.raises(ValueError, match="'numbers' takes"):
        write_tensors(path, TENSORS, HEADER)


@pytest.mark.parametrize(
    ("part", "advice"),
    [("encoder", "rare levels"), ("feature_names_in", "names"), ("state", "history is too long")],
)
def test_the_advice_about_a_large_header_names_its_largest_part(path, monkeypatch, part, advice):
    monkeypatch.setattr(store, "HEADER_LIMIT", 300)
    header = {"encoder": [], "feature_names_in": [], "state": {}, part: ["long"] * 100}
    with pytest.raises(ValueError, match=f"{part!r} takes.*{advice}"):
        write_tensors(path, {}, header)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "F16"},
        {"dtype": "BF16"},
        {"dtype": "I64"},
        {"dtype": "F128"},
        {"shape": [3, 2]},
        {"shape": [6]},
        {"shape": [2**62, 2**62]},
        {"shape": [0, 2**62]},
        {"shape": [-2, -3]},
        {"data_offsets": [0, 2**60]},
        {"data_offsets": [16, 64]},
        {"data_offsets": [48, 0]},
    ],
)
def test_arrays_that_are_not_what_they_were_are_refused(path, good, change):
    outer, body = parts(good)
    outer["a"].update(change)
    refused(path, joined(outer, body))


def test_arrays_that_are_not_finite_or_no_truth_values_are_refused(path):
    write_tensors(path, {"a": np.zeros(1), "t": np.array([True])}, {})
    outer, body = parts(path.read_bytes())
    start, stop = outer["a"]["data_offsets"]
    inf = struct.pack("<d", float("inf"))
    refused(path, joined(outer, body[:start] + inf + body[stop:]), "not finite")
    start, stop = outer["t"]["data_offsets"]
    refused(path, joined(outer, body[:start] + b"\x02" + body[stop:]), "neither 0 nor 1")


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_never_read_as_another(path, good, data):
    kind = data.draw(st.sampled_from(["cut", "flip", "splice", "random", "grow"]))
    place = st.integers(0, len(good) - 1)
    bad = bytearray(good)
    if kind == "cut":
        bad = bad[: data.draw(place)]
    elif kind == "grow":
        bad += data.draw(st.binary(min_size=1, max_size=64))
    elif kind == "flip":
        bad[data.draw(place)] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "splice":
        start, stop = sorted((data.draw(place), data.draw(place)))
        bad[start:stop] = data.draw(st.binary(max_size=64))
    else:
        bad = bytearray(data.draw(st.binary(max_size=400)))
    path.write_bytes(bad)
    try:
        tensors, header = read_tensors(path)
    except FileFormatError:
        return
    # What is left is damage without a meaning, such as to white space.
    assert header == HEADER
    assert tensors.keys() == TENSORS.keys()
    assert all((tensors[name] == TENSORS[name]).all() for name in TENSORS)


def test_the_error_survives_a_pickle():
    import pickle

    error = FileFormatError("a", "It is wrong.", "Do better.")
    assert str(pickle.loads(pickle.dumps(error))) == "a: It is wrong. Do better."


def test_without_safetensors_the_error_names_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install \"quadlin\[save\]\""):
        read_tensors(path)


# ---- Whole or not at all


def test_a_failure_on_the_way_leaves_the_old_file_and_nothing_else(path, good):
    def fail():
        with atomic_write(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == good
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs file locks")
def test_stale_temporary_files_are_removed_and_those_in_use_are_not(path, good):
    stale = path.with_name(f".{path.name}.0123456789ab{atomic.TEMPORARY}")
    other = path.with_name(f".other.0123456789ab{atomic.TEMPORARY}")
    stale.write_bytes(b"half")
    other.write_bytes(b"half")
    with atomic_write(path) as outer:
        outer.write(b"outer")
        with atomic_write(path) as inner:
            inner.write(b"inner")
        assert path.read_bytes() == b"inner"
    assert path.read_bytes() == b"outer"
    assert sorted(os.listdir(path.parent)) == sorted([path.name, other.name])


def test_a_link_stays_a_link_and_a_new_file_has_the_usual_rights(path, good):
    link = path.with_name("link")
    link.symlink_to(path)
    write_tensors(link, {}, {"new": 1})
    assert link.is_symlink()
    assert read_tensors(path) == ({}, {"new": 1})
    plain = path.with_name("plain")
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


def write_for_ever(path, ready):
    for i in range(10**9):
        write_tensors(path, {"a": np.full(40_000, float(i))}, {"i": i})
        if i == 0:
            ready.set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs SIGKILL")
def test_a_writer_killed_at_any_moment_leaves_a_whole_file(path):
    rng, fork = np.random.default_rng(0), multiprocessing.get_context("fork")
    for _ in range(int(os.environ.get("QUADLIN_KILLS", "12"))):
        ready = fork.Event()
        process = fork.Process(target=write_for_ever, args=(path, ready))
        process.start()
        assert ready.wait(60)
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.join()
        tensors, header = read_tensors(path)
        assert (tensors["a"] == header["i"]).all()
        others = [name for name in os.listdir(path.parent) if name != path.name]
        assert all(name.endswith(atomic.TEMPORARY) for name in others)
        assert len(others) <= 1  # each writer has removed what the one before it left
    write_tensors(path, {}, {})
    assert os.listdir(path.parent) == [path.name]
