"""`quadlin inspect`: what a model has learned."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np

from quadlin.cli.messages import columns, emit, number, spoken
from quadlin.cli.options import SAY, WHOLE, Say, loaded, writable
from quadlin.cli.page import page
from quadlin.core.arrays import to_numpy
from quadlin.storage.atomic import atomic_write

SHOWN = 8  # lines of the history


def inspect(
    model: Path, *, top: Annotated[int, WHOLE] = 10, html: Path | None = None, say: Say = SAY
) -> None:
    """Say what a model has learned: spectrum, interactions, linear terms, how the fit went.

    A strength is the effect of one standard deviation of each feature, so it can be
    compared between features of different units.

      quadlin inspect model.safetensors
      quadlin inspect model.safetensors --top 30 --html model.html

    Parameters
    ----------
    model
        A file that quadlin fit wrote.
    top
        How many interactions and linear terms.
    html
        Write a page as well, complete in one file. One that is there is replaced.
    """
    if html is not None:
        writable(html, model)
    content = described(loaded(model), max(0, top))
    content = {"model": str(model), **content}
    if html is not None:
        with atomic_write(html) as file:
            file.write(page(content).encode())
    emit(content, [] if say.quiet else _lines(content), say.json)


def described(model: Any, top: int) -> dict[str, Any]:
    """Return all that is shown of a model."""
    known = model.fitted_.law is not None and model.fitted_.law.noise >= 0
    sd = np.sqrt(to_numpy(model.moments_.var))
    coef, names = to_numpy(model.coef_).astype(float), model.fitted_.names
    slope = coef * sd
    errors = to_numpy(model.coef_std_).tolist() if known else None
    order = np.argsort(-np.abs(slope), kind="stable")[:top]
    linear = [
        {
            "feature": names[j],
            "coefficient": float(coef[j]),
            "strength": float(slope[j]),
            "std_error": None if errors is None else float(errors[j]),
        }
        for j in order.tolist()
        if coef[j] != 0
    ]
    interactions = []
    for pair in model.interactions_.top(top, squares=True):
        times = 1 if pair.first == pair.second else 2
        error = times * model.interaction_std(pair.first, pair.second) if known else None
        interactions.append({**pair._asdict(), "std_error": error})
    return {
        "class": type(model).__name__,
        "rows": model.n_samples_seen_,
        "features": len(names),
        "rank": model.rank_,
        "intercept": float(model.intercept_),
        "eigenvalues": to_numpy(model.eigenvalues_).tolist(),
        "noise": model.noise_ if known else None,
        "status": model.status_.name,
        "advice": spoken(model.status_.value),
        "interactions": interactions,
        "linear": linear,
        "history": [
            {"step": r.step, "passes": r.passes, "loss": float(r.loss)} for r in model.history_
        ],
        "diagnosis": [spoken(line) for line in model.diagnose().splitlines()],
    }


def _lines(content: dict[str, Any]) -> list[str]:
    c = content
    head = [f"{c['model']}: {c['class']}, {c['rows']:,} rows, {c['features']:,} features"]
    values = ", ".join(number(e, sign=True) for e in c["eigenvalues"][:16])
    more = f" and {c['rank'] - 16} more" if c["rank"] > 16 else ""
    values = values or "none, a linear model"
    head += [f"rank {c['rank']}, eigenvalues of the low-rank part: {values}{more}"]
    if c["noise"] is not None:
        head += [f"noise {number(c['noise'])}"]
    lines = [*head, "", "strongest interactions"]
    lines += _terms(c["interactions"], _product) or ["  none"]
    lines += ["", "strongest linear terms (of raw features)"]
    lines += _terms(c["linear"], lambda term: term["feature"]) or ["  none"]
    lines += ["", "history"]
    history = c["history"]
    shown = history if len(history) <= SHOWN else [*history[:2], *history[2 - SHOWN :]]
    told = columns(
        [[f"step {r['step']}", f"passes {r['passes']}", f"loss {number(r['loss'])}"] for r in shown]
    )
    lines += told if len(shown) == len(history) else [*told[:2], "  …", *told[2:]]
    return [*lines, "", "diagnosis", *(f"  {line}" for line in c["diagnosis"])]


def _terms(terms: list[dict[str, Any]], name: Any) -> list[str]:
    if not terms:
        return []
    known = terms[0]["std_error"] is not None
    rows = []
    for term in terms:
        row = [name(term), number(term["coefficient"], sign=True)]
        row += [f"± {number(term['std_error'])}"] if known else []
        rows.append([*row, f"strength {number(term['strength'], sign=True)}"])
    return columns(rows)


def _product(pair: dict[str, Any]) -> str:
    if pair["first"] == pair["second"]:
        return f"{pair['first']}²"
    return f"{pair['first']} × {pair['second']}"
