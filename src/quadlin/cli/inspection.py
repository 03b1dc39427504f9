"""Commands that show: `inspect`, `pairs` and `export`."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from quadlin.cli.options import (
    WHOLE,
    LabelledRowOptions,
    OutputOptions,
    OutputPath,
    TableOptions,
    UsageError,
    as_flags,
    number,
    print_answer,
)
from quadlin.cli.rows import (
    check_output,
    load_model,
    open_rows,
    open_rows_for,
    watched,
)
from quadlin.estimators.classifier import SecondOrderClassifier
from quadlin.explain.diagnosis import listed
from quadlin.explain.pairs import find_pairs
from quadlin.explain.summary import describe, model_page, pictures_of
from quadlin.explain.tables import text_table
from quadlin.files.atomic import atomic_write


def inspect(
    model: Path,
    data: str | None = None,
    *,
    top: Annotated[int, WHOLE, Parameter(show_default=True)] = 10,
    html: Path | None = None,
    label: str | None = None,
    read: LabelledRowOptions = LabelledRowOptions(),
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Show what a model has learned.

    Prints the summary of the model with its strongest terms, the columns and
    pairs of columns by how much they move the prediction, and a diagnosis. The
    coefficient of a pair multiplies the product of its two features.

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
        Number of interactions and linear terms to show.
    html
        Also write a self-contained HTML page with plots. An existing file is replaced.
    label
        The class whose model to show, for a classifier with more than two classes.
    """
    if html is not None:
        check_output(html, model, *([] if data is None else [data]))
    fitted, rows = load_model(model), None
    if data is not None:
        rows = open_rows_for(fitted, data, read, answer, need_target=True)
    fitted = one_of(fitted, label)
    top = max(0, top)
    summary = fitted.summary(rows, top=top)
    content = {"model": str(model), **describe(fitted, summary, top, rows, read.target)}
    if rows is not None and rows.weight is not None:
        content["r2_of"] += f", weighted by {rows.weight}"
        summary.facts[content["score"]] += f", weighted by {rows.weight}"
    for name in ("advice", "r2_of"):
        content[name] = as_flags(content[name])
    for name in ("diagnosis", "notes"):
        content[name] = list(map(as_flags, content[name]))
    if html is not None:
        pictures = pictures_of(fitted, rows, content["target"])
        page = model_page(f"quadlin model {model}", summary, content, pictures)
        with atomic_write(html) as file:
            file.write(page.encode())
    lines = [str(model), *map(as_flags, str(summary).splitlines())]
    lines += [] if content["effects"] is None else _effects(content["effects"])
    lines += ["", "diagnosis", *(f"  {line}" for line in content["diagnosis"])]
    print_answer(content, lines, answer)


def _effects(effects: dict[str, Any]) -> list[str]:
    """Return the strongest columns and pairs of columns, each by one number."""
    rows = [[e["name"], number(e["strength"])] for e in [*effects["columns"], *effects["pairs"]]]
    lines = [
        "",
        "columns and pairs of columns: standard deviation of what they add to the prediction",
    ]
    lines += text_table(None, rows, "  ") or ["  none"]
    return [*lines, f"  Over {effects['rows']}; measured from {effects['reference']}."]


def one_of(model: Any, label: str | None) -> Any:
    """Return the model of a class; one must be named where there are more than two."""
    if label is None:
        if isinstance(model, SecondOrderClassifier) and len(model.classes_) > 2:
            labels = ", ".join(map(str, model.classes_))
            raise UsageError(f"There is one model per class: name one of {labels} with --label.")
        return model
    if not isinstance(model, SecondOrderClassifier):
        raise UsageError("--label is for classifiers, and this model predicts numbers.")
    names = {str(each): each for each in model.classes_.tolist()}
    if label not in names:
        raise UsageError(f"--label {label} is not one of {', '.join(names)}.")
    return model if len(names) == 2 else model.one_vs_rest(names[label])


def pairs(
    data: str,
    *,
    max_pairs: Annotated[int | Literal["auto"], WHOLE] = "auto",
    squares: Annotated[bool, Parameter(negative="--no-squares")] = True,
    stability: int | None = None,
    test_on: Literal["all", "half"] = "all",
    read: TableOptions = TableOptions(),
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Find the pairs of features that interact.

    Prints the products of two features that improve a linear model, with their
    coefficients, robust standard errors and shares of R². No model is saved:
    `quadlin fit` searches for the same pairs and adds them to its model.

      quadlin pairs houses.csv --target price
      quadlin pairs houses.csv --target price --test-on half

    Parameters
    ----------
    data
        Rows: a file, a folder, a quoted pattern, or - for the standard input (with --format).
    max_pairs
        Maximum number of pairs; auto is one per ten residual degrees of freedom, from 1 to 32.
    squares
        Whether squares of features are candidates, too.
    stability
        Number of resamples of the rows; shows in which share of them each pair is chosen again.
    test_on
        Test the pairs on all rows, or on the half of the rows that the search did not see.
    """
    source = open_rows(data, read, answer, labels=None)
    with watched(source, "searching", answer.silent, again=True) as rows:
        report = find_pairs(
            rows,
            max_pairs=max_pairs,
            squares=squares,
            stability=stability,
            test_on=None if test_on == "all" else test_on,
        )
    content = {
        "pairs": [pair._asdict() for pair in report.pairs],
        "exchangeable": [exchange._asdict() for exchange in report.exchangeable],
        "path": [step._asdict() for step in report.path],
        "low_rank": report.low_rank,
        "rows": report.n_rows,
        "features": report.n_features,
        "candidates": report.n_candidates,
        "at_limit": report.at_limit,
        "test_on": test_on,
        "stability": report.stability,
    }
    print_answer(content, str(report).splitlines(), answer)


def export(
    model: Path,
    *,
    output: OutputPath = Path("model.onnx"),
    dtype: Literal["float32", "float64"] | None = None,
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Write a model as an ONNX graph.

      quadlin export model.safetensors -o model.onnx

    Parameters
    ----------
    model
        A model file written by quadlin fit.
    output
        The ONNX file. An existing one is replaced when the new one is complete.
    dtype
        Type of the inputs and outputs. Default: the type of the fitted rows.
    """
    if output.suffix.lower() != ".onnx":
        raise UsageError(f"-o {output} must end in .onnx.")
    check_output(output, model)
    from quadlin.files.onnx import to_onnx

    graph = to_onnx(load_model(model), output, dtype=dtype).graph
    inputs = [node.name for node in graph.input]
    content = {"output": str(output), "inputs": inputs, "outputs": [n.name for n in graph.output]}
    outputs = " and ".join(content["outputs"])
    print_answer(content, [f"{output}: from {listed(inputs)} to {outputs}"], answer)
