"""The path of a row: the rooms and files of quadlin that a call visits, and the calls between them.

    python benchmarks/trace.py
    python benchmarks/trace.py --files
    python benchmarks/trace.py --lines

A *jump* is a change of file in the list of functions in the order of their first calls: so often
someone who reads them in that order turns to another file. A *call* is a different (from file, to
file, function), an *edge* a different (from file, to file): a loop with ten iterations counts once
in both. *Raw* counts every call from one file to another, as often as it happens. The path is the
list of rooms in the order in which each is first entered; CONTRIBUTING.md describes it step by
step, and a test compares it with this trace.

                 first flat version                      this version
                 files  functions  jumps  calls  edges   files  functions  jumps  calls  edges
    given rank      29        151     88    111     70      35        268    106    145     90
    all chosen       -          -      -      -      -      65        654    288    413    235
    partial_fit     25        173     89    125     79      47        322    153    208    127
    quadlin fit     54        370    182    243    139     114        989    460    624    361

The aim was to halve the files and jumps of the flat version (14,041 lines of code, whose default
chose neither rank nor penalties). It was not reached: there are more of both. The same call now
runs 1.7 times as many functions (text columns, fields, warnings about the table, restarts from
many starts, compiled kernels, devices, callbacks), in a library with almost three times the code,
in files that stay below 300 lines. The largest version of the rooms visited 55 files with 191 calls
in a fit with a given rank, and a later one 35 files with 144 jumps. What fell, in such a fit, are
the jumps per function, from 0.58 to 0.41 (`partial_fit`: from 0.51 to 0.48, `quadlin fit`: from
0.49 to 0.47), and the calls between files per function, from 0.74 to 0.54. More than half of these
calls go to `core/`, 24 of them to the helpers of `core/arrays.py`, since most modules ask for the
namespace of their arrays. A file is kept if it holds one idea, and merged if it only hands
something on; a check whether something applies stands where the question arises. A property such as
`Units.nu` is a call, too, from the first file that asks for it: most of the jumps that are left are
to such a property of a lower room and back.

`--lines` prints the lines of code of each room, without blanks, comments and docstrings.
"""

import argparse
import ast
import io
import os
import sys
import tempfile
import tokenize
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

import quadlin

PACKAGE = str(Path(quadlin.__file__).parent) + os.sep
NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENDMARKER, tokenize.ENCODING),
}


class Trace:
    """The files that are visited while it watches, and the calls between different files."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.functions: dict[tuple[str, str], None] = {}  # in the order of their first calls
        self.calls: Counter[tuple[str, str, str]] = Counter()

    @property
    def path(self) -> list[str]:
        """Return the rooms in the order in which they are first entered."""
        return list(dict.fromkeys(room(file) for file in self.files if os.sep in file))

    @property
    def jumps(self) -> int:
        """Return how often the file changes from one function to the next, by first calls."""
        return sum(a != b for (a, _), (b, _) in pairwise(self.functions))

    @property
    def edges(self) -> set[tuple[str, str]]:
        """Return the pairs of files of which the first calls the second."""
        return {(a, b) for a, b, _ in self.calls if a}

    @property
    def room_edges(self) -> set[tuple[str, str]]:
        """Return the pairs of rooms of which the first calls the second."""
        return {(room(a), room(b)) for a, b in self.edges if room(a) != room(b)}

    def _on_call(self, frame, event, argument):
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        here = frame.f_code.co_filename.removeprefix(PACKAGE)
        if here not in self.files:
            self.files.append(here)
        self.functions.setdefault((here, frame.f_code.co_qualname))
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        there = "" if caller is None else caller.f_code.co_filename.removeprefix(PACKAGE)
        if there != here:
            self.calls[there, here, frame.f_code.co_qualname] += 1

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


def code_lines(source: str) -> int:
    """Return the number of lines of code: no blanks, no comments, no docstrings."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        has_body = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if has_body and ast.get_docstring(node, clean=False) is not None:
            documented |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            used |= set(range(token.start[0], token.end[0] + 1))
    return len(used - documented)


def print_lines() -> None:
    """Print the lines of code of each room."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in sorted(Path(PACKAGE).rglob("*.py")):
        name = str(path).removeprefix(PACKAGE)
        place = room(name) if os.sep in name else "beside the rooms"
        lines[place] += code_lines(path.read_text())
        files[place] += 1
    for place, count in lines.most_common():
        print(f"{count:7,} lines of code in {files[place]:3} files: {place}")
    print(f"{lines.total():7,} lines of code in {files.total():3} files")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", action="store_true", help="List the files in the order visited.")
    parser.add_argument(
        "--lines", action="store_true", help="Print the lines of code of each room."
    )
    options = parser.parse_args()
    if options.lines:
        print_lines()
        return
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 6))
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * rng.standard_normal(600)
    kinds = quadlin.SecondOrderRegressor().get_params()
    no_pairs = {"pairs": None} if "pairs" in kinds else {}  # as in versions without pairs

    def with_given_rank():
        return quadlin.SecondOrderRegressor(rank=3, alpha=0, random_state=0, **no_pairs)

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
        "fit(X, y), rank=3, alpha=0, pairs=None": lambda: with_given_rank().fit(X, y),
        "fit(X, y), all chosen": lambda: quadlin.SecondOrderRegressor(random_state=0).fit(X, y),
        "partial_fit(X, y), rank=2, alpha=0": lambda: streamed().partial_fit(X, y),
        "quadlin fit data.csv": command_line,
    }
    for call in calls.values():  # what is only imported is no part of the path
        call()
    for name, call in calls.items():
        trace = Trace().of(call)
        n_calls, n_functions = len(trace.calls), len(trace.functions)
        print(f"{name}: {len(trace.files)} files, {n_functions} functions, "
              f"{trace.jumps} jumps ({trace.jumps / n_functions:.2f} per function); between files "
              f"{n_calls} calls ({n_calls / n_functions:.2f} per function), {len(trace.edges)} "
              f"edges, {trace.calls.total()} raw; {len(trace.path)} rooms, "
              f"{len(trace.room_edges)} edges")  # fmt: skip
        print(f"    {' -> '.join(trace.path)}")
        if options.files:
            print("".join(f"    {file}\n" for file in trace.files), end="")


if __name__ == "__main__":
    main()
