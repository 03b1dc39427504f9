"""Factorization machines for labels: no squares, and levels of fields by their posterior."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from quadlin.core.chunks import MemorySource
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.data.names import Name
from quadlin.estimators.field_fit import NOT_A_STREAM, NOT_FIELDS, check_draws, has_posterior
from quadlin.estimators.field_labels import fit_field_labels
from quadlin.estimators.fitted import Fitted
from quadlin.estimators.fitting import Task
from quadlin.estimators.logistic_model import LogisticModel
from quadlin.estimators.recommending import RecommendingLabels
from quadlin.solve.fit_state import FitState


class FactorizationMachineClassifier(RecommendingLabels, LogisticModel):
    r"""Factorization machine for labels: log-odds without squares.

    .. math:: \log \frac{P(y = 1 \mid x)}{P(y = 0 \mid x)} = b + x^\top w
              + \sum_{i < j} 2 \langle v_i, v_j \rangle_s\, x_i x_j

    The same as :class:`SecondOrderClassifier` with ``diagonal="zero"``.

    Parameters
    ----------
    rank, alpha, class_weight, fields, categorical_features, multi_hot, missing, pairs, \
    hierarchy, fit_linear, fit_intercept, psd, whiten, max_iter, tol, batch_size, \
    max_memory, extrapolation, uncertainty, warm_start, random_state
        As for :class:`SecondOrderClassifier`; for rows of one-hot fields see the notes.
    draws : int or None, default=None
        With a number, `fit` draws so many machines from their posterior by Gibbs sampling, and
        predictions come from the means of their log-odds. It needs rows of one-hot fields, as in
        the notes, and ``alpha="auto"``.

    Attributes
    ----------
    classes_ : array (n_classes,)
        The labels, sorted. All others as for :class:`SecondOrderClassifier`.

    Notes
    -----
    Rows in memory, or of a Source that takes up to 1 GB there, with at least two one-hot fields, in
    which every other column is a function of the level of one of them, are fitted by variational
    inference if ``alpha="auto"``, as by :class:`FactorizationMachineRegressor`: once to the labels
    as numbers, and once more to the least squares that the logistic loss is about these log-odds.
    It takes the time of two such fits, far less than Newton steps with penalties chosen on rows
    held out.

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

    diagonal = "zero"  # not a parameter
    couples = False  # fits of levels by their posterior cannot be repeated with penalties given

    def __init__(
        self,
        rank: int | str = "auto",
        *,
        alpha: float | tuple[float, float] | str = "auto",
        class_weight: Mapping[Any, float] | str | None = None,
        fields: str | Sequence[Sequence[Name]] | None = "auto",
        categorical_features: str | Sequence[Name] | Sequence[bool] | None = "from_dtype",
        multi_hot: Sequence[Name] | Mapping[Name, str] | None = None,
        missing: str = "error",
        pairs: str | int | Sequence[tuple[Name, Name]] | None = "auto",
        hierarchy: str | None = None,
        fit_linear: bool = True,
        fit_intercept: bool = True,
        psd: bool = False,
        whiten: str = "auto",
        max_iter: int = 50,
        tol: float = 1e-6,
        batch_size: int | str = "auto",
        max_memory: int | str = "auto",
        extrapolation: str = "clip",
        uncertainty: bool | str = False,
        draws: int | None = None,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.alpha = alpha
        self.class_weight = class_weight
        self.fields = fields
        self.categorical_features = categorical_features
        self.multi_hot = multi_hot
        self.missing = missing
        self.pairs = pairs
        self.hierarchy = hierarchy
        self.fit_linear = fit_linear
        self.fit_intercept = fit_intercept
        self.psd = psd
        self.whiten = whiten
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.max_memory = max_memory
        self.extrapolation = extrapolation
        self.uncertainty = uncertainty
        self.draws = draws
        self.warm_start = warm_start
        self.random_state = random_state

    def _fitted_labels(
        self,
        task: Task,
        rows: Rows,
        source: MemorySource | Source,
        warm: FitState | None,
        on_step: Any,
    ) -> Fitted:
        """Fit rows of one-hot fields by their posterior where that is possible."""
        if self.draws is not None:
            check_draws(self)
        if self.draws is not None or has_posterior(self):
            fitted = fit_field_labels(task, rows, source, self.draws, on_step)
            if fitted is not None:
                return fitted
            if self.draws is not None:
                raise ValueError(NOT_FIELDS)
        return super()._fitted_labels(task, rows, source, warm, on_step)

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        sample_weight: Any = None,
        *,
        checkpoint: Any = None,
    ) -> Self:
        """Learn from rows that are seen once; see :meth:`SecondOrderClassifier.partial_fit`."""
        if self.draws is not None:
            raise ValueError(NOT_A_STREAM)
        return super().partial_fit(X, y, classes, sample_weight, checkpoint=checkpoint)
