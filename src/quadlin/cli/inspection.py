"""`quadlin inspect`: what a model has learned."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from quadlin.cli.classification import one_of
from quadlin.cli.model_rows import load_model, open_rows_for
from quadlin.cli.options import WHOLE, LabelledRowOptions, OutputOptions
from quadlin.cli.outputs import check_output
from quadlin.cli.printing import aligned, message_lines, message_text, number, print_answer
from quadlin.cli.reading import stored_rows
from quadlin.explain.page import model_page
from quadlin.explain.pictures import pictures_of
from quadlin.explain.report import describe
from quadlin.explain.summary import LEVELS_ARE
from quadlin.explain.tables import eigenvalues_name, product_name
from quadlin.files.atomic import atomic_write

SHOWN = 8  # lines of the history
EIGENVALUES = 16  # shown of them


def inspect(
    model: Path,
    data: str | None = None,
    *,
    top: Annotated[int, WHOLE] = 10,
    html: Path | None = None,
    label: str | None = None,
    read: LabelledRowOptions = LabelledRowOptions(),
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Show what a model has learned.

    Prints R², the eigenvalues, columns and pairs of columns by how much they move
    the prediction, the strongest interactions and slopes, the history of the fit
    and a diagnosis. The coefficient of a pair is that of the product of its
    two features. A strength is the effect of one standard deviation of each
    feature, so that features of different units can be compared.

      quadlin inspect model.safetensors
      quadlin inspect model.safetensors --top 30 --html model.html
      quadlin inspect model.safetensors new.csv --html model.html

    Parameters
    ----------
    model
        A model file written by quadlin fit.
    data
        Rows with a target, for R² and strengths on data that the fit did not see; - as in fit.
    top
        Number of interactions and slopes to show.
    html
        Also write a self-contained HTML page with plots. An existing file is replaced.
    label
        The class whose model to show, for a classifier with more than two classes.
    """
    if html is not None:
        check_output(html, model, *([] if data is None else [data]))
    fitted, rows = load_model(model), None
    if data is not None:
        data = stored_rows(data, read, answer)
        rows = open_rows_for(fitted, data, read, answer, need_target=True)
    target = read.target or fitted.fitted_.columns.target
    fitted = one_of(fitted, label)
    content = {"model": str(model), **describe(fitted, max(0, top), rows, None, target)}
    for name in ("advice", "r2_of"):
        content[name] = message_text(content[name])
    content["diagnosis"] = message_lines(content["diagnosis"])
    if rows is not None and rows.weight is not None:
        content["r2_of"] += f", weighted by {rows.weight}"
    if html is not None:
        page = model_page(
            f"quadlin model {model}", content, pictures_of(fitted, rows, content["target"])
        )
        with atomic_write(html) as file:
            file.write(page.encode())
    print_answer(content, [] if answer.quiet else _lines(content), answer.json)


def _lines(content: dict[str, Any]) -> list[str]:
    c = content
    lines = [f"{c['model']}: {c['class']}, {c['rows']:,} rows, {c['features']:,} features"]
    score = "" if c["r2"] is None else f"{'at least ' * c['r2_is_bound']}{number(c['r2'])} "
    lines += [f"{c['score']} {score}{c['r2_of']}"]
    values = ", ".join(number(e, sign=True) for e in c["eigenvalues"][:EIGENVALUES])
    more = f" and {c['rank'] - EIGENVALUES} more" if c["rank"] > EIGENVALUES else ""
    pairs = len(c["found_pairs"])
    lines += [f"rank {c['rank_in_words']}"]
    if c["rank"]:
        lines += [f"{eigenvalues_name(c['rank'], c['features'])}: {values}{more}"]
    if c["noise"] is not None:
        lines += [f"standard deviation of the noise {number(c['noise'])}"]
    if pairs:
        about = "by order of entry (coefficient of the pair alone ± robust standard error, HC3)"
        lines += ["", f"pairs of features, {about}", *_pairs(c["found_pairs"])]
    lines += _effects(c["effects"]) if c["effects"] is not None else []
    errors = f" ± standard error {c['std_errors']}" if c["std_errors"] else ""
    lines += ["", f"strongest interactions (coefficients of products x_i·x_j{errors})"]
    lines += _terms(c["interactions"], _product) or ["  none"]
    lines += ["", f"strongest slopes (where all columns have their means{errors})"]
    slopes = [{**term, "coefficient": term["slope"]} for term in c["linear"]]
    lines += _terms(slopes, lambda term: str(term["feature"])) or ["  none"]
    if c["effects"] is not None and c["effects"]["are_centred"]:
        lines += [f"  {LEVELS_ARE}"]
    lines += ["", "history", *_history(c["history"])]
    return [*lines, "", "diagnosis", *(f"  {line}" for line in c["diagnosis"])]


def _pairs(pairs: list[dict[str, Any]]) -> list[str]:
    rows = []
    for pair in pairs:
        coefficient, error = number(pair["coefficient"], sign=True), number(pair["std_error"])
        rows.append([_product(pair), coefficient, f"± {error}", f"share {pair['share']:.1%}"])
    return aligned(rows)


def _effects(effects: dict[str, Any]) -> list[str]:
    """Return the strongest columns and pairs of columns, each by one number."""
    rows = [[term["column"], number(term["strength"])] for term in effects["columns"]]
    rows += [[_product(term), number(term["strength"])] for term in effects["pairs"]]
    lines = [
        "",
        "columns and pairs of columns: standard deviation of what they add to the prediction",
    ]
    lines += aligned(rows) or ["  none"]
    return [*lines, f"  Over {effects['rows']}; measured from {effects['reference']}."]


def _product(pair: dict[str, Any]) -> str:
    return product_name(pair["first"], pair["second"])


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
