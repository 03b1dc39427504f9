"""What a source of rows is: a feed of pieces, a reader that makes numbers of them, even chunks."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, NoReturn, Protocol

import narwhals as nw
import numpy as np
from scipy.sparse import csr_array, issparse, vstack

from quadlin.core.chunks import BLOCK_ELEMENTS, Chunk
from quadlin.core.messages import Message, Option
from quadlin.data.encoder import TableEncoder
from quadlin.data.errors import SourceError
from quadlin.data.prefetch import read_ahead


@dataclass(frozen=True)
class Piece:
    """Some rows as they came: an array, CSR or a frame, and where they are from."""

    X: Any
    y: Any = None
    weight: Any = None
    file: str | None = None
    row: int = 0  # number of the first row in its file
    start: int | None = 0  # number of the first row in the whole source, where that is known

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def cut(self, first: int, last: int) -> "Piece":
        """Return the rows [first, last) of this piece."""
        if first == 0 and last == len(self):
            return self
        return replace(
            self,
            X=self.X.slice(first, last - first) if hasattr(self.X, "slice") else self.X[first:last],
            y=None if self.y is None else self.y[first:last],
            weight=None if self.weight is None else self.weight[first:last],
            row=self.row + first,
            start=None if self.start is None else self.start + first,
        )

    def where(self, row: int) -> str:
        """Name a row of this piece for people."""
        if self.file is None:
            return f"row {(self.start or 0) + row} (counted from 0)"
        inside = f"row {self.row + row} of {self.file} (counted from 0)"
        if self.start is None or self.start == self.row:
            return inside
        return f"row {self.start + row}, {inside}"


class Feed(Protocol):
    """Where pieces come from."""

    @property
    def again(self) -> bool:
        """Tell whether `pieces` may be called more than once."""

    @property
    def ahead(self) -> bool:
        """Tell whether it pays to fetch pieces in the background."""

    @property
    def rows(self) -> int | None:
        """Return the number of rows, where it is known."""

    @property
    def title(self) -> str:
        """Return what this is, in a few words."""

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yield all rows in order, in pieces of any size; `rows` of them make a chunk."""

    def parts(self, count: int) -> "Sequence[Feed]":
        """Cut into feeds of about equal size, in order; [self] where that cannot be done."""

    def identity(self) -> Any:
        """Return what tells these data from others, None where nothing does."""


class Reader(Protocol):
    """Makes numbers of pieces."""

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the features."""

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype of X."""

    @property
    def encoder(self) -> TableEncoder | None:
        """Return the encoder of text columns."""

    @property
    def fields(self) -> tuple[np.ndarray, ...]:
        """Return the one-hot groups."""

    @property
    def sparse(self) -> bool:
        """Tell whether X is CSR."""

    @property
    def has_target(self) -> bool:
        """Tell whether there is a y."""

    @property
    def missing(self) -> str:
        """Return what is done with missing values."""

    @property
    def fill(self) -> dict[str, float] | None:
        """Return what missing numbers are filled with."""

    def read(self, piece: Piece, counts: "Counts") -> Chunk:
        """Return the rows of a piece that are kept, as numbers."""


@dataclass
class Counts:
    """What a walk met on its way."""

    dropped: int = 0
    unseen: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Counts") -> None:
        """Add what another walk met."""
        self.dropped += other.dropped
        for name, count in other.unseen.items():
            self.unseen[name] = self.unseen.get(name, 0) + count

    def clear(self) -> None:
        """Forget all, before a new walk."""
        self.dropped = 0
        self.unseen.clear()


@dataclass(frozen=True)
class Source:
    """Rows from anywhere, walked as chunks of even size; made by :func:`open_source`.

    Attributes
    ----------
    names : sequence of str
        Features, after text columns have been encoded ("city=Oslo").
    dtype : dtype
        Of X: float32 or float64.
    rows : int or None
        Number of rows, where it is known without a walk.
    again : bool
        Whether the rows can be walked more than once.
    encoder : TableEncoder or None
        Of the text columns.
    fields : tuple of arrays
        Positions of the features of each one-hot group.
    sparse : bool
        Whether X comes as CSR.
    has_target : bool
        Whether chunks have a y.
    fill : dict or None
        What missing numbers are filled with, by column, when ``missing="mean"``.
    dropped : int
        Rows left out by ``missing="drop"`` in the last walk, or in the walk under way.
    unseen : dict
        Rows with a level that the encoder does not know, by column, in the last walk.
    watch : callable or None
        Told the number of rows of each chunk when it has been read, and 0 at the end of a walk over
        all rows. It is called in whatever thread reads, and stays here when rows go to a cluster.
    """

    feed: Feed
    reader: Reader
    chunk_rows: int
    rows: int | None = None
    whole: bool = True  # not a part of another source
    counts: Counts = field(default_factory=Counts, compare=False)
    watch: Callable[[int], None] | None = field(default=None, compare=False, repr=False)

    @property
    def names(self) -> Sequence[str]:  # noqa: D102
        return self.reader.names

    @property
    def width(self) -> int:
        """Return the number of features."""
        return len(self.names)

    @property
    def dtype(self) -> np.dtype:  # noqa: D102
        return self.reader.dtype

    @property
    def again(self) -> bool:  # noqa: D102
        return self.feed.again

    @property
    def encoder(self) -> TableEncoder | None:  # noqa: D102
        return self.reader.encoder

    @property
    def fields(self) -> tuple[np.ndarray, ...]:  # noqa: D102
        return self.reader.fields

    @property
    def sparse(self) -> bool:  # noqa: D102
        return self.reader.sparse

    @property
    def has_target(self) -> bool:  # noqa: D102
        return self.reader.has_target

    @property
    def fill(self) -> dict[str, float] | None:  # noqa: D102
        return self.reader.fill

    @property
    def dropped(self) -> int:  # noqa: D102
        return self.counts.dropped

    @property
    def unseen(self) -> dict[str, int]:  # noqa: D102
        return self.counts.unseen

    @property
    def description(self) -> str:
        """Return one line for people."""
        rows = "unknown number of" if self.rows is None else f"{self.rows:,}"
        return f"{self.feed.title}, {rows} rows × {len(self.names):,} features"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "watch": None}

    def __iter__(self) -> Iterator[Chunk]:
        chunks = self._chunks() if self.watch is None else self._watched(self.watch)
        return read_ahead(chunks) if self.feed.ahead else chunks

    def parts(self, count_hint: int) -> "Sequence[Source]":
        """Cut into disjoint sources that together, in order, are this one.

        Parameters
        ----------
        count_hint : int
            How many are wished for; there may be fewer.

        Returns
        -------
        sequence of Source
            They can be pickled. ``[self]`` where the rows cannot be cut.
        """
        feeds = self.feed.parts(max(1, int(count_hint)))
        if len(feeds) < 2:
            return [self]
        kept = [None if self.reader.missing == "drop" else feed.rows for feed in feeds]
        return [
            replace(self, feed=feed, rows=rows, whole=False, counts=Counts())
            for feed, rows in zip(feeds, kept, strict=True)
        ]

    def absorb(self, parts: "Sequence[Source]") -> None:
        """Take over what walks of its parts have counted."""
        self.counts.clear()
        for part in parts:
            if part is not self:
                self.counts.add(part.counts)

    def fingerprint(self) -> str | None:
        """Return an identity of the data and of how they are read, None where nothing tells it."""
        reader, identity = self.reader, self.feed.identity()
        if identity is None:
            return None
        said = (identity, reader.names, str(reader.dtype), reader.missing, reader.fill)
        return sha256(repr((said, reader.has_target)).encode()).hexdigest()[:32]

    def _watched(self, watch: Callable[[int], None]) -> Iterator[Chunk]:
        for chunk in self._chunks():
            watch(chunk.X.shape[0])
            yield chunk
        if self.whole:
            watch(0)

    def _chunks(self) -> Iterator[Chunk]:
        self.counts.clear()
        rows, have, total = self.chunk_rows, 0, 0
        held: list[Chunk] = []
        for piece in self.feed.pieces(rows):
            first = 0
            while first < len(piece):
                last = min(len(piece), first + rows - have)
                held.append(self.reader.read(piece.cut(first, last), self.counts))
                first, have = last, have + held[-1].X.shape[0]
                if have == rows:
                    yield _joined(held)
                    held, have, total = [], 0, total + rows
        if have:
            yield _joined(held)
        elif self.whole and not total:
            self._refuse_nothing()

    def _refuse_nothing(self) -> NoReturn:
        if self.dropped:
            raise SourceError(
                Message(
                    "{title}: all {dropped} rows have missing values and were dropped. Use {mean}, "
                    "or leave the incomplete columns out of {columns}.",
                    title=self.feed.title,
                    dropped=self.dropped,
                    mean=Option("missing", "mean"),
                    columns=Option("columns"),
                )
            )
        raise SourceError(f"{self.feed.title} holds no rows. At least one is needed.")


def _joined(chunks: list[Chunk]) -> Chunk:
    """Put pieces of a chunk together; one alone is not copied."""
    kept = [chunk for chunk in chunks if chunk.X.shape[0]]
    if len(kept) == 1:
        return kept[0]
    if len({chunk.weight is None for chunk in kept}) > 1:
        raise SourceError("Some rows come with a weight and some without. Give it with all rows.")
    X = [chunk.X for chunk in kept]
    y = None if kept[0].y is None else np.concatenate([chunk.y for chunk in kept])
    weight = None if kept[0].weight is None else np.concatenate([c.weight for c in kept])
    along = None
    if kept[0].along is not None:
        along = nw.concat([nw.from_native(c.along, eager_only=True) for c in kept]).to_native()
    return Chunk(csr_array(vstack(X, "csr")) if issparse(X[0]) else np.vstack(X), y, weight, along)


def default_rows(per_row: float, width: int, sparse: bool) -> int:
    """Return rows a chunk: its entries stay in the cache, or outweigh the d-sized results."""
    entries = max(BLOCK_ELEMENTS, 4 * width) if sparse else BLOCK_ELEMENTS
    return max(1, int(entries / max(per_row, 1)))


class Numbered(Sequence[str]):
    """The names x0, x1, … of any number of features, made when they are asked for.

    Examples
    --------
    >>> names = Numbered(10**12)
    >>> names[-1]
    'x999999999999'
    >>> Numbered(2) == ("x0", "x1")
    True
    """

    def __init__(self, count: int) -> None:
        self.range = range(count)

    def __len__(self) -> int:
        return len(self.range)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return tuple(f"x{j}" for j in self.range[at])
        return f"x{self.range[at]}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Numbered):
            return self.range == other.range
        return isinstance(other, Sequence) and len(self) == len(other) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(self.range)

    def __repr__(self) -> str:
        return f"Numbered({len(self)})"


def spread(sizes: Sequence[int], count: int) -> list[slice]:
    """Cut a row of sizes into at most `count` runs of about the same total, none of them empty."""
    ends = np.cumsum(sizes)
    if not len(ends):
        return []
    count = min(count, len(ends))
    goals = ends[-1] * np.arange(1, count) / count
    cuts = np.unique(np.concatenate([[0], np.searchsorted(ends, goals) + 1, [len(ends)]]))
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(cuts)]
