"""Commands that show: `inspect`, `pairs`, `export`, `demo` and `reproduce`."""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

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
    print_note,
    split_names,
)
from quadlin.cli.predict import check_output
from quadlin.cli.rows import load_model, open_rows, open_rows_for, stored_rows, watched
from quadlin.estimators.labels.classifier import SecondOrderClassifier
from quadlin.explain.page import describe, model_page, pictures_of
from quadlin.explain.pairs import find_pairs
from quadlin.explain.tables import text_table
from quadlin.files.atomic import atomic_write


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

    Prints the summary of the model with its strongest terms, the columns and
    pairs of columns by how much they move the prediction, and a diagnosis. The
    coefficient of a pair is that of the product of its two features.

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
        data = stored_rows(data, read)
        rows = open_rows_for(fitted, data, read, answer, need_target=True)
    target = read.target or fitted.fitted_.columns.target
    fitted = one_of(fitted, label)
    top = max(0, top)
    summary = fitted.summary(rows, top=top)
    content = {"model": str(model), **describe(fitted, summary, top, rows, target)}
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
    lines = str(summary).replace("to_frame() has all of them", "--top shows more").splitlines()
    lines = [str(model), *map(as_flags, lines)]
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
    squares: Annotated[bool, Parameter(negative="--no-squares", show_default=False)] = True,
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
    source = open_rows(data, read, answer, classes=None)
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
    shown = ", ".join(inputs[:8]) + (" …" if len(inputs) > 8 else "")
    outputs = " and ".join(content["outputs"])
    lines = [f"{output}: from {shown} to {outputs}"]
    print_answer(content, lines, answer)


@Parameter(name="*", group=Group("Settings of the panels", sort_key=10))
@dataclass(frozen=True)
class PanelOptions:
    """The settings of the panels of the paper's figure."""

    features: Annotated[int | None, WHOLE] = None
    """Number of features d."""
    rank: Annotated[int | None, WHOLE] = None
    """Rank k of the model."""
    rows: str | None = None
    """Training rows: a number, or a multiple of kd such as 30kd."""
    noise: float | None = None
    """Standard deviation of the noise."""
    signed: Annotated[bool, Parameter(negative="")] = False
    """Eigenvalues of M of alternating signs."""
    ratio: float = 1.0
    """Ratio of the largest eigenvalue of M to the smallest."""
    coherent: Annotated[bool, Parameter(negative="")] = False
    """Eigenvectors of M that are features instead of random directions."""
    trials: Annotated[int | None, WHOLE] = None
    """Number of trials."""
    iterations: Annotated[int | None, WHOLE] = None
    """Maximum number of iterations of a solver."""
    distribution: str | None = None
    """gaussian, truncated:0.1, bernoulli:0.2, exponential, ar1:0.9, or a file with draw()."""
    methods: str | None = None
    """Built-in methods, separated by commas; all by default."""
    solvers: Annotated[
        tuple[str, ...], Parameter(name="--solver", negative="", show_default=False)
    ] = ()
    """A Python file that defines solve(X, y, setting, report); may be repeated."""


def demo() -> None:
    """Show the method on problems with a known answer.

    Recovers known models, explains a real table, and draws both: its interactions
    to demo/interactions.png and the convergence to demo/convergence.png.

      quadlin demo
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError('The demo draws with matplotlib: pip install "quadlin[plot]".')
    importlib.import_module("quadlin.paper.demo").main()


def reproduce(
    *,
    full: Annotated[bool, Parameter(negative="--quick")] = False,
    only: str | None = None,
    folder: Path | None = None,
    device: str = "cpu",
    jobs: Annotated[int | None, WHOLE] = None,
    report_only: Annotated[bool, Parameter(negative="")] = False,
    panels: PanelOptions = PanelOptions(),
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Run the experiments of the paper.

    Finished tasks are kept: after an interruption the same command continues.

      quadlin reproduce
      quadlin reproduce --only a,b --folder results
      quadlin reproduce --only a --features 200 --rows 30kd --solver mine.py
      quadlin reproduce --full --device cuda
      quadlin reproduce --report-only --folder results

    Parameters
    ----------
    full
        Use the sizes of the paper, which takes hours; --quick, the default, takes minutes.
    only
        Names of experiments, separated by commas. Default: all.
    folder
        The folder of the results, which all have the same settings. Default: one in results/.
    device
        cpu, or a torch device such as cuda.
    jobs
        Number of tasks to run at a time. Default: one per core with --quick, otherwise one.
    report_only
        Run nothing; only write the report of the existing results.
    """
    runner, size = _imported("quadlin.paper.runner"), "full" if full else "quick"
    settings = _imported("quadlin.paper.studies.panels").Settings(**vars(panels))
    folder = folder or Path("results") / size
    if report_only:
        page = _imported("quadlin.paper.report").write_report(folder)
        print_answer({"report": str(page)}, [f"The report is {page}."], answer)
        return
    report = None
    if importlib.util.find_spec("matplotlib") is None:
        text = 'Without matplotlib there is no report: pip install "quadlin[plot]".'
        print_note(text, answer.silent)
    else:
        report = _imported("quadlin.paper.report").write_report
    names = None if only is None else split_names(only)
    try:
        outcome = runner.reproduce(
            size,
            names,
            folder,
            device,
            settings=settings,
            jobs=jobs,
            report=report,
            progress=not answer.silent,
            say=lambda line: print_note(line, answer.silent),
        )
    except runner.SettingError as error:
        raise UsageError(error.args[0]) from None
    content = {"folder": str(outcome.folder), "complete": outcome.complete, "left": outcome.left}
    lines = [f"{outcome.folder}: {', '.join(outcome.complete) or 'nothing'} complete"]
    print_answer(content, lines, answer)
    if outcome.left:
        raise ValueError(f"{len(outcome.left)} of the experiments are not complete.")


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f'The experiments need {error.name}: pip install "quadlin[reproduce]".'
        ) from None
