"""The labels of a text target, and the refusal of text that holds numbers or names of rows."""

from dataclasses import dataclass, field
from typing import Any

import narwhals as nw
import numpy as np

from quadlin.data.columns.errors import SourceError
from quadlin.data.columns.level_codes import NUMBER
from quadlin.data.sources.feeds import Piece

MANY_LABELS = 1000  # text with more distinct values is refused, even if the user asks for labels
MOST_UNASKED, FEW = 50, 10  # most labels without being asked, and a number that is always accepted
AS_CLASSES = ' If each value is a class, give labels="learn".'


@dataclass
class LabelLearner:
    """Learns the labels of a text target from pieces of a table.

    Unless the user `asked` for classes, text that is mostly numbers is refused, with its first cell
    that is not a number; and so is text with a different value in every second row.
    """

    title: str  # of the table, in errors
    target: Any
    asked: bool
    seen: set[str] = field(default_factory=set)
    rows: int = 0  # with a cell that is not missing
    numbers: int = 0
    word: tuple[str, str] | None = None  # the first cell that is not a number, and its row

    def add(self, piece: Piece) -> None:
        """Note the labels of some rows."""
        column = nw.from_native(piece.X, eager_only=True).get_column(self.target).cast(nw.String())
        distinct = column.drop_nulls().unique().to_list()
        places = np.empty(0, dtype=int)
        if words := [label for label in distinct if not is_number(label)]:
            places = np.flatnonzero(column.is_in(words).fill_null(value=False).to_numpy())
        rows = len(column) - column.null_count()
        self.rows, self.numbers = self.rows + rows, self.numbers + rows - len(places)
        if self.word is None and len(places):
            self.word = str(column[int(places[0])]), piece.where(int(places[0]))
        if len(self.seen) <= MANY_LABELS:
            self.seen.update(distinct)

    def labels(self) -> tuple[str, ...]:
        """Return the sorted labels, or raise an error that says why the values are not labels."""
        many = len(self.seen) > MANY_LABELS
        if (many or not self.asked) and self.word is not None and 2 * self.numbers > self.rows:
            cell, where = self.word
            raise SourceError(
                (
                    "{title}: the target {target!r} holds numbers in {numbers:,} of {rows:,} "
                    "rows, but {cell!r} in {where}. Correct that cell, or empty it and give "
                    'missing="drop".{classes}'
                ).format(
                    title=self.title,
                    target=str(self.target),
                    numbers=self.numbers,
                    rows=self.rows,
                    cell=cell,
                    where=where,
                    classes="" if many else AS_CLASSES,
                )
            )
        most = min(MOST_UNASKED, max(self.rows, 2 * FEW) // 2)
        if many or (not self.asked and len(self.seen) > most):
            numbers = all(map(is_number, self.seen))
            raise SourceError(
                (
                    "{title}: the target {target!r} is {kind}, with {count} different "
                    "values{rows}, such as {first!r}. {advice}.{classes}"
                ).format(
                    title=self.title,
                    target=str(self.target),
                    kind="numbers as text" if numbers else "text",
                    count=f"more than {MANY_LABELS:,}" if many else f"{len(self.seen):,}",
                    rows="" if many else f" in {self.rows:,} rows",
                    first=min(self.seen),
                    advice=(
                        'Convert it to numbers, or give decimal="," if it has decimal commas'
                        if numbers
                        else "Choose a column of fewer labels, or of numbers"
                    ),
                    classes="" if many else AS_CLASSES,
                )
            )
        return tuple(sorted(self.seen))


def is_number(label: str) -> bool:
    """Return whether a label is a number, perhaps with a decimal comma."""
    return NUMBER.fullmatch(label.replace(",", ".", 1)) is not None
