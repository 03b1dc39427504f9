"""What a fitted estimator says about its model: summary, effects, contributions, a page."""

from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

from sklearn.utils.validation import check_is_fitted

from quadlin.core.messages import each_warning_once
from quadlin.estimators.regression.attributes import FittedAttributes
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.rows.columns import chunks_to_predict
from quadlin.explain.decomposition import Decomposition, whole_columns
from quadlin.explain.effects import Contributions, Effects, contributions_of, effects_of
from quadlin.explain.page import report_page
from quadlin.explain.summary import ModelSummary, summary_of
from quadlin.files.atomic import atomic_write


class Explaining(FittedAttributes):
    """What a fitted estimator says about its model."""

    def summary(
        self,
        X: Any = None,
        y: Any = None,
        sample_weight: Any = None,
        *,
        top: int | None = None,
        level: float = 0.95,
    ) -> ModelSummary:
        """Summarise the model: estimates with standard errors, t, p and intervals, and the fit.

        The estimate of a pair is the coefficient of x_i·x_j in y; the coefficients of levels of a
        text column are differences from their mean over the fitted rows.

        Parameters
        ----------
        X, y, sample_weight : rows, targets and weights, or None
            Rows to compute R² from; without them it is that of the fitted rows, if known.
        top : int or None, default=None
            Number of pairs to list and of linear terms to print, the strongest first; pairs include
            squares. None lists 10 pairs and prints 25 linear terms.
        level : float, default=0.95
            Probability of the intervals.

        Returns
        -------
        ModelSummary
            Printing it shows a table; `to_frame` returns it as a frame. Standard errors need
            ``uncertainty=True``.

        Notes
        -----
        Cost: O(kd) without standard errors, O(kdm) with them, where m is the number of
        parameters or draws, and one pass over X if it is given.

        Examples
        --------
        >>> from quadlin import SecondOrderRegressor
        >>> from quadlin.datasets import make_second_order
        >>> data = make_second_order(300, 3, rank=1, noise=0.5, random_state=0)
        >>> model = SecondOrderRegressor(1, uncertainty=True, random_state=0).fit(data.X, data.y)
        >>> model.summary(top=2).to_frame()["term"].tolist()
        ['intercept', 'x2', 'x1', 'x0', 'x0²', 'x0 × x1']
        """
        self._require_one_model()
        return summary_of(self, (X, y, sample_weight), top, level)

    def effects(self, X: Any = None, *, reference: Any = "mean") -> Effects:
        """Measure how much each column, and each pair of columns, moves the prediction.

        The strength is the standard deviation, over rows, of what the column or the pair
        contributes: one number for a text column with all its levels, in units of y.

        Parameters
        ----------
        X : rows or None
            The rows for the standard deviations. Without them they refer to rows that are
            distributed like the fitted ones, but with independent columns.
        reference : "mean", "zero" or mapping, default="mean"
            As for `contributions`; effects of levels are measured from there.

        Returns
        -------
        Effects

        Notes
        -----
        Cost: O(n·columns·(k + columns)), one pass over X; memory O(columns²).

        Examples
        --------
        >>> import numpy as np
        >>> from quadlin import SecondOrderRegressor
        >>> X = np.random.default_rng(0).standard_normal((500, 3))
        >>> model = SecondOrderRegressor(2, alpha=0.0, random_state=0)
        >>> effects = model.fit(X, X[:, 0] + 3 * X[:, 1] * X[:, 2]).effects(X)
        >>> effects.pairs[0].first, effects.pairs[0].second
        ('x1', 'x2')
        >>> bool(abs(effects.pairs[0].strength - np.std(3 * X[:, 1] * X[:, 2])) < 0.1)
        True
        """
        self._require_one_model()
        chunks = () if X is None else chunks_to_predict(self, X, self.fitted_.columns)
        blocks = None if X is None else (chunk.X for chunk in chunks)
        model = self.decomposition(reference)
        return effects_of(model, self.fitted_.state, blocks)

    def contributions(
        self, X: Any, *, pairs: bool | int = True, reference: Any = "mean"
    ) -> Contributions:
        """Compute what the baseline, each column and each pair of columns add to each prediction.

        They sum to the prediction. The levels of a text column are one column.

        Parameters
        ----------
        X : array, sparse matrix, frame or Source (n_samples, n_features)
            Rows.
        pairs : bool or int, default=True
            True lists all pairs of columns. A number lists that many, the strongest by `effects`,
            and sums the others as "other pairs". False adds half of each pair to each of its
            columns, which gives the Shapley values with respect to the reference.
        reference : "mean", "zero" or mapping, default="mean"
            Where contributions are measured from. "mean": the mean of the fitted rows, so that a
            level of a text column is compared with the average level. "zero": zero in every column,
            so that the baseline is ``intercept_``. A mapping such as ``{"city": "Oslo"}``: those
            values, and the mean in all other columns.

        Returns
        -------
        Contributions
            `baseline`, `columns` and `pairs` as arrays; `to_frame` returns all in one frame.

        Raises
        ------
        ValueError
            If the predictions are means over draws, or if there are too many pairs to keep.

        Notes
        -----
        Cost per row: O(kd) for the columns, and O(k) for each pair. Contributions are
        computed in float64; they sum to the predictions up to the rounding of the model's dtype.

        Examples
        --------
        >>> import numpy as np
        >>> from quadlin import SecondOrderRegressor
        >>> X = np.random.default_rng(0).standard_normal((500, 3))
        >>> model = SecondOrderRegressor(2, random_state=0).fit(X, X[:, 0] + X[:, 1] * X[:, 2])
        >>> parts = model.contributions(X)
        >>> parts.names
        ['baseline', 'x0', 'x1', 'x2', 'x0 × x1', 'x0 × x2', 'x1 × x2']
        >>> bool(np.allclose(parts.prediction, model.predict(X)))
        True
        """
        self._require_one_model()
        if self.fitted_.draws is not None:
            raise ValueError(
                "The model predicts the mean over its draws, which is not the sum of "
                "contributions of any single model. "
                "Fit with draws=None for contributions."
            )
        whole = isinstance(pairs, Integral) and pairs >= 0
        if not whole:
            raise ValueError(f"pairs={pairs!r} must be True, False or a whole number ≥ 0.")
        model = self.decomposition(reference)
        asked = bool(pairs) if isinstance(pairs, bool) else int(pairs)
        index = getattr(X, "index", None) if hasattr(X, "columns") else None
        chunks = chunks_to_predict(self, X, self.fitted_.columns)
        blocks = (self._trusted(chunk.X)[0] for chunk in chunks)
        bounds = self.fitted_.trust.predictions if self.extrapolation == "clip" else None
        return contributions_of(model, self.fitted_.state, blocks, asked, index, bounds)

    def report(
        self,
        path: str | PathLike[str],
        X: Any = None,
        y: Any = None,
        *,
        target: str | None = None,
        top: int = 10,
    ) -> Path:
        """Write a self-contained HTML page that describes the model, with pictures.

        Parameters
        ----------
        path : path
            Where to write it; an existing file is replaced.
        X, y : rows and targets, or None
            Rows to compute R² and effects from, preferably rows that the model has not seen.
            Without targets R², and without rows the effects as well, are those of the fit.
        target : str or None
            The name of the target; by default the name of `y`, if it has one.
        top : int, default=10
            Number of interactions and linear terms to list.

        Returns
        -------
        Path

        Notes
        -----
        Pictures need matplotlib; without it the page has none and says so.
        """
        self._require_one_model()
        with each_warning_once():
            page = report_page(self, X, y, target, top)
        with atomic_write(path) as file:
            file.write(page.encode())
        return Path(path)

    def _require_one_model(self) -> None:
        """Refuse an estimator before `fit`, and one with a model for each of several classes."""
        check_is_fitted(self)
        if not isinstance(self.fitted_, Fitted):
            raise ValueError(
                "There is one model per class, and this method describes a single model. Call it "
                "on one_vs_rest(label), the classifier of one class against the others."
            )

    def decomposition(self, reference: Any = "mean") -> Decomposition:
        """Return the model taken apart into columns, for tools such as displays."""
        self._require_one_model()
        fitted = self.fitted_
        columns = whole_columns(fitted.names, fitted.fields, fitted.columns.encoder)
        return Decomposition.of(fitted.state, columns).measured_from(reference)
