"""The time and memory of one command that fits a CSV file of mixed columns.

Draws customers with numbers, 0/1 flags and text columns whose spending is a second order function
of them, writes them as CSV (a million rows are about 80 MB), and runs `quadlin fit` and `quadlin
evaluate` in separate processes, with their time, CPU seconds and peak memory.
Run: python benchmarks/big_csv.py FOLDER [--rows N] [any options of quadlin fit]
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

BLOCK = 100_000  # rows drawn at once
CITIES = np.array([f"city {i:02d}" for i in range(30)])
PLANS = np.array(["free", "basic", "family", "business"])
SEGMENTS = np.array([f"segment {c}" for c in "ABCDEFGH"])
NOISE = 10.0


def block(rng, n):
    age, income = rng.uniform(18, 90, n), rng.lognormal(10, 0.5, n)
    visits, rating = rng.poisson(6, n).astype(float), rng.uniform(1, 5, n)
    tenure, distance = rng.exponential(4, n), rng.gamma(2, 5, n)
    member, mobile = (rng.random(n) < 0.4).astype(float), (rng.random(n) < 0.7).astype(float)
    city, plan = rng.integers(0, 30, n), rng.choice(4, n, p=[0.5, 0.3, 0.15, 0.05])
    segment = rng.integers(0, 8, n)
    level = np.cos(np.arange(30))[city]
    spending = (
        *(20 + 0.5 * age + 5e-4 * income + 3 * visits, 2 * visits * member + 0.4 * rating * visits),
        *(
            8 * level + 10 * (plan == 3) * tenure,
            -0.2 * distance * (1 - mobile),
            4e-5 * income * level,
        ),
    )
    return pa.table(
        {
            "age": age.round(1),
            "income": income.round(2),
            "visits": visits,
            "rating": rating.round(2),
            "tenure": tenure.round(3),
            "distance": distance.round(2),
            "member": member.astype(int),
            "mobile": mobile.astype(int),
            "city": CITIES[city],
            "plan": PLANS[plan],
            "segment": SEGMENTS[segment],
            "spending": (sum(spending) + NOISE * rng.standard_normal(n)).round(3),
        }
    )


def write(path, rows, seed):
    """Write the file; no more than a block is in memory."""
    rng, writer = np.random.default_rng(seed), None
    for start in range(0, rows, BLOCK):
        table = block(rng, min(BLOCK, rows - start))
        writer = writer or pa.csv.CSVWriter(path, table.schema)
        writer.write_table(table)
    writer.close()


def run(title, *argv):
    """Run a command of quadlin and print what it took."""
    print(f"\n$ quadlin {' '.join(map(str, argv))}", flush=True)
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "quadlin", *map(str, argv)])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(
        f"{title}: {time.perf_counter() - start:.1f} s, {usage.ru_utime + usage.ru_stime:.1f} CPU "
        f"seconds, peak memory {peak / 1e6:.0f} MB, exit code {process.returncode}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options, more = parser.parse_known_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    train, test, model = (
        options.folder / n for n in ("train.csv", "test.csv", "model.safetensors")
    )
    write(train, options.rows, seed=0)
    write(test, max(1, options.rows // 10), seed=1)
    print(f"{options.rows:,} rows, {train.stat().st_size / 1e6:.0f} MB; noise of y: {NOISE}")
    run("check", "check", train, "--target", "spending")
    run("fit", "fit", train, "--target", "spending", "-o", model, *more)
    run("evaluate", "evaluate", model, test, "--target", "spending")
    run("predict", "predict", model, test, "-o", options.folder / "predictions.parquet")


if __name__ == "__main__":
    main()
