"""The report: one HTML page, its pictures and the tables of docs/reproduction.md, from results.

`python -m quadlin.paper.report docs/reproduction.md docs/reproduction/full` writes all anew.
"""

import base64
import sys
from collections.abc import Mapping
from html import escape
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from quadlin.files.atomic import atomic_write
from quadlin.paper.problems import law
from quadlin.paper.runner import FolderError, frames, head_of, lines_of
from quadlin.paper.studies import METHODS, Study, Verdict, name_of, studies
from quadlin.paper.studies.panels import PANELS, Settings, ends, final_errors, overview, panel

PAGE, FIGURES = "report.html", "figures"
BADGES = {"yes": "✓ yes", "in part": "◐ in part", "no": "✗ no", "not judged": "– not judged"}
SIZE_WORDS = {
    "tiny": "This is the tiny size, made for tests: its numbers say little.",
    "quick": "This is the quick size: small problems and few trials. The paper's size is --full.",
    "full": "This is the full size: the paper's own numbers of rows, features and trials.",
}
# The files contain no date and no random ids: the same results give the same bytes.
LOOK = {"font.size": 12, "axes.titlesize": "medium", "svg.hashsalt": "quadlin"}
DPI = 219  # 1,400 pixels wide
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; } td, th { border-bottom: 1px solid #ccc; padding: .4rem .6rem;
  text-align: left; vertical-align: top; }
article { border-top: 2px solid #ccc; margin-top: 2.5rem; } .holds { white-space: nowrap; }
.figures { display: grid; gap: .8rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; } img { width: 100%; }
"""


class Section(NamedTuple):
    """One study with its results."""

    study: Study
    frame: Any
    verdict: Verdict


def sections_of(folder: Path) -> list[Section]:
    """Return the studies that have results, judged by them.

    Claims are judged only at the settings of the paper; additional solvers do not matter.
    """
    head = head_of(folder)
    if head is None:
        raise FolderError(f"There are no results in {str(folder)!r}. Run: quadlin reproduce.")
    changed = dict(head["settings"])
    settings = Settings(**changed | {"solver": tuple(changed.get("solver", ()))})
    found, tables = [], frames(folder)
    for name, study in studies().items():
        if name not in tables:
            continue
        study = panel(name, settings) if name in PANELS and changed else study
        verdict = study.verdict(tables[name])
        other = [key for key in changed if key != "solver"]
        if other:
            words = f"The claim is about other settings than these ({', '.join(other)} changed)."
            verdict = Verdict("not judged", f"{words} {verdict.measured}")
        found.append(Section(study, tables[name], verdict))
    return found


def write_report(folder: str | Path) -> Path:
    """Write `report.html` and `figures/` from the results of a folder.

    Parameters
    ----------
    folder : path
        Of the results, as `quadlin.paper.runner.reproduce` fills it.

    Returns
    -------
    Path
        Of the page, which needs neither network nor scripts.
    """
    folder = Path(folder)
    sections = sections_of(folder)
    runs = list(lines_of(folder))
    rows, articles = [], []
    by_name = {section.study.name: section.frame for section in sections}
    if set(PANELS) <= set(by_name):
        shown = _figures("panels", overview(by_name), folder / FIGURES)
        articles.append(f"<article><h2>The eight panels</h2>{shown}</article>")
    for study, frame, verdict in sections:
        text = {key: escape(words) for key, words in study.text.items()}
        badge = f'<span class="holds">{BADGES[verdict.holds]}</span>'
        own = [run for run in runs if run["study"] == study.name]
        versions = {f"{k} {v}" for run in own for k, v in run["versions"].items()}
        seconds = sum(run["cpu"] for run in own)
        facts = (
            f"{len(own)} tasks, {len(frame):,} lines, {seconds:.3g} CPU s on "
            f"{', '.join(sorted({run['device'] for run in own}))}; seeds "
            f"{frame['seed'].min()} to {frame['seed'].max()}; {', '.join(sorted(versions))}"
        )
        rows.append(
            f'<tr><td><a href="#{study.name}">{text["title"]}</a><br>{text["claim"]}'
            f"</td><td>{escape(verdict.measured)}</td><td>{badge}</td></tr>"
        )
        articles.append(
            f'<article id="{study.name}"><h2>{text["title"]} {badge}</h2>'
            f"<p><b>Claim.</b> {text['claim']}</p>"
            f"<p><b>Measured.</b> {escape(verdict.measured)}</p><p>{text['words']}</p>"
            f"{_figures(study.name, study.pictures(frame), folder / FIGURES)}"
            f"<p><small>{text['setting']} {escape(facts)}</small></p></article>"
        )
    holds = [section.verdict.holds for section in sections]
    tally = ", ".join(f"{holds.count(word)} {word}" for word in BADGES if word in holds)
    size = (head_of(folder) or {}).get("size", "")
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width"><title>The Second Order Linear Model, reproduced</title>'
        f"<style>{STYLE}</style></head><body><h1>The Second Order Linear Model, reproduced</h1>"
        "<p>What M. Lin, S. Qiu, B. Hong and J. Ye claim in <cite>The Second Order Linear Model"
        f"</cite>, measured with quadlin. Of {len(sections)} claims: {tally}. "
        f"{SIZE_WORDS[size]}</p><table><tr><th>Claim</th><th>Measured</th><th>Holds?</th></tr>"
        f"{''.join(rows)}</table>{''.join(articles)}</body></html>"
    )
    _write(folder / PAGE, page.encode())
    return folder / PAGE


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)


def _figures(study: str, pictures: Mapping[str, Any], folder: Path) -> str:
    """Draw each picture into a PNG and an SVG file; return them for the page."""
    mpl: Any = import_module("matplotlib")
    mpl.use("agg")
    plt: Any = import_module("matplotlib.pyplot")
    folder.mkdir(exist_ok=True)
    drawn = []
    with plt.rc_context(LOOK):
        for name, picture in pictures.items():
            shape = getattr(picture, "shape", (1, 1))
            figure, axes = plt.subplots(*shape, figsize=picture.size, layout="constrained")
            picture.draw(axes)
            for kind, more in (("png", {"dpi": DPI}), ("svg", {"metadata": {"Date": None}})):
                buffer = BytesIO()
                figure.savefig(buffer, format=kind, **more)
                _write(folder / f"{study}-{name}.{kind}", buffer.getvalue())
            plt.close(figure)
            data = base64.b64encode(buffer.getvalue()).decode()
            drawn.append(
                f'<figure><img alt="{study}, {name}" src="data:image/svg+xml;base64,{data}">'
                "</figure>"
            )
    return f'<div class="figures">{"".join(drawn)}</div>'


def results_as_markdown(folder: Path) -> str:
    """Return the tables of the panels and of the claims."""
    sections = sections_of(folder)
    claims = [
        [s.study.text["title"], s.verdict.measured, s.verdict.holds]
        for s in sections
        if s.study.name not in PANELS or s.study.name == "levels"
    ]
    chosen = [s for s in sections if s.study.name in PANELS]
    solvers = {key for s in chosen for key in s.frame["solver"]}
    keys = [key for key in METHODS if key in solvers]
    keys += sorted(solvers - set(keys))
    panels = []
    for section in chosen:
        noises = ends(section.frame).groupby(["distribution", "noise"], sort=False).groups
        for text, noise in noises:
            part = section.frame[
                (section.frame["distribution"] == text) & (section.frame["noise"] == noise)
            ]
            errors = final_errors(part)
            cells = [f"{errors[key]:.1e}" if key in errors else "–" for key in keys]
            head = [section.study.name, law(text).words, f"{noise:g}"]
            panels.append([*head, *cells, section.verdict.holds])
    header = ["panel", "features", "noise", *map(name_of, keys), "holds?"]
    parts = [_table(header, panels)] if panels else []
    parts += [_table(["claim", "measured", "holds?"], claims)] if claims else []
    return "\n\n".join(parts)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


def write_page(page: Path, folder: Path) -> None:
    """Replace the text between the two marks of the page by the tables of the results."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    text = f"{before}{BEGIN}\n\n{results_as_markdown(folder)}\n\n{END}{after}"
    _write(page, text.encode())


if __name__ == "__main__":
    write_report(sys.argv[2])
    write_page(Path(sys.argv[1]), Path(sys.argv[2]))
