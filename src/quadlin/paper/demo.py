"""A short demonstration: recover a known model, explain a real table, draw both."""

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
from quadlin.paper.studies import Curves

FOLDER = Path("demo")


def recover() -> Curves:
    """Fit problems whose answer is known, print what was recovered, return the paths."""
    d, k = 100, 3
    print(f"1. Recovering a known model: d = {d}, rank {k}, M of both signs, {30 * k * d} rows\n")
    print(f"   {'features':<12}{'passes':>8}{'test NMSE':>12}{'error of w':>12}  eigenvalues")
    paths = {}
    for kind in ("gaussian", "truncated", "bernoulli", "mixed"):
        data = make_second_order(
            30 * k * d, d, rank=k, distribution=kind, n_test=2000, random_state=0
        )
        # With given penalties, so that the history is that of a single fit.
        model = SecondOrderRegressor(rank=k, alpha=0.0, random_state=0).fit(data.X, data.y)
        history = model.history_
        paths[kind] = [r.passes for r in history], [r.loss / history[0].loss for r in history]
        error = nmse(data.y_test, model.predict(data.X_test))
        error_w = np.linalg.norm(model.coef_ - data.coef) / np.linalg.norm(data.coef)
        values = ", ".join(f"{e:+.3f}" for e in sorted(model.eigenvalues_, reverse=True))
        print(f"   {kind:<12}{history[-1].passes:>8}{error:>12.1e}{error_w:>12.1e}  {values}")
    print("\n   The truth is +1, +1, -1 each time; nothing was tuned.")
    title = f"Exact recovery, d = {d}, k = {k}, n = 30kd"
    return Curves(paths, "passes over the rows", "loss / loss of the constant", title, "y")


def explain() -> InteractionDisplay:
    """Fit a small real table, print what the products add, return the picture of them."""
    table = load_wine()
    target = table.feature_names.index("color_intensity")
    names = [name for name in table.feature_names if name != "color_intensity"]
    X, y = np.delete(table.data, target, axis=1), table.data[:, target]
    print(f"\n2. A real table: the colour intensity of {len(y)} wines, {len(names)} other columns")
    folds, model = KFold(5, shuffle=True, random_state=1), SecondOrderRegressor(random_state=0)
    linear, quadratic = (
        cross_val_score(m, X, y, cv=folds).mean() for m in (LinearRegression(), model)
    )
    print(f"   cross-validated R²: {linear:.2f} linear, {quadratic:.2f} with interactions\n")
    print(f"   {'strongest pairs of columns':<44}sd of what they add")
    named = {f"x{j}": name for j, name in enumerate(names)}
    for pair in model.fit(X, y).effects(X).pairs[:6]:
        name = product_name(named[pair.first], named[str(pair.second)])
        print(f"   {name:<44}{pair.strength:>19.2f}")
    display = InteractionDisplay.from_estimator(model, X, columns=8)
    return replace(display, names=[named[name] for name in display.names])


def main() -> None:
    """Run the demonstration."""
    import matplotlib.pyplot as plt

    convergence, interactions = recover(), explain()
    FOLDER.mkdir(exist_ok=True)
    figure, ax = plt.subplots(layout="constrained")
    convergence.draw(ax)
    figure.savefig(FOLDER / "convergence.png", dpi=150)
    interactions.plot().figure_.savefig(FOLDER / "interactions.png", dpi=150)
    print(f"\n3. Pictures: {FOLDER}/interactions.png (pairs of columns), {FOLDER}/convergence.png")
