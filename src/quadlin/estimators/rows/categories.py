"""Which columns of X are categories, as the user declares, and levels that fit did not see."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.messages import warn
from quadlin.data import Source
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.levels import Unseen
from quadlin.data.columns.names import did_you_mean, shortened


def declared_columns(given: Any, X: Any) -> list[Any] | None:
    """Return the names of the columns that are declared as categories; None where none may be.

    Parameters
    ----------
    given : "from_dtype", None, list of str, list of int or mask
        The parameter `categorical_features`.
    X : frame, array or Dask collection
        Rows. Columns of an array are called x0, x1, …

    Returns
    -------
    list of names, or None for ``categorical_features=None``
    """
    if given is None:
        return None
    if isinstance(given, str) or len(given) == 0:
        return []
    names, named = _column_names(X, "categorical_features")
    return [names[j] for j in _positions(list(given), names, named)]


def _column_names(X: Any, option: str) -> tuple[list[Any], bool]:
    """Return the names of the columns, x0, x1, … for an array, and whether they are X's own."""
    named = getattr(X, "column_names", getattr(X, "columns", None))
    if named is None and (issparse(X) or not isinstance(X, np.ndarray | list)):
        raise ValueError(
            f"{option} needs a frame or a NumPy array, but X is a {type(X).__name__}. "
            "Encode the categories as 0/1 columns beforehand, or leave the option out."
        )
    d = len(named) if named is not None else np.asarray(X, dtype=object).shape[-1]
    names = [f"x{j}" for j in range(d)] if named is None else list(named)
    return names, named is not None


def _positions(
    given: list[Any], names: list[Any], named: bool, option: str = "categorical_features"
) -> list[int]:
    """Return the positions of the columns that are declared."""
    d = len(names)
    if all(isinstance(item, bool | np.bool_) for item in given):
        if len(given) != d:
            raise ValueError(
                f"{option} has {len(given)} booleans, but X has {d} columns. Give one per column."
            )
        return [j for j, declared in enumerate(given) if declared]
    if all(isinstance(item, str) for item in given):
        if not named:
            raise ValueError(
                f"{option} lists names, but X is an array, whose columns have no names. Give "
                "positions, or pass a frame."
            )
        if gone := [name for name in given if name not in names]:
            raise ValueError(
                f"X has no column {gone[0]!r} of {option}; it has {shortened(names)}."
                + did_you_mean(gone[0], names)
            )
        return [names.index(name) for name in given]
    if wrong := [item for item in given if isinstance(item, str) or not 0 <= item < d]:
        raise ValueError(
            f"{option} has {wrong[0]!r}, but the columns of X are numbered from 0 to "
            f"{d - 1}. Give names, or positions, or one boolean per column."
        )
    return [int(item) for item in given]


def learned_encoder(estimator: Any, X: Any) -> TableEncoder | None:
    """Learn the levels of categorical columns as the estimator's options say."""
    declared = declared_columns(estimator.categorical_features, X)
    encoder = TableEncoder.learn(X, declared or (), estimator.missing)
    if encoder is not None and declared is None:
        text = next(iter(encoder.text))
        raise ValueError(
            f"Column {text!r} holds text, but categorical_features=None treats all columns as "
            'numbers. Use categorical_features="from_dtype", or drop the column.'
        )
    return encoder


def refuse_undeclared(estimator: Any, source: Source) -> None:
    """Refuse a source that was opened without the categories that are declared."""
    given = estimator.categorical_features
    if given is None or isinstance(given, str):
        return
    encoder = source.encoder
    levels = {} if encoder is None else dict(zip(encoder.input_names, encoder.levels, strict=True))
    names = list(source.names) if encoder is None else list(encoder.input_names)
    declared = [names[j] for j in _positions(list(given), names, named=True)]
    if numbers := [name for name in declared if levels.get(name) is None]:
        raise ValueError(
            f"The source reads {shortened(numbers)} as numbers. Open it with "
            f"open_source(..., categorical_features={numbers!r})."
        )


def warn_unseen(unseen: Unseen, learns: bool = False) -> None:
    """Warn of levels that the encoder does not know; if the model `learns`, say how it could."""
    sentences = []
    if unseen.missing:
        counts = _counted(unseen.missing)
        sentences.append(
            f"Missing values of columns that had none in fit count as an average level; {counts}."
        )
    if len(unseen):
        counts = _counted(unseen)
        sentences.append(f"Levels that fit did not see are treated as an average level; {counts}.")
    if unseen.all_new:
        name = unseen.all_new[0]
        sentences.append(f"No value of {name!r} occurred in fit: are they written differently?")
    advice = (
        " To learn them from a stream, name all levels when it begins: partial_fit("
        "open_source(frame, target=..., levels={column: [...]})), and open later rows with "
        "encoder=model.encoder_."
    )
    text = " ".join(sentences)
    warn("{text}{advice}".format(text=text, advice=advice if learns and len(unseen) else ""))


def _counted(rows: Mapping[str, int]) -> str:
    return "rows: " + ", ".join(f"{count} in {name!r}" for name, count in rows.items())
