"""What the corpus is compared with: methods of scikit-learn and scipy, tuned on training rows."""

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegressionCV, PoissonRegressor, RidgeCV
from sklearn.metrics import log_loss, mean_poisson_deviance
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler

PENALTIES = 10.0 ** np.arange(-5, 7)
MOST_PRODUCTS, MOST_ENTRIES = 1200, 3e6  # of the table of all products
LABEL_FEATURES = 12  # up to which products of labels and counts are tried
STARTS = 20  # of L-BFGS


def score(case, predict):
    """Return the error of predictions on the new rows of a case."""
    y = case.y_test
    if case.metric == "log_loss":
        p = np.clip(predict(case.X_test), 1e-6, None)
        return float(log_loss(y, p / p.sum(axis=1, keepdims=True), labels=np.unique(case.y)))
    f = predict(case.X_test)
    if case.metric == "deviance":
        return float(mean_poisson_deviance(y, np.clip(f, 1e-9, None)))
    if case.metric == "mae":
        return float(np.mean(np.abs(y - f)) / y.std())
    error = np.mean((y - f) ** 2)
    return float(error if case.metric == "objective" else np.sqrt(error) / y.std())


def try_products(case, most_features):
    n, d = case.X.shape
    p = d * (d + 3) // 2
    return d <= most_features and n * p <= MOST_ENTRIES and min(n, p) <= MOST_PRODUCTS


def compare(case, models):
    """Return the error of the model with the best score of rows left out of training."""
    best = max(models, key=lambda pair: pair[1])[0]
    return score(case, best.predict_proba if case.metric == "log_loss" else best.predict)


def products(*last):
    return make_pipeline(
        StandardScaler(), PolynomialFeatures(2, include_bias=False), StandardScaler(), *last
    )


def fit_ridge(case):
    """Ridge on the features, or on all products: whichever has the smaller leave-one-out error."""
    ways = [
        make_pipeline(StandardScaler(with_mean=isinstance(case.X, np.ndarray)), RidgeCV(PENALTIES))
    ]
    if try_products(case, case.X.shape[1]):
        ways.append(products(RidgeCV(PENALTIES)))
    models = [way.fit(case.X, case.y) for way in ways]
    return compare(case, [(model, model[-1].best_score_) for model in models])


def encode(case):
    """Return an encoder of codes or of a frame with text and missing values."""
    if not isinstance(case.X, pd.DataFrame):
        return OneHotEncoder(handle_unknown="ignore")
    number = make_column_selector(dtype_include=["number", "bool"])
    text = make_column_selector(dtype_exclude=["number", "bool"])
    return make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), number),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), text),
    )


def fit_one_hot_ridge(case):
    folds = 5 if not isinstance(case.X, pd.DataFrame) else None  # leave-one-out where it is dense
    model = make_pipeline(encode(case), RidgeCV(10.0 ** np.arange(-2, 4, 0.5), cv=folds))
    return score(case, model.fit(case.X, case.y).predict)


def fit_logistic(case):
    fewest = np.unique(case.y, return_counts=True)[1].min()
    folds = StratifiedKFold(int(min(5, fewest)), shuffle=True, random_state=0)
    grid = {
        "Cs": 6,
        "scoring": "neg_log_loss",
        "cv": folds,
        "max_iter": 200,
        "use_legacy_attributes": False,
    }
    ways = [make_pipeline(StandardScaler(), LogisticRegressionCV(**grid, l1_ratios=(0,)))]
    if case.reference == "one-hot logistic":
        ways = [make_pipeline(encode(case), LogisticRegressionCV(**grid, l1_ratios=(0,)))]
    elif try_products(case, LABEL_FEATURES):
        ways.append(products(LogisticRegressionCV(**grid, l1_ratios=(0,))))
    models = [way.fit(case.X, case.y) for way in ways]
    return compare(case, [(m, np.mean(m[-1].scores_, axis=0).max()) for m in models])


def fit_poisson(case):
    def search():
        model = PoissonRegressor(solver="newton-cholesky", max_iter=200)
        grid = {"alpha": np.logspace(-6, 2, 9)}
        return GridSearchCV(model, grid, cv=5, scoring="neg_mean_poisson_deviance")

    ways = [make_pipeline(StandardScaler(), search())]
    if try_products(case, LABEL_FEATURES):
        ways.append(products(search()))
    models = [way.fit(case.X, case.y) for way in ways]
    return compare(case, [(model, model[-1].best_score_) for model in models])


def search_optimum(case):
    """Return the smallest mean squared error of L-BFGS from random factors and signs."""
    rng, k = np.random.default_rng(0), case.estimator.rank
    X, y, sd = case.X, case.y, case.y.std()
    Z = (X - X.mean(0)) / np.where(np.ptp(X, axis=0) > 0, X.std(0), 1)
    t, (n, d), squares = (y - y.mean()) / sd, Z.shape, Z * Z
    left_out = float(len(np.unique(X)) == 2)  # two-valued features have no squares

    def loss(parameters, signs):
        c, w, L = parameters[0], parameters[1 : d + 1], parameters[d + 1 :].reshape(d, k)
        ZL = Z @ L
        r = c + Z @ w + ZL**2 @ signs - left_out * (squares @ (L**2 @ signs)) - t
        by_L = 2 * (Z.T @ (r[:, None] * ZL) - left_out * (squares.T @ r)[:, None] * L) * signs
        gradient = np.concatenate([[r.sum()], Z.T @ r, by_L.ravel()])
        return float(r @ r) / n, 2 * gradient / n

    best = np.inf
    for _ in range(STARTS):
        signs = rng.choice([-1.0, 1.0], k)
        start = np.concatenate([np.zeros(1 + d), rng.standard_normal(d * k) / np.sqrt(d)])
        found = minimize(loss, start, (signs,), "L-BFGS-B", jac=True, options={"maxiter": 2000})
        best = min(best, found.fun)
    return float(best * sd**2)


METHODS = {
    "ridge": fit_ridge,
    "one-hot ridge": fit_one_hot_ridge,
    "logistic": fit_logistic,
    "one-hot logistic": fit_logistic,
    "poisson": fit_poisson,
    "L-BFGS": search_optimum,
}


def measure_reference(case):
    return case.level if case.level is not None else METHODS[case.reference](case)
