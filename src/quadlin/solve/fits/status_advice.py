"""What to do about the status of a fit, by the options that were set: none is advised again."""

from collections.abc import Mapping
from typing import Any

from quadlin.core.messages import Message, Option, Phrase
from quadlin.solve.lowrank.types import Status

OPTIONS = {
    "auto": Option("alpha", "auto"),
    "alpha": Option("alpha"),
    "rank": Option("rank"),
    "n_starts": Option("n_starts"),
    "guarded": Phrase('step="guarded" or more rows', "more rows"),
}
BEGINNINGS = {
    Status.out_of_passes: "The budget of passes over the rows was used up while the objective was "
    "still falling slowly, as it does if the rows hardly determine some parameters.",
    Status.diverged: "The steps diverged, and the best model so far was kept.",
    Status.too_few_rows: "There are fewer rows than the model has parameters, so it may fit noise.",
    Status.separated: "The labels of the rows can be predicted almost without error, so the "
    "log-odds grow without bound; the fit was stopped early.",
    Status.searching: "Not all components of the quadratic part stand out in the rows so far, or "
    "steps still change them by much.",
    Status.ambiguous: "No two starts of the search led to the same result, and the best of them "
    "was kept.",
}


def status_advice(status: Status, params: Mapping[str, Any]) -> str:
    """Return how a fit ended and what would help, given the parameters of its estimator.

    Examples
    --------
    >>> print(status_advice(Status.searching, {"rank": 2, "alpha": 0}))
    Not all components of the quadratic part stand out in the rows so far, or steps still change \
them by much. Learn from more rows or lower `rank`.
    >>> print(status_advice(Status.searching, {"rank": 0, "alpha": 0}))
    Not all components of the quadratic part stand out in the rows so far, or steps still change \
them by much. Learn from more rows.
    """
    if status not in BEGINNINGS:
        return status.value  # type: ignore[no-any-return]
    return Message(f"{BEGINNINGS[status]} {_sentence(_remedies(status, params))}", **OPTIONS)


def _remedies(status: Status, params: Mapping[str, Any]) -> list[str]:
    """Return what would help, as templates that name options."""
    if status is Status.diverged:
        guarded = params.get("step", "guarded") == "guarded"
        more = "more rows" if guarded else "{guarded}"
        return [f"use {more}, and look for wrong units in X and y"]
    if status is Status.ambiguous:
        starts = ["raise {n_starts}"] if "n_starts" in params else []
        return ["add measurements by other, varied vectors", *starts]
    rank, alpha = params.get("rank", 0), params.get("alpha", 0)
    chosen, searched = _is_auto(alpha), "alphas" in params  # by cross-validation
    lower = ["lower {rank}"] if not _is_auto(rank) and rank > 0 else []
    if status is Status.searching:
        return ["learn from more rows", *lower]
    if status is Status.separated:
        if chosen or "alpha" not in params:
            return ["look for features that give the labels away", "add rows"]
        return ["use {auto}", "a larger {alpha}"]
    fewer = [*lower, "leave out features", "add rows"]
    if "alpha" not in params or searched:
        return fewer
    if status is Status.too_few_rows:
        return fewer if chosen else ["use {auto}", "raise {alpha}", *fewer]
    larger = (
        ["give a larger {alpha} than was chosen"] if chosen else ["use {auto}", "raise {alpha}"]
    )
    if _is_auto(rank):
        larger.append("a lower {rank}" if chosen else "give a lower {rank} than was chosen")
    return [*larger, *fewer]


def _sentence(remedies: list[str]) -> str:
    *most, last = remedies
    text = f"{', '.join(most)}{',' * (len(most) > 1)} or {last}" if most else last
    return f"{text[0].upper()}{text[1:]}."


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"
