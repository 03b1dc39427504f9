"""Pieces of rows as they were stored, and the reader, which turns them into numbers."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import canonical, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.data.columns import (
    Counts,
    TableEncoder,
    level_codes,
    missing_in,
    numbers_of,
    values_of,
)
from quadlin.data.names import (
    NumberedNames,
    SourceError,
    explained,
    infinite_value,
    missing_value,
    row_in_words,
    shortened,
)

POLICIES = ("error", "drop", "mean")


@dataclass(frozen=True)
class Piece:
    """Some rows as they were stored: an array, CSR or a frame, and where they come from."""

    X: Any
    y: Any = None
    weight: Any = None
    place: str | None = None  # a file or another part of the source; None for all of it
    row: int = 0  # number of the first row in its place

    def __post_init__(self) -> None:
        check_lengths(len(self), self.y, self.weight, f" in the rows from {self.where(0)} on")

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def between(self, first: int, last: int) -> "Piece":
        """Return the rows [first, last)."""
        if first == 0 and last == len(self):
            return self
        y, weight = (None if v is None else v[first:last] for v in (self.y, self.weight))
        sliced = hasattr(self.X, "slice")  # an Arrow table
        X = self.X.slice(first, last - first) if sliced else self.X[first:last]
        return Piece(X, y, weight, self.place, self.row + first)

    def where(self, row: int) -> str:
        """Return the position of a row of this piece in words, for messages."""
        inside = "" if self.place is None else f" of {self.place}"
        return row_in_words(self.row + row).replace(" (", f"{inside} (")

    def readable(self, what: str, advice: str) -> AbstractContextManager[None]:
        """Turn errors about a part of these rows into one that names it and its first row."""
        return explained(f"{what}, from {self.where(0)} on,", advice)


def check_lengths(n: int, y: Any, weight: Any, where: str = "") -> None:
    """Raise an error for targets or weights that are not one number for each of n rows."""
    for values, role in ((y, "target"), (weight, "weight")):
        if values is not None and (shape := tuple(values.shape)) not in ((n,), (n, 1)):
            raise SourceError(
                f"The {role} has shape {shape}{where}, but there are {n} rows. Give one number per "
                "row."
            )


@dataclass(frozen=True)
class Reader:
    """How rows become numbers: numbers stay what they are, text becomes one-hot fields."""

    columns: Sequence[Any]  # the input columns of the features; an array has x0, x1, …
    dtype: np.dtype
    has_target: bool
    missing: str = "error"
    fill: dict[str, float] | None = None
    # Of arrays
    is_csr: bool = False
    # Of tables
    is_table: bool = False
    text: frozenset[Any] = frozenset()  # the columns that are categories
    whole: tuple[Any, ...] = ()  # those that hold whole numbers
    target: Any = None  # a column's name; None if y is a separate array or missing
    weight: Any = None
    encoder: TableEncoder | None = None
    kept_columns: Any = field(default=None, compare=False)  # an empty frame of what to pass on
    labels: tuple[str, ...] | None = None  # of a target that is text; () until they are known
    boolean_target: bool = False  # whether the target holds False and True

    @classmethod
    def of_array(cls, d: int, dtype: Any, is_csr: bool, has_target: bool, missing: str) -> "Reader":
        """Return the reader of an array, whose numbers stay float32 if they are."""
        single = np.dtype(np.float32) if dtype == np.float32 else np.dtype(np.float64)
        return cls(NumberedNames(d), single, has_target, missing, is_csr=is_csr)

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the features."""
        if self.encoder is not None:
            return self.encoder.names
        return tuple(map(str, self.columns)) if self.is_table else self.columns

    @property
    def sparse(self) -> bool:
        """Return whether X is CSR."""
        return self.is_csr or self.encoder is not None

    @property
    def numbers(self) -> Sequence[Any]:
        """Return the input columns that hold numbers."""
        return [n for n in self.columns if n not in self.text] if self.text else self.columns

    def read(self, piece: Piece, counts: Counts) -> Chunk:
        """Return the rows of a piece that are kept, as numbers, with missing ones filled."""
        chunk, frame = self.keep(piece, counts)
        X, kept = chunk.X, None
        if self.encoder is not None:
            X = self._encode(self.encoder, X, frame, piece, counts)
        X, absent = fill_missing(X, self.fill or {}, self.names)
        if self.kept_columns is not None:
            names = nw.from_native(self.kept_columns, eager_only=True).columns
            kept = frame.select(names).to_native()
            if hasattr(kept, "column_names"):  # files may differ in the width of their numbers
                kept = kept.cast(self.kept_columns.schema)
        return replace(chunk, X=X, absent=absent, kept_columns=kept)

    def keep(self, piece: Piece, counts: Counts) -> tuple[Chunk, Any]:
        """Return the numbers of the rows that are kept, and their frame if they are of a table.

        Values that the policy does not allow raise an error that names column and row.
        """
        frame, X, y, weight = self._columns_of(piece) if self.is_table else self._array_of(piece)
        y, weight = _vector(y, piece, "target"), _vector(weight, piece, "weight")
        bad = self._missing_numbers(X, piece)
        for name in self.text if self.missing != "mean" else ():
            absent = missing_in(values_of(frame.get_column(name)))
            if absent.any() and self.missing == "error":
                raise SourceError(missing_value(name, piece.where(int(absent.argmax())), True))
            bad |= absent
        bad |= self._missing_in_vector(y, piece, "target", self.target)
        bad |= self._missing_in_vector(weight, piece, "weight", self.weight)
        if weight is not None and (weight < 0).any():
            row = int((weight < 0).argmax())
            raise SourceError(
                f"The weight is {weight[row]:g} in {piece.where(row)}; it must be ≥ 0."
            )
        if bad.any():
            counts.dropped += int(bad.sum())
            X, y, weight = (None if v is None else v[~bad] for v in (X, y, weight))
            frame = frame.filter((~bad).tolist()) if self.is_table else frame
        return Chunk(X, y, weight), frame

    def _array_of(self, piece: Piece) -> tuple[Any, Any, Any, Any]:
        if piece.X.ndim != 2 or piece.X.shape[1] != len(self.columns):
            raise SourceError(
                f"Rows from {piece.where(0)} on have shape {piece.X.shape}, but earlier rows had "
                f"{len(self.columns)} features."
            )
        if self.has_target != (piece.y is not None):
            raise SourceError(
                f"Rows from {piece.where(0)} on have {'no' if self.has_target else 'a'} target, "
                "unlike earlier rows. Give a target for all rows or for none."
            )
        advice = "Give numbers, or a frame if there is text."
        with np.errstate(over="ignore", invalid="ignore"), piece.readable("the array", advice):
            if self.is_csr:
                X: Any = canonical(csr_array(piece.X, dtype=self.dtype))
            else:
                X = piece.X.toarray() if issparse(piece.X) else piece.X
                X = np.ascontiguousarray(X, dtype=self.dtype)
        return None, X, piece.y, piece.weight

    def _columns_of(self, piece: Piece) -> tuple[Any, Any, Any, Any]:
        frame = nw.from_native(piece.X, eager_only=True)
        native = frame.to_native()
        arrow = hasattr(native, "column_names")  # whose own columns are faster to read
        columns: Any = (
            dict(zip(native.column_names, native.columns, strict=True)) if arrow else frame
        )

        def numbers(name: Any) -> np.ndarray:
            with piece.readable(f"column {str(name)!r}", "Does it hold numbers only?"):
                return numbers_of(columns[name])

        needed = [*self.columns, *(n for n in (self.target, self.weight) if n is not None)]
        if gone := sorted(set(needed) - set(frame.columns), key=str):
            raise SourceError(
                f"The rows from {piece.where(0)} on have no column {gone[0]!r}; they have "
                f"{shortened(frame.columns)}."
            )
        names = self.numbers
        X = np.empty((len(frame), len(names)), self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            for j, name in enumerate(names):
                X[:, j] = numbers(name)
        weight = piece.weight if self.weight is None else numbers(self.weight)
        if self.target is None:
            return frame, X, piece.y, weight
        if self.labels is None:
            return frame, X, numbers(self.target), weight
        return frame, X, _label_codes(frame.get_column(self.target), self.labels, piece), weight

    def _missing_numbers(self, X: Any, piece: Piece) -> np.ndarray:
        """Return which rows have missing numbers and must be dropped; others raise an error."""
        if finite(X):
            return np.zeros(len(piece), dtype=bool)
        if spot := _first_entry(X, np.isinf):
            name, where = self.numbers[spot[1]], piece.where(spot[0])
            raise SourceError(infinite_value(name, where, X.dtype))
        if self.missing == "error":
            i, j = _first_entry(X, np.isnan) or (0, 0)
            name = str(self.numbers[j])
            if not issparse(X) and len(X) > 1 and np.isnan(X[:, j]).all():
                raise SourceError(
                    f"Column {name!r} is empty: it has no value in the {len(X):,} rows from "
                    f"{piece.where(0)} on. Leave it out."
                )
            raise SourceError(missing_value(name, piece.where(i), True))
        return _rows_with(X, np.isnan) if self.missing == "drop" else np.zeros(len(piece), bool)

    def _missing_in_vector(self, values: Any, piece: Piece, role: str, name: Any) -> Any:
        """Return which targets or weights are missing, where such rows may be dropped."""
        if values is None or np.isfinite(values).all():
            return False
        subject = f"The {role}" if name is None else f"The {role} {name!r}"
        absent = np.isnan(values)
        if (infinite := np.isinf(values)).any():
            where = piece.where(int(infinite.argmax()))
            raise SourceError(f"{subject} is infinite or too large for {values.dtype} in {where}.")
        if self.missing == "error" or (self.missing == "mean" and role == "weight"):
            mean = ' or missing="mean", which leaves out rows without a target'
            raise SourceError(
                f"{subject} is missing in {piece.where(int(absent.argmax()))}. Use "
                f'missing="drop"{mean if role == "target" else ""}, or remove such rows beforehand.'
            )
        return absent

    def _encode(
        self, encoder: TableEncoder, X: Any, frame: nw.DataFrame[Any], piece: Piece, counts: Counts
    ) -> csr_array:
        """Return the numbers of X and the levels of the other columns of a frame."""
        numbers, columns = iter(X.T), []
        for name, levels in zip(self.columns, encoder.levels, strict=True):
            if levels is None:
                columns.append(np.ascontiguousarray(next(numbers)))
                continue
            columns.append(codes := _codes(frame.get_column(name), levels, piece))
            counts.count(name, codes)
        return encoder.joined(columns, len(frame))


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
    row = X[[i]].toarray()[0] if issparse(X) else X[i]
    return i, int(test(row).argmax())


def fill_missing(
    X: Any, fill: Mapping[str, float], names: Sequence[str]
) -> tuple[Any, csr_array | None]:
    """Fill missing values; return the rows, copied only if there are any, and where they were."""
    values = X.data if issparse(X) else X
    xp = namespace(values)
    absent = xp.isnan(values)
    if not bool(xp.any(absent)):
        return X, None
    means = np.asarray([fill.get(name, np.nan) for name in names])
    columns = X.indices[absent] if issparse(X) else np.nonzero(to_numpy(absent))[1]
    if (unknown := np.isnan(means[columns])).any():
        name = names[int(columns[unknown.argmax()])]
        raise SourceError(f"Column {name!r} has no values, so it has no mean. Leave it out.")
    if issparse(X):
        X = X.copy()
        X.data[absent] = means[X.indices[absent]]
        mask = csr_array((absent, X.indices.copy(), X.indptr.copy()), shape=X.shape)
        mask.eliminate_zeros()
        return X, mask
    filled = xp.where(absent, xp.asarray(means, dtype=X.dtype, device=X.device), X)
    return filled, csr_array(to_numpy(absent))


class Means:
    """Means of the values that are not missing, column by column, zeros of sparse rows included."""

    def __init__(self, d: int) -> None:
        self.total, self.count = np.zeros(d), np.zeros(d)

    def add(self, X: Any, weight: np.ndarray | None = None) -> None:
        """Add the values of some rows; a weight of 2 counts as the row given twice."""
        n, d = X.shape
        weight = np.ones(n) if weight is None else np.asarray(weight, dtype=np.float64)
        if issparse(X):
            each, absent = np.repeat(weight, np.diff(X.indptr)), np.isnan(X.data)
            self.total += np.bincount(X.indices, each * np.nan_to_num(X.data), minlength=d)
            self.count += weight.sum() - np.bincount(X.indices[absent], each[absent], minlength=d)
        else:
            present = ~np.isnan(X)
            self.total += np.sum(weight[:, None] * X, axis=0, where=present, dtype=np.float64)
            self.count += weight @ present

    def fill(self, names: Sequence[Any], title: str) -> dict[str, float]:
        """Return the mean of each column, by name; a column without values is an error."""
        names = list(map(str, names))
        if not (self.count > 0).all():
            empty = names[int((self.count <= 0).argmax())]
            raise SourceError(f"{title}: column {empty!r} has no values. Leave it out.", empty)
        return dict(zip(names, (self.total / self.count).tolist(), strict=True))


def array_fill(X: Any, names: Sequence[str], weight: Any = None) -> dict[str, float]:
    """Return the means of the features of rows in memory, including the zeros of sparse rows."""
    means = Means(X.shape[1])
    means.add(X if issparse(X) else to_numpy(X), None if weight is None else to_numpy(weight))
    return means.fill(names, "X")


def _codes(column: nw.Series[Any], levels: dict[str, int], piece: Piece) -> np.ndarray:
    """Return the codes of levels, or raise an error that says where a column is unreadable."""
    with piece.readable(f"column {column.name!r}", "Does it hold text?"):
        return level_codes(values_of(column), levels)


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


def _vector(values: Any, piece: Piece, role: str) -> np.ndarray | None:
    if values is None:
        return None
    vector = np.asarray(values)
    with piece.readable(f"the {role}", "Give numbers, one per row."):
        casting: Any = (
            "unsafe" if vector.dtype.kind == "O" else "same_kind"
        )  # raises an error for text
        return vector.astype(np.float64, casting=casting, copy=False).reshape(-1)
