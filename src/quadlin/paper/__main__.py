"""Run the studies and write the report: python -m quadlin.paper --quick."""

import argparse
import sys
from pathlib import Path

from quadlin.core.messages import Message
from quadlin.paper.page import write_page
from quadlin.paper.report import write_report
from quadlin.paper.runner import TaskFailedError, reproduce
from quadlin.paper.settings import Settings
from quadlin.paper.studies import studies
from quadlin.paper.study import SIZES

SIZE_HELP = {"tiny": "seconds, for tests", "quick": "minutes (default)", "full": "the paper's"}
PANEL_OPTIONS: dict[str, tuple[type, str]] = {
    "features": (int, "number of features d"),
    "rank": (int, "rank k"),
    "rows": (str, "training rows, such as 20000 or 30kd"),
    "noise": (float, "standard deviation of the noise"),
    "trials": (int, "number of trials"),
    "iterations": (int, "most iterations of a solver"),
    "distribution": (str, "such as gaussian, truncated:0.1, or a file"),
}


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if all went well, 1 after an error with a message, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m quadlin.paper", description=__doc__)
    group = parser.add_mutually_exclusive_group()
    for size in SIZES:
        group.add_argument(
            f"--{size}", dest="size", action="store_const", const=size, help=SIZE_HELP[size]
        )
    parser.add_argument("--only", help=f"names separated by commas, of: {', '.join(studies())}")
    parser.add_argument("--folder", type=Path, help="of the results; results/SIZE by default")
    parser.add_argument("--device", default="cpu", help="cpu, or a device of torch such as cuda")
    parser.add_argument(
        "--jobs", type=int, help="tasks at a time; by default one per core if quick"
    )
    parser.add_argument("--report-only", action="store_true", help="from results that are there")
    parser.add_argument("--page", type=Path, help="Markdown page whose tables are written anew")
    parser.add_argument("--no-report", action="store_true", help="where matplotlib is missing")
    panels = parser.add_argument_group("settings of the panels a to h")
    for name, (kind, words) in PANEL_OPTIONS.items():
        panels.add_argument(f"--{name}", type=kind, help=words)
    panels.add_argument("--solver", action="append", default=[], help="file of a solver")
    options = parser.parse_args(arguments)
    size = options.size or "quick"
    changed = {name: getattr(options, name) for name in PANEL_OPTIONS}
    settings = Settings(**changed, solvers=tuple(options.solver))
    try:
        folder = options.folder or settings.folder(size)
        if options.report_only:
            print(f"The report is {str(write_report(folder))!r}.")
            if options.page is not None:
                write_page(options.page, folder)
            return 0
        reproduce(
            size,
            options.only,
            folder,
            options.device,
            settings=settings,
            jobs=options.jobs,
            report=None if options.no_report else write_report,
        )
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ImportError, TaskFailedError) as error:
        print(_text(error), file=sys.stderr)
        return 1
    return 0


def _text(error: Exception) -> str:
    """Return what an error says, with options as this command line writes them."""
    message = error.args[0] if error.args else ""
    if isinstance(message, Message):
        return message.rendered(lambda option: f"--{option.name}")
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
