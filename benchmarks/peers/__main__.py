"""quadlin and its peers: CPU time, passes and memory until a given error, in one run.

Run: OMP_NUM_THREADS=1 python benchmarks/peers [--scale .2] [--problems ...] [--solvers ...]

Problems have no noise, so every error is due to the solver. A solver is one file of `solvers/`.
After a warm-up on a few rows only `run` is timed, in CPU seconds of one thread and in a separate
process; it reports models, which are scored while the clock is stopped. quadlin runs first and is
not tuned. Peers get every setting of their grid; the fastest to reach 1e-6 (otherwise the most
exact) is shown, and the cost of finding it is not counted. A setting ends when it is exact, when it
is slower than the best one of its solver, or after `--patience` times the time of quadlin. `--jobs`
runs several settings of a solver at the same time, each with the whole budget.
"""

import argparse
import importlib
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from io import StringIO
from itertools import chain
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # CPU seconds of threads that wait for each other say nothing

from data_sets import PROBLEMS  # noqa: E402
from objective import TARGETS, Watch, forget_peak, memory, reached  # noqa: E402

FIRST = "quadlin_fit"
LEAST_BUDGET = 2.0  # CPU seconds
FEW = 1000  # rows on which a solver is warmed up


def solver_names():
    names = sorted(path.stem for path in (HERE / "solvers").glob("[a-z]*.py"))
    return [FIRST, *(name for name in names if name != FIRST)]


def solver(name):
    return importlib.import_module(f"solvers.{name}")


def timed(problem, name, setting, budget, folder, pipe):
    """Run one solver with one setting, and send its points and its memory: in a new process."""
    module = solver(name)
    with redirect_stderr(StringIO()):
        module.run(problem.head(FEW), lambda *_: True, folder, **setting)  # imports, mostly
        if hasattr(module, "prepare") and not list(folder.iterdir()):
            module.prepare(problem, folder)
        forget_peak()
        before = memory("VmRSS")
        watch = Watch(problem, budget)
        module.run(problem, watch, folder, **setting)
        pipe.send((watch.points, memory("VmHWM") - before))


def measured(*arguments):
    """Return the points and the memory of one setting; no points if the solver failed."""
    context = multiprocessing.get_context("fork")  # which shares the rows
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=timed, args=(*arguments, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return [], float("nan")
    finally:
        process.join()


def best_settings(problem, name, budget, folder, jobs):
    """Yield the title, setting, points and memory of the best setting, for each variant."""
    module, best, limit = solver(name), {}, {}
    title_of = getattr(module, "title", lambda _: module.TITLE)
    # That M is positive is what a factorization machine assumes.
    settings = [s for s in module.SETTINGS if s.get("told") is not False or not problem.is_positive]

    def run(setting):
        return measured(problem, name, setting, limit.get(title_of(setting), budget), folder)

    first, *others = settings
    early = [run(first)]  # which also writes the files that the others read
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(run, others) if jobs > 1 else map(run, others)
        results = chain(early, results)
    for setting, (points, megabytes) in zip(settings, results, strict=True):
        title = title_of(setting)
        exact = reached(points, TARGETS[-1])
        least = min((p.error for p in points), default=float("inf"))
        key = (0, exact.seconds) if exact else (1, least)
        if title not in best or key < best[title][0]:
            best[title] = (key, setting, points, megabytes)
            if exact:
                limit[title] = exact.seconds
    for title, (_, setting, points, megabytes) in best.items():
        yield title, setting, points, megabytes


def row(title, setting, points, megabytes, mine):
    """Return a line of the table."""
    if not points:
        return f"| {title} | failed | | | | | |"
    cells = []
    for target in TARGETS:
        point = reached(points, target)
        cells.append(f"{point.seconds:.2f} / {point.passes:g}" if point else "–")
    last, exact = points[-1], reached(points, TARGETS[-1])
    if exact and mine:
        ratio = f"{exact.seconds / mine:.1f}"
    else:
        ratio = f"> {last.seconds / mine:.1f}" if mine else ""
    how = ", ".join(f"{name} {value}" for name, value in setting.items() if name != "told")
    least = min(p.error for p in points)
    return f"| {title} | {how} | {' | '.join(cells)} | {least:.0e} | {ratio} | {megabytes:.0f} |"


def compare(problem_name, scale, seed, names, patience, jobs=1):
    """Print the table of one problem."""
    problem = PROBLEMS[problem_name](scale, seed)
    (n, d), k = problem.X.shape, problem.rank
    print(f"\n{problem_name}: {n:,} × {d:,}, k = {k}\n")
    errors = " | ".join(f"to {target:.0e}" for target in TARGETS)
    print(f"| solver | setting | CPU s / passes {errors} | least NMSE | time / quadlin's | MB |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    mine, budget, skipped = 0.0, 600.0, []
    for name in names:
        reason = solver(name).skip(problem)
        if reason:
            skipped.append(f"{solver(name).TITLE}: {reason}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            best = list(best_settings(problem, name, budget, Path(folder), jobs))
        for title, setting, points, megabytes in best:
            if name == FIRST and reached(points, TARGETS[-1]):
                mine = reached(points, TARGETS[-1]).seconds
                budget = max(LEAST_BUDGET, patience * mine)
            print(row(title, setting, points, megabytes, mine), flush=True)
    if skipped:
        print(f"\nSkipped: {'; '.join(skipped)}.", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.2, help="1 is the paper's 1,000 features")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--solvers", nargs="*", default=solver_names(), choices=solver_names())
    parser.add_argument("--patience", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=1, help="settings that run at the same time")
    options = parser.parse_args()
    names = [name for name in solver_names() if name in options.solvers]
    for problem_name in options.problems:
        compare(problem_name, options.scale, options.seed, names, options.patience, options.jobs)


if __name__ == "__main__":
    main()
