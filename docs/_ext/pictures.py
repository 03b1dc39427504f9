"""Draw the pictures of the README and of the first pages: `python docs/_ext/pictures.py`."""

from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.plot import InteractionDisplay, PairDisplay

FOLDER = Path(__file__).parents[1] / "_static"
plt.rcParams["font.size"] = 11


def wine():
    """Return the table of wines and the intensity of their colour."""
    table = load_wine(as_frame=True).data
    table = table.rename(columns={"od280/od315_of_diluted_wines": "od280/od315"})
    return table.drop(columns="color_intensity"), table["color_intensity"]


def keep(display, name, **size):
    """Draw a display on axes of a size that a phone can show, and write the picture."""
    figure, ax = plt.subplots(layout="constrained", **size)
    display.plot(ax=ax)
    figure.savefig(FOLDER / name, dpi=150)
    plt.close(figure)


def parts():
    """Draw M = L + S of one model, and the path of a fit to the optimum."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((3000, 12))
    v = rng.standard_normal(12) / 12**0.5
    y = X[:, 0] + (X @ v) ** 2 - 1.2 * X[:, 1] * X[:, 8] + X[:, 3] * X[:, 6]
    model = SecondOrderRegressor(random_state=0).fit(X, y + 0.5 * rng.standard_normal(3000))
    M = model.interactions_.matrix()
    low = (model.components_.T * model.eigenvalues_) @ model.components_
    low -= np.diag(np.where(model.has_diagonal_, 0, np.diag(low)))
    figure, axes = plt.subplots(1, 3, figsize=(5, 2.1), layout="constrained")
    largest = np.abs(M).max()
    titles = ("M", f"= L, rank {model.rank_}", f"+ S, {len(model.pairs_.pairs)} pairs")
    for ax, part, title in zip(axes, (M, low, M - low), titles, strict=True):
        image = ax.imshow(part, cmap="RdBu", vmin=-largest, vmax=largest)
        ax.set(title=title, xticks=[], yticks=[])
    figure.colorbar(image, ax=axes, shrink=0.7)
    figure.savefig(FOLDER / "parts.png", dpi=150)
    plt.close(figure)


def path():
    """Draw how the error of a fit falls, pass by pass, to rounding."""
    figure, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for ratio, marker in ((3, "o"), (10, "s"), (30, "D")):
        d, k = 60, 3
        data = make_second_order(ratio * k * d, d, rank=k, random_state=0)
        model = SecondOrderRegressor(rank=k, alpha=0, random_state=0).fit(data.X, data.y)
        passes = [record.passes for record in model.history_]
        loss = np.array([record.loss for record in model.history_]) / np.var(data.y)
        ax.semilogy(passes, loss, marker=marker, label=f"{ratio} rows per kd")
    ax.set(xlabel="passes over the rows", ylabel="training error / variance")
    ax.legend()
    figure.savefig(FOLDER / "path.png", dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    X, y = wine()
    model = SecondOrderRegressor(random_state=0).fit(X, y)
    keep(
        InteractionDisplay.from_estimator(model, X, columns=6), "wine_heatmap.png", figsize=(5, 4.4)
    )
    keep(PairDisplay.from_estimator(model, X), "wine_pair.png", figsize=(5, 4.4))
    parts()
    path()
