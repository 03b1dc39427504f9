"""`quadlin inspect`: what a model has learned."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from quadlin.cli.classification import one_of
from quadlin.cli.options import WHOLE, OutputOptions
from quadlin.cli.printing import aligned, message_lines, message_text, number, print_answer
from quadlin.cli.reading import check_output, load_model
from quadlin.explain.page import describe, model_page, product_name
from quadlin.storage.atomic import atomic_write

SHOWN = 8  # lines of the history
EIGENVALUES = 16  # shown of them


def inspect(
    model: Path,
    *,
    top: Annotated[int, WHOLE] = 10,
    html: Path | None = None,
    label: str | None = None,
    answer: OutputOptions = OutputOptions(),  # noqa: B008  it is frozen
) -> None:
    """Show what a model has learned.

    Prints the eigenvalues, the strongest interactions and linear terms, the history of
    the fit and a diagnosis. A strength is the effect of one standard deviation of each
    feature, so that features of different units can be compared.

      quadlin inspect model.safetensors
      quadlin inspect model.safetensors --top 30 --html model.html

    Parameters
    ----------
    model
        A model file written by quadlin fit.
    top
        Number of interactions and linear terms to show.
    html
        Also write a self-contained HTML page, which replaces an existing file.
    label
        Of a classifier for more than two classes: whose model to show.
    """
    if html is not None:
        check_output(html, model)
    content = {"model": str(model), **describe(one_of(load_model(model), label), max(0, top))}
    content["advice"] = message_text(content["advice"])
    content["diagnosis"] = message_lines(content["diagnosis"])
    if html is not None:
        page = model_page(f"quadlin model {model}", content)
        with atomic_write(html) as file:
            file.write(page.encode())
    print_answer(content, [] if answer.quiet else _lines(content), answer.json)


def _lines(content: dict[str, Any]) -> list[str]:
    c = content
    head = [f"{c['model']}: {c['class']}, {c['rows']:,} rows, {c['features']:,} features"]
    values = ", ".join(number(e, sign=True) for e in c["eigenvalues"][:EIGENVALUES])
    more = f" and {c['rank'] - EIGENVALUES} more" if c["rank"] > EIGENVALUES else ""
    values = values or "none, a linear model"
    head += [f"rank {c['rank']}, eigenvalues of the low-rank part: {values}{more}"]
    if c["noise"] is not None:
        head += [f"standard deviation of the noise {number(c['noise'])}"]
    lines = [*head, "", "strongest interactions"]
    lines += _terms(c["interactions"], product_name) or ["  none"]
    lines += ["", "strongest linear terms (of raw features)"]
    lines += _terms(c["linear"], lambda term: str(term["feature"])) or ["  none"]
    lines += ["", "history", *_history(c["history"])]
    return [*lines, "", "diagnosis", *(f"  {line}" for line in c["diagnosis"])]


def _history(history: list[dict[str, Any]]) -> list[str]:
    shown = history if len(history) <= SHOWN else [*history[:2], *history[2 - SHOWN :]]
    lines = aligned(
        [[f"step {r['step']}", f"passes {r['passes']}", f"loss {number(r['loss'])}"] for r in shown]
    )
    return lines if len(shown) == len(history) else [*lines[:2], "  …", *lines[2:]]


def _terms(terms: list[dict[str, Any]], name: Callable[[dict[str, Any]], str]) -> list[str]:
    rows = []
    for term in terms:
        row = [name(term), number(term["coefficient"], sign=True)]
        row += [f"± {number(term['std_error'])}"] if term["std_error"] is not None else []
        rows.append([*row, f"strength {number(term['strength'], sign=True)}"])
    return aligned(rows)
