"""The path of a row: which files of quadlin a call visits, in order, and how often it jumps.

    python benchmarks/trace.py

A jump is a call or a return from one file of the package to another, each different pair of (from,
to) per function counted as often as it first occurs in a new context: a loop that goes round ten
times counts once.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

import quadlin

PACKAGE = str(Path(quadlin.__file__).parent) + os.sep


class Trace:
    """The files that are visited while it watches, and the calls between different files."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.jumps: set[tuple[str, str, str]] = set()

    def _on_call(self, frame, event, argument):
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        here = frame.f_code.co_filename.removeprefix(PACKAGE)
        if here not in self.files:
            self.files.append(here)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        there = "" if caller is None else caller.f_code.co_filename.removeprefix(PACKAGE)
        if there != here:
            self.jumps.add((there, here, frame.f_code.co_qualname))

    def of(self, call) -> "Trace":
        """Watch one call."""
        sys.setprofile(self._on_call)
        try:
            call()
        finally:
            sys.setprofile(None)
        return self


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="List the files in the order visited.")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 6))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * rng.standard_normal(600)

    def estimator():
        return quadlin.SecondOrderRegressor(rank=2, random_state=0, alpha=0.0)

    def command_line():
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "data.csv"
            np.savetxt(table, np.column_stack([X, y]), delimiter=",", header="a,b,c,d,e,f,y",
                       comments="")  # fmt: skip
            from quadlin.cli import main as run

            run(["fit", str(table), "--target", "y", "-o", f"{folder}/m.safetensors", "--quiet"])

    calls = {
        "fit(X, y)": lambda: estimator().fit(X, y),
        "partial_fit(X, y)": lambda: estimator().partial_fit(X, y),
        "quadlin fit data.csv": command_line,
    }
    for call in calls.values():  # what is only imported is no part of the path
        call()
    for name, call in calls.items():
        trace = Trace().of(call)
        print(f"{name}: {len(trace.files)} files, {len(trace.jumps)} jumps between them")
        if options.files:
            print("".join(f"    {file}\n" for file in trace.files), end="")


if __name__ == "__main__":
    main()
