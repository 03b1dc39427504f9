"""Run the Python examples of a page; they must print what is written below them."""

import contextlib
import io
import re
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text(encoding="utf-8")
names: dict[str, object] = {}
examples = re.findall(r"```python\n(.*?)```\s*```\n(.*?)```", text, re.DOTALL)
for code, expected in examples:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, sys.argv[1], "exec"), names)
    if printed.getvalue() != expected:
        sys.exit(f"{sys.argv[1]} says\n{expected}but its example prints\n{printed.getvalue()}")
print(f"{len(examples)} examples of {Path(sys.argv[1]).name} print what is written below them")
