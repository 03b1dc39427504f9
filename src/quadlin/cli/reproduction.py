"""Commands of the paper: `quadlin demo` and `quadlin reproduce`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from quadlin.cli.options import (
    WHOLE,
    OutputOptions,
    UsageError,
    print_answer,
    print_note,
    split_names,
)
from quadlin.paper import demo as demonstration
from quadlin.paper import runner
from quadlin.paper.report import write_report
from quadlin.paper.studies.panels import SettingError, Settings

PANELS = Parameter(name="*", group=Group("Settings of the panels", sort_key=10))


def demo() -> None:
    """Show the method on problems with a known answer.

    Recovers known models, explains a real table, and draws both: its interactions
    to demo/interactions.png and the convergence to demo/convergence.png.

      quadlin demo
    """
    if find_spec("matplotlib") is None:
        raise ImportError('The demo draws with matplotlib: pip install "quadlin[plot]".')
    demonstration.main()


def reproduce(
    *,
    full: Annotated[bool, Parameter(negative="--quick")] = False,
    only: str | None = None,
    folder: Path | None = None,
    device: str = "cpu",
    jobs: Annotated[int | None, WHOLE] = None,
    report_only: bool = False,
    panels: Annotated[Settings, PANELS] = Settings(),
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
        Use the sizes of the paper, and hours; --quick, the default, takes minutes.
    only
        Names of experiments, separated by commas. Default: all.
    folder
        The folder of the results, all of the same settings. Default: one in results/.
    device
        cpu, the default, or a torch device such as cuda.
    jobs
        Number of tasks to run at a time. Default: one per core with --quick, otherwise one.
    report_only
        Run nothing; only write the report of the existing results.
    """
    size = "full" if full else "quick"
    folder = folder or Path("results") / size
    if report_only:
        page = write_report(folder)
        print_answer({"report": str(page)}, [f"The report is {page}."], answer)
        return
    drawn = find_spec("matplotlib") is not None
    if not drawn:
        text = 'Without matplotlib there is no report: pip install "quadlin[plot]".'
        print_note(text, answer.silent)
    try:
        complete = runner.reproduce(
            size,
            None if only is None else split_names(only),
            folder,
            device,
            settings=panels,
            jobs=jobs,
            report=write_report if drawn else None,
            progress=not answer.silent,
            say=lambda line: print_note(line, answer.silent),
        )
    except SettingError as error:
        raise UsageError(error.args[0]) from None
    content = {"folder": str(folder), "complete": complete}
    print_answer(content, [f"{folder}: {', '.join(complete)} complete"], answer)
