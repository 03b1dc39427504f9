"""The only access to the rows: every pass over them is counted and computed here."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, TypeVar

from quadlin.core.arrays import Array, forget_all
from quadlin.core.chunks import Chunk
from quadlin.core.engine import Engine, Serial, in_wide_blocks, paired, takes_wide_blocks

T = TypeVar("T")
ROUNDING = 1e-6  # of a pass, when shares are added


@dataclass
class Walks:
    """The number of passes over the rows; views and samples of the same rows share it."""

    count: float = 0.0  # a pass over a sample counts as its share of the rows

    @property
    def rounded(self) -> int:
        """Return the number of passes, with shares rounded up."""
        return ceil(self.count - ROUNDING)


@dataclass(frozen=True)
class RowValues:
    """Values that replace parts of each row, and are cut together with the rows."""

    weight: Any = None  # (n,), factors of the weights of the rows
    y: Any = None  # (n,), targets in place of those of the rows
    place: Any = None  # (n,), a number of each row, such as its place, for sums that ask for it

    def __getitem__(self, part: slice) -> "RowValues":
        values = (self.weight, self.y, self.place)
        return RowValues(*(None if v is None else v[part] for v in values))

    def replaced(self, chunk: Chunk) -> Chunk:
        """Return a chunk of as many rows with its weights multiplied, and its targets replaced."""
        weight = self.weight
        if weight is not None and chunk.weight is not None:
            weight = weight * chunk.weight
        y = chunk.y if self.y is None else self.y
        return replace(chunk, y=y, weight=chunk.weight if weight is None else weight)


@dataclass(frozen=True)
class Rows:
    """Rows to sum over, wherever they come from and whichever engine computes the sums.

    Solvers mostly use `reduce`, and `walks`, the number of passes, is the cost of a fit. `collect`
    returns one value per chunk, in order. The engine computes both. `walk` yields the chunks one
    after another, in this thread, for everything that is not a sum:

    - predictions and their scores, which are handed on chunk by chunk in the order of the rows;
    - streams, where each chunk changes the model that the next one meets;
    - rows that are kept: a cache of a file, the columns of a factorization machine;
    - looks at the first rows (ids, codes, row numbers), which stop once they have seen enough.

    Examples
    --------
    >>> import numpy as np
    >>> from quadlin.core.chunks import MemorySource
    >>> rows = Rows.of(MemorySource(np.ones((10, 3)), np.arange(10.0)))
    >>> float(rows.reduce(lambda chunk: chunk.y.sum()))
    45.0
    >>> twice = rows.reweighted(np.full(10, 2.0))
    >>> float(twice.reduce(lambda chunk: chunk.weight.sum())), rows.walks
    (20.0, 2)
    """

    engine: Engine
    values: RowValues | None = None
    counter: Walks = field(default_factory=Walks)
    share: float = 1.0  # of all rows, for a sample of them

    @classmethod
    def of(cls, source: Iterable[Chunk]) -> "Rows":
        """Return the rows of a source, to be summed in this thread."""
        return cls(Serial(source))

    @property
    def walks(self) -> int:
        """Return the number of passes over the rows and their views, with shares rounded up."""
        return self.counter.rounded

    def reduce(self, fn: Callable[..., T], *params: Any, beside: Any = None) -> T:
        """Return Σ fn(chunk, *params): one pass.

        With numbers of the rows (n,) `beside` them, `fn` is given pairs of a chunk and its numbers.
        """
        values = self.values
        if beside is not None:
            values = replace(values or RowValues(), place=beside)
        self.counter.count += self.share
        if values is None:
            total = self.engine.carry(fn, params)
        else:
            replaced = _of_replaced_wide if takes_wide_blocks(fn) else _of_replaced
            total = self.engine.carry(replaced, (fn, *params), values)
        forget_all()
        if total is None:
            raise ValueError("There are no rows.")
        return total

    def collect(self, fn: Callable[..., T], *params: Any, beside: Any = None) -> list[T]:
        """Return fn(chunk, *params) of each chunk, in the order of the rows, as `reduce` does."""
        return self.reduce(_listed, fn, *params, beside=beside)

    def walk(self) -> Iterator[Chunk]:
        """Yield the chunks one by one, in this thread: one pass."""
        self.counter.count += self.share
        if self.values is None:
            yield from self.engine.source
        else:
            for chunk, values in paired(self.engine.source, self.values):
                yield values.replaced(chunk)

    def reweighted(self, weight: Array, y: Array | None = None) -> "Rows":
        """Return a view with multiplied weights (0 leaves a row out) and, if given, other targets.

        Nothing is copied, and passes over the view count as passes over the rows.
        """
        if self.values is not None:
            weight = weight if self.values.weight is None else weight * self.values.weight
            y = self.values.y if y is None else y
        return replace(self, values=RowValues(weight, y))


# These are functions of the module, since a cluster sends them by name.
def _listed(chunk: Any, fn: Callable[..., T], *params: Any) -> list[T]:
    return [fn(chunk, *params)]


def _of_replaced(pair: tuple[Chunk, RowValues], fn: Callable[..., T], *params: Any) -> T:
    chunk, values = pair[1].replaced(pair[0]), pair[1]
    return fn(chunk if values.place is None else (chunk, values.place), *params)


@in_wide_blocks
def _of_replaced_wide(pair: tuple[Chunk, RowValues], fn: Callable[..., T], *params: Any) -> T:
    return _of_replaced(pair, fn, *params)
