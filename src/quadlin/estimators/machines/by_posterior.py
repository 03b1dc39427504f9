"""Machines by the posterior of the levels of fields: which options, rows and streams have one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.core.arrays import is_numpy
from quadlin.core.chunks import MemorySource
from quadlin.core.losses import loss_named
from quadlin.core.messages import warn
from quadlin.data import Source, is_dask
from quadlin.data.encoder import joint, places, with_levels_of
from quadlin.estimators.checks import is_asked_for, is_auto, is_whole
from quadlin.estimators.fitted import Fitted, Job
from quadlin.estimators.machines.field_fit import rank_of
from quadlin.estimators.tasks import FitResult, Task
from quadlin.exceptions import OptionWarning
from quadlin.solve.fields.contexts import Learned
from quadlin.stream.field_stream import FieldStream
from quadlin.stream.stream import Stream

NOT_FIELDS = (
    "`draws` needs rows that fit into memory (1 GB of numbers), with at "
    "least two one-hot fields (columns of categories). Give such columns, "
    "or leave `draws` out."
)
NOT_A_STREAM = "`draws` needs rows in memory: use `fit`, or leave `draws` out."

NO_MORE_ROWS = (
    "partial_fit cannot continue from this machine: a model file and a fit with draws have no "
    "uncertainty of each level for a stream. Call `fit` on the old and the new rows together, or "
    "learn all rows with partial_fit, starting from a clone."
)
NUMBERS = 8  # (k + 1)×(k + 1) matrices per level that inference holds at a time, at most
BYTES = 8
FIRST_BYTES = 2**29  # of the first rows of a stream in sweeps: about a million rows at rank 8
FEWEST_ROWS = 1000  # that priors are learned from
NO_ROOM = (
    "`max_memory` has no room for a batch of rows of categories, so "
    "partial_fit learns them by least squares without a penalty, which "
    "predicts worse where levels, such as users and items, have few rows. "
    "Raise `max_memory` if you can."
)


class ByPosterior:
    """A machine that learns rows of one-hot fields by the posterior of their levels, if it can."""

    squares: Any = False  # not a parameter
    takes_ids = True
    draws: int | None
    warm_start: bool
    fitted_: Any

    def _fitted_by_posterior(
        self, fields: Sequence[np.ndarray], fit: Callable[[], Fitted | None]
    ) -> Fitted | None:
        """Return what `fit` makes of the rows; None if the options or the rows need least squares.

        `fit` returns None for rows that are not made of one-hot fields.
        """
        if self.draws is not None:
            _check_draws(self)
        elif not has_posterior(self):
            _warn_of_another_model(self, fields)
            return None
        fitted = fit()
        if fitted is None and self.draws is not None:
            raise ValueError(NOT_FIELDS)
        return fitted

    def _check_stream(self, fitted: Fitted | None) -> None:
        """Refuse draws, and streams that would continue from the posterior of a fit."""
        if self.draws is not None:
            raise ValueError(NOT_A_STREAM)
        if fitted is not None and fitted.noise is not None and fitted.posterior is None:
            raise ValueError(NO_MORE_ROWS)

    def _learned_before(self, job: Job) -> Learned | None:
        """Return what `warm_start` begins with."""
        if job.warm is None or not (self.warm_start and hasattr(self, "fitted_")):
            return None
        fitted = self.fitted_
        parts = fitted.parts if hasattr(fitted, "parts") else (fitted,)
        posterior = parts[0].posterior
        return None if posterior is None or len(parts) > 1 else posterior.learned

    def _begun(self, task: Task, source: MemorySource | Source) -> Stream:
        """Return a stream by the posterior of levels, where that may be possible."""
        plain, fields = task.new_stream(), task.make_units.fields
        numbers = isinstance(source, Source) or is_numpy(source.X)
        if len(fields) < 2 or not numbers or not has_posterior(self):
            return plain
        most = _most_rows(task)
        if most < FEWEST_ROWS:
            warn(NO_ROOM, OptionWarning)
            return plain
        return FieldStream.of(plain, rank_of(task), most)


def has_posterior(estimator: Any) -> bool:
    """Tell whether the options leave penalties to be learned, and ask for no other model."""
    labels = (
        loss_named(estimator.loss).kind == "labels"
    )  # whose errors are those of Newton's optimum
    learns = is_auto(estimator.alpha) and not (labels and estimator.uncertainty)
    wrong = [option.partition("=")[0] for option in _contradictions(estimator)]
    # Huber's loss reweights the rows of a posterior, which then has no standard errors.
    reweighted = loss_named(estimator.loss).robust and not estimator.uncertainty
    return learns and wrong == (["loss"] if reweighted else [])


def _warn_of_another_model(estimator: Any, fields: Sequence[np.ndarray]) -> None:
    """Warn where an option alone keeps rows of several fields from being fitted by a posterior."""
    loss = loss_named(estimator.loss)
    asked = [
        (f"loss={estimator.loss!r}", loss.robust),
        ("uncertainty=True", loss.kind == "labels" and estimator.uncertainty),
    ]
    wrong = [option for option, given in asked if given]
    if wrong and is_auto(estimator.alpha) and len(fields) > 1 and not is_asked_for(estimator.pairs):
        warn(
            f"{wrong[0]} asks for another model than the posterior of each level, so "
            "rank and penalties are chosen by least squares, which takes longer and "
            "predicts worse where levels, such as users and items, have few rows. "
            "Leave it out, or compare both on rows that were held out.",
            OptionWarning,
        )


def _check_draws(estimator: Any) -> None:
    """Refuse draws that cannot be taken, and options that they cannot be combined with."""
    draws = estimator.draws
    if not is_whole(draws, 2):
        raise ValueError(f"draws={draws!r} must be None or a whole number ≥ 2.")
    wrong = _contradictions(estimator)
    if estimator.uncertainty:
        wrong.append("uncertainty=True")
    if not is_auto(estimator.alpha):
        wrong.append(f"alpha={estimator.alpha!r}")
    if wrong:
        raise ValueError(f"`draws` cannot be combined with {wrong[0]}. Leave one of them out.")


def _contradictions(estimator: Any) -> list[str]:
    """Return the options that ask for another model than the one that has a posterior here."""
    asked = [
        (f"loss={estimator.loss!r}", not loss_named(estimator.loss).one_pass),
        ("fit_intercept=False", not estimator.fit_intercept),
        (f"solver={estimator.solver!r}", estimator.solver != "auto"),
        (f"pairs={estimator.pairs!r}", is_asked_for(estimator.pairs)),  # perhaps a list
    ]
    return [option for option, wrong in asked if wrong]


def _most_rows(task: Task) -> int:
    """Return how many rows there is room for, with their totals and covariances in sweeps."""
    entries = task.columns.n_features_in if task.columns.encoder is not None else 0
    entries, K = entries or len(task.make_units.fields) + 1, rank_of(task) + 1
    if task.max_memory == "minimal":
        return 0
    limit = FIRST_BYTES
    if not isinstance(task.max_memory, str):
        limit = max(0, int(task.max_memory) - NUMBERS * BYTES * K**2 * len(task.make_units.names))
    return limit // (2 * K * (K + 1) + BYTES * (2 * K + 4 * entries + 8))


def continued(fitted: Fitted) -> Fitted:
    """Return a fit as the stream that goes on from its posterior."""
    learned, posterior = fitted.learned, fitted.posterior
    if posterior is None or not isinstance(learned, FitResult):
        return fitted
    task = learned.task
    plain = replace(learned.stream, automatic=task.automatic)
    most = max(_most_rows(task), FEWEST_ROWS)
    stream = FieldStream.of(plain, len(posterior.learned.signs), most, posterior)
    return replace(fitted, learned=stream, law=None, noise=None, posterior=None, train_score=None)


def with_levels(fitted: Fitted, X: Any) -> tuple[Fitted, Any]:
    """Return a machine that knows the levels of new rows too, and the rows, encoded by all."""
    fitted = continued(fitted)
    encoder, stream = fitted.columns.encoder, fitted.learned
    if encoder is None or not isinstance(stream, FieldStream):
        return fitted, X
    if isinstance(X, Source):
        if X.encoder is None or X.encoder.input_names != encoder.input_names:
            return fitted, X  # which is refused
        grown = joint(encoder, X.encoder)
        reader: Any = X.reader
        X = replace(X, reader=replace(reader, encoder=grown))
    elif is_dask(X):
        return fitted, X
    else:
        grown = with_levels_of(encoder, X)
    if grown is encoder:
        return fitted, X
    maker = replace(stream.make_units, names=list(grown.names), fields=grown.fields)
    columns = replace(fitted.columns, encoder=grown)
    moved = stream.grown(maker, places(encoder, grown))
    return replace(fitted, learned=moved, columns=columns, fields=grown.fields), X
