"""Run the studies and write the report: python -m quadlin.paper --quick."""

import argparse
import sys
from pathlib import Path

from quadlin.paper.report import write_report
from quadlin.paper.runner import TaskFailedError, reproduce
from quadlin.paper.studies import SIZES, studies


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if all went well, 1 after an error in words, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m quadlin.paper", description=__doc__)
    group = parser.add_mutually_exclusive_group()
    for size in SIZES:
        words = {"tiny": "seconds, for tests", "quick": "minutes (default)", "full": "the paper's"}
        group.add_argument(
            f"--{size}", dest="size", action="store_const", const=size, help=words[size]
        )
    parser.add_argument("--only", help=f"names with commas, of: {', '.join(studies())}")
    parser.add_argument("--folder", type=Path, help="of the results; results/SIZE by default")
    parser.add_argument("--device", default="cpu", help="cpu, or a device of torch such as cuda")
    parser.add_argument("--jobs", type=int, help="tasks at a time; by default one a core if quick")
    parser.add_argument("--report-only", action="store_true", help="from results that are there")
    parser.add_argument("--no-report", action="store_true", help="where matplotlib is missing")
    options = parser.parse_args(arguments)
    size = options.size or "quick"
    folder = options.folder or Path("results") / size
    try:
        if options.report_only:
            print(f"The report is {str(write_report(folder))!r}.")
            return 0
        report = None if options.no_report else write_report
        reproduce(size, options.only, folder, options.device, jobs=options.jobs, report=report)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ImportError, TaskFailedError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
