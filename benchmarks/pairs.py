"""Which features interact: the search for pairs and other methods, where the answer is known.

Twelve settings: the five of planted pairs with which the search was first measured, correlation
.8, heavy tails, heredity with pairs of decreasing strength, squares, categorical columns, no
interactions, and a dense low-rank M. Columns: the share of the true pairs that were found, false
pairs per fit, R² on new rows (with their noise), and CPU seconds. "find_pairs" searches beside the
linear model; "default" is SecondOrderRegressor, which decides between rank, pairs and both, and
"low rank" the same without pairs. Pairs of levels of the same two categorical columns count as one
pair. "EBM" is the pair search of `interpret`, which is skipped if that is not installed.
"products" is LassoCV on all products of standardised features, if there are at most 5,000.

A draw that takes longer than `--limit` CPU seconds is abandoned and shown as such; after
`--minutes` no draw begins and running ones end, so slow methods have fewer draws (their number is
in the table). Every draw is written to a file as soon as it is measured, one line of JSON each, and
a second call continues from there: delete the file after a change of the code. At the end the
script prints the table of the docs, in Markdown, and its first row in words.

Run: OMP_NUM_THREADS=1 python benchmarks/pairs.py [--seeds 10] [--settings 1 11]
     [--methods default products] [--jobs 2] [--limit 150] [--minutes 4]
"""

import argparse
import json
import signal
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LassoCV, LinearRegression
from sklearn.metrics import r2_score

from quadlin import SecondOrderRegressor, find_pairs

try:
    from interpret.glassbox import ExplainableBoostingRegressor
except ImportError:
    ExplainableBoostingRegressor = None

NEW_ROWS = 2000
MOST_PRODUCTS = 5000
FIRST_DRAWS = 3  # of EBM, which takes the longest, that come before its others


@dataclass(frozen=True)
class Setting:
    """How rows are drawn."""

    name: str
    n: int
    d: int
    pairs: int
    noise: float
    correlation: float = 0.3
    kind: str = "normal"
    squares: int = 0
    heredity: bool = False
    fields: int = 0
    levels: int = 6
    rank: int = 0


SETTINGS = [
    Setting("5 pairs, few rows", 600, 40, 5, 0.5),
    Setting("5 pairs", 2000, 40, 5, 0.5),
    Setting("0/1, log-normal and normal", 1000, 40, 5, 0.5, kind="mixed"),
    Setting("8 pairs, noise 1", 1500, 80, 8, 1.0),
    Setting("1,000 features", 5000, 1000, 10, 1.0),
    Setting("correlation .8", 2000, 40, 5, 0.5, correlation=0.8),
    Setting("t(3) features and noise", 1500, 40, 5, 0.5, correlation=0.0, kind="t3"),
    Setting("heredity, strengths 1 to .2", 1500, 60, 8, 0.5, correlation=0.0, heredity=True),
    Setting("3 pairs, 3 squares", 1000, 40, 3, 0.5, squares=3),
    Setting("categorical columns", 2000, 15, 1, 0.5, fields=3),
    Setting("nothing interacts", 1000, 40, 0, 1.0),
    Setting("dense M of rank 2", 2000, 40, 0, 0.5, rank=2),
]


@dataclass
class Problem:
    """Rows, what they were made from, and which pairs of columns interact."""

    X: np.ndarray
    y: np.ndarray
    X_new: np.ndarray
    y_new: np.ndarray
    truth: set[tuple[int, int]]  # pairs of columns, categorical ones as a whole
    column: np.ndarray  # (d,), the column that each feature comes from
    fields: list[np.ndarray] = field(default_factory=list)


def drawn(setting, seed):
    rng = np.random.default_rng([seed, setting.n, setting.d])
    s, N = setting, setting.n + NEW_ROWS
    common = rng.standard_normal((N, 1))
    X = np.sqrt(1 - s.correlation) * rng.standard_normal((N, s.d)) + np.sqrt(s.correlation) * common
    if s.kind == "t3":
        X = rng.standard_t(3, (N, s.d))
    if s.kind == "mixed":
        X[:, ::3] = X[:, ::3] > 0.5
        X[:, 1::3] = np.exp(X[:, 1::3])
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    w = rng.standard_normal(s.d) / np.sqrt(s.d)
    among = np.arange(s.d)
    if s.heredity:
        among = rng.choice(s.d, 10, replace=False)
        w = np.zeros(s.d)
        w[among] = rng.choice([-1.0, 1.0], 10)
    truth = set()
    while len(truth) < s.pairs:
        truth.add(tuple(sorted(rng.choice(among, 2, replace=False).tolist())))
    truth |= {(j, j) for j in rng.choice(s.d, s.squares, replace=False).tolist()}
    strengths = np.linspace(1, 0.2, len(truth)) if s.heredity else np.ones(len(truth))
    f = Z @ w
    for (i, j), size in zip(sorted(truth), strengths, strict=True):
        f = f + rng.choice([-1.0, 1.0]) * size * Z[:, i] * Z[:, j]
    column, fields = np.arange(s.d), []
    if s.fields:
        codes = rng.integers(0, s.levels, (N, s.fields))
        hot = [(codes[:, [a]] == np.arange(s.levels)).astype(float) for a in range(s.fields)]
        fields = [s.d + s.levels * a + np.arange(s.levels) for a in range(s.fields)]
        column = np.concatenate([column, *(np.full(s.levels, s.d + a) for a in range(s.fields))])
        X = np.concatenate([X, *hot], axis=1)
        table, slopes = rng.standard_normal((s.levels, s.levels)), rng.standard_normal(s.levels)
        f = f + table[codes[:, 0], codes[:, 1]] + slopes[codes[:, 2]] * Z[:, 0]
        truth |= {(s.d, s.d + 1), (0, s.d + 2)}
    if s.rank:
        U = np.linalg.qr(rng.standard_normal((s.d, s.rank)))[0]
        f = f + ((Z @ U) ** 2) @ np.where(np.arange(s.rank) % 2, -1.0, 1.0)
    noise = rng.standard_t(3, N) if s.kind == "t3" else rng.standard_normal(N)
    y = f + s.noise * noise
    n = s.n
    return Problem(X[:n], y[:n], X[n:], y[n:], truth, column, fields)


def with_find_pairs(problem):
    """Return the pairs of the public function, and least squares on features and products."""
    X, X_new = problem.X, problem.X_new
    report = find_pairs(X, problem.y, fields=problem.fields or "auto")
    pairs = [(int(pair.first[1:]), int(pair.second[1:])) for pair in report.pairs]

    def columns(X):
        return np.column_stack([X, *(X[:, i] * X[:, j] for i, j in pairs)])

    return pairs, LinearRegression().fit(columns(X), problem.y).predict(columns(X_new))


def with_default(problem):
    """Return pairs and predictions of the estimator as it is by default."""
    return _with_estimator(problem, SecondOrderRegressor(random_state=0))


def with_low_rank(problem):
    """Return predictions of the estimator without pairs."""
    model = SecondOrderRegressor(pairs=None, random_state=0)
    return None, _with_estimator(problem, model)[1]


def _with_estimator(problem, model):
    model.set_params(fields=problem.fields or "auto").fit(problem.X, problem.y)
    pairs = [] if model.pairs_ is None else model.pairs_.pairs
    named = [(int(pair.first[1:]), int(pair.second[1:])) for pair in pairs]
    return named, model.predict(problem.X_new)


def with_lasso(problem):
    """Return pairs and predictions of the lasso on all products, its penalty by folds."""
    d = problem.X.shape[1]
    i, j = np.triu_indices(d)
    if len(i) > MOST_PRODUCTS:
        raise NotImplementedError(f"{len(i):,} products")
    mean, sd = problem.X.mean(axis=0), problem.X.std(axis=0)
    keep = (sd[i] > 0) & (sd[j] > 0)
    i, j, sd = i[keep], j[keep], np.where(sd > 0, sd, 1.0)

    def columns(X):
        Z = (X - mean) / sd
        return np.concatenate([Z, Z[:, i] * Z[:, j]], axis=1)

    A = columns(problem.X)
    centre, size = A.mean(axis=0), A.std(axis=0)
    size = np.where(size > 1e-9, size, np.inf)
    model = LassoCV(cv=5, alphas=50).fit((A - centre) / size, problem.y)
    taken = np.flatnonzero(model.coef_[d:])
    pairs = list(zip(i[taken].tolist(), j[taken].tolist(), strict=True))
    return pairs, model.predict((columns(problem.X_new) - centre) / size)


def with_ebm(problem):
    """Return pairs and predictions of an explainable boosting machine that looks for ten pairs."""
    if ExplainableBoostingRegressor is None:
        raise NotImplementedError("interpret is not installed")
    if problem.X.shape[1] > 100:
        raise NotImplementedError(f"{problem.X.shape[1]} features")
    model = ExplainableBoostingRegressor(interactions=10, n_jobs=1, outer_bags=4)
    model.fit(problem.X, problem.y)
    return [t for t in model.term_features_ if len(t) == 2], model.predict(problem.X_new)


def with_boosting(problem):
    """Return predictions of gradient boosting, which names no pairs."""
    model = HistGradientBoostingRegressor(random_state=0).fit(problem.X, problem.y)
    return None, model.predict(problem.X_new)


METHODS = {
    "find_pairs": with_find_pairs,
    "default": with_default,
    "low rank": with_low_rank,
    "products": with_lasso,
    "EBM": with_ebm,
    "boosting": with_boosting,
}


def judged(method, problem):
    """Return the share of pairs found, the number of false ones, R² and CPU seconds."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pairs, predicted = method(problem)
    seconds = time.process_time() - start
    r2 = r2_score(problem.y_new, predicted)
    if pairs is None:
        return np.nan, np.nan, r2, seconds
    named = {tuple(sorted((int(problem.column[i]), int(problem.column[j])))) for i, j in pairs}
    share = len(named & problem.truth) / len(problem.truth) if problem.truth else np.nan
    return share, len(named - problem.truth), r2, seconds


def _give_up(*_):
    raise TimeoutError


def measured(number, name, seed, limit, end):
    """Return what a method gives in one draw, or text that says why there is nothing.

    A method may take `limit` seconds of CPU, and until the time `end`.
    """
    left = end - time.time()
    if left <= 0:
        return "not measured"
    signal.signal(signal.SIGPROF, _give_up)
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_PROF, limit)
    signal.setitimer(signal.ITIMER_REAL, left)
    start = time.process_time()
    try:
        return [float(v) for v in judged(METHODS[name], drawn(SETTINGS[number - 1], seed))]
    except NotImplementedError as reason:
        return f"skipped: {reason}"
    except TimeoutError:
        late = time.process_time() - start < limit - 1
        return "not measured" if late else f"more than {limit:.0f} CPU s"
    except Exception as error:  # one draw must not end the others
        return f"failed: {error!r}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def place(number, name, seed):
    """Return when a draw begins: EBM after the others, and the longest first, about."""
    setting = SETTINGS[number - 1]
    d = setting.d + setting.fields * setting.levels
    seconds = setting.n * d / 2e5
    if name == "products" and d * d / 2 <= MOST_PRODUCTS:
        seconds = setting.n * (d * d / 2) ** 2 / 1e8
    return (name == "EBM") * (1 + (seed >= FIRST_DRAWS)), -seconds


class Results:
    """What was measured, in a file: a line of JSON for each setting, method and seed."""

    def __init__(self, path):
        self.path, self.values = path, {}
        for line in path.read_text().splitlines() if path.exists() else []:
            *key, value = json.loads(line)
            self.values[tuple(key)] = value

    def key(self, number, name, seed):
        return SETTINGS[number - 1].name, name, seed

    def complete(self, wanted, jobs, limit, minutes):
        """Measure what is not in the file, in several processes; write each as soon as it is."""
        missing = [job for job in wanted if self.key(*job) not in self.values]
        missing.sort(key=lambda job: place(*job))
        end = time.time() + 60 * minutes
        with ProcessPoolExecutor(jobs) as pool:
            running = {pool.submit(measured, *job, limit, end): self.key(*job) for job in missing}
            for done in as_completed(running):
                key = running[done]
                try:
                    value = done.result()
                except Exception as error:  # the process is gone: out of memory
                    value = f"failed: {error!r}"
                self.values[key] = value
                if value != "not measured":
                    with open(self.path, "a") as file:
                        file.write(json.dumps([*key, value]) + "\n")

    def mean(self, number, name, seeds):
        """Return the means over the draws that ended, and their number; or why there are none."""
        values = [self.values.get(self.key(number, name, seed)) for seed in range(seeds)]
        rows = [value for value in values if isinstance(value, list)]
        if rows:
            return np.mean(rows, axis=0), len(rows)
        return next((value for value in values if value is not None), "not measured"), 0


def cell(results, number, name, seeds, columns):
    """Return a cell of the table: some of found, false, R² and CPU seconds, and how many draws."""
    values, draws = results.mean(number, name, seeds)
    if not draws:
        return values.removeprefix("skipped: ")
    texts = [f"{values[c]:{form}}" for c, form in columns if not np.isnan(values[c])]
    return " / ".join(texts) + (f" ({draws})" if draws < seeds else "")


FOUND, FALSE, R2, CPU = (0, ".2f"), (1, ".1f"), (2, ".3f"), (3, ".3g")
PAIRS = (FOUND, FALSE, R2, CPU)
TABLE = {
    "default": ("default: found / false / R² / CPU s", PAIRS),
    "find_pairs": ("`find_pairs`", PAIRS),
    "low rank": ("without pairs: R² / CPU s", (R2, CPU)),
    "products": ("lasso: found / false / R² / CPU s", PAIRS),
    "EBM": ("EBM", PAIRS),
    "boosting": ("boosting: R²", (R2,)),
}


def markdown(results, numbers, methods, seeds):
    """Return the table of the docs."""
    heads = ["setting", "n", "d", *(TABLE[name][0] for name in methods)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for number in numbers:
        setting = SETTINGS[number - 1]
        more = f" + {setting.fields * setting.levels}" if setting.fields else ""
        cells = [cell(results, number, name, seeds, TABLE[name][1]) for name in methods]
        begin = [setting.name, f"{setting.n:,}", f"{setting.d:,}{more}"]
        lines.append("| " + " | ".join(begin + cells) + " |")
    return "\n".join(lines)


def first_row(results, number, methods, seeds):
    """Return a row in words, for the README."""
    setting, words = SETTINGS[number - 1], []
    for name in methods:
        values, draws = results.mean(number, name, seeds)
        if draws:
            pairs = "" if np.isnan(values[0]) else f"{values[0]:.0%} found, {values[1]:.1f} false, "
            words.append(f"{name} {pairs}R² {values[2]:.2f} in {values[3]:.2g} CPU s ({draws})")
    return f"{setting.name}, {setting.n:,} rows of {setting.d} features: " + "; ".join(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--settings", type=int, nargs="*", help="their numbers, from 1")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--limit", type=float, default=150.0, help="CPU seconds of a draw")
    parser.add_argument("--minutes", type=float, default=4.0, help="after which draws end")
    parser.add_argument("--results", type=Path, default=Path("pairs.jsonl"))
    args = parser.parse_args()
    results, numbers = Results(args.results), args.settings or range(1, len(SETTINGS) + 1)
    wanted = [(k, name, s) for k in numbers for name in args.methods for s in range(args.seeds)]
    results.complete(wanted, args.jobs, args.limit, args.minutes)
    print(markdown(results, numbers, args.methods, args.seeds))
    print()
    print(first_row(results, next(iter(numbers)), args.methods, args.seeds))


if __name__ == "__main__":
    main()
