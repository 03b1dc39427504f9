"""The paper's figure and its claims, measured again."""

from functools import cache
from importlib import import_module

from quadlin.paper.study import Study

ORDER = (
    *"abcdefgh",
    *("nuclear", "rate", "samples", "constants", "rip", "dimension", "concentration", "tau"),
    *("identifiability", "masks", "skewness", "memory", "noise", "nearly_low_rank", "signed"),
    *("asymmetric", "self_interactions", "transition", "risk"),
)


@cache
def studies() -> dict[str, Study]:
    """Return all studies by name, in the order of the report.

    Examples
    --------
    >>> list(studies())[:8]
    ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']
    """
    found: dict[str, Study] = {}
    for name in ("panels", "rates", "recovery", "errors", "causes"):
        found |= {study.name: study for study in import_module(f"{__name__}.{name}").STUDIES}
    return {name: found[name] for name in ORDER}
