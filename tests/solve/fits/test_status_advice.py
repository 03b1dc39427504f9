"""Advice about the status of a fit never names an option that is set as it says."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from quadlin import (
    MatrixSensing,
    PhaseRetriever,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
)
from quadlin.cli.printing import message_text
from quadlin.solve.fits.status_advice import ADVISED, status_advice
from quadlin.solve.lowrank.types import Status

SETTINGS = [
    SecondOrderRegressor(rank=rank, alpha=alpha, step=step).get_params()
    for rank, alpha, step in product(("auto", 0, 3), ("auto", 0, 0.5, (0, 1)), ("guarded", "plain"))
]
OTHERS = [
    each.get_params() for each in (SecondOrderRegressorCV(), MatrixSensing(), PhaseRetriever())
]


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("params", [*SETTINGS, *OTHERS], ids=str)
def test_no_advice_is_followed_already_or_cannot_be(status, params):
    for text in (status_advice(status, params), message_text(status_advice(status, params))):
        auto = 'alpha="auto"' in text or "--alpha auto" in text
        assert not (auto and params.get("alpha") == "auto")
        assert "rank=" not in text
        if params.get("rank") in ("auto", 0):  # there is no number to lower
            assert not re.search("(?<!a )lower (`rank`|--rank)", text, re.IGNORECASE)
        if params.get("step", "guarded") == "guarded":
            assert 'step="guarded"' not in text
        for option in ("alpha", "rank", "n_starts", "max_iter"):
            named = f"`{option}`" in text or f"--{option.replace('_', '-')}" in text
            assert not (named and option not in params)
        assert "{" not in text
        assert text[0].isupper()
        assert text.endswith(".")


def test_words_begin_as_the_status_does():
    for status in ADVISED:
        beginning, _, advice = str(status.value).rpartition(". ")
        assert advice.split()[0] in ("Use", "Raise", "Learn", "Add")
        assert status_advice(status, {"rank": 2}).startswith(f"{beginning}. ")


def test_what_was_chosen_is_given_next():
    text = status_advice(Status.out_of_passes, SecondOrderRegressor().get_params())
    assert "Give a larger `alpha` than was chosen, a lower `rank`, leave out features" in text
    text = status_advice(Status.out_of_passes, SecondOrderRegressor(3, alpha=0).get_params())
    assert 'Use alpha="auto", raise `alpha`, lower `rank`,' in text


def test_every_way_to_read_the_status_has_the_same_advice(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    model = SecondOrderRegressor(random_state=0).fit(X, X[:, 0] + rng.normal(size=60))
    fitted = model.fitted_
    model.adopt(fitted.with_state(replace(fitted.state, status=Status.out_of_passes)))
    advice = "Give a larger `alpha` than was chosen"
    assert advice in model.diagnose()
    assert advice in str(model.summary())
    assert advice in model.report(tmp_path / "r.html").read_text()


def test_other_advice_depends_on_what_is_set_too():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    X = np.column_stack([X, X[:, 0] - X[:, 1]])
    y = X[:, 0] + rng.normal(size=300)
    plain = SecondOrderRegressor(0, alpha=0, pairs=None).fit(X, y)
    chosen = SecondOrderRegressor(0, pairs=None).fit(X, y)
    assert "set `alpha` above 0" in plain.diagnose()
    assert "collinear" in chosen.diagnose()
    assert "`alpha`" not in chosen.diagnose()
    with pytest.warns(UserWarning, match="too_few_rows"):
        few = SecondOrderRegressor(0, alpha=0, pairs=None).fit(X[:3, :3], y[:3])
    assert "lower `rank`" not in few.diagnose()
    rare = np.arange(300) < 2
    assert "huber" not in SecondOrderClassifier(0).fit(X[:, :3], rare).diagnose()
