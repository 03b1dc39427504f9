"""The report: one HTML page, its pictures and the tables of docs/reproduction.md, from results.

`python -m quadlin.paper.report docs/reproduction.md docs/reproduction/full` writes all anew.
"""

import base64
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

from quadlin.explain.page import html_page
from quadlin.paper.laws import law_of
from quadlin.paper.methods import SOLVERS, name_of
from quadlin.paper.runner import FolderError, read_about, settings_of, write_text
from quadlin.paper.studies import studies
from quadlin.paper.studies.panels import PANELS, OverviewDisplay, as_run, final_errors
from quadlin.paper.study import Study, Verdict

PAGE = "report.html"
FIGURES = "figures"
NOT_JUDGED = "not judged"
BADGES = {"yes": "✓ yes", "in part": "◐ in part", "no": "✗ no", NOT_JUDGED: "– not judged"}
SIZE_WORDS = {
    "tiny": "This is the tiny size, made for tests: its numbers say little.",
    "quick": (
        "This is the quick size: small problems and few trials, to see the shape of things in "
        "minutes. The paper's own size is --full."
    ),
    "full": "This is the full size: the paper's own numbers of rows, features and trials.",
}
# Letters of 10 and 12 points on 6.4 inches are 8 and 10 pixels high on a phone, 390 pixels wide.
# The files contain no date and no random ids: the same results give the same bytes.
LOOK = {
    "font.size": 12,
    "axes.titlesize": "medium",
    "svg.hashsalt": "quadlin",
    "savefig.facecolor": "white",
}
TALLER = 1.2  # times the height of a display, for its larger letters
DPI, COLOURS = 219, 64  # 1,400 pixels wide
MISSING = 'The report needs pandas, pyarrow and matplotlib: pip install "quadlin[reproduce]".'


@dataclass(frozen=True)
class Section:
    """One study with its results."""

    study: Study
    about: Mapping[str, Any]
    frame: Any
    verdict: Verdict
    pictures: Mapping[str, str]  # by name: base64 of the SVG


def write_report(folder: str | Path) -> Path:
    """Write `report.html` and `figures/` from the Parquet files of a folder.

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
    if not any(folder.glob("*.parquet")):
        raise FolderError(
            f"There are no results (*.parquet) in {str(folder)!r}. Run the studies first: quadlin "
            "reproduce."
        )
    sections, damaged, settings = [], [], settings_of(folder)
    for study in studies().values():
        path = folder / f"{study.name}.parquet"
        if path.exists():
            try:
                about, frame = read_results(path)
            except (OSError, ValueError, KeyError):
                damaged.append(study.name)
                continue
            study = as_run(study, frame)
            pictures = _pictures(study.name, study.figures(frame), folder / FIGURES)
            verdict = under_settings(study.verdict(frame), settings)
            sections.append(Section(study, about, frame, verdict, pictures))
    sections = _with_overview(sections, folder / FIGURES)
    page = folder / PAGE
    write_text(page, render(sections, damaged))
    return page


def under_settings(verdict: Verdict, settings: Mapping[str, Any]) -> Verdict:
    """Return a verdict only for the settings of the paper; additional solvers do not matter."""
    changed = [name for name, value in settings.items() if name != "solvers" and value is not None]
    if not changed:
        return verdict
    words = (
        f"The claim is about other settings than these ({', '.join(changed)} changed), so it is "
        "not judged by them."
    )
    return Verdict(verdict.measured, NOT_JUDGED, "\n\n".join([words, verdict.words]))


def read_results(path: Path) -> tuple[dict[str, Any], Any]:
    """Return the metadata of a Parquet file, and its rows as a frame."""
    try:
        pq: Any = import_module("pyarrow.parquet")
        import_module("pandas")
        import_module("matplotlib").use("agg")
    except ImportError as error:
        raise ImportError(MISSING) from error
    return read_about(path), pq.read_table(path).replace_schema_metadata().to_pandas()


def _with_overview(sections: list[Section], folder: Path) -> list[Section]:
    """Put the eight panels as one figure before the first of them, if all are there."""
    frames = {section.study.name: section.frame for section in sections}
    if not set(PANELS) <= set(frames):
        return sections
    views = {"by-passes": "passes", "together": "iteration"}
    overview = _pictures(
        "panels", {name: OverviewDisplay(frames, x) for name, x in views.items()}, folder
    )
    first = replace(sections[0], pictures=overview | dict(sections[0].pictures))
    return [first, *sections[1:]]


def _pictures(study: str, displays: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Draw each figure into a PNG and an SVG file; return the SVG in base64."""
    plt: Any = import_module("matplotlib.pyplot")
    folder.mkdir(exist_ok=True)
    drawn = {}
    with plt.rc_context(LOOK):
        for name, display in displays.items():
            figure = display.plot().figure_
            figure.set_figheight(TALLER * figure.get_figheight())
            stem = folder / f"{study}-{name}"
            _write_png(figure, stem.with_name(stem.name + ".png"))
            # The layout is complete; computing it again would take a third of the time.
            figure.set_layout_engine("none")
            buffer = BytesIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None})
            stem.with_name(stem.name + ".svg").write_bytes(buffer.getvalue())
            drawn[name] = base64.b64encode(buffer.getvalue()).decode()
            plt.close(figure)
    return drawn


def _write_png(figure: Any, path: Path) -> None:
    """Write a picture with few colours, which takes a third of the bytes."""
    image: Any = import_module("PIL.Image")
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    image.open(buffer).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def render(sections: list[Section], damaged: list[str]) -> str:
    """Return the page."""
    sizes = sorted({section.about["size"] for section in sections})
    counts = [sum(s.verdict.holds == word for s in sections) for word in BADGES]
    notes = [SIZE_WORDS.get(size, "") for size in sizes]
    if damaged:
        notes.append(
            f"Results that cannot be read and are left out: {', '.join(damaged)}. "
            "Running the studies again repairs them."
        )
    values = {
        "sections": [(section, _facts(section)) for section in sections],
        "tally": f"{counts[0]} hold, {counts[1]} in part, {counts[2]} do not."
        + (
            f" {counts[3]} are not judged: their settings or sizes are not the paper's."
            * bool(counts[3])
        ),
        "notes": [note for note in notes if note],
        "badges": BADGES,
    }
    return html_page(TITLE, STYLE, TEMPLATE, values)


TITLE = "The Second Order Linear Model, reproduced"
TEMPLATE = """
{% macro badge(holds) %}
<span class="badge {{ holds|replace(" ", "-") }}">{{ badges.get(holds, holds) }}</span>
{%- endmacro %}
<header>
<h1>{{ title }}</h1>
<p>What M. Lin, S. Qiu, B. Hong and J. Ye claim in <cite>The Second Order Linear Model</cite>,
measured with quadlin. Of {{ sections|length }} claims, {{ tally }} Each claim is judged on its own
hypotheses. Higher order models and multi-task learning, which the paper mentions, are out of
scope.</p>
{% for note in notes %}
<p>{{ note }}</p>
{% endfor %}
</header>
<main>
<h2 id="summary">Summary</h2>
<table class="summary">
<thead><tr><th>Claim</th><th>Measured</th><th>Holds?</th></tr></thead>
<tbody>
{% for section, facts in sections %}
<tr><td data-label="Claim"><a href="#{{ section.study.name }}">{{ section.study.about.title }}</a>
<br>{{ section.study.about.claim }}</td>
<td data-label="Measured">{{ section.verdict.measured }}</td>
<td data-label="Holds?">{{ badge(section.verdict.holds) }}</td></tr>
{% endfor %}
</tbody>
</table>
{% for section, facts in sections %}
{% set study, verdict = section.study, section.verdict %}
{% set about = study.about %}
<article id="{{ study.name }}">
<h2>{{ about.title }} {{ badge(verdict.holds) }}</h2>
<p><strong>Claim.</strong> {{ about.claim }}</p>
<p><strong>Measured.</strong> {{ verdict.measured }}</p>
{% for part in verdict.words.split("\n\n") %}
<p>{{ part }}</p>
{% endfor %}
<div class="figures">
{% for name, picture in section.pictures.items() %}
<figure><img alt="{{ about.title }}, {{ name }}" src="data:image/svg+xml;base64,{{ picture }}">
</figure>
{% endfor %}
</div>
<details><summary>Setting, seeds, versions, time</summary>
<p>{{ about.setting }}</p>
<dl>
{% for name, value in facts %}
<dt>{{ name }}</dt><dd>{{ value }}</dd>
{% endfor %}
</dl>
</details>
<p class="back"><a href="#summary">Back to the summary</a></p>
</article>
{% endfor %}
</main>
"""


def _facts(section: Section) -> list[tuple[str, str]]:
    about, frame = section.about, section.frame
    facts = [("Size", f"{about['size']}: {len(about['tasks'])} tasks, {len(frame):,} lines")]
    for name in ("d", "k", "rows", "test", "iterations", "trial", "seed"):
        if name in frame.columns:
            values = [str(value) for value in sorted(frame[name].unique())]
            more = [*values[:6], "…", values[-1]] if len(values) > 7 else values
            facts.append((name, ", ".join(more)))
    facts.append(("Time", f"{about['seconds']:.3g} s on {', '.join(about['devices'])}"))
    facts.append(("Versions", ", ".join(f"{k} {v}" for k, v in about["versions"].items())))
    return facts


STYLE = """
header p, article > p { max-width: 48rem; }
table.summary { border-collapse: collapse; width: 100%; font-size: .9rem; }
.summary th, .summary td { text-align: left; vertical-align: top; padding: .55rem .7rem;
  border-bottom: 1px solid var(--line); }
.summary th:nth-child(1) { width: 38%; }
.summary th:nth-child(3) { width: 6.5rem; }
article { margin-top: 2.5rem; padding-top: 1.2rem; border-top: 2px solid var(--line); }
.badge { display: inline-block; padding: .05rem .55rem; border-radius: 1rem; font-size: .8rem;
  font-weight: 600; white-space: nowrap; color: #fff; background: #555; }
.badge.yes { background: #00654a; }
.badge.in-part { background: #8a5a00; }
.badge.no { background: #a83c00; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: .8rem; }
figure { margin: 0; }
figure img { width: 100%; max-width: 40rem; height: auto; background: #fff;
  border: 1px solid var(--line); border-radius: .4rem; }
.back { font-size: .85rem; }
@media (max-width: 44rem) {
  .summary thead { display: none; }
  .summary tr, .summary td { display: block; }
  .summary tr { border-bottom: 1px solid var(--line); padding: .6rem 0; }
  .summary td { border: 0; padding: .2rem 0; }
  .summary td[data-label="Measured"]::before { content: "Measured: "; font-weight: 600; }
}
@media print { .back { display: none; } article { break-inside: avoid; } }
"""


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
