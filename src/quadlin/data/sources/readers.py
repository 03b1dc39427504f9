"""Readers, which turn pieces of arrays and of tables into numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import canonical
from quadlin.core.chunks import Chunk
from quadlin.data.columns.columns import missing_in, values_of
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.errors import SourceError, first_line
from quadlin.data.columns.levels import level_codes
from quadlin.data.columns.names import shortened
from quadlin.data.sources.feeds import Piece
from quadlin.data.sources.missing import Counts, UncheckedRows, refuse_missing, settled

POLICIES = ("error", "drop", "mean")


@dataclass(frozen=True)
class ArrayReader:
    """Rows that are numbers already, dense or CSR."""

    names: Sequence[str]
    dtype: np.dtype
    sparse: bool
    has_target: bool
    fields: tuple[np.ndarray, ...] = ()
    missing: str = "error"
    fill: dict[str, float] | None = None
    # The rows are not those of a table.
    encoder = target = weight = labels = kept_columns = None
    text, numbers, columns = frozenset[Any](), tuple[Any, ...](), tuple[Any, ...]()
    boolean_target = False

    def read(self, piece: Piece, counts: Counts) -> Chunk:
        """Return the rows of a piece that are kept, as numbers."""
        X = self.raw(piece)
        y = _vector(piece.y, piece, "The target")
        weight = _vector(piece.weight, piece, "The weight")
        if self.has_target != (y is not None):
            raise SourceError(
                f"Rows from {piece.where(0)} on have {'no' if self.has_target else 'a'} target, "
                "unlike earlier rows. Give a target for all rows or for none."
            )
        rows = UncheckedRows(X, y, weight, piece)
        bad = rows.bad(self.missing)
        rows = rows if bad is None else rows.without(bad, self.names, counts)
        return settled(rows, self, self.names)

    def raw(self, piece: Piece) -> Any:
        """Return the rows of a piece as numbers that have not been checked."""
        if piece.X.ndim != 2 or piece.X.shape[1] != len(self.names):
            raise SourceError(
                f"Rows from {piece.where(0)} on have shape {piece.X.shape}, but earlier rows had "
                f"{len(self.names)} features."
            )
        with np.errstate(over="ignore", invalid="ignore"):
            if self.sparse:
                return canonical(csr_array(piece.X, dtype=self.dtype))
            X = piece.X.toarray() if issparse(piece.X) else piece.X
            return np.ascontiguousarray(X, dtype=self.dtype)


@dataclass(frozen=True)
class TableReader:
    """Rows of a table: columns of numbers become columns, text becomes one-hot fields."""

    columns: tuple[Any, ...]  # the features' input columns
    text: frozenset[Any]  # those that hold text
    dtype: np.dtype
    target: Any = None  # a column's name; None if y is a separate array or missing
    weight: Any = None
    target_apart: bool = False  # the target is a separate array
    encoder: TableEncoder | None = None
    missing: str = "error"
    fill: dict[str, float] | None = None
    kept_columns: Any = field(default=None, compare=False)  # an empty frame of what to pass on
    labels: tuple[str, ...] | None = None  # of a target that is text; () until they are known
    boolean_target: bool = False  # whether the target holds False and True

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the features."""
        return tuple(map(str, self.columns)) if self.encoder is None else self.encoder.names

    @property
    def fields(self) -> tuple[np.ndarray, ...]:
        """Return the one-hot groups."""
        return () if self.encoder is None else self.encoder.fields

    @property
    def sparse(self) -> bool:
        """Return whether X is CSR."""
        return self.encoder is not None

    @property
    def has_target(self) -> bool:
        """Return whether there is a target."""
        return self.target is not None or self.target_apart

    @property
    def numbers(self) -> tuple[Any, ...]:
        """Return the input columns that hold numbers."""
        return tuple(name for name in self.columns if name not in self.text)

    def kept(self, piece: Piece, counts: Counts) -> tuple["UncheckedRows", nw.DataFrame[Any]]:
        """Return the numbers of a piece and its frame, without the rows that are dropped."""
        frame, absent = self._frame_and_missing(piece)
        values = _numeric_columns(frame, piece)
        X = np.empty((len(frame), len(self.numbers)), self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            for j, name in enumerate(self.numbers):
                X[:, j] = values(name)
        weight = piece.weight
        if self.labels is not None and self.target is not None:
            y: Any = _label_codes(frame.get_column(self.target), self.labels, piece)
        else:
            y = piece.y if self.target is None else values(self.target)
            y = _vector(y, piece, "The target")
        if self.weight is not None:
            weight = values(self.weight)
        rows = UncheckedRows(
            X, y, _vector(weight, piece, "The weight"), piece, self.target, self.weight
        )
        bad = rows.bad(self.missing)
        if bad is None and absent is None:
            return rows, frame
        bad = absent if bad is None else bad if absent is None else bad | absent
        assert bad is not None
        rows = rows.without(bad, tuple(map(str, self.numbers)), counts)
        return rows, frame.filter((~bad).tolist())

    def read(self, piece: Piece, counts: Counts) -> Chunk:
        """Return the rows of a piece that are kept, as numbers."""
        rows, frame = self.kept(piece, counts)
        chunk = settled(rows, self, tuple(map(str, self.numbers)))
        chunk = replace(chunk, kept_columns=self._passed_on(frame))
        if self.encoder is None:
            return chunk
        n, numbers, columns = len(frame), iter(chunk.X.T), []
        for name, levels in zip(self.columns, self.encoder.levels, strict=True):
            if levels is None:
                columns.append(np.ascontiguousarray(next(numbers)))
                continue
            columns.append(codes := _codes(frame.get_column(name), levels, piece))
            counts.unseen.count(name, codes)
        return replace(chunk, X=self.encoder.joined(columns, n))

    def _passed_on(self, frame: nw.DataFrame[Any]) -> Any:
        """Return the columns to pass on, with the types of the whole source."""
        if self.kept_columns is None:
            return None
        columns = frame.select(
            nw.from_native(self.kept_columns, eager_only=True).columns
        ).to_native()
        # Files of one table may differ in the width of their numbers.
        return (
            columns.cast(self.kept_columns.schema) if hasattr(columns, "column_names") else columns
        )

    def _frame_and_missing(self, piece: Piece) -> tuple[nw.DataFrame[Any], np.ndarray | None]:
        """Return the frame, and which rows have a missing text (None if none has)."""
        frame = nw.from_native(piece.X, eager_only=True)
        needed = [*self.columns, *(n for n in (self.target, self.weight) if n is not None)]
        if self.kept_columns is not None:
            needed += nw.from_native(self.kept_columns, eager_only=True).columns
        names = frame.columns  # a new list at each access
        if absent_names := sorted(set(needed) - set(names), key=str):
            raise SourceError(
                f"The rows from {piece.where(0)} on have no column {absent_names[0]!r}; they have "
                f"{shortened(names)}."
            )
        absent: np.ndarray | None = None
        for name in self.columns:
            if name in self.text and self.missing != "mean":
                null = missing_in(values_of(frame.get_column(name)))
                if not null.any():
                    continue
                if self.missing == "error":
                    refuse_missing(name, piece, int(null.argmax()))
                absent = null if absent is None else absent | null
        return frame, absent


Reader = ArrayReader | TableReader


def _codes(column: nw.Series[Any], levels: dict[str, int], piece: Piece) -> np.ndarray:
    """Return the codes of levels, or raise an error that says where a column is unreadable."""
    try:
        return level_codes(values_of(column), levels)
    except Exception as error:  # each library raises other errors
        raise SourceError(
            f"Column {column.name!r}, from {piece.where(0)} on, has no readable text: "
            f"{first_line(error)}"
        ) from None


def _label_codes(column: nw.Series[Any], labels: tuple[str, ...], piece: Piece) -> np.ndarray:
    """Return the position of each row's label, NaN if it is missing.

    As long as the labels are unknown, all positions are 0.
    """
    present = ~column.is_null().to_numpy()
    if not labels:
        return np.where(present, 0.0, np.nan)
    positions = _codes(column, {label: i for i, label in enumerate(labels)}, piece)
    unknown = present & (positions < 0)
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        raise SourceError(
            f"The label {column[row]!r} of {piece.where(row)} is not one of {', '.join(labels)}."
        )
    return np.where(present, positions, np.nan)


def _numeric_columns(frame: nw.DataFrame[Any], piece: Piece) -> Callable[[Any], np.ndarray]:
    """Return a function that returns a column as numbers, with NaN for missing values."""
    native = frame.to_native()
    arrow = None
    if hasattr(native, "column_names"):  # Arrow itself is three times as fast
        arrow = dict(zip(native.column_names, native.columns, strict=True))

    def values(name: Any) -> np.ndarray:
        try:
            return (
                _numbers(frame.get_column(name)) if arrow is None else _arrow_numbers(arrow[name])
            )
        except Exception as error:  # each library raises other errors
            raise SourceError(
                f"Column {str(name)!r}, from {piece.where(0)} on, does not hold numbers: "
                f"{first_line(error)} Convert it, or leave it out of `columns`."
            ) from None

    return values


def _numbers(column: nw.Series[Any]) -> np.ndarray:
    if column.dtype not in (nw.Float32, nw.Float64) or column.null_count():
        column = column.cast(nw.Float64())
    return np.asarray(column.to_numpy())


def _arrow_numbers(column: Any) -> np.ndarray:
    kind = str(column.type)
    if kind not in ("float", "double") and (
        column.null_count or not kind.strip("u").startswith("int")
    ):
        column = column.cast("float64")
    if column.num_chunks == 1:  # without a copy
        column = column.chunk(0)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _vector(values: Any, piece: Piece, role: str) -> np.ndarray | None:
    if values is None:
        return None
    try:
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise SourceError(f"{role} is not numeric, from {piece.where(0)} on.") from None
    if vector.ndim == 2 and vector.shape[1] == 1:
        vector = vector[:, 0]
    if vector.shape != (len(piece),):
        raise SourceError(
            f"{role} has shape {np.shape(values)}, from {piece.where(0)} on, but there are "
            f"{len(piece)} rows. Give one number per row."
        )
    return vector
