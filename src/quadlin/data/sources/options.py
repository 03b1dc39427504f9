"""The options of `open_source`, as one object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quadlin.core.messages import Message, Option
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.errors import SourceError
from quadlin.data.sources.csv_text import REMEMBERED, Dialect


@dataclass(frozen=True)
class FileOptions:
    """How to read a table."""

    target: Any = None
    weight: Any = None
    columns: Sequence[Any] | None = None
    missing: str = "error"
    encoder: TableEncoder | None = None
    levels: Mapping[Any, Sequence[str]] | None = None
    fill: dict[str, float] | None = None
    target_apart: bool = False  # y comes as an array of its own, not as a column
    keep: Sequence[Any] = ()
    categorical_features: Sequence[Any] = ()  # beside text
    multi_hot: Mapping[Any, str] = field(default_factory=dict)  # columns of lists, separators
    exclude: Sequence[Any] = ()  # columns that are not features
    labels: str | Sequence[str] | None = None  # of a target that is text; "learn", "auto" find them


@dataclass(frozen=True)
class OpenOptions:
    """The options of `open_source`."""

    table: FileOptions
    target: Any
    weight: Any
    format: str | None
    n_features: int | None
    zero_based: bool | str
    dialect: Dialect

    @property
    def text(self) -> tuple[Any, ...]:
        """Return the columns of CSV that are text even if they look like numbers."""
        encoder = self.table.encoder
        encoded = [] if encoder is None else zip(encoder.input_names, encoder.levels, strict=True)
        return (
            *(self.table.levels or ()),
            *self.table.categorical_features,
            *self.table.multi_hot,
            *(name for name, levels in encoded if levels is not None),
            # What is only passed on stays as it is written: 007 is not 7.
            *(name for name in self.table.keep if name not in self._read),
        )

    @property
    def _read(self) -> list[Any]:
        """Return the columns that the user named as features, target or weight."""
        table = self.table
        columns = table.columns if table.encoder is None else table.encoder.input_names
        columns = [columns] if isinstance(columns, str) else list(columns or ())
        return [*columns, *(n for n in (self.target, self.weight) if isinstance(n, str))]

    def named(self, title: str) -> FileOptions:
        """Return the options of a table, where target and weight are names of columns."""
        for role, value in (("target", self.target), ("weight", self.weight)):
            if value is not None and not isinstance(value, str | int):
                raise SourceError(
                    f"{title}: name the column of the {role} instead of giving an array."
                )
        return replace(self.table, target=self.target, weight=self.weight)

    def no_table(self, title: str) -> None:
        """Refuse options that only make sense for tables."""
        for option in ("columns", "encoder", "levels"):
            if getattr(self.table, option) is not None:
                raise SourceError(_for_tables(title, option))
        for option in ("keep", "categorical_features", "multi_hot", "exclude"):
            if getattr(self.table, option):
                raise SourceError(_for_tables(title, option))

    def no_csv(self, title: str) -> None:
        """Refuse options that only make sense for CSV."""
        if self.dialect != Dialect():
            raise SourceError(
                Message(
                    "{title} is not CSV: {delimiter}, {decimal}, {thousands}, {encoding}, {header} "
                    "and {na} are for CSV only.",
                    title=title,
                    **{name: Option(name) for name in (*REMEMBERED, "encoding")},
                )
            )

    def written(self, format: str) -> Dialect:
        """Return how CSV of a format is written."""
        if format == "tsv" and self.dialect.delimiter is None:
            return replace(self.dialect, delimiter="\t")
        return self.dialect


def _for_tables(title: str, option: str) -> Message:
    return Message(
        "{title} has no named columns: {option} is for tables only.",
        title=title,
        option=Option(option),
    )
