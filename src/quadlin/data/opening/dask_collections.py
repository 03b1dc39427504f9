"""Dask arrays and frames: their partitions are computed one at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from math import isnan
from typing import Any

import narwhals as nw
import numpy as np

from quadlin.core.chunks import is_dask
from quadlin.data.columns.errors import SourceError, explained
from quadlin.data.opening.slices import digest_of
from quadlin.data.sources.feeds import Feed, Piece, sliced, spread
from quadlin.data.sources.readers import Reader


def is_dask_frame(given: Any) -> bool:
    """Return whether something is a Dask frame."""
    return is_dask(given) and hasattr(given, "get_partition")


@dataclass(frozen=True)
class DaskFeed(Feed):
    """Partitions of rows."""

    blocks: tuple[Any, ...]  # Dask collections of one partition each
    targets: tuple[Any, ...] | None
    weights: tuple[Any, ...] | None
    sizes: tuple[int | None, ...]
    starts: tuple[int | None, ...]
    title: str
    columns: tuple[Any, ...] | None = None  # of frames
    first: int = 0  # number of the first partition
    again = ahead = True

    @property
    def rows(self) -> int | None:
        """Return the number of rows, None if the length of a partition is unknown."""
        return None if None in self.sizes else sum(size or 0 for size in self.sizes)

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Compute one partition after another."""
        import dask

        start = self.starts[0] if self.starts else 0
        for i, X in enumerate(self.blocks):
            X = X if self.columns is None else X[list(self.columns)]
            vectors = [
                None if parts is None else parts[i] for parts in (self.targets, self.weights)
            ]
            with explained(f"Partition {i} of {self.title}", "Compute it alone to see more."):
                X, y, weight = dask.compute(X, *vectors)
            where = None if start is not None else f"partition {self.first + i}"
            if hasattr(X, "columns"):  # a frame; narwhals slices it by position
                X = nw.from_native(X, eager_only=True)
            piece = Piece(X, _values(y), _values(weight), where, 0, start)
            yield piece
            start = None if start is None else start + len(piece)

    def parts(self, count: int) -> list["DaskFeed"]:
        """Cut between partitions."""
        runs = spread([size or 1 for size in self.sizes], count)
        return [
            replace(
                self,
                blocks=self.blocks[run],
                targets=sliced(self.targets, run),
                weights=sliced(self.weights, run),
                sizes=self.sizes[run],
                starts=self.starts[run],
                first=self.first + run.start,
            )
            for run in runs
        ]

    def client(self) -> Any:
        """Return the current client, None if there is none."""
        try:
            from distributed import default_client

            return default_client()
        except (ImportError, ValueError):
            return None

    def identity(self) -> Any:
        """Return the names that Dask gives to the partitions: hashes of their computation."""
        groups = (self.blocks, self.targets or (), self.weights or ())
        return self.columns, [[_name(part) for part in group] for group in groups]


def open_dask_array(X: Any, y: Any, weight: Any, missing: str) -> tuple[DaskFeed, Reader]:
    """Split a Dask array into its blocks of rows."""
    if X.ndim != 2:
        raise SourceError(f"The Dask array has {X.ndim} dimensions; rows × features are needed.")
    d = X.shape[1]
    if isnan(d):
        raise SourceError(
            "The number of columns of the Dask array is unknown. Compute its chunk sizes."
        )
    X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
    sizes = tuple(None if isnan(size) else int(size) for size in X.chunks[0])
    if None not in sizes and not sum(size or 0 for size in sizes):
        raise SourceError("The Dask array holds no rows. At least one is needed.")
    kind = np.dtype(X.dtype)
    if kind.kind not in "fiub":
        raise SourceError(f"The Dask array has dtype {kind}; numbers are needed.")
    reader = Reader.of_array(d, kind, hasattr(X._meta, "tocsr"), y is not None, missing)
    blocks = tuple(X.blocks[i] for i in range(len(sizes)))
    return _feed(blocks, y, weight, sizes, f"Dask array of {len(sizes)} blocks"), reader


def open_dask_frame(frame: Any, y: Any, weight: Any) -> tuple[nw.DataFrame[Any], DaskFeed]:
    """Split a Dask frame into its partitions; the first one shows the types of the columns."""
    parts = tuple(frame.get_partition(i) for i in range(frame.npartitions))
    sizes: tuple[int | None, ...] = (None,) * len(parts)
    title = f"Dask frame of {len(parts)} partitions"
    with explained(title, "Compute its first partition alone to see more."):
        sample = nw.from_native(parts[0].compute(), eager_only=True)
    feed = _feed(parts, y, weight, sizes, title)
    return sample, replace(feed, columns=tuple(frame.columns))


def lazily(predict: Callable[[Any], Any], X: Any, dtype: np.dtype, width: int | None = None) -> Any:
    """Return the predictions for a Dask collection as a lazy Dask array.

    Parameters
    ----------
    predict : callable
        Returns an array (n,), or (n, `width`), for the rows of one block.
    X : Dask array or frame
        Rows.
    dtype : dtype
        The dtype of the predictions.
    width : int or None
        The number of columns of the predictions; None for a vector.

    Returns
    -------
    Dask array (n_samples,) or (n_samples, width)
    """
    import dask.array

    extra = () if width is None else (width,)  # axes after the rows
    pieces = [
        dask.array.from_delayed(
            dask.delayed(_predicted)(predict, block, dtype, extra), (size, *extra), dtype=dtype
        )
        for block, size in zip(*_blocks_of(X), strict=True)
    ]
    return dask.array.concatenate(pieces, axis=0, allow_unknown_chunksizes=True)


def lazily_with_std(predict: Callable[..., Any], X: Any, dtype: np.dtype) -> tuple[Any, Any]:
    """Return predictions and standard deviations for a Dask collection as lazy Dask arrays."""
    both = lazily(lambda rows: np.column_stack(predict(rows, return_std=True)), X, dtype, 2)
    return both[:, 0], both[:, 1]


def _predicted(
    predict: Callable[[Any], Any], rows: Any, dtype: np.dtype, extra: tuple[int, ...]
) -> np.ndarray:
    return np.asarray(predict(rows), dtype=dtype) if len(rows) else np.empty((0, *extra), dtype)


def _blocks_of(X: Any) -> tuple[Any, list[Any]]:
    """Return the blocks of rows of a Dask collection, and their numbers of rows if known."""
    if is_dask_frame(X):
        blocks = X.to_delayed()
        return blocks, [np.nan] * len(blocks)
    X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
    return X.to_delayed()[:, 0], list(X.chunks[0])


def _feed(
    parts: tuple[Any, ...], y: Any, weight: Any, sizes: tuple[int | None, ...], title: str
) -> DaskFeed:
    ends = list(accumulate(sizes, lambda a, b: None if a is None or b is None else a + b))
    starts = (0, *ends[:-1])
    vectors = [
        None if values is None else _cut_as_rows(values, sizes, starts, role)
        for values, role in ((y, "target"), (weight, "weight"))
    ]
    return DaskFeed(parts, vectors[0], vectors[1], sizes, starts, title)


def _cut_as_rows(
    values: Any, sizes: tuple[int | None, ...], starts: tuple[int | None, ...], role: str
) -> tuple[Any, ...]:
    """Cut the target or the weights in the same way as the rows."""
    if is_dask(values) and hasattr(values, "get_partition"):
        if values.npartitions != len(sizes):
            raise SourceError(
                f"The {role} has {values.npartitions} partitions, but the rows have {len(sizes)}. "
                "Repartition one of them like the other."
            )
        return tuple(values.get_partition(i) for i in range(len(sizes)))
    if is_dask(values):
        values = values.reshape(-1) if values.ndim == 2 and values.shape[1] == 1 else values
        if None not in sizes and not any(map(isnan, values.chunks[0])):
            _same_length(sum(map(int, values.chunks[0])), sizes, role)
            values = values.rechunk((sizes,))
        if values.numblocks[0] != len(sizes):
            raise SourceError(
                f"The {role} has {values.numblocks[0]} blocks, but the rows have {len(sizes)}. "
                "Rechunk one of them like the other."
            )
        return tuple(values.blocks[i] for i in range(len(sizes)))
    if None in sizes:
        raise SourceError(
            f"The {role} is in memory, but the lengths of the partitions are unknown. Give it as a "
            "column, or as a Dask array."
        )
    values = np.asarray(values)
    _same_length(len(values), sizes, role)
    return tuple(
        values[start : start + size]  # type: ignore[operator]
        for start, size in zip(starts, sizes, strict=True)
    )


def _same_length(n: int, sizes: tuple[int | None, ...], role: str) -> None:
    if n != sum(size or 0 for size in sizes):
        total = sum(size or 0 for size in sizes)
        raise SourceError(f"The {role} has {n} entries, but there are {total} rows.")


def _values(values: Any) -> Any:
    return values.to_numpy() if hasattr(values, "to_numpy") else values


def _name(part: Any) -> str:
    if isinstance(part, np.ndarray):
        return digest_of(part)
    return str(getattr(part, "name", None) or part._name)
