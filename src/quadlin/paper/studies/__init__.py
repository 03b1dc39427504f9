"""The paper's figure and its claims, measured again."""

from functools import cache
from importlib import import_module

from quadlin.paper.study import Study


@cache
def studies() -> dict[str, Study]:
    """Return all studies by name, in the order of the report.

    Examples
    --------
    >>> list(studies())[:5]
    ['a', 'b', 'c', 'd', 'levels']
    """
    files = ("panels", "causes", "rates", "errors", "recovery")
    return {s.name: s for file in files for s in import_module(f"{__name__}.{file}").STUDIES}
