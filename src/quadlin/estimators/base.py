"""What all estimators of the model share: fitted attributes in the user's units, explanations."""

from collections.abc import Iterator
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import Array, namespace, unflagged
from quadlin.core.chunks import Chunk
from quadlin.core.losses import loss_named
from quadlin.core.messages import each_warning_once, warn
from quadlin.core.moments import Moments
from quadlin.core.rows import Rows
from quadlin.data.columns import TableEncoder
from quadlin.data.names import Name
from quadlin.estimators.checks import is_auto
from quadlin.estimators.columns import chunks_to_predict, opened
from quadlin.estimators.fitted import Fitted, require_law, seed_of
from quadlin.exceptions import ExtrapolationWarning
from quadlin.explain.diagnosis import diagnose
from quadlin.explain.effects import (
    Contributions,
    Decomposition,
    Effects,
    contributions_of,
    effects_of,
    whole_columns,
)
from quadlin.explain.interactions import Interactions, PairReport
from quadlin.explain.summary import ModelSummary, report_page, summary_of
from quadlin.files.atomic import atomic_write
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.lowrank.types import Record, Status


class SecondOrderModel(BaseEstimator):
    """A fitted estimator: its attributes, and explanations of its model and of rows."""

    fitted_: Fitted  # everything that was learned; tools such as `save` read it
    n_features_in_: int
    loss: str
    categorical_features: Any
    missing: str
    extrapolation: str
    takes_ids = False  # whether whole numbers are categories

    def interaction(self, first: Name, second: Name) -> float:
        """Return the coefficient of x_i·x_j in y.

        It is 2 M_ij for two features and M_ii for a square, as in ``interactions_.top()``. O(k).

        Parameters
        ----------
        first, second : str or int
            The features, by name or by position.

        Returns
        -------
        float

        Examples
        --------
        >>> import numpy as np
        >>> from quadlin import SecondOrderRegressor
        >>> X = np.random.default_rng(0).standard_normal((200, 3))
        >>> model = SecondOrderRegressor(uncertainty=True).fit(X, 3 * X[:, 0] * X[:, 2] + X[:, 1])
        >>> round(model.interaction("x0", "x2"), 6), round(model.interaction_std(0, 2), 6)
        (3.0, 0.0)
        """
        return self.interactions_[first, second]

    def interaction_std(self, first: Name, second: Name) -> float:
        """Return the standard error of `interaction`.

        Needs ``uncertainty=True``, except for the pairs of `pairs_`.

        Parameters
        ----------
        first, second : str or int
            The features, by name or by position.

        Returns
        -------
        float
        """
        error = self.interactions_.std_error(first, second)
        if error is None:
            self._law()  # raises an error that says how to have it
        assert error is not None
        return error

    @property
    def coef_std_(self) -> Array:
        """The standard errors of `coef_`. Needs ``uncertainty=True``."""
        return self._law().coef_std()[0]

    @property
    def intercept_std_(self) -> float:
        """The standard error of `intercept_`. Needs ``uncertainty=True``."""
        return self._law().coef_std()[1]

    @property
    def coef_(self) -> Array:
        """w in the user's units, one entry per feature of `interactions_.names`."""
        return self._fitted("coef_").state.raw.coef

    @property
    def intercept_(self) -> float:
        """b in the user's units."""
        fitted = self._fitted("intercept_")
        return fitted.state.raw.intercept if fitted.options.fit_intercept else 0.0

    @property
    def components_(self) -> Array:
        """The components of L, as rows."""
        return self._fitted("components_").state.raw_low_rank.components

    @property
    def eigenvalues_(self) -> Array:
        """The signed eigenvalues of L, in order of decreasing size."""
        return self._fitted("eigenvalues_").state.raw_low_rank.eigenvalues

    @property
    def has_diagonal_(self) -> Array:
        """Which squares are in the model: the diagonal entries of M."""
        return self._fitted("has_diagonal_").state.units.free > 0

    @property
    def moments_(self) -> Moments:
        """The moments of the features."""
        return self._fitted("moments_").state.features

    @property
    def target_moments_(self) -> Moments:
        """The moments of the target, as of one feature."""
        return self._fitted("target_moments_").state.target

    @property
    def rank_(self) -> int:
        """The fitted rank of the low-rank part."""
        return int(self._fitted("rank_").state.low_rank.s.shape[0])

    @property
    def pairs_(self) -> PairReport | None:
        """The single pairs in the model, with standard errors and tests; None without a search."""
        return self._fitted("pairs_").pair_report

    @property
    def alpha_(self) -> tuple[float, float]:
        """The penalties of w and of M, given or chosen."""
        return self._fitted("alpha_").options.alpha

    @property
    def history_(self) -> tuple[Record, ...]:
        """The loss after each step."""
        return self._fitted("history_").state.history

    @property
    def status_(self) -> Status:
        """How the fit ended; its value is advice."""
        return self._fitted("status_").state.status

    @property
    def n_iter_(self) -> int:
        """The number of steps."""
        return max(1, self._fitted("n_iter_").state.history[-1].step)

    @property
    def n_samples_seen_(self) -> int:
        """The number of rows that were learned from."""
        return self._fitted("n_samples_seen_").n_rows

    @property
    def interactions_(self) -> Interactions:
        """Coefficients of products: ``interactions_["a", "b"]``, ``interactions_.top(10)``."""
        return self._fitted("interactions_").interactions

    @property
    def encoder_(self) -> TableEncoder | None:
        """The encoder of the text columns; None if there are none."""
        return self._fitted("encoder_").columns.encoder

    @property
    def fill_(self) -> dict[str, float] | None:
        """What replaces missing numbers, by column; None if nothing was filled."""
        return self._fitted("fill_").columns.fill

    def __sklearn_is_fitted__(self) -> bool:
        return "fitted_" in vars(self)

    def _fitted(self, attribute: str) -> Fitted:
        if not self.__sklearn_is_fitted__():
            # An AttributeError too, so that hasattr() is False.
            raise NotFittedError(
                f"This {type(self).__name__} has no {attribute} before `fit` or `partial_fit`."
            )
        return self.fitted_

    def _law(self) -> Uncertainty:
        return require_law(self._fitted("standard errors"), self)

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
            Rows to compute R² from; without them R² is the one of the fit, if known.
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
            Where effects are measured from: the mean of the fitted rows, zero in every column, or
            a mapping such as ``{"city": "Oslo"}``, with the mean in all other columns.

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
            columns: the Shapley values with respect to the reference.
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
                "The predictions are means over draws. They are not the sums of "
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
        blocks = (self._within_reach(chunk.X)[0] for chunk in chunks)
        return contributions_of(model, self.fitted_.state, blocks, asked, index)

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
            Without targets R² comes from the fit, and without rows so do the effects.
        target : str or None
            The name of the target; by default the name of `y`, if it has one.
        top : int, default=10
            Number of interactions and linear terms to list.

        Returns
        -------
        Path

        Notes
        -----
        Pictures need matplotlib; without it the page has a note instead.
        """
        self._require_one_model()
        with each_warning_once():
            page = report_page(self, X, y, target, top)
        with atomic_write(path) as file:
            file.write(page.encode())
        return Path(path)

    def _require_one_model(self) -> None:
        """Check that the estimator is fitted, and not with a model for each of several classes."""
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

    def extrapolates(self, X: Any) -> Array:
        """Tell which rows lie far outside the training rows, where no model should be trusted.

        Parameters
        ----------
        X : array, sparse matrix or frame (n_samples, n_features)
            Rows.

        Returns
        -------
        array of bool (n_samples,)
            Whether some feature lies more than one training range outside its training range: the
            rows whose features ``extrapolation="clip"`` limits.

        Examples
        --------
        >>> import numpy as np
        >>> from quadlin import SecondOrderRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(size=(300, 2))
        >>> y = X[:, 0] * X[:, 1] + 0.1 * rng.standard_normal(300)
        >>> model = SecondOrderRegressor(1, random_state=0).fit(X, y)
        >>> model.extrapolates([[0.5, 0.5], [0.5, 40.0]]).tolist()
        [False, True]
        """
        check_is_fitted(self)
        fitted, caller = self.fitted_.parts[0], f"{type(self).__name__}.extrapolates"
        marks = [
            fitted.reach.outside(fitted.in_model_dtype(chunk.X, caller))
            for chunk in chunks_to_predict(self, X, fitted.columns)
        ]
        return namespace(*marks).concat(marks)

    @unflagged
    def diagnose(self, X: Any = None, y: Any = None) -> str:
        """Describe the fit, and suggest what to change.

        Parameters
        ----------
        X, y : rows and targets, or None
            With rows the text also compares their error with the leave-one-out error (up to 1,500
            parameters), and names rows that account for most of the error and columns that look
            like ids, and suggests a larger rank if the residual shows one: about ten passes.

        Returns
        -------
        str
            Lines on status, features, dependences, rows, outliers, errors, rank, and ids.

        Examples
        --------
        >>> import numpy as np
        >>> from quadlin import SecondOrderRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((300, 3))
        >>> y = X[:, 0] * X[:, 1] + 0.1 * rng.standard_normal(300)
        >>> print(SecondOrderRegressor(2, alpha=0, random_state=0).fit(X, y).diagnose())
        status: converged. A step no longer lowers the objective by more than the fraction `tol`.
        features: all vary, and their squares differ from linear terms.
        rows: 300 for 9 parameters, 33.3 each.
        rank: all 2 components stand out from the noise.
        """
        check_is_fitted(self)
        rows = None
        if X is not None:
            source, _ = opened(self, X, y, None, self.fitted_.columns)
            rows = Rows.of(source)
        chooses = hasattr(self, "cv_results_") or is_auto(self.alpha)
        return diagnose(self, rows, chooses, seed_of(self))

    def adopt(self, fitted: Any) -> None:
        """Become the estimator that has learned this: for `load` and cross-validation."""
        attributes = fitted.attributes()  # first: Ctrl-C leaves the earlier model or this one
        for name, value in attributes.items():
            setattr(self, name, value)
        if "feature_names_in_" in vars(self) and "feature_names_in_" not in attributes:
            delattr(self, "feature_names_in_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.positive_only = loss_named(self.loss).nonnegative
        tags.input_tags.allow_nan = self.missing == "mean"
        tags.array_api_support = True
        return tags

    def _within_reach(self, X: Array) -> tuple[Array, int]:
        """Return rows as they are predicted, and how many of them lie far outside.

        This is the one place where `extrapolation` acts.
        """
        return self.fitted_.parts[0].reach.clipped(X) if self.extrapolation == "clip" else (X, 0)

    def _chunks(self, X: Any, method: str) -> Iterator[tuple[Chunk, Array]]:
        """Yield rows chunk by chunk: the chunk, and its rows as they are predicted.

        `method` is named in errors. At the end there is a warning of rows far outside.
        """
        check_is_fitted(self)
        fitted, outside = self.fitted_.parts[0], 0
        for chunk in chunks_to_predict(self, X, fitted.columns):
            rows = fitted.in_model_dtype(chunk.X, f"{type(self).__name__}.{method}")
            inside, changed = self._within_reach(rows)
            outside += changed
            yield chunk, inside
        if outside:
            warn(
                f"{outside} {'row lies' if outside == 1 else 'rows lie'} far outside the range of "
                "the training rows; predict limits their features. `extrapolates` shows which "
                'rows, and a model fitted with extrapolation="free" predicts them without limits.',
                ExtrapolationWarning,
            )
