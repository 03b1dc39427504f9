"""The whole library against a frozen record: errors on new rows, choices, CPU time, passes.

    python benchmarks/corpus.py [--quick] [--family NAME] [--jobs 2]   compare with the record
    python benchmarks/corpus.py --reserved                             with the second record
    python benchmarks/corpus.py --record [--family NAME]               write the record

A change of mechanism is judged by four rules: the geometric mean of the ratios new / recorded error
is at most 1.003, no family has 1.01 or more, cases above 1.05 are no more than those below 1/1.05,
and the CPU time is at most 1.1 times the recorded. The exit code is 1 if one is broken. Half of the
public tables form a second record, `corpus_reserved.parquet`: score it once, before a change is
called finished, and tune nothing to it. `--quick` takes the cases that the record marks, some five
minutes on two cores; `--jobs 16` takes as many processes of one thread each.

CPU seconds are divided by those of a fixed calculation (`measure_unit`) that is timed beside each
case, so that another or a busy machine changes them little. References (`references.py`) are
measured when a record is written. Errors below a floor (1e-3 of the standard deviation of the
target for regressions) count as the floor, and ratios in means are clipped to [1/2, 2]; those in
the list of the worst are not.
"""

import argparse
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # read by numpy

import numpy as np
import pandas as pd

import cases
import quadlin
import references

HERE = Path(__file__).parent
RECORDS = {False: HERE / "corpus.parquet", True: HERE / "corpus_reserved.parquet"}
KEYS = ["family", "case"]
SHOWN = ("error", "rank", "pairs", "cpu")
CLIP = 2.0
MEAN, FAMILY, CASE, CPU = 1.003, 1.01, 1.05, 1.1  # the four rules
QUICK_SECONDS = 420.0  # of CPU in all, shared equally by the families


def measure_unit():
    """Return the CPU seconds of a fixed calculation: products, factorisations, a Python loop."""
    A = np.random.default_rng(0).standard_normal((400, 300))
    start = time.process_time()
    for _ in range(4):
        B = A.T @ A
        np.linalg.cholesky(B + np.eye(300))
        np.linalg.eigvalsh(B[:100, :100])
        sum(i * i for i in range(30_000))
    return time.process_time() - start


def fit_case(case):
    """Return the fitted estimator."""
    if case.batch is None:
        return case.estimator.fit(case.X, case.y)
    classes = {"classes": np.unique(case.y)} if case.metric == "log_loss" else {}
    for start in range(0, len(case.y), case.batch):
        rows = slice(start, start + case.batch)
        case.estimator.partial_fit(case.X[rows], case.y[rows], **classes)
    return case.estimator


def list_pairs(model):
    """Return the positions of the pairs of a fitted model."""
    report = getattr(model, "pairs_", None)
    if report is None or isinstance(report, list | tuple):
        return set()
    return {(str(pair.first), str(pair.second)) for pair in report.pairs}


def measure(job):
    """Return a row of the record, or None if the case has nothing to test."""
    family, name, with_reference = job
    case = cases.draw(family, name)
    if case is None:
        return None
    row = {"family": family, "case": name, "rows": len(case.y), "features": case.X.shape[1]}
    row |= {"digest": cases.digest(case), "metric": case.metric, "against": case.reference}
    row |= {"floor": case.floor, "failure": "", "error": np.nan, "rank": -1, "passes": np.nan}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row["reference"] = references.measure_reference(case) if with_reference else np.nan
        units, start = [measure_unit()], time.process_time()
        try:
            model = fit_case(case)
            predict = model.predict_proba if case.metric == "log_loss" else model.predict
            row["error"] = references.score(case, predict)
        except Exception as failure:  # a fit that raises an error is a result, too
            row["failure"] = f"{type(failure).__name__}: {str(failure)[:120]}"
            model = None
        row["cpu"] = time.process_time() - start
    units.append(measure_unit())
    row["unit"] = float(np.mean(units))
    rank = getattr(model, "rank_", -1)
    row["rank"] = int(rank) if np.ndim(rank) == 0 else -1
    history = getattr(model, "history_", None)
    if history and hasattr(history[-1], "passes"):
        row["passes"] = float(history[-1].passes)
    found = list_pairs(model)
    row["pairs"] = len(found)
    if case.pairs is not None:
        truth = {(f"x{i}", f"x{j}") for i, j in case.pairs}
        row |= {"found": len(found & truth), "false": len(found - truth)}
    return row


def list_jobs(families, reserved):
    """Return family and name of the cases of a record."""
    jobs = []
    for family in families:
        public = family.startswith("public ")
        if reserved and not public:
            continue
        jobs += [
            (family, name)
            for name in cases.names(family)
            if not public or cases.is_reserved(name.split("#")[0]) == reserved
        ]
    return jobs


def run(jobs, processes):
    """Return the rows of all jobs as a frame, with a line of progress now and then."""
    rows, start, told = [], time.time(), time.time()
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for done, row in enumerate(pool.map(measure, jobs), 1):
            if row is not None:
                rows.append(row)
            if time.time() - told > 10 or done == len(jobs):
                told = time.time()
                print(
                    f"  {done}/{len(jobs)} cases, {told - start:.0f} s", file=sys.stderr, flush=True
                )
    return pd.DataFrame(rows)


def mark_quick(frame):
    """Return which cases are quick: of each family some, whose CPU seconds share a budget."""
    quick = pd.Series(False, index=frame.index)
    each = QUICK_SECONDS / frame["family"].nunique()
    for _, part in frame.groupby("family"):
        part = part[part["cpu"] < each / 4]
        part = part.loc[part["digest"].sort_values().index]  # in an order that means nothing
        quick.loc[part.index[part["cpu"].cumsum() < each]] = True
    return quick


def compare(new, old):
    """Return the cases of both with their ratios, those that only one of them has named."""
    both = new.merge(old, on=KEYS, suffixes=("", "_old"), how="inner")
    other = both["digest"] != both["digest_old"]
    for _, row in both[other].iterrows():
        print(f"{row['family']} {row['case']}: other rows than in the record, left out")
    both = both[~other].copy()
    for name in ("error", "error_old", "reference_old"):
        both[name] = np.maximum(both[name].fillna(np.inf), both["floor"])
    both["ratio"] = both["error"] / both["error_old"]
    both["ratio"] = both["ratio"].fillna(1.0)  # failed then and now
    return both


def average(ratios):
    """Return the geometric mean of clipped ratios."""
    return float(np.exp(np.log(np.clip(ratios, 1 / CLIP, CLIP)).mean()))


def speed(part):
    """Return the CPU time in units of the fixed calculation, new over old."""
    new, old = part["unit"].median(), part["unit_old"].median()
    return part["cpu"].sum() / new / (part["cpu_old"].sum() / old)


def report(both):
    """Print the comparison; return whether all four rules hold."""
    print(
        "| family | cases | new / record | > 1.05 | < 1/1.05 | worst | best | record / reference "
        "| new / reference | CPU | passes |\n|---|" + "---:|" * 10
    )
    for family, part in [*both.groupby("family", sort=False), ("all", both)]:
        r, has = part["ratio"], part["reference_old"].notna()
        beside = [
            average(part.loc[has, e] / part.loc[has, "reference_old"])
            for e in ("error_old", "error")
        ]
        passes = part["passes"].sum() / max(part["passes_old"].sum(), 1)
        cells = [family, len(part), f"{average(r):.4f}", np.sum(r > CASE), np.sum(r < 1 / CASE)]
        cells += [f"{value:.3f}" for value in (r.max(), r.min(), *beside)]
        print("|", " | ".join(map(str, [*cells, f"{speed(part):.2f}", f"{passes:.2f}"])), "|")
    if "false" in both and both["false"].notna().any():
        planted = both[both["false"].notna()]
        shown = [f"{planted[c].sum():.0f}" for c in ("found", "found_old", "false", "false_old")]
        print("\nplanted pairs: {} found (record {}), {} false (record {})".format(*shown))
    percent = np.percentile(both["ratio"], [1, 5, 25, 50, 75, 95, 99])
    print("\nratios at 1, 5, 25, 50, 75, 95, 99%: " + " ".join(f"{p:.3f}" for p in percent))
    print("\nthe ten worst and the ten best:")
    ordered = both.sort_values("ratio", ascending=False)
    for _, row in pd.concat([ordered[:10], ordered[-10:]]).iterrows():
        shown = (f"{c} {row[c + '_old']:.3g} -> {row[c]:.3g}" for c in SHOWN)
        name = f"{row['family']} {row['case']}"
        print(f"  {row['ratio']:8.3f}  {name}: {', '.join(shown)} {row['failure']}")
    worse, better = np.sum(both["ratio"] > CASE), np.sum(both["ratio"] < 1 / CASE)
    families = {f: average(p["ratio"]) for f, p in both.groupby("family")}
    worst = max(families, key=families.get)
    rules = {
        f"geometric mean {average(both['ratio']):.4f} (at most {MEAN})": average(both["ratio"])
        <= MEAN,
        f"worst family {worst} {families[worst]:.4f} (below {FAMILY})": families[worst] < FAMILY,
        f"{worse} cases above {CASE}, {better} below its inverse": worse <= better,
        f"CPU {speed(both):.3f} (at most {CPU}), {both['cpu'].sum():.0f} s": speed(both) <= CPU,
    }
    print()
    for rule, holds in rules.items():
        print(f"{'holds ' if holds else 'BROKEN'}  {rule}")
    return all(rules.values())


def write_record(frame, file, families):
    """Write the record; families that were not run keep their rows."""
    if file.exists():
        old = pd.read_parquet(file)
        frame = pd.concat([old[~old["family"].isin(families)], frame], ignore_index=True)
    order = pd.Categorical(frame["family"], categories=list(cases.FAMILIES))
    frame = frame.assign(order=order).sort_values(["order", "case"]).drop(columns="order")
    frame["quick"] = mark_quick(frame)
    small = {
        c: np.float32 for c in ("cpu", "unit", "passes", "floor", "found", "false") if c in frame
    }
    frame.astype(small).reset_index(drop=True).to_parquet(file, compression="zstd", index=False)
    print(
        f"{len(frame)} cases, {frame['cpu'].sum():.0f} CPU s -> {file.name} "
        f"({file.stat().st_size:,} bytes)"
    )
    means = {
        f: average(p["error"] / p["reference"]) for f, p in frame.groupby("family", sort=False)
    }
    print("error / reference: " + ", ".join(f"{f} {m:.3f}" for f, m in means.items()))


def name_version():
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            cwd=HERE,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return f"{quadlin.__version__} {commit}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="write the record")
    parser.add_argument(
        "--reserved", action="store_true", help="the second record, of public tables"
    )
    parser.add_argument(
        "--quick", action="store_true", help="the cases that the record marks as quick"
    )
    parser.add_argument(
        "--family", action="append", choices=list(cases.FAMILIES), help="only these"
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--save", type=Path, help="a Parquet file for the new figures")
    options = parser.parse_args()
    families, file = options.family or list(cases.FAMILIES), RECORDS[options.reserved]
    jobs = [job for job in list_jobs(families, options.reserved) if options.only in job[1]]
    if options.quick:
        record = pd.read_parquet(file)
        marked = set(map(tuple, record.loc[record["quick"], KEYS].to_numpy()))
        jobs = [job for job in jobs if job in marked]
    start = time.time()
    frame = run([(*job, options.record) for job in jobs], options.jobs)
    print(f"{len(frame)} cases in {time.time() - start:.0f} s, quadlin {name_version()}")
    if options.save:
        frame.to_parquet(options.save)
    if options.record:
        write_record(frame.assign(version=name_version()), file, families)
    elif not report(compare(frame, pd.read_parquet(file))):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
