"""What the README shows is what happens."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_readme_example_prints_what_the_readme_says(capsys):
    code, output = re.search(
        r"```python\n(.*?)```\s*```\n(.*?)```", README.read_text(), re.S
    ).groups()
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == output
