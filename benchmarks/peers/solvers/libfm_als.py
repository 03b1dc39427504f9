"""libFM's alternating least squares: a program of its own; a run per number of sweeps."""

import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import dump_svmlight_file

TITLE = "libFM (ALS)"
SETTINGS = [{"sweeps": sweeps} for sweeps in (10, 30, 100)]


def skip(problem):
    return "" if shutil.which("libFM") else "no program named libFM on the PATH"


def run(problem, report, folder, sweeps):
    with tempfile.TemporaryDirectory() as folder:
        train, test, out = (str(Path(folder) / name) for name in ("train", "test", "out"))
        dump_svmlight_file(problem.X, problem.y, train)
        dump_svmlight_file(problem.X_test, problem.y_test, test)
        dim = f"1,1,{problem.rank}"
        options = ["-task", "r", "-method", "als", "-dim", dim, "-regular", "0,0,1e-6"]
        files = ["-train", train, "-test", test, "-out", out]
        before = _children()
        subprocess.run(["libFM", *options, "-iter", str(sweeps), *files], check=True)
        report(lambda X: np.loadtxt(out), sweeps, _children() - before)


def _children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
