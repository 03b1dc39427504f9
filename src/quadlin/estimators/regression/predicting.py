"""Predictions of a fitted estimator, their scores, and where they should not be trusted."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from scipy.special import xlogy
from scipy.stats import nbinom
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.messages import warn
from quadlin.core.moments import Moments
from quadlin.data import Source, is_dask
from quadlin.data.opening.dask_collections import lazily, lazily_with_std
from quadlin.estimators.regression.explaining import Explaining
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.rows.columns import NO_TARGET, as_source, chunks_to_predict
from quadlin.solve.fits.uncertainty import NORMAL, standard_errors_of


class Predicting(Explaining):
    """The predictions of a fitted estimator."""

    missing: str

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Predict targets.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows. A Source is read in chunks. For a Dask collection the result is a lazy Dask array.
        return_std : bool, default=False
            Whether to also return the standard deviation of a new observation, including noise, if
            the noise is equal in all rows and has no heavy tails (or with ``loss="huber"``). A 95%
            interval is ±1.96 standard deviations with many rows, more with few: see
            `predict_interval`. For counts (``loss="poisson"``) the variance
            of the noise is the mean. What missing values could change is included, and the spread
            of levels where fit did not see that of a row: its mean square is unbiased, but with
            few levels hardly known, so that an interval covers 70% with two levels, 80% with three
            and 90% with seven, if nothing else matters. Needs ``uncertainty=True``, or draws.

        Returns
        -------
        array (n_samples,), or a pair of them
        """
        check_is_fitted(self)
        fitted = self.fitted_
        if is_dask(X):
            if return_std:
                self._require_spread()
            fitted.columns.check_names(X)
            dtype = np.dtype(fitted.state.units.scale.dtype)
            return (lazily_with_std if return_std else lazily)(self.predict, X, dtype)
        parts = ((y, std) for _, y, std in self.predict_chunks(X, return_std))  # chunks are large
        y, std = zip(*parts, strict=True)
        xp = namespace(fitted.state.model.U)
        return (xp.concat(y), xp.concat(std)) if return_std else xp.concat(y)

    def predict_chunks(
        self, source: Source, return_std: bool = False
    ) -> Iterator[tuple[Chunk, Array, Array | None]]:
        """Predict the rows of a source chunk by chunk: memory does not grow with their number.

        Parameters
        ----------
        source : Source
            Rows, opened with ``encoder=model.encoder_``.
        return_std : bool, default=False
            As for `predict`.

        Yields
        ------
        chunk, y, std
            The rows as numbers, their predictions, and standard deviations or None.

        Examples
        --------
        >>> import numpy as np
        >>> from quadlin import SecondOrderRegressor, open_source
        >>> X = np.random.default_rng(0).standard_normal((300, 2))
        >>> model = SecondOrderRegressor(1, random_state=0).fit(X, X[:, 0] * X[:, 1])
        >>> rows = open_source(X, chunk_rows=200)
        >>> [len(y) for chunk, y, std in model.predict_chunks(rows)]
        [200, 100]
        """
        check_is_fitted(self)
        if return_std:
            self._require_spread()
        limited = 0
        for chunk, rows, inside in self._chunks(source, "predict"):
            fitted, bounded = self.fitted_, self.extrapolation == "clip"
            y, filled = fitted.predict_mean(inside, bounded), self.missing == "mean"
            limited += self._n_limited(y)
            yield chunk, y, fitted.predict_std(rows, filled, bounded) if return_std else None
        self._warn_limited(limited)

    def _n_limited(self, y: Array) -> int:
        """Return how many predictions were held at a bound."""
        bounds = self.fitted_.trust.predictions if self.extrapolation == "clip" else None
        if bounds is None:
            return 0
        xp = namespace(y)
        low, high = (xp.asarray(b, dtype=y.dtype, device=y.device) for b in bounds)
        return int(xp.count_nonzero((y <= low) | (y >= high)))

    def _warn_limited(self, count: int) -> None:
        """Warn of predictions that were held at a bound, if there are any."""
        bounds = self.fitted_.trust.predictions
        if count and bounds is not None:
            warn(
                (
                    "{count} {predictions} far outside the training targets and {were} "
                    "limited to [{low:.4g}, {high:.4g}]. {A_model} fitted with "
                    'extrapolation="free" predicts them without limits.'
                ).format(
                    count=count,
                    predictions="prediction lies" if count == 1 else "predictions lie",
                    were="was" if count == 1 else "were",
                    low=bounds[0],
                    high=bounds[1],
                    A_model=A_MODEL,
                )
            )

    def extrapolates(self, X: Any) -> Array:
        """Tell which rows lie far outside the training rows, where no model should be trusted.

        Parameters
        ----------
        X : array, sparse matrix or frame (n_samples, n_features)
            Rows.

        Returns
        -------
        array of bool (n_samples,)
            Whether some feature lies more than one training range outside its training range; the
            limit is lower with fewer than 20 rows per parameter, and ten ranges for a linear model
            (except for counts). Also whether the prediction of a model with squares or products
            lies further beyond the training targets than one of their ranges for every four
            standard deviations in it. These are the rows whose features, or predictions,
            ``extrapolation="clip"`` limits, unless the model is exact.

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
        fitted, marks = self.fitted_, []
        chunks = chunks_to_predict(self, X, fitted.columns)
        for chunk in chunks:
            rows = fitted.in_model_dtype(chunk.X, f"{type(self).__name__}.extrapolates")
            marks.append(fitted.outside(rows))
        return namespace(marks[0]).concat(marks)

    def _chunks(self, X: Any, method: str) -> Iterator[tuple[Chunk, Array, Array]]:
        """Yield rows chunk by chunk: the chunk, its rows, and these as they are predicted.

        `method` is named in errors. At the end there is a warning of rows far outside.
        """
        check_is_fitted(self)
        fitted, outside = self.fitted_, 0
        chunks = chunks_to_predict(self, X, fitted.columns)
        for chunk in chunks:
            rows = fitted.in_model_dtype(chunk.X, f"{type(self).__name__}.{method}")
            inside, changed = self._trusted(rows)
            outside += changed
            yield chunk, rows, inside
        _warn_outside(outside)


def _warn_outside(count: int) -> None:
    """Warn of rows that lie far outside the training rows, if there are any."""
    if count:
        warn(
            (
                "{count} {rows} far outside the range of the training rows; predict "
                'limits their features. {A_model} fitted with extrapolation="free" '
                "predicts them without limits."
            ).format(count=count, rows="row lies" if count == 1 else "rows lie", A_model=A_MODEL)
        )


A_MODEL = "`extrapolates` shows which rows, and a model"
NO_WEIGHT = "All weights are zero, so there is no row to score."


def r2_of(predicted: Iterable[tuple[Chunk, Array, Any]]) -> float:
    """Return R² of chunks and their predictions; of a constant target 1 if exact, else 0."""
    squares, target = 0.0, None
    for chunk, f, _ in predicted:
        y = to_numpy(chunk.y).astype(np.float64)
        squares += float(chunk.weights @ (to_numpy(f) - y) ** 2)
        moments = Moments.of(y[:, None], chunk.weights)
        target = moments if target is None else target + moments
    assert target is not None  # a Source without rows is refused
    if not target.weight > 0:
        raise ValueError(NO_WEIGHT)
    if not bool(target.varies(np.float64)[0]):
        return 0.0 if squares > 0 else 1.0
    return 1 - squares / target.weight / float(target.var[0])


def d2_of(predicted: Iterable[tuple[Chunk, Array, Any]]) -> float:
    """Return D² of counts and their predicted means: 1 − deviance/deviance of their mean.

    Of a constant target it is 1 if exact, else 0.
    """
    weight = total = logs = deviance = 0.0
    for chunk, f, _ in predicted:
        y, mean = (to_numpy(a).astype(np.float64) for a in (chunk.y, f))
        if (y < 0).any():
            raise ValueError(f"Counts are ≥ 0, but the targets go down to {y.min():.4g}.")
        omega = chunk.weights
        weight, total = weight + float(omega.sum()), total + float(omega @ y)
        logs += float(omega @ xlogy(y, y))
        deviance += float(omega @ (xlogy(y, y) - xlogy(y, mean) - y + mean))
    if not weight > 0:
        raise ValueError(NO_WEIGHT)
    constant = logs - xlogy(total, total / weight)
    if constant <= 1e-12 * max(logs, total):
        return 0.0 if deviance > 1e-12 * total else 1.0
    return float(1 - deviance / constant)


def accuracy_of(
    predicted: Iterable[tuple[Chunk, Array, Array]],
    texts: tuple[str, ...] | None,
    label: Any = None,
) -> float:
    """Return the share, by weight, of chunks' labels that are predicted.

    With `texts` the targets of the chunks are positions in them. With `label` the predictions tell
    whether a row belongs to that class.
    """
    right = total = 0.0
    for chunk, _, labels in predicted:
        y = to_numpy(chunk.y)
        y = y if texts is None else np.asarray(texts)[y.astype(np.int64)]
        y = y if label is None else y == label
        right += float(chunk.weights @ (to_numpy(labels) == y))
        total += float(chunk.weights.sum())
    if not total > 0:
        raise ValueError(NO_WEIGHT)
    return right / total


def source_to_score(estimator: Any, X: Any, y: Any, weight: Any, targets: str) -> Source | None:
    """Return the Source to score, None for other rows; refuse rows without what is predicted."""
    if not isinstance(X, Source):
        if y is None:
            raise ValueError(f"score needs {targets}: give y, or a Source opened with target=.")
        return None
    check_is_fitted(estimator)
    source = as_source(X, y, weight, None)
    if not source.has_target:
        raise ValueError(NO_TARGET)
    return source


def interval(fitted: Fitted, mean: Array, std: Array, level: float) -> tuple[Array, Array]:
    """Return the ends of intervals that contain new observations with probability `level`.

    Targets are within as many standard deviations as Student's distribution says. Counts follow
    Poisson's law with an uncertain mean, which has the quantiles of a negative binomial one.
    """
    left = NORMAL if fitted.law is None else fitted.law.left  # draws include what is not certain
    reach = standard_errors_of(level, left)
    if fitted.options.loss != "poisson":
        return mean - reach * std, mean + reach * std
    mean, variance = (np.asarray(a, dtype=np.float64) for a in (mean, std**2))
    share = np.minimum(mean / variance, 1 - 1e-9)  # 1 is Poisson's law itself
    size = mean * share / (1 - share)
    low, high = (nbinom.ppf(tail, size, share) for tail in ((1 - level) / 2, (1 + level) / 2))
    return low, high
