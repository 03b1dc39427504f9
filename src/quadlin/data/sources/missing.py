"""How missing and infinite values are handled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import narwhals as nw
import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import namespace
from quadlin.core.chunks import Chunk
from quadlin.data.columns.columns import missing_in, values_of
from quadlin.data.columns.errors import SourceError
from quadlin.data.columns.levels import Unseen
from quadlin.data.sources.feeds import Piece

REMEDY = 'Use missing="drop" or missing="mean", or fill it beforehand.'


@dataclass
class Counts:
    """The counts of a pass: rows that were dropped, and unknown levels."""

    dropped: int = 0
    unseen: Unseen = field(default_factory=Unseen)

    def add(self, other: "Counts") -> None:
        """Add the counts of another pass."""
        self.dropped += other.dropped
        self.unseen.add(other.unseen)

    def clear(self) -> None:
        """Reset the counts to zero before a new pass."""
        self.dropped = 0
        self.unseen.clear()


@dataclass(frozen=True)
class UncheckedRows:
    """Numbers of a piece that have not been checked yet."""

    X: Any  # (n, d), dense or CSR
    y: np.ndarray | None
    weight: np.ndarray | None
    piece: Piece
    target_name: Any = None
    weight_name: Any = None

    def bad(self, missing: str) -> np.ndarray | None:
        """Return which rows must be dropped, None if none; refuse values that no policy allows."""
        bad: np.ndarray | None = None
        vectors = ((self.y, "target", self.target_name), (self.weight, "weight", self.weight_name))
        for values, role, name in vectors:
            if values is None or np.isfinite(values).all():
                continue
            subject = f"The {role}" if name is None else f"The {role} {name!r}"
            absent = np.isnan(values)
            if (infinite := np.isinf(values)).any():
                where = self.piece.where(int(infinite.argmax()))
                kind = values.dtype
                raise SourceError(f"{subject} is infinite or too large for {kind} in {where}.")
            if missing == "error" or (missing == "mean" and role == "weight"):
                raise SourceError(
                    (
                        '{subject} is missing in {where}. Use missing="drop"{mean}, or remove '
                        "such rows beforehand."
                    ).format(
                        subject=subject,
                        where=self.piece.where(int(absent.argmax())),
                        mean=(
                            ' or missing="mean", which leaves out rows without a target'
                            if role == "target"
                            else ""
                        ),
                    )
                )
            bad = absent if bad is None else bad | absent
        if self.weight is not None and (self.weight < 0).any():
            row = int((self.weight < 0).argmax())
            raise SourceError(
                f"The weight is {self.weight[row]:g} in {self.piece.where(row)}; it must be ≥ 0."
            )
        if missing == "drop" and not finite(self.X):
            absent = _rows_with(self.X, np.isnan)
            bad = absent if bad is None else bad | absent
        return bad

    def without(self, bad: np.ndarray, names: Sequence[str], counts: Counts) -> "UncheckedRows":
        """Return the rows that are kept, and count those that are dropped."""
        refuse_infinite_entry(self, names)  # while the row numbers are still right
        counts.dropped += int(bad.sum())
        y, weight = (None if v is None else v[~bad] for v in (self.y, self.weight))
        return replace(self, X=self.X[~bad], y=y, weight=weight)


def settled(rows: UncheckedRows, reader: Any, names: Sequence[str]) -> Chunk:
    """Fill or refuse missing values, as the reader says, and refuse infinite ones."""
    if not finite(rows.X):
        refuse_infinite_entry(rows, names)
        if reader.missing != "mean":
            _refuse_missing_entry(rows, names)
        rows = replace(rows, X=filled(rows.X, reader.fill or {}, names))
        if spot := _first_entry(rows.X, np.isnan):
            raise SourceError(
                f"Column {names[spot[1]]!r} has no values, so it has no mean. "
                f"{leave_out(names[spot[1]])}"
            )
    return Chunk(rows.X, rows.y, rows.weight)


def finite(X: Any) -> bool:
    """Return whether all entries are finite."""
    return bool(np.isfinite(X.data if issparse(X) else X).all())


def _rows_with(X: Any, test: Any) -> np.ndarray:
    if not issparse(X):
        return np.asarray(test(X).any(axis=1))
    bad = np.zeros(X.shape[0], dtype=bool)
    bad[np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))[test(X.data)]] = True
    return bad


def _first_entry(X: Any, test: Any) -> tuple[int, int] | None:
    """Return the row and column of the first entry that passes a test."""
    bad = _rows_with(X, test)
    if not bad.any():
        return None
    i = int(bad.argmax())
    if not issparse(X):
        return i, int(test(X[i]).argmax())
    span = slice(X.indptr[i], X.indptr[i + 1])
    return i, int(X.indices[span][test(X.data[span]).argmax()])


def refuse_infinite_entry(rows: UncheckedRows, names: Sequence[str]) -> None:
    """Refuse an infinite entry, and name its column and row."""
    if spot := _first_entry(rows.X, np.isinf):
        raise SourceError(
            f"Column {names[spot[1]]!r} contains infinity or a value too large for "
            f"{rows.X.dtype}, first in {rows.piece.where(spot[0])}. Correct or clip it."
        )


def leave_out(name: Any) -> str:
    """Return the advice to leave out a column."""
    return "Leave it out."


def empty_columns(piece: Piece, reader: Any) -> list[str]:
    """Return the features that have no value in any row of a piece."""
    if not reader.columns:
        X = piece.X.toarray() if issparse(piece.X) else np.asarray(piece.X, dtype=float)
        return [reader.names[j] for j in np.flatnonzero(np.isnan(X).all(axis=0))]
    frame = nw.from_native(piece.X, eager_only=True)
    return [
        str(name) for name in reader.columns if missing_in(values_of(frame.get_column(name))).all()
    ]


def _refuse_missing_entry(rows: UncheckedRows, names: Sequence[str]) -> None:
    spot = _first_entry(rows.X, np.isnan)
    if spot and not issparse(rows.X) and len(rows.X) > 1 and np.isnan(rows.X[:, spot[1]]).all():
        raise SourceError(
            f"Column {names[spot[1]]!r} is empty: it has no value in the "
            f"{len(rows.X):,} rows from {rows.piece.where(0)} on. "
            f"{leave_out(names[spot[1]])}"
        )
    if spot:
        refuse_missing(names[spot[1]], rows.piece, spot[0])


def refuse_missing(name: Any, piece: Piece, row: int) -> NoReturn:
    """Refuse a column with a missing value."""
    raise SourceError(
        f"Column {str(name)!r} contains NaN (a missing value), first in "
        f"{piece.where(row)}. {REMEDY}"
    )


def filled(X: Any, fill: Mapping[str, float], names: Sequence[str]) -> Any:
    """Return rows in memory with missing values filled; they are copied only if there are any."""
    values = X.data if issparse(X) else X
    xp = namespace(values)
    absent = xp.isnan(values)
    if not bool(xp.any(absent)):
        return X
    means = np.asarray([fill.get(name, np.nan) for name in names])
    if issparse(X):
        X = X.copy()
        X.data[absent] = means[X.indices[absent]]
        return X
    return xp.where(absent, xp.asarray(means, dtype=X.dtype, device=X.device), X)
