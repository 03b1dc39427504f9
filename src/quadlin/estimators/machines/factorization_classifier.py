"""Factorization machines for labels: no squares, and levels of fields by their posterior."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.core.model import in_units
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.data.names import Categories, Name
from quadlin.estimators.classifier import SecondOrderClassifier
from quadlin.estimators.fitted import Attributes, Fitted, FittedClasses, Job
from quadlin.estimators.machines.by_posterior import ByPosterior, has_posterior, with_levels
from quadlin.estimators.machines.field_fit import fit_fields, gathered
from quadlin.estimators.machines.recommending import RecommendingLabels
from quadlin.estimators.tasks import FitResult, Task
from quadlin.solve.fields.contexts import Learned
from quadlin.solve.lowrank.driver import loss_unit
from quadlin.solve.lowrank.types import Problem, Record


def fit_field_labels(job: Job, draws: int | None, before: Learned | None = None) -> Fitted | None:
    """Fit log-odds to labels 0 and 1 of one-hot fields by their posterior; None for other rows."""
    task, rows, source, on_step = job.task, job.rows, job.source, job.on_step
    if isinstance(source, Source):
        read = gathered(rows, source, task.make_units.fields)
        if read is None:
            return None
        source = read
    numbers = replace(
        task,
        options=replace(task.options, loss="squared"),
        make_units=replace(task.make_units, loss="squared"),
    )

    def hook(attributes: Attributes) -> bool:
        assert on_step is not None
        return on_step(lambda: fitted_log_odds(task, rows, attributes()["fitted_"]).attributes())

    watched = None if on_step is None else hook
    as_numbers = replace(job, task=numbers, source=source, on_step=watched)
    fitted = fit_fields(as_numbers, draws, labels=True, before=before)
    if fitted is None:
        return None
    try:
        return fitted_log_odds(task, rows, fitted)
    except KeyboardInterrupt:  # the posterior is there
        return fitted_log_odds(task, rows, fitted).interrupted()


def fitted_log_odds(task: Task, rows: Rows, fitted: Fitted) -> Fitted:
    """Return a fit in units of labels as numbers as one of log-odds: two passes."""
    state, surveyed = fitted.state, rows.reduce(survey)
    units = task.make_units(surveyed.features, surveyed.target)
    options = replace(fitted.options, loss="logistic")
    model = in_units(state.model, state.units, units)
    sums = Problem(rows, units, options, np.random.default_rng(0)).sums(model, squares=False)
    unit, last = loss_unit("logistic", units), state.history[-1]
    history = (
        Record(0, 1, units.target.power * unit),
        replace(last, passes=rows.walks, loss=sums.loss / sums.weight * unit),
    )
    new = replace(
        state,
        model=model,
        units=units,
        history=history,
        features=surveyed.features,
        target=surveyed.target,
    )
    return replace(fitted, learned=FitResult(new, options, surveyed.tally, task))


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
    Rows with at least two one-hot fields are fitted by their posterior if ``alpha="auto"`` and they
    are in memory, or a Source that takes up to 1 GB there, as by
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

    def __init__(
        self,
        rank: int | str = "auto",
        *,
        alpha: float | tuple[float, float] | str = "auto",
        pairs: str | int | Sequence[tuple[Name, Name]] | None = "auto",
        class_weight: Mapping[Any, float] | str | None = None,
        categorical_features: Categories = "from_dtype",
        missing: str = "error",
        extrapolation: str = "clip",
        uncertainty: bool | str = False,
        draws: int | None = None,
        fit_intercept: bool = True,
        max_iter: int = 50,
        tol: float = 1e-6,
        max_memory: int | str = "auto",
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.alpha = alpha
        self.pairs = pairs
        self.class_weight = class_weight
        self.categorical_features = categorical_features
        self.missing = missing
        self.extrapolation = extrapolation
        self.uncertainty = uncertainty
        self.draws = draws
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.max_memory = max_memory
        self.warm_start = warm_start
        self.random_state = random_state

    def _fitted_labels(self, job: Job) -> Fitted:
        """Fit rows of one-hot fields by their posterior where that is possible."""
        before = self._learned_before(job)
        fitted = self._fitted_by_posterior(
            job.task.make_units.fields, lambda: fit_field_labels(job, self.draws, before)
        )
        return super()._fitted_labels(job) if fitted is None else fitted

    def _with_levels(self, fitted: FittedClasses, X: Any) -> tuple[FittedClasses, Any]:
        parts = [with_levels(part, X) for part in fitted.parts]
        return replace(fitted, parts=tuple(part for part, _ in parts)), parts[0][1]
