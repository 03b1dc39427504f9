"""`quadlin demo` and `quadlin reproduce`: what the method does, on problems with a known answer."""

import importlib
import importlib.util
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from quadlin.cli.interrupt import Interrupted
from quadlin.cli.messages import UsageError, emit, note
from quadlin.cli.options import SAY, WHOLE, Say, split

PANELS = Parameter(group=Group("Settings of the panels a to h", sort_key=10))


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
    features: Annotated[int | None, PANELS, WHOLE] = None,
    rank: Annotated[int | None, PANELS, WHOLE] = None,
    rows: Annotated[str | None, PANELS] = None,
    noise: Annotated[float | None, PANELS] = None,
    trials: Annotated[int | None, PANELS, WHOLE] = None,
    iterations: Annotated[int | None, PANELS, WHOLE] = None,
    distribution: Annotated[str | None, PANELS] = None,
    solver: Annotated[tuple[str, ...], PANELS] = (),
    say: Say = SAY,
) -> None:
    """Run the experiments of the paper; finished tasks are kept, and the same command continues.

      quadlin reproduce
      quadlin reproduce --only a,b --folder results
      quadlin reproduce --only a --features 200 --rank 5 --rows 30kd --solver mine.py
      quadlin reproduce --full --device cuda
      quadlin reproduce --report-only --folder results

    Parameters
    ----------
    full
        Use the paper's sizes, which takes hours; --quick, the default, takes minutes.
    only
        Names of experiments, separated by commas.
    folder
        Folder of the results; results/quick or results/full by default.
    device
        cpu, or a device of torch such as cuda.
    jobs
        Tasks at a time; by default one per core with --quick, else one.
    report_only
        Run nothing; write the report of the results that are there.
    features
        Number of features d.
    rank
        Rank k of the model.
    rows
        Training rows: a number, or a multiple of kd such as 30kd.
    noise
        Standard deviation of the noise.
    trials
        Number of trials.
    iterations
        Most iterations of a solver.
    distribution
        gaussian, truncated:0.1, bernoulli:0.2, signs, uniform, sparse:0.2, or a Python file that
        defines draw(rng, n, d).
    solver
        A Python file that defines solve(X, y, setting, report); may be repeated.
    """
    runner, size = _imported("quadlin.paper.runner"), "full" if full else "quick"
    settings = _imported("quadlin.paper.settings").Settings(
        features=features,
        rank=rank,
        rows=rows,
        noise=noise,
        trials=trials,
        iterations=iterations,
        distribution=distribution,
        solvers=solver,
    )
    try:
        folder = folder or settings.folder(size)
    except ValueError as error:
        raise UsageError(str(error)) from None
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
            settings=settings,
            jobs=jobs,
            report=report,
            progress=not say.still,
            say=lambda line: note(line, say.still),
        )
    except runner.SettingError as error:
        raise UsageError(str(error)) from None
    except KeyboardInterrupt:
        raise Interrupted("Stopped; the same command continues from there.") from None
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
