"""What export needs of a fitted estimator, and the only place that takes it out or puts it in."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from quadlin.data.encoder import TableEncoder
from quadlin.solve.fit_state import Learned
from quadlin.solve.uncertainty import Uncertainty
from quadlin.stream.stream import Stream


@dataclass(frozen=True)
class FittedParts:
    """What a fitted estimator knows beside its parameters and scikit-learn's attributes."""

    stream: Stream
    encoder: TableEncoder | None
    fields: tuple[np.ndarray, ...]  # the positions of the features of each one-hot group
    fill: dict[str, float] | None  # what stands for missing numbers, by column
    uncertainty: Uncertainty | None

    @property
    def current(self) -> Learned:
        """Return the model that predicts, with its units, moments and history."""
        return self.stream.current


def parts_of(estimator: Any) -> FittedParts:
    """Return the parts of a fitted estimator."""
    return FittedParts(
        estimator._fitted,
        estimator.encoder_,
        estimator._fields,
        estimator.fill_,
        estimator._law,
    )


def set_parts(estimator: Any, parts: FittedParts) -> None:
    """Make an estimator a fitted one."""
    estimator._fitted, estimator._law = parts.stream, parts.uncertainty
    estimator._encoder, estimator._fields = parts.encoder, parts.fields
    estimator._fill = parts.fill


def feature_names(estimator: Any, encoder: TableEncoder | None) -> list[str]:
    """Return the names of the features, those of encoded columns included."""
    if encoder is not None:
        return list(encoder.names)
    names = getattr(estimator, "feature_names_in_", None)
    return [f"x{j}" for j in range(estimator.n_features_in_)] if names is None else list(names)


def number_columns(names: list[str], encoder: TableEncoder | None) -> list[str]:
    """Return the names of the columns that hold numbers, in order."""
    if encoder is None:
        return names
    pairs = zip(encoder.input_names, encoder.levels, strict=True)
    return [name for name, levels in pairs if levels is None]
