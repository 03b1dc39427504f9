"""What a classifier has learned: the log-odds of each class, and what they say together."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from quadlin.core.arrays import Array, is_numpy, namespace, to_numpy
from quadlin.core.rows import Rows
from quadlin.estimators.regression.fitted import Fitted, Reach
from quadlin.estimators.rows.columns import Columns
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.labels.class_probabilities import (
    log_odds_of,
    log_probabilities,
    probabilities,
)
from quadlin.solve.lowrank.types import Status


@dataclass(frozen=True)
class FittedClasses:
    """One fit for two classes, else one for each class against all others.

    If the scores of all classes were fitted together as well, the probabilities are theirs.
    """

    classes: np.ndarray
    parts: tuple[Fitted, ...]
    coupling: float = 0.0  # θ
    joint: tuple[Fitted, ...] = ()  # scores of all classes, where they were fitted together
    label: Any = None  # the class whose log-odds these are, where others are the rest

    @property
    def columns(self) -> Columns:
        """Return the columns, which all parts share."""
        return self.parts[0].columns

    @property
    def status(self) -> Status:
        """Return how the fit ended: interrupted, or of several the first that did not converge."""
        states = [part.state.status for part in self.parts]
        if Status.interrupted in states:
            return Status.interrupted
        return next((s for s in states if s is not Status.converged), Status.converged)

    @property
    def is_begun(self) -> bool:
        """Tell whether there is a model of any class, and not constants of an interrupted fit."""
        return any(part.is_begun for part in self.parts)

    def interrupted(self) -> "FittedClasses":
        """Return the same with the status of a fit that was interrupted."""
        return replace(self, parts=(self.parts[0].interrupted(), *self.parts[1:]))

    @property
    def passes(self) -> int:
        """Return the number of passes: the last fit also counts the passes before it."""
        return self.parts[-1].state.history[-1].passes

    def with_passes(self, rows: Rows) -> "FittedClasses":
        """Return the same with all passes over the rows counted, also those of a joint fit."""
        return replace(self, parts=(*self.parts[:-1], self.parts[-1].with_passes(rows)))

    @property
    def last(self) -> Fitted:
        """Return the part that took the most steps."""
        return max(self.parts, key=lambda part: part.state.history[-1].step)

    @property
    def reach(self) -> Reach:
        """Return how far beyond the training rows features are followed."""
        return self.parts[0].reach

    @property
    def state(self) -> FitState:
        """Return the state of the part that took the most steps."""
        return self.last.state

    @property
    def fill(self) -> dict[str, float]:
        """Return what replaces missing numbers, by column, which all parts share."""
        return self.parts[0].fill

    def in_model_dtype(self, X: Array, caller: str) -> Array:
        """Return rows in the dtype of the model; refuse those of another namespace or device."""
        return self.parts[0].in_model_dtype(X, caller)

    def log_odds(self, X: Array) -> Array:
        """Return the log-odds of rows as `in_model_dtype` returns them, (n,) or (n, K)."""
        f = [part.predict(X) for part in self.joint or self.parts]
        if len(f) == 1:
            return f[0]
        F = namespace(X).stack(f, axis=1)
        return log_odds_of(F) if self.joint else F

    def log_odds_error(self, X: Array, absent: csr_array | None = None) -> Array:
        """Return the standard errors of `log_odds`; `absent` are the values that were missing."""
        xp, errors = namespace(X), []
        for part in self.parts:
            error, gap = part.predict_error(X), part.missing_variance(X, absent)
            errors.append(error if gap is None else xp.sqrt(error**2 + gap))
        return errors[0] if len(errors) == 1 else namespace(X).stack(errors, axis=1)

    def probabilities(self, f: Array) -> Array:
        """Return the probabilities of all classes for log-odds."""
        return probabilities(f, self.coupling)

    def log_probabilities(self, f: Array) -> Array:
        """Return the logarithms of `probabilities`."""
        return log_probabilities(f, self.coupling)

    def labels(self, f: Array) -> Array:
        """Return the most probable label for log-odds."""
        xp = namespace(f)
        codes = xp.astype(f > 0, xp.int64) if f.ndim == 1 else xp.argmax(f, axis=1)
        if is_numpy(f) or self.classes.dtype.kind not in "iufb":
            return self.classes[to_numpy(codes)]
        return xp.take(xp.asarray(self.classes, device=f.device), codes)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that make a classifier a fitted one."""
        named = self.parts[0].attributes()
        if len(self.parts) > 1:
            named["fitted_"] = self
        if self.label is not None:
            named["label_"] = self.label
        return {**named, "classes_": self.classes}
