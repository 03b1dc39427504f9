"""Which features interact: the search for pairs and other methods, where the answer is known.

    OMP_NUM_THREADS=1 python benchmarks/pairs.py [--seeds 3] [--only squares] [--jobs 2]

Prints a line per setting of the family "pairs" of the corpus (`cases.py`): the share of the true
pairs that were found, false pairs per fit, R² on new rows (without their noise) and CPU seconds,
all means over the draws. "default" is SecondOrderRegressor, which decides between rank, pairs and
both, "low rank" the same without pairs, and "lasso" LassoCV on all products of standardised
features, if there are at most 5,000.
"""

import argparse
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from sklearn.linear_model import LassoCV, LinearRegression
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import cases
from quadlin import SecondOrderRegressor, find_pairs

MOST_PRODUCTS = 5000


def numbers(pairs):
    return [(int(pair.first[1:]), int(pair.second[1:])) for pair in pairs]


def with_find_pairs(case):
    """Return the pairs of the public function, and least squares on features and products."""
    pairs = numbers(find_pairs(case.X, case.y).pairs)

    def columns(X):
        return np.column_stack([X, *(X[:, i] * X[:, j] for i, j in pairs)])

    return pairs, LinearRegression().fit(columns(case.X), case.y).predict(columns(case.X_test))


def with_default(case):
    model = SecondOrderRegressor(random_state=0).fit(case.X, case.y)
    return numbers(model.pairs_.pairs if model.pairs_ else []), model.predict(case.X_test)


def with_low_rank(case):
    model = SecondOrderRegressor(pairs=None, random_state=0).fit(case.X, case.y)
    return None, model.predict(case.X_test)


def with_lasso(case):
    """Return pairs and predictions of the lasso on all products, its penalty by folds."""
    d, lasso = case.X.shape[1], LassoCV(cv=5, alphas=50)
    products = PolynomialFeatures(2, include_bias=False)
    model = make_pipeline(StandardScaler(), products, StandardScaler(), lasso)
    predicted = model.fit(case.X, case.y).predict(case.X_test)
    i, j = np.triu_indices(d)  # the order of PolynomialFeatures
    taken = np.flatnonzero(lasso.coef_[d:])
    return list(zip(i[taken].tolist(), j[taken].tolist(), strict=True)), predicted


METHODS = {
    "default": with_default,
    "find_pairs": with_find_pairs,
    "low rank": with_low_rank,
    "lasso": with_lasso,
}


def measured(setting, name, seed):
    """Return found, false, R² and CPU seconds of one draw."""
    case = cases.draw("pairs", f"{setting}#{seed}")
    if name == "lasso" and case.X.shape[1] ** 2 > 2 * MOST_PRODUCTS:
        return (np.nan,) * 4
    warnings.simplefilter("ignore")
    start = time.process_time()
    pairs, predicted = METHODS[name](case)
    seconds, r2 = time.process_time() - start, r2_score(case.y_test, predicted)
    if pairs is None:
        return np.nan, np.nan, r2, seconds
    named = {tuple(sorted(pair)) for pair in pairs}
    share = len(named & case.pairs) / len(case.pairs) if case.pairs else np.nan
    return share, len(named - case.pairs), r2, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the name of a setting")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    o = parser.parse_args()
    print("found / false / R² / CPU s, without pairs R² / CPU s\n")
    print(f"| setting | n | d | {' | '.join(o.methods)} |")
    print("|---" * (len(o.methods) + 3) + "|", flush=True)
    with ProcessPoolExecutor(o.jobs) as pool:
        for setting in (name for name in cases.PLANTED if o.only in name):
            planted, cells = cases.PLANTED[setting], []
            for name in o.methods:
                draws = list(pool.map(partial(measured, setting, name), range(o.seeds)))
                means = zip(np.mean(draws, axis=0), (".2f", ".1f", ".3f", ".2g"), strict=True)
                cells.append(" / ".join(f"{v:{form}}" for v, form in means if not np.isnan(v)))
            print(f"| {setting} | {planted.n:,} | {planted.d} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
