"""Advice about how a fit ended, and about standard errors that cannot be computed."""

from collections.abc import Mapping
from typing import Any

from quadlin.core.messages import warn
from quadlin.core.moments import Tally
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.lowrank.types import Status

ADVISED = (  # whose last sentence is replaced by advice that depends on the parameters
    *(Status.out_of_passes, Status.diverged, Status.too_few_rows, Status.separated),
    *(Status.searching, Status.ambiguous),
)
UNKNOWN = "Standard errors are not known (nan): "
LIGHT = 0.99  # of the number of rows: weights with a smaller sum are not repetitions of rows


def status_advice(status: Status, params: Mapping[str, Any]) -> str:
    """Return how a fit ended and what would help, given the parameters of its estimator.

    Examples
    --------
    >>> print(status_advice(Status.searching, {"rank": 2, "alpha": 0}))
    Not all components of the quadratic part stand out in the rows so far, or steps still change \
them considerably. Learn from more rows or lower `rank`.
    >>> print(status_advice(Status.searching, {"rank": 0, "alpha": 0}))
    Not all components of the quadratic part stand out in the rows so far, or steps still change \
them considerably. Learn from more rows.
    """
    if status not in ADVISED:
        return status.value
    beginning = status.value.rpartition(". ")[0]
    return f"{beginning}. {_sentence(_remedies(status, params))}"


def _remedies(status: Status, params: Mapping[str, Any]) -> list[str]:
    """Return what would help, as phrases."""
    if status is Status.diverged:
        automatic = params.get("solver", "auto") == "auto"
        more = "more rows" if automatic else 'solver="auto" or more rows'
        return [f"use {more}, and look for wrong units in X and y"]
    if status is Status.ambiguous:
        starts = ["raise `n_starts`"] if "n_starts" in params else []
        return ["add measurements by other, varied vectors", *starts]
    rank, alpha = params.get("rank", 0), params.get("alpha", 0)
    chosen, searched = _is_auto(alpha), "alphas" in params  # by cross-validation
    lower = ["lower `rank`"] if not _is_auto(rank) and rank > 0 else []
    if status is Status.searching:
        return ["learn from more rows", *lower]
    if status is Status.separated:
        if chosen or "alpha" not in params:
            return ["look for features that give the labels away", "add rows"]
        return ['use alpha="auto"', "a larger `alpha`"]
    fewer = [*lower, "leave out features", "add rows"]
    if "alpha" not in params or searched:
        return fewer
    if status is Status.too_few_rows:
        return fewer if chosen else ['use alpha="auto"', "raise `alpha`", *fewer]
    larger = ['use alpha="auto"', "raise `alpha`"]
    if chosen:
        larger = ["give a larger `alpha` than was chosen"]
    if _is_auto(rank):
        larger.append("a lower `rank`" if chosen else "give a lower `rank` than was chosen")
    return [*larger, *fewer]


def _sentence(remedies: list[str]) -> str:
    *most, last = remedies
    text = f"{', '.join(most)}{',' * (len(most) > 1)} or {last}" if most else last
    return f"{text[0].upper()}{text[1:]}."


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def warn_if_unknown(law: Uncertainty, tally: Tally) -> None:
    """Warn if the standard errors of a fit are not known."""
    if law.noise >= 0:
        return
    if tally.weight < LIGHT * tally.counting:
        warn(
            UNKNOWN + f"the weights, which count as repetitions of rows, sum to only "
            f"{tally.weight:.4g} for {tally.counting:,} rows. Scale them to a mean of 1.",
        )
        return
    warn(
        f"{UNKNOWN}the fit uses as many effective parameters as there are rows, "
        f"{tally.counting:,}, so nothing is left to estimate the noise from. Use more rows, fewer "
        f"features, or a larger penalty, such as alpha={tally.counting}.",
    )
