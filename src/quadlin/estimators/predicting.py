"""Predictions of a fitted estimator, and where they should not be trusted."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import Array, namespace
from quadlin.core.chunks import Chunk
from quadlin.core.messages import Message, Option, warn
from quadlin.core.rows import Rows
from quadlin.data import Source, is_dask
from quadlin.data.dask_collections import lazily
from quadlin.estimators.columns import blocks_to_predict, warn_unseen
from quadlin.estimators.explaining import Explaining


class Predicting(Explaining):
    """The predictions of a fitted estimator."""

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Predict the targets of some rows.

        Parameters
        ----------
        X : array, sparse matrix, frame, Dask collection or Source (n_samples, n_features)
            Rows. Those of a Source are never in memory together.
            The answer to a Dask collection is a Dask array, which is computed when it is needed.
        return_std : bool, default=False
            Whether to return the standard deviation of a new observation as well, noise
            included: ±1.96 of them are a 95% interval if the noise is equal in all rows and has
            no heavy tails (or with ``loss="huber"``). Counts (``loss="poisson"``) vary by the root
            of their mean. Needs ``uncertainty=True``, or draws.

        Returns
        -------
        array (n_samples,), or a pair of them
        """
        check_is_fitted(self)
        fitted = self.fitted_
        if return_std:
            self._require_spread()
        if is_dask(X):
            fitted.columns.check_names(X)
            return lazily(self.predict, X, np.dtype(fitted.state.units.scale.dtype), return_std)
        xp = namespace(fitted.state.model.U)
        y, std = [], []
        for rows, inside in self._blocks(X, "predict"):
            y.append(fitted.predict_mean(inside))
            if return_std:
                std.append(fitted.predict_std(rows))
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
        """
        check_is_fitted(self)
        if return_std:
            self._require_spread()
        for chunk, rows, inside in self._chunks(source):
            y = self.fitted_.predict_mean(inside)
            yield chunk, y, self.fitted_.predict_std(rows) if return_std else None

    def extrapolates(self, X: Any) -> Array:
        """Tell which rows lie far outside the training rows, where no model should be trusted.

        Parameters
        ----------
        X : array, sparse matrix or frame (n_samples, n_features)
            Rows.

        Returns
        -------
        array of bool (n_samples,)
            Whether some feature is further from its training range than that range is wide: less
            with fewer than 20 rows per parameter, and ten times as far for a linear model. Those
            are the rows that ``extrapolation="clip"`` changes before it predicts them, unless the
            model is exact.
        """
        check_is_fitted(self)
        fitted, marks = self.fitted_, []
        for X_block in blocks_to_predict(self, X, fitted.columns):
            block = fitted.at_home(X_block, f"{type(self).__name__}.extrapolates")
            marks.append(fitted.outside(block))
        return namespace(marks[0]).concat(marks)

    def _blocks(self, X: Any, method: str) -> Iterator[tuple[Array, Array]]:
        """Yield rows block by block, as they are and as they are predicted.

        `method` is named in errors. At the end there is a warning of rows far outside.
        """
        check_is_fitted(self)
        fitted, outside = self.fitted_, 0
        for block in blocks_to_predict(self, X, fitted.columns):
            rows = fitted.at_home(block, f"{type(self).__name__}.{method}")
            inside, changed = self._trusted(rows)
            outside += changed
            yield rows, inside
        _warn_outside(outside)

    def _chunks(self, source: Source) -> Iterator[tuple[Chunk, Array, Array]]:
        """Yield the rows of a source chunk by chunk, as they are and as they are predicted."""
        check_is_fitted(self)
        fitted, outside = self.fitted_, 0
        fitted.columns.check_source(source)
        for chunk in Rows.of(source).walk():
            rows = fitted.at_home(chunk.X, f"{type(self).__name__}.predict")
            inside, changed = self._trusted(rows)
            outside += changed
            yield chunk, rows, inside
        _warn_outside(outside)
        if source.unseen:
            warn_unseen(source.unseen)


def _warn_outside(count: int) -> None:
    """Warn of rows that lie far outside the training rows, if there are any."""
    if count:
        warn(
            Message(
                "{count} {rows} far outside the range of the training rows; the features in "
                "question are held nearer to it. `extrapolates` tells which rows are held, and "
                "{free} predicts them as they are.",
                count=count,
                rows="row lies" if count == 1 else "rows lie",
                free=Option("extrapolation", "free"),
            )
        )
