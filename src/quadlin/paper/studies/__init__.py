"""The paper's figure and its claims, measured again."""

from importlib import import_module

from quadlin.paper.study import SIZES, Study, Verdict

__all__ = ["SIZES", "Study", "Verdict", "studies"]

FIGURE = ("panels", "nuclear")
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
    by_name: dict[str, Study] = {}
    for name in (*FIGURE, *CLAIMS):
        module = import_module(f"{__name__}.{name}")
        for study in getattr(module, "STUDIES", None) or [module.STUDY]:
            by_name[study.name] = study
    return by_name
