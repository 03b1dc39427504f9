"""Every array of a model file with other numbers: it is refused in words, or predicts numbers."""

import numpy as np
import pytest

from quadlin import SecondOrderRegressor, load, save
from quadlin.storage.tensor_file import FileFormatError, read_tensors, write_tensors

RNG = np.random.default_rng(0)
X = np.column_stack([RNG.standard_normal((60, 2)), 1e12 * RNG.standard_normal(60)])
Y = X[:, 0] * X[:, 1] + X[:, 0] + 0.1 * RNG.standard_normal(60)


def fitted():  # columns of very different units: their eigenvectors are found another way
    return SecondOrderRegressor(rank=1, alpha=0.1, random_state=0).fit(X, Y)


def streamed():
    model = SecondOrderRegressor(rank=0, pairs=1, batch_size=20, random_state=0)
    for start in range(0, 60, 20):
        model.partial_fit(X[start : start + 20], Y[start : start + 20])
    return model


@pytest.mark.parametrize("number", [1e308, -1.0, 1e160, 0.0])
@pytest.mark.parametrize("make", [fitted, streamed])
def test_an_array_of_other_numbers_is_refused_or_predicts_numbers(tmp_path, make, number):
    save(make(), tmp_path / "model")
    arrays, header = read_tensors(tmp_path / "model")
    for name, array in arrays.items():
        if array.dtype.kind != "f" or not array.size:
            continue
        for place in (slice(None), -1):
            forged = array.copy()
            forged.reshape(-1)[place] = number
            write_tensors(tmp_path / "forged", {**arrays, name: forged}, header)
            try:
                model = load(tmp_path / "forged")
            except FileFormatError:
                continue
            assert np.isfinite(model.predict(X)).all()
            assert "\n" in str(model.summary())


def test_sums_of_pairs_that_no_rows_have_are_refused(tmp_path):
    save(streamed(), tmp_path / "model")
    arrays, header = read_tensors(tmp_path / "model")
    name = "state.state.running.gram"
    gram = arrays[name].copy()
    gram[0, 1] = gram[1, 0] = 2 * np.sqrt(gram[0, 0] * gram[1, 1]) + 1
    write_tensors(tmp_path / "forged", {**arrays, name: gram}, header)
    with pytest.raises(FileFormatError, match="the sums of the pairs cannot be right"):
        load(tmp_path / "forged")
