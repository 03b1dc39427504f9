"""Write what the examples of pages print below them: `python write_outputs.py PAGE …`.

A Python block is followed by its output, if it prints. Lines of a console block that begin with
`$ quadlin` are run, and the lines below them replaced.
"""

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import warnings
from pathlib import Path

EXAMPLE = re.compile(
    r"```python\n(?P<code>.*?)```(?:\s*```(?:text)?\n.*?```)?|```console\n(?P<lines>.*?)```",
    re.DOTALL,
)
COMMAND = re.compile(r"^(\$ quadlin (.*)\n)(?:(?!\$ ).*\n)*", re.MULTILINE)


def printed_by(run) -> str:
    """Return what a function prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run()
    return printed.getvalue()


def rewritten(page: Path) -> str:
    """Return the text of a page with what its examples print now."""
    from quadlin.cli import main

    names: dict = {}

    def with_output(match: re.Match) -> str:
        if code := match["code"]:
            output = printed_by(lambda: exec(compile(code, page.name, "exec"), names))
            return f"```python\n{code}```" + (f"\n\n```\n{output}```" if output else "")
        lines = COMMAND.sub(
            lambda line: line[1] + printed_by(lambda: main(shlex.split(line[2]))), match["lines"]
        )
        return f"```console\n{lines}```"

    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return EXAMPLE.sub(with_output, text)


if __name__ == "__main__":
    os.environ.update(MPLBACKEND="agg", SCIPY_ARRAY_API="1", COLUMNS="100")
    warnings.simplefilter("ignore")
    for name in sys.argv[1:]:
        path = Path(name).resolve()
        path.write_text(rewritten(path), encoding="utf-8")
