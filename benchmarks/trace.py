"""The path of a row: which rooms and files of quadlin a call visits, in order, and how it jumps.

    python benchmarks/trace.py
    python benchmarks/trace.py --files

A jump is a call from one file of the package to another, or from one room to another: each
different (from, to, function) counts once, so that a loop which goes round ten times counts once.
The path is the list of rooms in the order in which each is first entered.
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

    @property
    def path(self) -> list[str]:
        """Return the rooms in the order in which they are first entered."""
        return list(dict.fromkeys(room(file) for file in self.files if os.sep in file))

    @property
    def room_jumps(self) -> set[tuple[str, str, str]]:
        """Return the jumps from one room to another."""
        between = {(room(a), room(b), name) for a, b, name in self.jumps if a}
        return {jump for jump in between if jump[0] != jump[1]}

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


def room(file: str) -> str:
    """Return the room of a file; the public modules beside the rooms count by their name."""
    return file.split(os.sep)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="List the files in the order visited.")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 6))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * rng.standard_normal(600)

    def told():
        """Return an estimator that has nothing to choose."""
        return quadlin.SecondOrderRegressor(rank=3, alpha=0, pairs=None, random_state=0)

    def streamed():
        return quadlin.SecondOrderRegressor(rank=2, alpha=0, random_state=0)

    def command_line():
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "data.csv"
            np.savetxt(table, np.column_stack([X, y]), delimiter=",", header="a,b,c,d,e,f,y",
                       comments="")  # fmt: skip
            from quadlin.cli import main as run

            run(["fit", str(table), "--target", "y", "-o", f"{folder}/m.safetensors", "--quiet"])

    calls = {
        "fit(X, y), rank=3, alpha=0, pairs=None": lambda: told().fit(X, y),
        "fit(X, y), all chosen": lambda: quadlin.SecondOrderRegressor(random_state=0).fit(X, y),
        "partial_fit(X, y), rank=2, alpha=0": lambda: streamed().partial_fit(X, y),
        "quadlin fit data.csv": command_line,
    }
    for call in calls.values():  # what is only imported is no part of the path
        call()
    for name, call in calls.items():
        trace = Trace().of(call)
        print(f"{name}: {len(trace.files)} files, {len(trace.jumps)} jumps between them; "
              f"{len(trace.path)} rooms, {len(trace.room_jumps)} jumps between them")  # fmt: skip
        print(f"    {' -> '.join(trace.path)}")
        if options.files:
            print("".join(f"    {file}\n" for file in trace.files), end="")


if __name__ == "__main__":
    main()
