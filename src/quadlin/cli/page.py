"""A model as a page in one file: no script, nothing fetched, every name escaped."""

from collections.abc import Sequence
from html import escape
from typing import Any

from quadlin.cli.messages import number

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #ddd; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bar { display: inline-block; height: .8em; background: #2c7fb8; } .bar.neg { background: #d95f0e; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818; }
  th, td { border-color: #444; } }
"""


def page(content: dict[str, Any]) -> str:
    """Return the page of what `described` tells of a model."""
    c = content
    title = f"quadlin model {c['model']}"
    facts = [
        ("rows", f"{c['rows']:,}"),
        ("features", f"{c['features']:,}"),
        ("rank of M", str(c["rank"])),
        ("intercept", number(c["intercept"])),
        ("status", f"{c['status']}. {c['advice']}"),
    ]
    if c["noise"] is not None:
        facts.insert(4, ("noise", number(c["noise"])))
    largest = max((abs(e) for e in c["eigenvalues"]), default=1.0)
    spectrum = [
        (str(i + 1), number(e, True), _bar(e, largest)) for i, e in enumerate(c["eigenvalues"])
    ]
    history = [(str(r["step"]), str(r["passes"]), number(r["loss"])) for r in c["history"]]
    diagnosis = "".join(f"<li>{escape(line)}</li>" for line in c["diagnosis"])
    parts = [
        f"<h1>{escape(title)}</h1>",
        _table((), [(escape(a), escape(b)) for a, b in facts]),
        "<h2>Strongest interactions</h2>",
        _terms(c["interactions"], ("first", "second")),
        "<h2>Strongest linear terms</h2>",
        _terms(c["linear"], ("feature",)),
        "<h2>Eigenvalues of the low-rank part of M</h2>",
        _table(("", "eigenvalue", ""), spectrum),
        f"<h2>Diagnosis</h2><ul>{diagnosis}</ul>",
        "<h2>History</h2>",
        _table(("step", "passes", "loss"), history),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _terms(terms: list[dict[str, Any]], names: Sequence[str]) -> str:
    if not terms:
        return "<p>None.</p>"
    largest = max(abs(term["strength"]) for term in terms)
    rows = [
        (
            *(escape(str(term[name])) for name in names),
            number(term["coefficient"], True),
            "" if term["std_error"] is None else f"± {number(term['std_error'])}",
            number(term["strength"], True),
            _bar(term["strength"], largest),
        )
        for term in terms
    ]
    return _table((*names, "coefficient", "standard error", "strength (1 sd)", ""), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are HTML already."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _bar(value: float, largest: float) -> str:
    share = 10 * abs(value) / largest if largest else 0.0
    return f'<span class="bar{" neg" if value < 0 else ""}" style="width:{share:.2f}rem"></span>'
