"""The labels of a target that is text, and targets that are numbers or names of rows instead."""

from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np

from quadlin.core.messages import Message, Option, Phrase
from quadlin.data.columns.errors import SourceError
from quadlin.data.columns.level_codes import written_numbers
from quadlin.data.columns.numbers_as_text import is_number
from quadlin.data.sources.feeds import Feed, Piece
from quadlin.data.sources.source import default_rows

MANY_LABELS = 1000  # a text with more values is no label, whatever the user says
MOST_UNASKED, FEW = 50, 10  # labels of a target that nobody has called one, and always accepted
AS_CLASSES = Phrase('labels="learn"', Option("classify", True))


def learned_labels(feed: Feed, target: Any, title: str, asked: bool) -> tuple[str, ...]:
    """Return the labels of a text, found by a pass over it.

    Parameters
    ----------
    feed : Feed
        The table.
    target : str
        The column.
    title : str
        The name of the table in errors.
    asked : bool
        Whether the user asked for classes. Otherwise a text that is mostly numbers is refused by
        its first cell that is not, and so is one with a value for every other row.
    """
    labels: set[str] = set()
    cells = _Cells()
    for piece in feed.only([target]).pieces(default_rows(1, 0, sparse=False)):
        column = nw.from_native(piece.X, eager_only=True).get_column(target).cast(nw.String())
        distinct = column.drop_nulls().unique().to_list()
        cells.count(column, [label for label in distinct if not is_number(label)], piece)
        if len(labels) <= MANY_LABELS:
            labels.update(distinct)
        elif 2 * cells.numbers <= cells.rows:
            break
    many = len(labels) > MANY_LABELS
    example = written_numbers(sorted(labels))
    if example is not None:
        raise SourceError(
            f"{title}: the target {target!r} holds numbers with a currency, a percent "
            f"sign, brackets, a unit or a long minus, such as {example!r}. Write plain numbers."
        )
    if (many or not asked) and cells.odd is not None and 2 * cells.numbers > cells.rows:
        raise SourceError(_mostly_numbers(title, target, cells, None if many else AS_CLASSES))
    if many:
        raise SourceError(_too_many(title, target, labels, None))
    if not asked and (len(labels) > MOST_UNASKED or 2 * len(labels) > max(cells.rows, 2 * FEW)):
        raise SourceError(_too_many(title, target, labels, cells.rows))
    return tuple(sorted(labels))


@dataclass
class _Cells:
    """Counts of the cells of a text that are there."""

    rows: int = 0
    numbers: int = 0
    odd: tuple[str, str] | None = None  # the first cell that is no number, and where it is

    def count(self, column: nw.Series[Any], words: list[str], piece: Piece) -> None:
        """Count the cells of a piece, of which some are words."""
        places = np.empty(0, dtype=int)
        if words:
            places = np.flatnonzero(column.is_in(words).fill_null(value=False).to_numpy())
        rows = len(column) - column.null_count()
        self.rows, self.numbers = self.rows + rows, self.numbers + rows - len(places)
        if self.odd is None and len(places):
            self.odd = str(column[int(places[0])]), piece.where(int(places[0]))


def _mostly_numbers(title: str, target: Any, cells: _Cells, classes: Phrase | None) -> str:
    cell, where = cells.odd or ("", "")
    return Message(
        "{title}: the target {target!r} holds numbers in {numbers:,} of {rows:,} rows, but "
        "{cell!r} in {where}. Correct that cell, or empty it and give {missing=drop}.{classes}",
        title=title,
        target=str(target),
        numbers=cells.numbers,
        rows=cells.rows,
        cell=cell,
        where=where,
        classes=_as_classes(classes),
    )


def _as_classes(classes: Phrase | None) -> str:
    if classes is None:
        return ""
    return Message(" If each value is a class, give {classes}.", classes=classes)


def _too_many(title: str, target: Any, labels: set[str], rows: int | None) -> str:
    count = f"more than {MANY_LABELS:,}" if rows is None else f"{len(labels):,}"
    first = min(labels)
    if all(map(is_number, labels)):
        kind, advice = "numbers as text", "Convert it to numbers"
    else:
        kind, advice = "text", "Choose a column of fewer labels, or of numbers"
    return Message(
        "{title}: the target {target!r} is {kind}, with {count} different values{rows}, such as "
        "{first!r}. {advice}.{classes}",
        title=title,
        target=str(target),
        kind=kind,
        count=count,
        rows="" if rows is None else f" in {rows:,} rows",
        first=first,
        advice=advice,
        classes=_as_classes(None if rows is None else AS_CLASSES),
    )
