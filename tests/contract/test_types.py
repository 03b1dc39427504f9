"""What a type checker knows of the public interface, in the script of a user."""

import re
import subprocess
import sys

import pytest

SCRIPT = """
import numpy as np
import numpy.typing as npt

from quadlin import (
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
)

X: npt.NDArray[np.float64] = np.random.default_rng(0).standard_normal((100, 3))
y = X[:, 0] * X[:, 1]
model = SecondOrderRegressor(rank=1, alpha=0.1).fit(X, y)
reveal_type(model)
reveal_type(model.predict(X))
reveal_type(model.predict(X, return_std=True))
reveal_type(model.partial_fit(X.tolist(), y.tolist()).score(X, y))
reveal_type(model.interaction("x0", 1))
reveal_type(SecondOrderRegressorCV().fit(X, y).predict_interval(X))
reveal_type(FactorizationMachineRegressor().fit(X, y).predict(X))
labels = SecondOrderClassifier().fit(X, y > 0)
reveal_type(labels.predict_proba(X))
reveal_type(labels.predict(X))
model.fit(len, y)
"""
ARRAY = "ndarray[tuple[Any, ...], dtype[Any]]"
REVEALED = [
    "SecondOrderRegressor",
    ARRAY,
    f"tuple[{ARRAY}, {ARRAY}]",
    "float",
    "float",
    f"tuple[{ARRAY}, {ARRAY}]",
    ARRAY,
    ARRAY,
    ARRAY,
]
CHECKERS = {
    "mypy": ("--strict", "--cache-dir", "cache"),
    "pyright": ("--pythonpath", sys.executable),
}
REVEALS = re.compile(r'Revealed type is "(.*)"|Type of ".*" is "(.*)"')


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_checked_script_sees_estimators_and_arrays(checker, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", checker, *CHECKERS[checker], "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    found = ["".join(each) for each in REVEALS.findall(done.stdout)]
    # Both print types, one of them with the modules.
    assert [re.sub(r"(\w+\.)+(?=\w)", "", each) for each in found] == REVEALED, done.stdout
    errors = [line for line in done.stdout.splitlines() if "error: " in line]
    assert len(errors) == 1, done.stdout
    assert '"fit"' in errors[0]
