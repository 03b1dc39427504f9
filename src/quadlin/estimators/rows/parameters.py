"""The parameters of an estimator, checked before anything is computed."""

from collections.abc import Mapping, Sequence
from math import inf
from numbers import Integral, Real
from typing import Any

import numpy as np


def is_auto(value: Any) -> bool:
    """Tell whether a parameter is to be chosen from the rows."""
    return isinstance(value, str) and value == "auto"


def is_asked_for(pairs: Any) -> bool:
    """Tell whether pairs are wanted in any case, or only where the rows show some."""
    return not (pairs is None or is_auto(pairs))


def is_whole(value: Any, least: int) -> bool:
    """Tell whether a parameter is a whole number, not a boolean, and at least this large."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def check_whole(estimator: Any, name: str, least: int, auto: bool = False) -> None:
    """Refuse a parameter that is neither a whole number nor, if that is allowed, "auto"."""
    value = getattr(estimator, name)
    if not (is_whole(value, least) or (auto and is_auto(value))):
        other = ', or "auto"' if auto else ""
        raise ValueError(f"{name}={value!r} must be a whole number ≥ {least}{other}.")


def check_tol(tol: Any) -> None:
    """Refuse a tolerance that is not a number in [0, 1)."""
    if not isinstance(tol, Real) or not 0 <= float(tol) < 1:
        raise ValueError(f"tol={tol!r} must be a number in [0, 1).")


def refuse_conflicts(conflicts: Mapping[str, Any], text: str) -> None:
    """Raise an error for the first option that conflicts; `text` is its template."""
    for option, conflicting in conflicts.items():
        if conflicting:
            raise ValueError(text.format(option=option))


def alphas(alpha: Any) -> tuple[float, float]:
    """Return the penalties of the linear and of the quadratic part."""
    pair = (alpha, alpha) if isinstance(alpha, Real) else alpha
    good = isinstance(pair, Sequence | np.ndarray) and len(pair) == 2
    if not good or not all(isinstance(a, Real) and 0 <= float(a) < inf for a in pair):
        raise ValueError(
            f'alpha={alpha!r} must be "auto", a number ≥ 0, or a pair of them for w and for M.'
        )
    return float(pair[0]), float(pair[1])


def check_options(estimator: Any) -> None:
    """Refuse parameters that make no sense, and say which would."""
    check_whole(estimator, "rank", 0, auto=True)
    check_whole(estimator, "max_iter", 1)
    _check_memory(estimator.max_memory)
    check_tol(estimator.tol)
    if not is_auto(estimator.alpha):
        alphas(estimator.alpha)
    if estimator.solver != "auto" and not is_auto(estimator.alpha) and any(alphas(estimator.alpha)):
        raise ValueError('`alpha` above 0 needs solver="auto": moment estimates have no penalty.')
    if estimator.solver != "auto" and estimator.loss == "poisson":
        raise ValueError(
            'loss="poisson" needs solver="auto": moment estimates minimise squared errors only.'
        )
    if not isinstance(estimator.uncertainty, Integral | np.bool_ | str):
        raise ValueError(f'uncertainty={estimator.uncertainty!r} must be True, False or "robust".')
    words = {
        "solver": ("auto", "moments", "paper"),
        "squares": ("auto", True, False),
        "loss": estimator.losses,
        "extrapolation": ("clip", "free"),
        "uncertainty": ("robust",),
        "missing": ("error", "mean"),
    }
    _check_categories(estimator.categorical_features)
    parameters = vars(estimator)  # `get_params` reads signatures, for a third of a millisecond
    for name, allowed in words.items():
        if name not in parameters:
            continue
        value = parameters[name]
        free = name == "uncertainty" and not isinstance(value, str)
        if not free and value not in allowed:
            raise ValueError(
                "{option} is not one of {allowed}.".format(
                    option=f"{name}={value!r}", allowed=", ".join(map(repr, allowed))
                )
            )
    _check_pairs(estimator)


def _check_categories(given: Any) -> None:
    """Refuse what cannot declare categories."""
    if given is None or (isinstance(given, str) and given == "from_dtype"):
        return
    listed = not isinstance(given, str) and isinstance(given, Sequence | np.ndarray)
    kinds = str | Integral | np.bool_ | Sequence | np.ndarray
    if not listed or not all(isinstance(item, kinds) for item in given):
        raise ValueError(
            f'categorical_features={given!r} must be "from_dtype", None, a list of '
            "names or positions of columns or of groups of 0/1 columns, or one boolean per column."
        )


def _check_pairs(estimator: Any) -> None:
    """Refuse pairs that make no sense, and say which would."""
    pairs = estimator.pairs
    if not is_asked_for(pairs):
        return
    if not (is_whole(pairs, 0) or _is_list_of_pairs(pairs)):
        raise ValueError(
            f'pairs={pairs!r} must be "auto", None, a whole number ≥ 0, or a list of '
            "pairs of features, by position or name."
        )
    conflicts = {
        "fit_intercept=False": not estimator.fit_intercept,
        f"solver={estimator.solver!r}": estimator.solver != "auto",
        'loss="poisson"': estimator.loss == "poisson",
    }
    refuse_conflicts(
        conflicts,
        "`pairs` cannot be combined with {option}: pairs are searched by least squares beside b "
        "and w. Leave one of them out.",
    )


def _is_list_of_pairs(pairs: Any) -> bool:
    if isinstance(pairs, str) or not isinstance(pairs, Sequence | np.ndarray):
        return False
    return all(not isinstance(p, str) and np.shape(p) == (2,) for p in pairs)


def _check_memory(memory: Any) -> None:
    if not is_whole(memory, 1) and not (isinstance(memory, str) and memory in ("auto", "minimal")):
        raise ValueError(
            f'max_memory={memory!r} must be "auto", "minimal" or a whole number of bytes above 0.'
        )


def check_one_pass(estimator: Any) -> None:
    """Refuse options that need several passes over the rows."""
    conflicts = {
        f"loss={estimator.loss!r}": estimator.loss in ("huber", "poisson"),
        f"uncertainty={estimator.uncertainty!r}": estimator.uncertainty,
    }
    refuse_conflicts(
        conflicts,
        "{option} needs several passes over the rows, but these can be read only once. Write them "
        "to a file first, or leave the option out.",
    )
