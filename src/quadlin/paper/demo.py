"""A short demonstration: recover a known model, explain a real table, draw both."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold, cross_val_score

from quadlin.datasets import make_second_order
from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.explain.displays import InteractionDisplay
from quadlin.explain.tables import product_name
from quadlin.metrics import nmse
from quadlin.paper.pictures import Curves

FOLDER = Path("demo")
CONVERGENCE, INTERACTIONS = "convergence.png", "interactions.png"


def recover() -> dict[str, SecondOrderRegressor]:
    """Fit problems whose answer is known, print what was recovered, return the fits."""
    d, k = 100, 3
    print(f"1. Recovering a known model: d = {d}, rank {k}, M of both signs, {30 * k * d} rows\n")
    print(
        f"   {'features':<12}{'steps':>6}{'passes':>8}{'test NMSE':>12}{'error of w':>12}", end=""
    )
    print(f"{'error of b':>12}  eigenvalues")
    fits = {}
    for kind in ("gaussian", "truncated", "bernoulli", "mixed"):
        data = make_second_order(
            30 * k * d, d, rank=k, distribution=kind, n_test=2000, random_state=0
        )
        # With given penalties, so that the history is that of a single fit.
        model = SecondOrderRegressor(rank=k, alpha=0.0, random_state=0).fit(data.X, data.y)
        fits[kind] = model
        error_w = np.linalg.norm(model.coef_ - data.coef) / np.linalg.norm(data.coef)
        error_b = abs(model.intercept_ - data.intercept)
        print(
            f"   {kind:<12}{model.n_iter_:>6}{model.history_[-1].passes:>8}"
            f"{nmse(data.y_test, model.predict(data.X_test)):>12.1e}"
            f"{error_w:>12.1e}{error_b:>12.1e}"
            f"  {', '.join(f'{e:+.3f}' for e in sorted(model.eigenvalues_, reverse=True))}"
        )
    print("\n   The truth is +1, +1, -1 each time; nothing was tuned.")
    return fits


def explain() -> InteractionDisplay:
    """Fit a small real table, print what the products add, return the picture of them."""
    table = load_wine()
    target = table.feature_names.index("color_intensity")
    names = [name for name in table.feature_names if name != "color_intensity"]
    X, y = np.delete(table.data, target, axis=1), table.data[:, target]
    print(f"\n2. A real table: the colour intensity of {len(y)} wines, {len(names)} other columns")
    folds = KFold(5, shuffle=True, random_state=1)
    model = SecondOrderRegressor(random_state=0)
    linear = cross_val_score(LinearRegression(), X, y, cv=folds).mean()
    quadratic = cross_val_score(model, X, y, cv=folds).mean()
    print(
        f"   cross-validated R²: {linear:.2f} by a linear model, {quadratic:.2f} with interactions "
        f"(rank and penalty chosen by evidence)\n"
    )
    effects = model.fit(X, y).effects(X)
    named = {f"x{j}": name for j, name in enumerate(names)}
    print(f"   {'strongest pairs of columns':<44}sd of what they add")
    for pair in effects.pairs[:6]:
        name = product_name(named[pair.first], named[str(pair.second)])
        print(f"   {name:<44}{pair.strength:>19.2f}")
    display = InteractionDisplay.from_estimator(model, X, columns=8)
    return replace(display, names=[named[name] for name in display.names])


def main() -> None:
    """Run the demonstration."""
    import matplotlib.pyplot as plt

    fits = recover()
    interactions = explain()
    curves = {
        kind: tuple(np.array([(r.passes, r.loss / fit.history_[0].loss) for r in fit.history_]).T)
        for kind, fit in fits.items()
    }
    title = "Exact recovery, d = 100, k = 3, n = 30kd"
    convergence = Curves(curves, "passes over the rows", "loss / loss of the constant", title, "y")
    FOLDER.mkdir(exist_ok=True)
    figure, ax = plt.subplots(layout="constrained")
    convergence.draw(ax)
    figure.savefig(FOLDER / CONVERGENCE, dpi=150)
    interactions.plot().figure_.savefig(FOLDER / INTERACTIONS, dpi=150)
    print(f"\n3. Pictures: {FOLDER / INTERACTIONS} (pairs of columns), {FOLDER / CONVERGENCE}")


def run() -> int:
    """Run it as a program; the reader of its output, such as head, may stop early."""
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(run())
