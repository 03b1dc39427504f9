"""xLearn: factorization machines by gradients, from a file; a run per number of epochs.

The file is written, and read once by xLearn, which keeps a binary copy of it, before the clock
starts.
"""

import os

import numpy as np
from sklearn.datasets import dump_svmlight_file

TITLE = "xLearn"
SETTINGS = [
    {"opt": opt, "lr": lr, "epochs": epochs}
    for opt, lr, epochs in (
        ("sgd", 0.001, 5),
        ("sgd", 0.001, 10),
        ("sgd", 0.001, 20),
        ("sgd", 0.003, 8),
        ("adagrad", 0.1, 20),
        ("adagrad", 0.2, 40),
        ("adagrad", 0.2, 160),
    )
]


def skip(problem):
    try:
        import xlearn  # noqa: F401
    except (ImportError, OSError) as error:
        return f"not installed ({error})"
    return ""


def prepare(problem, folder):
    dump_svmlight_file(without_empty(problem.X), problem.y, str(folder / "train"))
    nothing = np.zeros(problem.X_test.shape[0])
    dump_svmlight_file(without_empty(problem.X_test), nothing, str(folder / "test"))
    run(problem, lambda *_: True, folder, "sgd", 1e-3, 1)


def without_empty(X):
    """Return rows that all have an entry: xLearn aborts at one that has none."""
    empty = np.flatnonzero(np.asarray((X != 0).sum(axis=1)).ravel() == 0)
    if not len(empty):
        return X
    X = X.copy()
    X[empty, 0] = 1e-12
    return X


def run(problem, report, folder, opt, lr, epochs):
    import xlearn

    if not (folder / "train").exists():  # warming up
        return
    os.environ.setdefault("USER", "peers")  # it names a file after it, and aborts without
    model = xlearn.create_fm()
    model.setQuiet()
    model.disableNorm()
    model.disableEarlyStop()
    model.setTrain(str(folder / "train"))
    rank = (problem.rank + 3) // 4 * 4  # it takes multiples of four
    options = {"task": "reg", "metric": "rmse", "k": rank, "lambda": 0.0, "init": 0.3, "nthread": 1}
    path = str(folder / "model")
    with Quiet():
        model.fit({**options, "opt": opt, "lr": lr, "epoch": epochs}, path)

    def predict(X):
        model.setTest(str(folder / "test"))
        with Quiet():
            model.predict(path, str(folder / "predicted"))
        return np.loadtxt(folder / "predicted")

    report(predict, epochs)


class Quiet:
    """Keeps what a library prints by itself off the table."""

    def __enter__(self):
        self.saved = [os.dup(1), os.dup(2)]
        self.nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(self.nowhere, 1)
        os.dup2(self.nowhere, 2)

    def __exit__(self, *_):
        for place, saved in zip((1, 2), self.saved, strict=True):
            os.dup2(saved, place)
            os.close(saved)
        os.close(self.nowhere)
