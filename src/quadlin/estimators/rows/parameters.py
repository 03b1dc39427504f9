"""What the user gave, checked before anything is computed from it."""

from collections.abc import Sequence
from math import inf
from numbers import Integral, Real
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj
from scipy.sparse import issparse
from sklearn import get_config
from sklearn.utils import check_array, check_consistent_length

from quadlin.core.arrays import Array, moved, namespace
from quadlin.core.messages import Message, Option
from quadlin.data.columns.label_sets import separators_of
from quadlin.estimators.rows.categories import check_categories


def float_types(X: Any) -> tuple[Any, Any]:
    """Return the dtypes that rows may keep, in the namespace scikit-learn will leave them in.

    The first is what others become: tensors of single precision that scikit-learn is going to turn
    into arrays, whose dtype it does not know, stay single.
    """
    array_api = get_config()["array_api_dispatch"] and is_array_api_obj(X) and not issparse(X)
    xp = namespace(X) if array_api else np
    single = is_array_api_obj(X) and str(X.dtype).endswith("float32")
    return (xp.float32, xp.float64) if single else (xp.float64, xp.float32)


def checked_weight(weight: Any, y: Array) -> Array | None:
    """Return the weights as float64 beside y, or None where there are none."""
    if weight is None:
        return None
    xp = namespace(y)
    if isinstance(weight, Real):
        weight = xp.full(y.shape, float(weight), dtype=y.dtype, device=y.device)
    weight = check_array(weight, ensure_2d=False, dtype=None, input_name="sample_weight")
    weight = moved(weight, y)
    if weight.ndim != 1:
        raise ValueError(f"sample_weight must be one number per row; its shape is {weight.shape}.")
    check_consistent_length(y, weight)
    if bool(xp.any(weight < 0)):
        raise ValueError("sample_weight has negative entries; weights must be ≥ 0.")
    if not bool(xp.any(weight > 0)):
        raise ValueError("All entries of sample_weight are zero, which leaves no row to fit.")
    return weight


def is_auto(value: Any) -> bool:
    """Tell whether a parameter is to be chosen from the rows."""
    return isinstance(value, str) and value == "auto"


def alphas(alpha: Any) -> tuple[float, float]:
    """Return the penalties of the linear and of the quadratic part."""
    pair = (alpha, alpha) if isinstance(alpha, Real) else alpha
    good = isinstance(pair, Sequence | np.ndarray) and len(pair) == 2
    if not good or not all(isinstance(a, Real) and 0 <= float(a) < inf for a in pair):
        raise ValueError(
            Message(
                '{alpha} must be "auto", a number ≥ 0, or a pair of them for w and for M.',
                alpha=Option("alpha", alpha),
            )
        )
    return float(pair[0]), float(pair[1])


def check_options(estimator: Any) -> None:
    """Refuse parameters that make no sense, saying what would."""

    def whole(name: str, least: int, auto: bool) -> None:
        value = getattr(estimator, name)
        if auto and isinstance(value, str) and value == "auto":
            return
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            other = ', or "auto"' if auto else ""
            raise ValueError(
                Message(
                    "{option} must be a whole number ≥ {least}{other}.",
                    option=Option(name, value),
                    least=least,
                    other=other,
                )
            )

    whole("rank", 0, auto=True)
    whole("max_iter", 1, auto=False)
    whole("batch_size", 2, auto=True)
    _check_memory(estimator.max_memory)
    if not isinstance(estimator.tol, Real) or not 0 <= float(estimator.tol) < 1:
        raise ValueError(
            Message("{tol} must be a number in [0, 1).", tol=Option("tol", estimator.tol))
        )
    if not is_auto(estimator.alpha) and any(alphas(estimator.alpha)) and not estimator.polish:
        raise ValueError(
            Message(
                "{alpha} above 0 needs {polish}: the moment estimates have no penalty.",
                alpha=Option("alpha"),
                polish=Option("polish", True),
            )
        )
    if estimator.loss == "poisson" and not estimator.polish:
        raise ValueError(
            Message(
                "{loss} needs {polish}: the moment estimates minimise squared errors only.",
                loss=Option("loss", "poisson"),
                polish=Option("polish", True),
            )
        )
    if not isinstance(estimator.uncertainty, Integral | np.bool_ | str):
        raise ValueError(
            Message(
                '{uncertainty} must be True, False or "robust".',
                uncertainty=Option("uncertainty", estimator.uncertainty),
            )
        )
    words = {
        "step": ("guarded", "plain"),
        "diagonal": ("auto", "free", "zero"),
        "whiten": ("auto", "full", "lowrank", "none"),
        "loss": estimator.losses,
        "extrapolation": ("clip", "free"),
        "fields": ("auto",),
        "uncertainty": ("robust",),
        "missing": ("error", "mean"),
    }
    check_categories(estimator.categorical_features)
    if estimator.multi_hot is not None:
        separators_of(estimator.multi_hot)
    diagonal = estimator.diagonal
    if not isinstance(diagonal, str) and not hasattr(diagonal, "__len__"):
        raise ValueError(
            f'diagonal={diagonal!r} must be "auto", "free", "zero" or one boolean per feature.'
        )
    parameters = vars(estimator)  # `get_params` reads signatures, for a third of a millisecond
    for name, allowed in words.items():
        if name not in parameters:
            continue
        value = parameters[name]
        free = name in ("diagonal", "fields", "uncertainty") and not isinstance(value, str)
        if not free and value not in allowed:
            raise ValueError(
                Message(
                    "{option} is not one of {allowed}.",
                    option=Option(name, value),
                    allowed=", ".join(map(repr, allowed)),
                )
            )


def _check_memory(memory: Any) -> None:
    number = isinstance(memory, Integral) and not isinstance(memory, bool) and int(memory) > 0
    if not number and not (isinstance(memory, str) and memory in ("auto", "minimal")):
        raise ValueError(
            Message(
                '{memory} must be "auto", "minimal" or a whole number of bytes above 0.',
                memory=Option("max_memory", memory),
            )
        )


def check_one_pass(estimator: Any) -> None:
    """Refuse options that need rows to come back to."""
    wrong = {
        Option("loss", estimator.loss): estimator.loss in ("huber", "poisson"),
        Option("uncertainty", estimator.uncertainty): estimator.uncertainty,
    }
    for option, asked in wrong.items():
        if asked:
            raise ValueError(
                Message(
                    "{option} needs several passes over the rows, but these can be read only once. "
                    "Write them to a file first, or leave the option out.",
                    option=option,
                )
            )
