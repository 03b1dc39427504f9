"""`quadlin demo` and `quadlin reproduce`: the method on problems with a known answer."""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from quadlin.cli.options import WHOLE, OutputOptions, UsageError, split_names
from quadlin.cli.printing import print_answer, print_note
from quadlin.cli.progress import on_interrupt


@Parameter(name="*", group=Group("Settings of the panels a to h", sort_key=10))
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
    trials: Annotated[int | None, WHOLE] = None
    """Number of trials."""
    iterations: Annotated[int | None, WHOLE] = None
    """Maximum number of iterations of a solver."""
    distribution: str | None = None
    """gaussian, truncated:0.1, bernoulli:0.2, signs, uniform, sparse:0.2, or a file with draw()."""
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
        The folder of the results. Default: one in results/, named after the settings.
    device
        cpu, or a torch device such as cuda.
    jobs
        Number of tasks to run at a time. Default: one per core with --quick, otherwise one.
    report_only
        Run nothing; only write the report of the existing results.
    """
    runner, size = _imported("quadlin.paper.runner"), "full" if full else "quick"
    settings = _imported("quadlin.paper.settings").Settings(**vars(panels))
    try:
        folder = folder or settings.folder(size)
    except ValueError as error:
        raise UsageError(error.args[0]) from None
    if report_only:
        page = _imported("quadlin.paper.report").write_report(folder)
        print_answer({"report": str(page)}, [f"The report is {page}."], answer.json)
        return
    report = None
    if importlib.util.find_spec("matplotlib") is None:
        text = 'Without matplotlib there is no report: pip install "quadlin[plot]".'
        print_note(text, answer.silent)
    else:
        report = _imported("quadlin.paper.report").write_report
    names = None if only is None else split_names(only)
    try:
        with on_interrupt("Stopped; the same command continues from here."):
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
    print_answer(content, [] if answer.quiet else lines, answer.json)
    if outcome.left:
        raise RuntimeError(f"{len(outcome.left)} of the experiments are not complete.")


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f'The experiments need {error.name}: pip install "quadlin[reproduce]".'
        ) from None
