"""Where models are written to: devices and pipes, names of pickles, files of earlier versions."""

import os
import stat
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from quadlin import SecondOrderRegressor, load, save, to_onnx
from quadlin.cli import main
from quadlin.datasets import make_second_order
from quadlin.storage import serialise, tensor_file
from quadlin.storage.tensor_file import FileFormatError, read_tensors, write_tensors

pytest.importorskip("safetensors")
EARLIER = Path(__file__).with_name("saved_by_0_1_0.safetensors")
DATA = make_second_order(200, 3, rank=1, random_state=0)


@pytest.fixture(scope="module")
def model():
    return SecondOrderRegressor(rank=1, random_state=0, alpha=0.0).fit(DATA.X, DATA.y)


def device(path="/dev/null"):
    state = os.stat(path)
    return state.st_ino, state.st_rdev, stat.S_IFMT(state.st_mode)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs Unix")
def test_models_written_to_devices_leave_them_what_they_are(tmp_path, model):
    before = device()
    save(model, "/dev/null")
    to_onnx(model, "/dev/null")
    table = tmp_path / "rows.csv"
    np.savetxt(table, np.c_[DATA.X, DATA.y], delimiter=",", header="a,b,c,y", comments="")
    assert main(["fit", str(table), "--target", "y", "--rank", "1", "-q", "-o", "/dev/null"]) == 0
    assert device() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs Unix")
def test_a_model_goes_through_a_pipe_as_it_goes_into_a_file(tmp_path, model):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    save(model, tmp_path / "file")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for path in (tmp_path / "pipe", tmp_path / "link"):
        save(model, path)
        received = b"".join(iter(lambda: os.read(reader, 1 << 16), b""))
        assert received == (tmp_path / "file").read_bytes()
        assert stat.S_ISFIFO(os.stat(path).st_mode)
    os.close(reader)


@pytest.mark.parametrize("name", ["model.pkl", "model.pickle", "model.JOBLIB"])
def test_names_of_pickles_are_refused_in_words(tmp_path, model, name):
    with pytest.raises(ValueError, match=r"named like a pickle.*'model.safetensors'"):
        save(model, tmp_path / name)
    assert os.listdir(tmp_path) == []


# ---- Files of earlier versions


def test_a_file_of_version_0_1_0_is_loaded():
    model = load(EARLIER)
    rows = pl.DataFrame({"city": ["Oslo", "Rome"], "age": [30.0, 40.0]})
    expected = [0.6728869663107169, 41.50573670328839]  # as that version predicted
    y, spread = model.predict(rows, return_std=True)
    np.testing.assert_allclose(y, expected, rtol=1e-9)
    assert (spread > 0).all()
    model.partial_fit(rows, [0.0, 40.0])


def test_a_field_that_was_renamed_is_read_under_its_former_name(tmp_path, monkeypatch):
    arrays, header = read_tensors(EARLIER)
    units = header["state"]["learned"]["units"]
    units["former"] = {"array": "state.learned.units.former"}
    del units["mean"]
    arrays["state.learned.units.former"] = arrays.pop("state.learned.units.mean")
    write_tensors(tmp_path / "model", arrays, header)
    with pytest.raises(FileFormatError, match="does not have the parts of Units"):
        load(tmp_path / "model")
    monkeypatch.setitem(
        serialise.FORMER_NAMES,
        type(load(EARLIER).fitted_.state.units),
        {"former": "mean", "burden": "penalty_scale"},
    )
    load(tmp_path / "model")


def test_a_file_of_a_version_that_is_no_longer_read_says_what_to_do(monkeypatch):
    monkeypatch.setattr(tensor_file, "FORMAT_VERSION", 2)
    monkeypatch.setattr(tensor_file, "OLDEST_VERSION", 2)
    with pytest.raises(FileFormatError, match="Fit the model again, or use the quadlin that saved"):
        load(EARLIER)


def test_a_file_of_another_version_that_does_not_fit_names_the_version(tmp_path):
    arrays, header = read_tensors(EARLIER)
    write_tensors(tmp_path / "model", arrays, {**header, "quadlin_version": "0.0.7", "more": 1})
    with pytest.raises(FileFormatError, match=r"saved by quadlin '0.0.7'.*fit the model again"):
        load(tmp_path / "model")


# ---- Standard errors that are forged


@pytest.fixture(scope="module")
def uncertain(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model"
    save(
        SecondOrderRegressor(1, uncertainty=True, random_state=0, alpha=0.0).fit(DATA.X, DATA.y),
        path,
    )
    return read_tensors(path)


@pytest.mark.parametrize("part", ["E", "H", "w", "c"])
def test_steps_so_large_that_standard_errors_are_no_numbers_are_refused(tmp_path, uncertain, part):
    arrays, header = uncertain
    name = f"uncertainty.spread.{part}"
    write_tensors(tmp_path / "model", {**arrays, name: np.full_like(arrays[name], 1e200)}, header)
    with pytest.raises(FileFormatError, match="the standard errors cannot be right"):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    "forged",
    [{"noise": "nan"}, {"error": "inf"}, {"noise": -1.0}, {"left": 0.5}, {"noise": "-inf"}],
)
def test_noise_that_contradicts_the_number_of_rows_is_refused(tmp_path, uncertain, forged):
    arrays, header = uncertain
    header = {**header, "uncertainty": {**header["uncertainty"], **forged}}
    write_tensors(tmp_path / "model", arrays, header)
    with pytest.raises(FileFormatError, match="cannot be right"):
        load(tmp_path / "model")


def test_standard_errors_in_other_units_are_refused(tmp_path, uncertain):
    arrays, header = uncertain
    name = "uncertainty.units.scale"
    write_tensors(tmp_path / "model", {**arrays, name: 1e150 * arrays[name]}, header)
    with pytest.raises(FileFormatError, match="the units of the standard errors"):
        load(tmp_path / "model")
