"""The scripts of what was measured: slow to run, but whatever they import must be there."""

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_benchmark_can_be_started(script, monkeypatch):
    monkeypatch.syspath_prepend(script.parent)
    spec = importlib.util.spec_from_file_location(f"benchmark_{script.stem}", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert callable(module.main)
    assert f"python benchmarks/{script.name}" in module.__doc__  # how to run it


def test_the_costs_of_passes_are_measured_on_few_rows():
    """It imports the package anew, so it runs in a process of its own."""
    script = SCRIPTS[0].parent / "passes.py"
    options = ["--entries", "20000", "--repeat", "1", "--cases", "f32-C", "csr"]
    command = [sys.executable, str(script), *options, "--engines", "serial"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    assert [line.split()[0] for line in table[2:6]] == ["f32-C", "f32-C", "csr", "csr"]


def test_make_bench_measures_passes_of_few_rows():
    """Likewise."""
    code = "from bench import pass_costs; print(len(pass_costs('csr', 20000)))"
    folder = SCRIPTS[0].parent
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=True
    )
    assert result.stdout == "4\n"  # three passes and the moments


def test_every_peer_says_how_it_runs_and_a_run_of_few_rows_prints_a_table(monkeypatch, capsys):
    folder = SCRIPTS[0].parent / "peers"
    monkeypatch.syspath_prepend(folder)
    spec = importlib.util.spec_from_file_location("benchmark_peers", folder / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in module.solver_names():
        solver = module.solver(name)
        assert solver.TITLE
        assert solver.SETTINGS
        assert callable(solver.run)
    problem = module.PROBLEMS["ratings"](0.0, 0)
    assert module.solver("products_ridge").skip(problem) == ""
    wide = replace(problem, X=np.zeros((10**6, 1000), dtype=np.bool_), has_diagonal=True)
    assert "2006 GB" in module.solver("products_ridge").skip(wide)
    module.compare("signed M", 0.0, 0, ["quadlin_fit", "products_ridge"], 1.0)
    table = capsys.readouterr().out
    assert "6,000 × 20, k = 10" in table
    # Both are exact on rows without noise; which is the faster one is not asserted.
    assert table.count("| – |") == 0
    assert "| quadlin |" in table
    assert "| products + Ridge |" in table
