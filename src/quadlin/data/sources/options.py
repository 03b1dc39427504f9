"""The options of `open_source`, as one object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.errors import SourceError
from quadlin.data.sources.csv_text import Dialect


@dataclass(frozen=True)
class OpenOptions:
    """The options of `open_source` after their check; see there for their meaning."""

    target: Any
    weight: Any
    columns: Sequence[Any] | None
    missing: str
    encoder: TableEncoder | None
    levels: Mapping[Any, Sequence[str]] | None
    fill: dict[str, float] | None
    keep: Sequence[Any]
    categorical_features: Sequence[Any]  # in addition to text columns
    exclude: Sequence[Any]
    labels: str | Sequence[str] | None
    format: str | None
    n_features: int | None
    zero_based: bool | str
    dialect: Dialect
    target_apart: bool = False  # y is a separate array, not a column

    @property
    def text(self) -> tuple[Any, ...]:
        """Return the columns of CSV that are text even if they look like numbers."""
        columns = self.columns if self.encoder is None else self.encoder.input_names
        columns = [columns] if isinstance(columns, str) else columns or ()
        read = {*columns, *(n for n in (self.target, self.weight) if isinstance(n, str))}
        return (
            *(self.levels or ()),
            *self.categorical_features,
            *({} if self.encoder is None else self.encoder.text),
            # Columns that are only passed on stay as they are written: 007 does not become 7.
            *(name for name in self.keep if name not in read),
        )

    def no_table(self, title: str) -> None:
        """Refuse options that only make sense for tables."""
        given = {name: getattr(self, name) is not None for name in ("columns", "encoder", "levels")}
        lists = ("keep", "categorical_features", "exclude")
        given |= {name: bool(getattr(self, name)) for name in lists}
        for name in [name for name, is_given in given.items() if is_given]:
            raise SourceError(f"{title} has no named columns: `{name}` is for tables only.")

    def no_csv(self, title: str) -> None:
        """Refuse options that only make sense for CSV."""
        if self.dialect != Dialect():
            raise SourceError(
                f"{title} is not CSV: `delimiter`, `decimal`, `encoding`, `header` "
                "and `na` are for CSV only."
            )

    def written(self, format: str) -> Dialect:
        """Return the dialect of CSV files of a format."""
        if format == "tsv" and self.dialect.delimiter is None:
            return replace(self.dialect, delimiter="\t")
        return self.dialect
