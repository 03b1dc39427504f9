"""The reader, which turns pieces of arrays and of tables into numbers, and their missing values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import canonical, namespace, to_numpy
from quadlin.core.chunks import Chunk
from quadlin.data.columns.columns import missing_in, values_of
from quadlin.data.columns.encoder import TableEncoder, Unseen, level_codes
from quadlin.data.columns.errors import ReadOnceError, SourceError, first_line
from quadlin.data.columns.names import NumberedNames, shortened
from quadlin.data.sources.feeds import Feed, Piece, default_rows

POLICIES = ("error", "drop", "mean")


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
class Reader:
    """How rows become numbers: numbers stay what they are, text becomes one-hot fields."""

    columns: Sequence[Any]  # the input columns of the features; those of an array are x0, x1, …
    dtype: np.dtype
    has_target: bool
    missing: str = "error"
    fill: dict[str, float] | None = None
    # Of arrays
    is_csr: bool = False
    groups: tuple[np.ndarray, ...] = ()  # known one-hot groups
    # Of tables
    is_table: bool = False
    text: frozenset[Any] = frozenset()  # the columns that hold text
    target: Any = None  # a column's name; None if y is a separate array or missing
    weight: Any = None
    encoder: TableEncoder | None = None
    kept_columns: Any = field(default=None, compare=False)  # an empty frame of what to pass on
    labels: tuple[str, ...] | None = None  # of a target that is text; () until they are known
    boolean_target: bool = False  # whether the target holds False and True

    @classmethod
    def of_array(
        cls, d: int, dtype: Any, is_csr: bool, has_target: bool, missing: str, groups: Any = ()
    ) -> "Reader":
        """Return the reader of an array, whose numbers stay float32 if they are."""
        single = np.dtype(np.float32) if dtype == np.float32 else np.dtype(np.float64)
        return cls(NumberedNames(d), single, has_target, missing, is_csr=is_csr, groups=groups)

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the features."""
        if self.encoder is not None:
            return self.encoder.names
        return tuple(map(str, self.columns)) if self.is_table else self.columns

    @property
    def fields(self) -> tuple[np.ndarray, ...]:
        """Return the one-hot groups."""
        return self.groups if self.encoder is None else self.encoder.fields

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
        if self.encoder is not None:
            X = self._encode(self.encoder, chunk.X, frame, piece, counts)
            chunk = replace(chunk, X=X)
        X, absent = (chunk.X, None) if finite(chunk.X) else self._fill(chunk.X)
        return replace(chunk, X=X, absent=absent, kept_columns=self._passed_on(frame))

    def keep(self, piece: Piece, counts: Counts) -> tuple[Chunk, Any]:
        """Return the numbers of the rows that are kept, and their frame if they are of a table.

        Values that the policy does not allow raise an error that names column and row.
        """
        frame, X, y, weight = self._columns_of(piece) if self.is_table else self._array_of(piece)
        clean = finite(X)
        if not clean:
            refuse_infinite(X, self.numbers, piece)
            if self.missing == "error":
                refuse_missing(X, self.numbers, piece)
        bad = np.zeros(len(piece), dtype=bool)
        if self.missing == "drop" and not clean:
            bad |= _rows_with(X, np.isnan)
        for name in self.text if self.missing != "mean" else ():
            absent = missing_in(values_of(frame.get_column(name)))
            if absent.any() and self.missing == "error":
                raise SourceError(_contains_nan(name, piece, int(absent.argmax())))
            bad |= absent
        bad |= self._missing_vector(y, piece, "target", self.target)
        bad |= self._missing_vector(weight, piece, "weight", self.weight)
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
        with np.errstate(over="ignore", invalid="ignore"):
            if self.is_csr:
                X: Any = canonical(csr_array(piece.X, dtype=self.dtype))
            else:
                X = piece.X.toarray() if issparse(piece.X) else piece.X
                X = np.ascontiguousarray(X, dtype=self.dtype)
        y, weight = (
            _vector(piece.y, piece, "The target"),
            _vector(piece.weight, piece, "The weight"),
        )
        return None, X, y, weight

    def _columns_of(self, piece: Piece) -> tuple[Any, Any, Any, Any]:
        frame = nw.from_native(piece.X, eager_only=True)
        needed = [*self.columns, *(n for n in (self.target, self.weight) if n is not None)]
        if self.kept_columns is not None:
            needed += nw.from_native(self.kept_columns, eager_only=True).columns
        if gone := sorted(set(needed) - set(frame.columns), key=str):
            raise SourceError(
                f"The rows from {piece.where(0)} on have no column {gone[0]!r}; they have "
                f"{shortened(frame.columns)}."
            )
        values = _numeric_columns(frame, piece)
        numbers = self.numbers
        X = np.empty((len(frame), len(numbers)), self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            for j, name in enumerate(numbers):
                X[:, j] = values(name)
        if self.labels is not None and self.target is not None:
            y: Any = _label_codes(frame.get_column(self.target), self.labels, piece)
        else:
            y = piece.y if self.target is None else values(self.target)
        weight = piece.weight if self.weight is None else values(self.weight)
        return frame, X, _vector(y, piece, "The target"), _vector(weight, piece, "The weight")

    def _missing_vector(self, values: Any, piece: Piece, role: str, name: Any) -> Any:
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

    def _fill(self, X: Any) -> tuple[Any, csr_array | None]:
        X, absent = fill_missing(X, self.fill or {}, self.names)
        if spot := _first_entry(X, np.isnan):
            raise SourceError(
                f"Column {self.names[spot[1]]!r} has no values, so it has no mean. Leave it out."
            )
        return X, absent

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
            counts.unseen.count(name, codes)
        return encoder.joined(columns, len(frame))

    def _passed_on(self, frame: nw.DataFrame[Any]) -> Any:
        """Return the columns to pass on, with the types of the whole source."""
        if self.kept_columns is None:
            return None
        names = nw.from_native(self.kept_columns, eager_only=True).columns
        columns = frame.select(names).to_native()
        if hasattr(columns, "column_names"):  # files may differ in the width of their numbers
            return columns.cast(self.kept_columns.schema)
        return columns


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


def refuse_infinite(X: Any, names: Sequence[Any], piece: Piece) -> None:
    """Raise an error if an entry is infinite, which names its column and row."""
    if spot := _first_entry(X, np.isinf):
        raise SourceError(
            f"Column {str(names[spot[1]])!r} contains infinity or a value too large for "
            f"{X.dtype}, first in {piece.where(spot[0])}. Correct or clip it."
        )


def refuse_missing(X: Any, names: Sequence[Any], piece: Piece) -> None:
    """Raise an error if an entry is missing, which names its column and row."""
    if not (spot := _first_entry(X, np.isnan)):
        return
    name = str(names[spot[1]])
    if not issparse(X) and len(X) > 1 and np.isnan(X[:, spot[1]]).all():
        raise SourceError(
            f"Column {name!r} is empty: it has no value in the {len(X):,} rows from "
            f"{piece.where(0)} on. Leave it out."
        )
    raise SourceError(_contains_nan(name, piece, spot[0]))


def _contains_nan(name: Any, piece: Piece, row: int) -> str:
    return (
        f"Column {str(name)!r} contains NaN (a missing value), first in {piece.where(row)}. "
        'Use missing="drop" or missing="mean", or fill it beforehand.'
    )


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
            raise SourceError(f"{title}: column {empty!r} has no values. Leave it out.")
        return dict(zip(names, (self.total / self.count).tolist(), strict=True))


def array_fill(X: Any, names: Sequence[str], weight: Any = None) -> dict[str, float]:
    """Return the means of the features of rows in memory, including the zeros of sparse rows."""
    means = Means(X.shape[1])
    means.add(X if issparse(X) else to_numpy(X), None if weight is None else to_numpy(weight))
    return means.fill(names, "X")


def learn_means(feed: Feed, reader: Reader) -> Reader:
    """Return the reader of an array with the means of its features, learned in one pass."""
    if not feed.again:
        raise ReadOnceError(means_unknown(feed.title))
    means, probe = Means(len(reader.names)), replace(reader, missing="mean", fill={})
    for piece in feed.pieces(default_rows(len(reader.names), 0, sparse=False)):
        chunk, _ = probe.keep(piece, Counts())
        means.add(chunk.X, chunk.weight)
    return replace(reader, fill=means.fill(reader.names, feed.title))


def means_unknown(title: str) -> str:
    """Return a message that rows which can be read only once cannot be filled with means."""
    return (
        f'{title} can be read only once, but missing="mean" needs the means '
        'first. Give fill={column: value}, use missing="drop", or save the rows '
        "to a file first."
    )


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
