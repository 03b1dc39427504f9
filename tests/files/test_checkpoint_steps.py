"""A fit that is started again begins at the step that its checkpoint holds."""

import numpy as np
import pytest

from quadlin import SecondOrderRegressor
from quadlin.files import checkpoints
from quadlin.files.tensors import read_tensors


def test_a_restart_begins_at_the_saved_step_and_makes_only_the_steps_that_are_left(
    tmp_path, monkeypatch
):
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((6000, 600)), rng.standard_normal((600, 3))
    y = (X @ U) ** 2 @ [1.0, -0.6, 0.3] + 0.5 * rng.standard_normal(6000)
    path = tmp_path / "checkpoint"
    write, written = checkpoints.Checkpoint._write, []

    def stopped(self, state):
        write(self, state)
        written.append(state)
        if len(written) == 3:  # the empty one of the start, and those of two steps
            raise KeyboardInterrupt

    def fit(**options):
        model = SecondOrderRegressor(3, alpha=0.0, pairs=None, tol=1e-10, random_state=0)
        return model.fit(X, y, **options)

    whole = fit()
    monkeypatch.setattr(checkpoints, "WRITE_SECONDS", -1.0)  # after each step
    monkeypatch.setattr(checkpoints.Checkpoint, "_write", stopped)
    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint=path)
    monkeypatch.setattr(checkpoints.Checkpoint, "_write", write)
    step, passes, loss = read_tensors(path, kind="checkpoint")[1]["state.history"][-1]
    assert loss == pytest.approx(whole.history_[step].loss)
    again = fit(checkpoint=path)
    assert again.history_[1].loss == pytest.approx(loss)  # after that of the constant
    assert again.n_iter_ == whole.n_iter_ - step + 1
    assert again.history_[-1].passes <= whole.history_[-1].passes - passes + 3
    np.testing.assert_allclose(again.predict(X), whole.predict(X), rtol=1e-6)
