"""What a source asks of its reader: numbers from pieces, and counts of what was left out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from quadlin.core.chunks import Chunk
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.level_codes import Unseen
from quadlin.data.sources.feeds import Piece


@dataclass
class Counts:
    """The counts of a pass."""

    dropped: int = 0
    unseen: Unseen = field(default_factory=Unseen)

    def add(self, other: "Counts") -> None:
        """Add the counts of another pass."""
        self.dropped += other.dropped
        self.unseen.add(other.unseen)

    def clear(self) -> None:
        """Start again from zero, before a new pass."""
        self.dropped = 0
        self.unseen.clear()


class PieceReader(Protocol):
    """Turns pieces into numbers."""

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
    def text(self) -> frozenset[Any]:
        """Return the input columns that hold text."""

    @property
    def numbers(self) -> tuple[Any, ...]:
        """Return the input columns that hold numbers; () where rows are arrays."""

    @property
    def target(self) -> Any:
        """Return the column of a table that is y; None where there is none."""

    @property
    def weight(self) -> Any:
        """Return the column of a table that holds weights; None where there is none."""

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Return the labels that y is the position of; None where y is a number."""

    @property
    def missing(self) -> str:
        """Return what is done with missing values."""

    @property
    def fill(self) -> dict[str, float] | None:
        """Return what missing numbers are filled with."""

    @property
    def input_columns(self) -> tuple[Any, ...]:
        """Return the columns of a table that are the features; () where rows are arrays."""

    @property
    def kept_columns(self) -> Any:
        """Return a frame without rows of the columns that ``keep`` names; None without them."""

    def read(self, piece: Piece, counts: Counts) -> Chunk:
        """Return the rows of a piece that are kept, as numbers."""
