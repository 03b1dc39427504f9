"""Factorization machines: second order models without squares, of fields by their posterior."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quadlin.core.arrays import is_numpy
from quadlin.core.chunks import MemorySource
from quadlin.core.losses import loss_named
from quadlin.core.messages import warn
from quadlin.core.moments import survey
from quadlin.data import Source, is_dask
from quadlin.data.columns import joint, places, with_levels_of
from quadlin.estimators.checks import (
    check_survey,
    is_asked_for,
    is_auto,
    is_whole,
)
from quadlin.estimators.classifier import SecondOrderClassifier
from quadlin.estimators.fitted import FitResult, Fitted, FittedClasses, Job, Task
from quadlin.estimators.recommending import Recommending, RecommendingLabels
from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.exceptions import OptionWarning
from quadlin.solve.composite.fitting import law_of
from quadlin.solve.fields.draws import draws_of, law_of_draws
from quadlin.solve.fields.machine import Learned, Posterior
from quadlin.solve.fields.sweeps import KEPT, NEGLIGIBLE, Sweeps, gathered
from quadlin.solve.fits.uncertainty import DRAWS, warn_if_unknown
from quadlin.solve.lowrank.types import FIXED, Status
from quadlin.stream.field_stream import BATCH, FieldStream, rows_in_memory
from quadlin.stream.stream import Stream

GATHERED = 2**32  # bytes that sweeps over the rows of a source may take
NOT_FIELDS = (
    "`draws` needs rows that fit into memory (4 GB for the sweeps), with at least two one-hot "
    "fields (columns of categories). Give such columns, or leave `draws` out."
)
NOT_A_STREAM = "`draws` needs rows in memory: use `fit`, or leave `draws` out."
NO_ROOM = (
    "`max_memory` has no room for a batch of rows of categories, so "
    "partial_fit learns them by least squares without a penalty, which "
    "predicts worse where levels, such as users and items, have few rows. "
    "Raise `max_memory` if you can."
)


class ByPosterior:
    """A machine that learns rows of one-hot fields by the posterior of their levels, if it can."""

    takes_ids = True
    draws: int | None
    warm_start: bool
    fitted_: Any

    def _fitted_by_posterior(self, job: Job) -> Fitted | None:
        """Return a fit of rows of fields; None if the options or the rows need least squares."""
        fields = job.task.make_units.fields
        if self.draws is not None:
            _check_draws(self)
        elif not has_posterior(self):
            _warn_of_another_model(self, len(fields))
            return None
        source, fitted = _fields_in_memory(job), None
        if source is not None:
            fitted = fit_fields(job, source, self.draws, self._learned_before(job))
        elif len(fields) > 1 and isinstance(job.source, Source) and not job.task.uncertainty:
            fitted = self._fitted_as_stream(job)
        if fitted is None and self.draws is not None:
            raise ValueError(NOT_FIELDS)
        return fitted

    def _fitted_as_stream(self, job: Job) -> Fitted | None:
        """Return a fit of rows that do not fit into memory: the first ones, then the others."""
        stream = None if self.draws is not None else self._begun(job.task, job.source)
        if not isinstance(stream, FieldStream):
            return None
        stream.goal = stream.most_rows = _most_rows(job.task, GATHERED)
        for chunk in job.rows.walk():
            stream = stream.fed(chunk)
        return Fitted(stream, job.task.columns, tuple(job.task.make_units.fields)).ready()

    def _check_stream(self, fitted: Fitted | None) -> None:
        """Raise an error for draws in a stream."""
        if self.draws is not None:
            raise ValueError(NOT_A_STREAM)

    def _learned_before(self, job: Job) -> Learned | None:
        """Return what `warm_start` begins with."""
        if job.warm is None or not (self.warm_start and hasattr(self, "fitted_")):
            return None
        parts = self.fitted_.parts
        posterior = getattr(parts[0].learned, "posterior", None)
        return None if posterior is None or len(parts) > 1 else posterior.learned

    def _begun(self, task: Task, source: MemorySource | Source) -> Stream:
        """Return a stream by the posterior of levels, where that may be possible."""
        plain, fields = task.new_stream(), task.make_units.fields
        numbers = isinstance(source, Source) or is_numpy(source.X)
        if len(fields) < 2 or not numbers or not has_posterior(self):
            return plain
        most = 0 if task.max_memory == "minimal" else _most_rows(task, KEPT)
        if most < BATCH:
            warn(NO_ROOM, OptionWarning)
            return plain
        return FieldStream.of(plain, most)


def fit_fields(
    job: Job, source: MemorySource, draws: int | None, before: Learned | None = None
) -> Fitted:
    """Fit rows with at least two one-hot fields by their posterior.

    With `draws`, the predictions are means over so many draws.
    """
    task, rows, surveyed = job.task, job.rows, job.rows.reduce(survey)
    check_survey(surveyed, task.make_units.dtype, task.make_units.names, task.options)
    sweeps = Sweeps.of(source, rows, task, surveyed, robust=task.robust, before=before)
    fields, machine = task.make_units.fields, sweeps.machine

    def fitted(posterior: Posterior | None = None) -> Fitted:
        state, options = sweeps.fit()
        learned, kept = FitResult(state, options, surveyed.tally, task, posterior), None
        if sweeps.drawn and not task.uncertainty:
            kept = draws_of(sweeps.drawn, fields, machine.rng)
        noise = machine.learned().deviation
        return Fitted(learned, task.columns, tuple(fields), draws=kept, noise=noise)

    on_step = job.on_step
    watch = None if on_step is None else lambda: on_step(lambda: fitted().attributes())
    sweeps.run_until_interrupted(watch, DRAWS if task.uncertainty else draws or 0)
    result = fitted(sweeps.posterior())
    if sweeps.status in (Status.interrupted, Status.stopped) or draws or machine.labels:
        return result
    if (result.noise or 0.0) < NEGLIGIBLE * float(np.std(np.asarray(source.y))):
        return _without_penalty(job, result)
    return _with_law(job, result, sweeps) if task.uncertainty else result


def _fields_in_memory(job: Job) -> MemorySource | None:
    """Return rows of at least two fields in memory; None for others, or if they are too many."""
    task, source = job.task, job.source
    if len(task.make_units.fields) < 2:
        return None
    if isinstance(source, Source):
        return gathered(job.rows, _most_rows(task, GATHERED))
    return source if is_numpy(source.X) else None


def _most_rows(task: Task, limit: int) -> int:
    """Return how many rows may be in memory."""
    entries = task.columns.n_features_in if task.columns.encoder is not None else 0
    entries = entries or len(task.make_units.fields) + 1
    return rows_in_memory(task, entries, task.max_memory, limit)


def _without_penalty(job: Job, fitted: Fitted) -> Fitted:
    """Go on by least squares, where there are enough rows: without noise it is exact."""
    options = replace(fitted.options, alpha=(0.0, 0.0))
    if fitted.n_rows < options.dof(*fitted.state.model.U.shape):
        return fitted
    told = replace(job.task, options=options, automatic=FIXED)
    exact = replace(job, task=told, warm=fitted.state).fitted()
    return exact if exact.is_begun else fitted.interrupted()


def _with_law(job: Job, fitted: Fitted, sweeps: Sweeps) -> Fitted:
    """Return a fit with its standard errors: how far draws from the posterior are from it.

    Robust ones are those of least squares with the penalties that the priors come to, scaled.
    """
    task, rows, state, law = job.task, job.rows, fitted.state, None
    fields, rng = task.make_units.fields, sweeps.machine.rng
    try:
        if task.uncertainty == "robust":
            law = law_of(state, rows, fitted.options, task)
            warn_if_unknown(law, sweeps.surveyed.tally)
        n = float(fitted.n_rows)  # weights are relative
        law = law_of_draws(rows, state, n, sweeps.drawn, fields, rng, law)
    except KeyboardInterrupt:  # the model is there, its standard errors are not
        return fitted.interrupted()
    return replace(fitted, law=law).with_passes(rows)


def _contradictions(estimator: Any) -> list[str]:
    """Return the options that ask for another model than the posterior of each level."""
    loss = loss_named(estimator.loss)
    asked = [
        # Huber's loss reweights the rows of a posterior, which then has no standard errors.
        (f"loss={estimator.loss!r}", not loss.one_pass),
        # Standard errors of labels are those of Newton's optimum.
        ("uncertainty=True", loss.kind == "labels" and estimator.uncertainty),
        (f"alpha={estimator.alpha!r}", not is_auto(estimator.alpha)),
        ("fit_intercept=False", not estimator.fit_intercept),
        (f"solver={estimator.solver!r}", estimator.solver != "auto"),
        (f"pairs={estimator.pairs!r}", is_asked_for(estimator.pairs)),  # perhaps a list
    ]
    return [option for option, wrong in asked if wrong]


def has_posterior(estimator: Any) -> bool:
    """Tell whether the options leave penalties to be learned, and ask for no other model."""
    reweighted = loss_named(estimator.loss).robust and not estimator.uncertainty
    return _contradictions(estimator) == [f"loss={estimator.loss!r}"] * reweighted


def _warn_of_another_model(estimator: Any, n_fields: int) -> None:
    """Warn where an option alone keeps rows of several fields from being fitted by a posterior."""
    wrong, loss = _contradictions(estimator), loss_named(estimator.loss)
    counts = loss.linked and loss.kind != "labels"
    asked = counts or not is_auto(estimator.alpha) or is_asked_for(estimator.pairs)
    if n_fields > 1 and not asked:
        warn(
            f"{wrong[0]} asks for another model than the posterior of each level, so "
            "rank and penalties are chosen by least squares, which takes longer and "
            "predicts worse where levels, such as users and items, have few rows. "
            "Leave it out, or compare both on rows that were held out.",
            OptionWarning,
        )


def _check_draws(estimator: Any) -> None:
    """Check that draws can be taken, and be combined with the other options."""
    draws = estimator.draws
    if not is_whole(draws, 2):
        raise ValueError(f"draws={draws!r} must be None or a whole number ≥ 2.")
    wrong = _contradictions(estimator) + ["uncertainty=True"] * bool(estimator.uncertainty)
    if wrong:
        raise ValueError(f"`draws` cannot be combined with {wrong[0]}. Leave one of them out.")


def with_levels(fitted: Fitted, X: Any) -> tuple[Fitted, Any]:
    """Return a machine that knows the levels of new rows too, and the rows, encoded by all."""
    encoder, stream = fitted.columns.encoder, fitted.stream
    if encoder is None or not isinstance(stream, FieldStream) or is_dask(X):
        return fitted, X
    if isinstance(X, Source):
        if X.encoder is None or X.encoder.input_names != encoder.input_names:
            return fitted, X  # which raises an error
        grown = joint(encoder, X.encoder)
        reader: Any = X.reader
        X = replace(X, reader=replace(reader, encoder=grown))
    else:
        grown = with_levels_of(encoder, X)
    if grown is encoder:
        return fitted, X
    maker = replace(stream.make_units, names=list(grown.names), fields=grown.fields)
    columns = replace(fitted.columns, encoder=grown)
    moved = stream.grown(maker, places(encoder, grown))
    return Fitted(moved, columns, grown.fields), X


@dataclass(eq=False, repr=False)
class FactorizationMachineRegressor(ByPosterior, Recommending, SecondOrderRegressor):
    r"""Factorization machine: a second order linear model without squares.

    .. math:: y = b + x^\top w + \sum_{i < j} 2 \langle v_i, v_j \rangle_s\, x_i x_j + \text{noise},
              \qquad \langle v_i, v_j \rangle_s = \sum_a s_a v_{ia} v_{ja}

    The same as :class:`SecondOrderRegressor` with ``squares=False``. The signs s are free,
    whereas a classical factorization machine has only positive ones and cannot
    represent an interaction matrix with negative eigenvalues.

    Parameters
    ----------
    rank, alpha, loss, missing, pairs, \
    fit_intercept, solver, max_iter, tol, max_memory, extrapolation, uncertainty, warm_start, \
    random_state
        As for :class:`SecondOrderRegressor`, with no squares among the pairs; for rows of one-hot
        fields see the notes.
    categorical_features : "from_dtype", None or list, default="from_dtype"
        Columns of levels: text and categorical ones of a frame, integers other than 0 and 1 (ids of
        users, hours, years), and those listed by name, position or booleans. A list in the list is
        a group of one-hot columns. None takes all columns as numbers; with a list, integers that it
        does not name are numbers.
    draws : int or None, default=None
        With a number, `fit` draws that many models from the posterior by Gibbs sampling, and
        `predict` returns the mean of their predictions; ``predict(X, return_std=True)`` and
        `noise_` use them too. Draws give intervals and slightly better predictions. They need rows
        of one-hot fields, as in the notes, and ``alpha="auto"``. ``coef_``, ``components_`` and
        ``interactions_`` describe the fit without draws.

    Attributes
    ----------
    coef_, intercept_, components_, eigenvalues_, rank_, alpha_, pairs_, interactions_, \
    moments_, target_moments_, history_, status_, n_iter_, n_samples_seen_, encoder_, fill_, fitted_
        As for :class:`SecondOrderRegressor`.
    noise_ : float
        The standard deviation of the noise, after a fit by the posterior (see the notes), with
        draws, or with ``uncertainty=True``.

    Notes
    -----
    Without one-hot fields, cost and memory are as for :class:`SecondOrderRegressor`. Rows with at
    least two one-hot fields (users, items, hours, devices), perhaps with numbers and lists of
    labels as well, are fitted by their posterior if ``alpha="auto"``: up to 90 sampled and then up
    to 32 variational sweeps over all columns (27 and 10 for 130,000 rows and more), in
    O(nnz(X)·k² + d·k³) time each, with O(n·k² + d·k²) memory. If that is more than 4 GB, or
    `max_memory`, for a Source, its first rows are fitted so, and the others learned as by
    `partial_fit`. Every column has a coefficient and a factor with a normal prior; each
    field and each number has a prior of its own and all other columns share one. Means and
    precisions of the priors and the noise are learned. ``rank="auto"`` starts with 8 components and
    drops those that are not needed. There is no
    search for pairs; if you ask for pairs, the rows are fitted by least squares. An unseen level is
    treated as the mean of its field.

    Four sweeps count as one step of ``max_iter``. `history_` has the mean squared error after each
    sweep, which may rise as levels are shrunk. With ``warm_start``, 4 sampled sweeps go on from
    the last fit to the same columns. `partial_fit` goes on from a fit, or from a model file, with
    the posterior of its rows as the prior of new ones. With ``loss="huber"`` rows have weights by
    their residuals, and those more than ten standard deviations off are left out. With
    ``uncertainty=True`` (and squared errors) the model is the same; its standard errors come
    from 64 draws. Draws go on from the sampled sweeps; each takes a sweep and 8·(k + 1)·d bytes,
    at most 512 MB: beyond that, only every second draw is kept, or every third, and so on.

    A stream of such rows (`partial_fit` from the first row on) keeps its first rows, about a
    million or what `max_memory` allows, and learns all of them again when their number has grown
    by some 20%. Later rows, and those in between, are learned with the posterior of earlier ones
    as their prior, 2,048 at a time, in time proportional to their number and O(k²d) memory. Levels
    need not be named beforehand: they are learned when they come. Groups of 0/1 columns, however,
    have to be listed in `categorical_features`. `fit` of rows that can be read only once fits the
    first rows like a table. With ``max_memory="minimal"`` the stream is left to least squares, with
    a warning.

    Examples
    --------
    >>> from quadlin import FactorizationMachineRegressor
    >>> from quadlin.datasets import make_second_order
    >>> data = make_second_order(4000, 12, rank=2, distribution="bernoulli", parameter=0.3,
    ...                          n_test=100, random_state=0)
    >>> machine = FactorizationMachineRegressor(rank=2, random_state=0).fit(data.X, data.y)
    >>> round(machine.score(data.X_test, data.y_test), 6)
    1.0

    Ratings of films by users, as a frame; predictions have standard deviations.

    >>> import numpy as np
    >>> import pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> user, film = rng.integers(40, size=3000), rng.integers(30, size=3000)
    >>> taste, kind = rng.standard_normal((40, 2)), rng.standard_normal((30, 2))
    >>> y = np.sum(taste[user] * kind[film], axis=1) + 0.5 * rng.standard_normal(3000)
    >>> ratings = pd.DataFrame({"user": user.astype(str), "film": film.astype(str)})
    >>> machine = FactorizationMachineRegressor(draws=100, random_state=0).fit(ratings, y)
    >>> machine.rank_, bool(abs(machine.noise_ - 0.5) < 0.05)
    (2, True)
    >>> _, std = machine.predict(ratings[:1], return_std=True)
    >>> bool(std[0] < 0.6)
    True
    """

    draws: int | None = field(default=None, kw_only=True)
    squares: Any = field(default=False, init=False)  # no parameter

    def _fitted_rows(self, job: Job) -> Fitted:
        """Fit rows of one-hot fields by their posterior where that is possible."""
        fitted = self._fitted_by_posterior(job)
        return super()._fitted_rows(job) if fitted is None else fitted

    def _with_levels(self, fitted: Fitted, X: Any) -> tuple[Fitted, Any]:
        return with_levels(fitted, X)


@dataclass(eq=False, repr=False)
class FactorizationMachineClassifier(ByPosterior, RecommendingLabels, SecondOrderClassifier):
    r"""Factorization machine for labels: log-odds without squares.

    .. math:: \log \frac{P(y = 1 \mid x)}{P(y = 0 \mid x)} = b + x^\top w
              + \sum_{i < j} 2 \langle v_i, v_j \rangle_s\, x_i x_j

    The same as :class:`SecondOrderClassifier` with ``squares=False``.

    Parameters
    ----------
    rank, alpha, class_weight, missing, pairs, \
    fit_intercept, max_iter, tol, max_memory, extrapolation, uncertainty, warm_start, random_state
        As for :class:`SecondOrderClassifier`; for rows of one-hot fields see the notes.
    categorical_features : "from_dtype", None or list, default="from_dtype"
        Columns of levels: text and categorical ones of a frame, integers other than 0 and 1 (ids of
        users, hours, years), and those listed by name, position or booleans. A list in the list is
        a group of one-hot columns. None takes all columns as numbers; with a list, integers that it
        does not name are numbers.
    draws : int or None, default=None
        With a number, `fit` draws that many models from the posterior by Gibbs sampling, and
        probabilities are means over them, which account for the uncertainty of each taste; without,
        they account for it on average. Draws need rows of one-hot fields, as in the notes, and
        ``alpha="auto"``.

    Attributes
    ----------
    classes_ : array (n_classes,)
        The labels, sorted.
    coef_, intercept_, components_, eigenvalues_, rank_, alpha_, pairs_, interactions_, \
    moments_, target_moments_, history_, status_, n_iter_, n_samples_seen_, encoder_, fill_, \
    fitted_, n_passes_
        As for :class:`SecondOrderClassifier`.

    Notes
    -----
    Rows with at least two one-hot fields are fitted by their posterior if ``alpha="auto"``, as by
    :class:`FactorizationMachineRegressor`. In sampled sweeps labels are the signs of a normal
    variable about f (probit), and in variational ones their log-odds are 1.7 f (the bound of
    Jaakkola and Jordan); these are divided by the root of one plus the mean variance of f, so that
    probabilities are about their means over the posterior. Streams are learned in the same way, and
    levels that come later are learned too.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from quadlin import FactorizationMachineClassifier
    >>> rng = np.random.default_rng(0)
    >>> city, kind = rng.choice(["Oslo", "Rome"], 800), rng.choice(["ski", "sun"], 800)
    >>> likes = (city == "Oslo") == (kind == "ski")
    >>> likes = np.where(rng.uniform(size=800) < 0.9, likes, ~likes)
    >>> rows = pd.DataFrame({"city": city, "kind": kind})
    >>> machine = FactorizationMachineClassifier(random_state=0).fit(rows, likes)
    >>> new = pd.DataFrame({"city": ["Oslo", "Oslo"], "kind": ["ski", "sun"]})
    >>> machine.predict_proba(new)[:, 1].round(1).tolist()
    [0.9, 0.1]
    """

    @property
    def fits_jointly(self) -> bool:
        """Tell whether several classes may be fitted together: not those by a posterior."""
        return self.draws is None and not has_posterior(self)

    draws: int | None = field(default=None, kw_only=True)
    squares: Any = field(default=False, init=False)  # no parameter

    def _fitted_labels(self, job: Job) -> Fitted:
        """Fit rows of one-hot fields by their posterior where that is possible."""
        fitted = self._fitted_by_posterior(job)
        return super()._fitted_labels(job) if fitted is None else fitted

    def _with_levels(self, fitted: FittedClasses, X: Any) -> tuple[FittedClasses, Any]:
        parts = [with_levels(part, X) for part in fitted.parts]
        return replace(fitted, parts=tuple(part for part, _ in parts)), parts[0][1]
