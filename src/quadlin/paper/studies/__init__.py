"""The paper's figure and its claims, measured again."""

from importlib import import_module

from quadlin.paper.study import Study

CLAIMS = (
    "rate",
    "samples",
    "constants",
    "rip",
    "dimension",
    "concentration",
    "tau",
    "identifiability",
    "masks",
    "skewness",
    "memory",
    "noise",
    "nearly_low_rank",
    "signed",
    "asymmetric",
    "self_interactions",
    "transition",
    "risk",
)


def studies() -> dict[str, Study]:
    """Return all studies by name, in the order of the report.

    Examples
    --------
    >>> list(studies())[:8]
    ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']
    """
    panels = import_module(f"{__name__}.panels")
    by_name: dict[str, Study] = {panel.name: panel for panel in panels.STUDIES}
    for name in ("nuclear", *CLAIMS):
        m = import_module(f"{__name__}.{name}")
        by_name[name] = Study(name, m.ABOUT, m.tasks, m.run, m.figures, m.verdict)
    return by_name
