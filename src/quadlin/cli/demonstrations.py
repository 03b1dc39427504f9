"""`quadlin demo` and `quadlin reproduce`: what the method does, on problems with a known answer."""

import importlib
import importlib.util
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from quadlin.cli.interrupt import Interrupted
from quadlin.cli.messages import UsageError, emit, note
from quadlin.cli.options import SAY, WHOLE, Say, split


def demo() -> None:
    """Recover known models, explain a real table, and draw the convergence (demo/convergence.png).

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
    say: Say = SAY,
) -> None:
    """Run the experiments of the paper; what is finished is kept, and the same command goes on.

      quadlin reproduce
      quadlin reproduce --only a,b --folder results
      quadlin reproduce --full --device cuda
      quadlin reproduce --report-only --folder results

    Parameters
    ----------
    full
        The paper's sizes, for hours; --quick, the default, takes minutes.
    only
        Some of the experiments, with commas between them.
    folder
        Where results go; results/quick or results/full by default.
    device
        cpu, or a device of torch such as cuda.
    jobs
        Tasks at a time; by default one for each core if --quick, else one.
    report_only
        Run nothing, and write the report of the results that are there.
    """
    runner, size = _imported("quadlin.paper.runner"), "full" if full else "quick"
    folder = folder or Path("results") / size
    if report_only:
        page = _imported("quadlin.paper.report").write_report(folder)
        emit({"report": str(page)}, [f"The report is {page}."], say.json)
        return
    report = None
    if importlib.util.find_spec("matplotlib") is None:
        note('Without matplotlib there is no report: pip install "quadlin[plot]".', say.still)
    else:
        report = _imported("quadlin.paper.report").write_report
    names = None if only is None else split(only)
    try:
        outcome = runner.reproduce(
            size,
            names,
            folder,
            device,
            jobs=jobs,
            report=report,
            progress=not say.still,
            say=lambda line: note(line, say.still),
        )
    except runner.UnknownNameError as error:
        raise UsageError(str(error)) from None
    except KeyboardInterrupt:
        raise Interrupted("Stopped; the same command goes on from there.") from None
    content = {"folder": str(outcome.folder), "complete": outcome.complete, "left": outcome.left}
    lines = [f"{outcome.folder}: {', '.join(outcome.complete) or 'nothing'} complete"]
    emit(content, [] if say.quiet else lines, say.json)
    if outcome.left:
        raise RuntimeError(f"{len(outcome.left)} of the experiments are not complete.")


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f'The experiments need {error.name}: pip install "quadlin[reproduce]".'
        ) from None
