"""quadlin beside what else one would try: `OMP_NUM_THREADS=1 python benchmarks/alternatives.py`.

Three problems: five planted pairs (600 rows of 40 correlated features, noise ½), a quadratic part
of rank 3 (1,500 rows of 40 features, noise ½), and a real table (the colour of 178 wines from 12
chemical measurements, five-fold cross-validation). Every method has its defaults, or chooses its
penalty by its own cross-validation, except that an explainable boosting machine (EBM) has one bag
instead of 14, at most 1,000 rounds and 20 pairs, because it takes long otherwise. R² is that on
new rows, without noise where the truth is known. "Pairs" are the planted products among those
that a method keeps, and the number of others. Times are CPU seconds of the process, of one fit.
Needs `pip install -e ".[docs]"`.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.datasets import load_wine
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LassoCV, RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order

PLANTED = tuple((2 * i, 2 * i + 1) for i in range(5))
ALPHAS = np.logspace(-2, 5, 29)


def products(model):
    return make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False), model)


def boosted_pairs():
    from interpret.glassbox import ExplainableBoostingRegressor

    return ExplainableBoostingRegressor(
        interactions=20, outer_bags=1, max_rounds=1000, n_jobs=1, random_state=0
    )


METHODS = {
    "quadlin": lambda: SecondOrderRegressor(random_state=0),
    "products + RidgeCV": lambda: products(RidgeCV(ALPHAS)),
    "products + LassoCV": lambda: products(LassoCV(max_iter=5000)),
    "EBM": boosted_pairs,
    "gradient boosting": lambda: HistGradientBoostingRegressor(random_state=0),
}


def named(method, model, d):
    """Return the pairs of different features that a fitted method keeps; None if it names none."""
    if method == "quadlin":
        index = {f"x{i}": i for i in range(d)}
        pairs = ({index[p.first], index[p.second]} for p in model.pairs_.pairs)
        return {tuple(sorted(pair)) for pair in pairs if len(pair) == 2}
    if method == "products + LassoCV":
        powers, coef = model[1].powers_, model[2].coef_
        return {tuple(np.flatnonzero(p)) for p in powers[coef != 0] if np.count_nonzero(p) == 2}
    if method == "EBM":
        return {tuple(sorted(term)) for term in model.term_features_ if len(term) == 2}
    return None


def with_pairs(seed):
    """Return rows, targets, new rows and their targets without noise, of five planted pairs."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((2600, 40)) + 0.65 * rng.standard_normal((2600, 1))  # correlation 0.3
    X /= X.std(axis=0)
    truth = X @ (rng.standard_normal(40) / 40**0.5) + sum(X[:, i] * X[:, j] for i, j in PLANTED)
    return X[:600], truth[:600] + 0.5 * rng.standard_normal(600), X[600:], truth[600:]


def of_low_rank(seed):
    """Return the same of a quadratic part of rank 3."""
    data = make_second_order(1500, 40, rank=3, noise=0.5, n_test=2000, random_state=seed)
    return data.X, data.y, data.X_test, data.y_test


def folds_of_wine(seed):
    """Yield the splits of the table of wines."""
    table = load_wine()
    X, y = np.delete(table.data, 9, axis=1), table.data[:, 9]
    for train, test in KFold(5, shuffle=True, random_state=seed).split(X):
        yield X[train], y[train], X[test], y[test]


PROBLEMS = {
    "five pairs": lambda seed: [with_pairs(seed)],
    "rank 3": lambda seed: [of_low_rank(seed)],
    "wine": folds_of_wine,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the name of a problem")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| problem | method | R² | pairs: found, others | CPU s |\n|---|---|---|---|---|")
    for problem, draw in PROBLEMS.items():
        for method, make in METHODS.items() if given.only in problem else ():
            scores, seconds, found, others = [], [], [], []
            for seed in range(given.seeds):
                true, predicted = [], []
                for X, y, X_new, y_new in draw(seed):
                    start = time.process_time()
                    model = make().fit(X, y)
                    seconds.append(time.process_time() - start)
                    true.append(y_new)
                    predicted.append(model.predict(X_new))
                scores.append(r2_score(np.concatenate(true), np.concatenate(predicted)))
                if problem == "five pairs" and (pairs := named(method, model, 40)) is not None:
                    found.append(len(pairs & set(PLANTED)))
                    others.append(len(pairs - set(PLANTED)))
            named_pairs = f"{np.mean(found):.1f} of 5, {np.mean(others):.1f}" if found else "–"
            cells = (problem, method, f"{np.mean(scores):.3f}", named_pairs)
            print("|", " | ".join((*cells, f"{np.mean(seconds):.2f}")), "|", flush=True)


if __name__ == "__main__":
    main()
