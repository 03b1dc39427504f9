"""Pages of HTML in one file: no script, nothing fetched, every value escaped."""

from collections.abc import Mapping
from typing import Any

from quadlin.core.messages import printable

SKELETON = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>{{ style }}</style>
</head>
<body>
{{ body }}
</body>
</html>
"""
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #f3f5f7; --line: #d5dae0;
  --link: #0059a3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --paper: #16191d; --soft: #20252b;
  --line: #3a424c; --link: #7cbcf2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1rem 1.25rem 4rem; color: var(--ink);
  background: var(--paper); font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 1.2rem 0 .6rem; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 0 0 .6rem; }
a { color: var(--link); }
details { margin-top: .8rem; padding: .5rem .8rem; background: var(--soft); border-radius: .4rem;
  font-size: .9rem; }
summary { cursor: pointer; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .5rem 0; }
dt { font-weight: 600; }
dd { margin: 0; }
"""


def html_page(title: str, style: str, template: str, values: Mapping[str, Any]) -> str:
    """Fill a Jinja template and return a complete page.

    Parameters
    ----------
    title : str
        Of the page.
    style : str
        CSS that is added to that of every page.
    template : str
        The body. Values are escaped, and their control characters are made visible.
    values : mapping
        What the template shows, beside `title`.

    Returns
    -------
    str

    Examples
    --------
    >>> "<p>a &lt; b</p>" in html_page("Model", "", "<p>{{ name }}</p>", {"name": "a < b"})
    True
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise ImportError('HTML pages need Jinja: pip install "quadlin[html]".') from None

    def shown(value: Any) -> Any:
        markup = not isinstance(value, str) or isinstance(value, Markup)
        return value if markup else printable(value)

    environment = Environment(
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    body = Markup(environment.from_string(template).render(values, title=title))
    page = environment.from_string(SKELETON)
    return page.render(title=title, style=Markup(STYLE + style), body=body)
