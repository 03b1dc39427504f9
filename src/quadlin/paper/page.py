"""The tables of docs/reproduction.md, written from a folder of results.

`python -m quadlin.paper.page docs/reproduction.md docs/reproduction/full` writes them anew, and the
report of the folder.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quadlin.paper.laws import law_of
from quadlin.paper.methods import SOLVERS, name_of
from quadlin.paper.report import read_results, under_settings, write_report
from quadlin.paper.results import FolderError, settings_of, write_text
from quadlin.paper.studies import studies
from quadlin.paper.studies.panel_verdicts import final_errors
from quadlin.paper.studies.panels import PANELS

BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def write_page(page: Path, folder: Path) -> None:
    """Replace the text between the two marks of the page by the tables of the results."""
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise FolderError(f"{str(page)!r} must have a line {BEGIN} and a line {END}.")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    write_text(page, f"{before}{BEGIN}\n{results_as_markdown(folder)}\n{END}{after}")


def results_as_markdown(folder: Path) -> str:
    """Return the table of the panels and that of the claims.

    With settings other than those of the paper nothing is judged, and users' solvers have columns.
    """
    frames, settings = {}, settings_of(folder)
    for study in studies().values():
        path = folder / f"{study.name}.parquet"
        if path.exists():
            frames[study.name] = read_results(path)[1]
    run = [key for name in PANELS if name in frames for key in frames[name]["solver"]]
    keys = list(dict.fromkeys([*SOLVERS, *run]))
    panels = [_panel_rows(name, frames[name], keys, settings) for name in PANELS if name in frames]
    header = ["panel", "features", "noise", *(name_of(key) for key in keys), "holds?"]
    claims = [
        [study.about.title, verdict.measured, verdict.holds]
        for study in studies().values()
        if study.name in frames and study.name not in PANELS
        for verdict in [under_settings(study.verdict(frames[study.name]), settings)]
    ]
    tables = [_table(header, [row for rows in panels for row in rows])] if panels else []
    tables += [_table(["claim", "measured", "holds?"], claims)] if claims else []
    return "\n\n".join("\n".join(lines) for lines in tables)


def _panel_rows(
    name: str, frame: Any, keys: list[str], settings: Mapping[str, Any]
) -> list[list[str]]:
    study = studies()[name]
    rows = []
    for noise, part in frame.groupby("noise"):
        errors = final_errors(part)
        words = law_of(part["distribution"].iloc[0]).words.replace(", x̂ standard normal", "")
        cells = [f"{errors[key]:.1e}" if key in errors else "–" for key in keys]
        holds = under_settings(study.verdict(part), settings).holds
        rows.append([name, words, f"{noise:g}", *cells, holds])
    return rows


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    ]


if __name__ == "__main__":
    write_report(sys.argv[2])
    write_page(Path(sys.argv[1]), Path(sys.argv[2]))
