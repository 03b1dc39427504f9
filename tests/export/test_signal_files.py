"""Recovered signals and matrices, saved and loaded."""

import numpy as np
import pandas as pd
import pytest

from quadlin import MatrixSensing, PhaseRetriever, load, save
from quadlin.export.signal_file import signal_of, signal_parts
from quadlin.stream.state import InvalidContentError

RNG = np.random.default_rng(0)
REAL, COMPLEX = RNG.standard_normal((60, 8)), RNG.standard_normal((60, 8, 2)) @ [1, 1j]
NAMED = pd.DataFrame(REAL, columns=list("abcdefgh"))


def phase(A, **options):
    rows = np.asarray(A)
    return PhaseRetriever(random_state=0, **options).fit(A, np.abs(rows @ np.arange(1.0, 9)) ** 2)


def sensed(rows, y, **options):
    return MatrixSensing(random_state=0, **options).fit(rows, y)


MODELS = {
    "real": (phase(REAL), REAL),
    "named": (phase(NAMED, tol=1e-8), NAMED),
    "complex": (phase(COMPLEX, loss="huber"), COMPLEX),
    "single": (phase(COMPLEX.astype(np.complex64)), COMPLEX),
    "symmetric": (sensed(REAL, (REAL[:, 0]) ** 2 - REAL[:, 1] ** 2, rank=2), REAL),
    "pairs": (sensed((REAL, REAL[:, :5]), REAL[:, 0] * REAL[:, 1]), (REAL[::-1], REAL[:, :5])),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_loaded_is_what_was_saved(name, tmp_path):
    model, rows = MODELS[name]
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert type(again) is type(model)
    assert again.get_params() == model.get_params()
    np.testing.assert_array_equal(again.predict(rows), model.predict(rows))
    assert vars(again).keys() == vars(model).keys()
    assert (again.status_, again.history_, again.n_iter_) == (
        model.status_,
        model.history_,
        model.n_iter_,
    )
    for array in ("signal_", "left_", "values_", "right_", "feature_names_in_"):
        if hasattr(model, array):
            np.testing.assert_array_equal(getattr(again, array), getattr(model, array))
            assert getattr(again, array).dtype == getattr(model, array).dtype


CHANGES = {
    "a width": lambda arrays, content: content.update(n_features_in=9),
    "an option": lambda arrays, content: content["params"].update(n_starts=0),
    "no option": lambda arrays, content: content["params"].pop("n_starts"),
    "a status": lambda arrays, content: content.update(status="found"),
    "no history": lambda arrays, content: content.update(history=[]),
    "names": lambda arrays, content: content.update(feature_names_in=["a"] * 8),
    "an array more": lambda arrays, content: arrays.update(more=np.ones(8)),
    "no array": lambda arrays, content: arrays.clear(),
    "a form": lambda arrays, content: content.update(is_pair=True),
    "whole numbers": lambda arrays, content: arrays.update(
        {name: np.ones(values.shape, int) for name, values in arrays.items()}
    ),
    "infinity": lambda arrays, content: arrays.update(
        {name: values / 0 for name, values in arrays.items()}
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["complex", "symmetric"])
@np.errstate(all="ignore")
def test_what_contradicts_itself_is_refused(name, change):
    model, _ = MODELS[name]
    arrays, content = signal_parts(model)
    CHANGES[change](arrays, content)
    with pytest.raises(InvalidContentError):
        signal_of(type(model).__name__, arrays, content)
