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


def decision():
    """Draw how the default decides, from top to bottom, with the ways out at the right."""
    figure, ax = plt.subplots(figsize=(5, 5), layout="constrained")
    steps = (
        ("Are rows wide and sparse?", "yes: sweeps, the rank\nby rows held out"),
        ("Does ridge regression\nleave an error?", "no: it is the model"),
        (
            "More than 25 features, and\nno sign of many products?",
            "yes: try pairs first; if they\nleave only noise, stop",
        ),
        ("Ridge, rank k or all products:\nthe largest evidence", None),
        ("Do rows that are left out agree?", "no: ridge regression"),
        ("Pairs in addition,\nif the evidence is larger", None),
    )
    style = {"ha": "center", "va": "center", "fontsize": 9}
    above = None
    for y, (text, way_out) in zip(range(0, -len(steps), -1), steps, strict=True):
        box = {"boxstyle": "round,pad=0.5", "fc": "#dbe9f6", "ec": "k"}
        patch = ax.text(0, y, text, bbox=box, **style).get_bbox_patch()
        arrow = {"arrowstyle": "->", "shrinkA": 3, "shrinkB": 3, "patchA": above, "patchB": patch}
        if above is not None:
            ax.annotate("", (0, y), (0, y + 1), arrowprops=arrow)
        if way_out:
            arrow = {"arrowstyle": "<-", "patchB": patch}
            box = {"boxstyle": "round,pad=0.4", "fc": "#f3f3f3", "ec": "gray"}
            ax.annotate(way_out, (0, y), (2.6, y), arrowprops=arrow, bbox=box, **style)
        above = patch
    ax.set(xlim=(-1.3, 3.7), ylim=(0.5 - len(steps), 0.5))
    ax.axis("off")
    figure.savefig(FOLDER / "decision.png", dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    decision()
    X, y = wine()
    model = SecondOrderRegressor(random_state=0).fit(X, y)
    keep(
        InteractionDisplay.from_estimator(model, X, columns=6), "wine_heatmap.png", figsize=(5, 4.4)
    )
    keep(PairDisplay.from_estimator(model, X), "wine_pair.png", figsize=(5, 4.4))
    parts()
    path()
