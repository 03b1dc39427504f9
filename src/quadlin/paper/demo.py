"""The main job in one go: recover a known model, explain a real table, draw the convergence."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_score

from quadlin.datasets import make_second_order
from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.explain.displays import ConvergenceDisplay
from quadlin.metrics import nmse

PICTURE = Path("demo") / "convergence.png"


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
        # Without the choice of penalties, so that the history is that of one fit from its start.
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


def explain() -> None:
    """Fit a small real table and print which features interact."""
    table = load_diabetes()
    model = SecondOrderRegressor(rank=1, max_iter=500, random_state=0)
    print(
        f"\n2. A real table: diabetes, {table.data.shape[0]} rows, {table.data.shape[1]} features"
    )
    quadratic = cross_val_score(model, table.data, table.target, cv=5)
    linear = cross_val_score(LinearRegression(), table.data, table.target, cv=5)
    print(
        f"   cross-validated R²: {quadratic.mean():.3f} (second order, rank 1), "
        f"{linear.mean():.3f} (linear)\n"
    )
    print(f"   {'strongest interactions':<24}{'effect of 1 sd × 1 sd':>24}")
    model.fit(table.data, table.target)
    named = replace(model.interactions_, names=table.feature_names)
    for pair in named.top(6, squares=True):
        name = f"{pair.first}²" if pair.first == pair.second else f"{pair.first} × {pair.second}"
        print(f"   {name:<24}{pair.strength:>+24.2f}")


def main() -> None:
    """Run the demonstration."""
    fits = recover()
    explain()
    display = ConvergenceDisplay.from_estimators(fits).plot()
    display.ax_.set_title("Exact recovery, d = 100, k = 3, n = 30kd")
    PICTURE.parent.mkdir(exist_ok=True)
    display.figure_.savefig(PICTURE, dpi=150)
    print(f"\n3. A picture of the convergence is in {PICTURE}")


def run() -> int:
    """Run it as a program, whose reader may have enough, such as head."""
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(run())
