"""Write what the examples of pages print below them: `python write_outputs.py PAGE …`."""

import contextlib
import io
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path

EXAMPLE = re.compile(r"```python\n(.*?)```(\s*```(?:text)?\n)?(?(2)(.*?)```)", re.DOTALL)


def rewritten(page: Path) -> str:
    """Return the text of a page with what its examples print now."""
    names: dict = {}

    def with_output(match: re.Match) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(match[1], page.name, "exec"), names)
        below = f"\n\n```\n{printed.getvalue()}```" if printed.getvalue() else ""
        return f"```python\n{match[1]}```{below}"

    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return EXAMPLE.sub(with_output, text)


if __name__ == "__main__":
    os.environ.update(MPLBACKEND="agg", SCIPY_ARRAY_API="1")
    warnings.simplefilter("ignore")
    for name in sys.argv[1:]:
        path = Path(name).resolve()
        path.write_text(rewritten(path), encoding="utf-8")
