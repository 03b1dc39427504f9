"""Which options of a machine have a posterior, and what to say of those that have none."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from quadlin.core.messages import Message, Option, warn
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.rows.parameters import is_asked_for, is_auto

NOT_FIELDS = Message(
    "{draws=} needs rows that fit into memory (1 GB of numbers), with at least two one-hot fields "
    "(columns of categories), in which every other column follows the level of one of "
    "them. Give only such columns, or leave {draws=} out."
)
NOT_A_STREAM = Message("{draws=} needs rows in memory: use `fit`, or leave {draws=} out.")

NO_MORE_ROWS = (
    "partial_fit cannot go on from this machine: `fit` learned a distribution of each level from "
    "all its rows, and did not keep the sums that a stream goes on with. Call `fit` with the old "
    "and the new rows together; or learn all rows by partial_fit, beginning with a clone."
)


def has_posterior(estimator: Any) -> bool:
    """Tell whether the options leave penalties to be learned, and ask for no other model."""
    labels = estimator.loss == "logistic"  # whose standard errors are those of Newton's optimum
    learns = is_auto(estimator.alpha) and not (labels and estimator.uncertainty)
    wrong = [option.name for option in _contradictions(estimator)]
    return learns and wrong == (["loss"] if _is_reweighted(estimator) else [])


def _is_reweighted(estimator: Any) -> bool:
    """Tell whether Huber's loss is that of a posterior, which has no standard errors."""
    return bool(estimator.loss == "huber" and not estimator.uncertainty)


def warn_of_another_model(estimator: Any, fields: Sequence[np.ndarray]) -> None:
    """Warn where an option alone keeps rows of several fields from being fitted by a posterior."""
    asked = [
        (Option("psd", True), estimator.psd),
        (Option("loss", "huber"), estimator.loss == "huber"),
        (Option("uncertainty", True), estimator.loss == "logistic" and estimator.uncertainty),
    ]
    wrong = [option for option, given in asked if given]
    if wrong and is_auto(estimator.alpha) and len(fields) > 1 and not is_asked_for(estimator.pairs):
        warn(
            Message(
                "{option} asks for another model than the posterior of each level, so rank and "
                "penalties are chosen by least squares, which takes longer and predicts worse "
                "where levels, such as users and items, have few rows. Leave it out, or compare "
                "both on rows that were held out.",
                option=wrong[0],
            )
        )


def check_draws(estimator: Any) -> None:
    """Refuse draws that cannot be taken, and options that they cannot be combined with."""
    draws = estimator.draws
    if not isinstance(draws, Integral) or isinstance(draws, bool) or draws < 2:
        raise ValueError(Message("{draws=} must be None or a whole number ≥ 2.", draws=draws))
    wrong = _contradictions(estimator)
    if estimator.uncertainty:
        wrong.append(Option("uncertainty", True))
    if not is_auto(estimator.alpha):
        wrong.append(Option("alpha", estimator.alpha))
    if wrong:
        raise ValueError(
            Message(
                "{draws=} cannot be combined with {other}. Leave one of them out.", other=wrong[0]
            )
        )


def check_stream(estimator: Any, fitted: Fitted | None) -> None:
    """Refuse draws, and to go on from the posterior of a fit."""
    if estimator.draws is not None:
        raise ValueError(NOT_A_STREAM)
    if fitted is not None and fitted.noise is not None:
        raise ValueError(NO_MORE_ROWS)


def _contradictions(estimator: Any) -> list[Option]:
    """Return the options that ask for another model than the one that has a posterior here."""
    asked = [
        (Option("loss", estimator.loss), estimator.loss in ("huber", "poisson")),
        (Option("psd", True), estimator.psd),
        (Option("fit_linear", False), not estimator.fit_linear),
        (Option("fit_intercept", False), not estimator.fit_intercept),
        (Option("polish", False), not estimator.polish),
        (Option("pairs", estimator.pairs), is_asked_for(estimator.pairs)),  # perhaps a list
    ]
    return [option for option, wrong in asked if wrong]
