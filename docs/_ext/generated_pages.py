"""Pages that are written from the code: the options of the command line, and statuses."""

import re
from pathlib import Path

from quadlin import Status
from quadlin.cli.app import build

FOLDER = "reference/generated"


def command_line() -> str:
    """Return the reference of the command line as Markdown."""
    text = build(["check"]).generate_docs(output_format="markdown", recursive=True)
    _, _, commands = text.partition("## quadlin check")
    commands = re.sub(r"^#+ (quadlin .*)$", r"## \1", f"## quadlin check{commands}", flags=re.M)
    # Examples are indented by two spaces: they become blocks.
    commands = re.sub(
        r"\n((?:  (?:quadlin|zcat) .*\n)+)",
        lambda match: "\n```console\n" + re.sub(r"^  ", "", match[1], flags=re.M) + "```\n",
        commands,
    )
    return (
        "# Options of the command line\n\n"
        "This page is generated from the code. [The command line](../commands.md) explains the\n"
        "commands with examples.\n\n" + commands
    )


def statuses() -> str:
    """Return the table of statuses as Markdown, to be included."""
    rows = (f"| `{status.name}` | {status.value} |" for status in Status)
    return "\n".join(["| `status_` | what it says |", "|---|---|", *rows]) + "\n"


def write(app) -> None:
    """Write the pages; unchanged ones keep their time, so that they are not built again."""
    folder = Path(app.srcdir) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("options.md", command_line()), ("statuses.inc", statuses())):
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app):
    """Write the pages before any page is read."""
    app.connect("builder-inited", write, priority=100)
    return {"parallel_read_safe": True}
