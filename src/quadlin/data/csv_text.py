"""CSV text, read by pyarrow with explicit options; errors name the cell and the option."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quadlin.data.names import SourceError, capital, first_line

TEXT_BLOCK = 1 << 23  # bytes parsed at once; the columns' types are those of the first block
SEPARATORS = (";", "\t", "|")  # in addition to the comma
MISSING = ("?",)  # in addition to those of Arrow: an empty cell, NA, N/A, null, NaN and the like
# What a model remembers; not the encoding, since UTF-8 read as Latin-1 is garbled without an error.
REMEMBERED = ("delimiter", "decimal", "header", "na")
UTF16 = 'is not UTF-8 but UTF-16. Give encoding="utf-16"'
NO_CSV = {
    b"\x1f\x8b": "is compressed with gzip. Decompress it (zcat), or rename it to end in .csv.gz",
    b"PK\x03\x04": "is an Excel workbook or a ZIP archive. Save its table as CSV first",
    b"PAR1": 'is a Parquet file. Give format="parquet"',
    b"\xff\xfe": UTF16,
    b"\xfe\xff": UTF16,
}
ADVICE = "Check that line, the separator (`delimiter`) and the `encoding`."
ENCODINGS = (
    'Give encoding="latin1" if it is Western text from an older program, or '
    "another encoding; or convert it with iconv -f latin1 -t utf8."
)


def arrow() -> Any:
    """Import pyarrow, or say how to get it."""
    try:
        import pyarrow

        return pyarrow
    except ImportError:
        raise ImportError('Reading tables needs pyarrow: pip install "quadlin[table]".') from None


@dataclass(frozen=True)
class Dialect:
    """How a CSV text is written; None is the default."""

    delimiter: str | None = None  # a comma, or the one of a header without commas
    decimal: str | None = None  # a point
    encoding: str = "utf8"
    header: bool | None = None  # the first row holds the names
    na: tuple[str, ...] | None = None  # "?"

    @classmethod
    def of(
        cls,
        delimiter: Any = None,
        decimal: Any = None,
        encoding: Any = None,
        header: Any = None,
        na: Any = None,
    ) -> "Dialect":
        """Check the options that the user gave."""
        single = isinstance(delimiter, str) and len(delimiter) == 1 and delimiter.isascii()
        if delimiter is not None and (not single or delimiter in '"\r\n\0'):
            raise SourceError(f'delimiter={delimiter!r} must be one character, such as ";".')
        if decimal not in (None, ".", ","):
            raise SourceError(f'decimal={decimal!r} must be "." or ",".')
        try:
            "".encode(encoding or "utf8")
        except (LookupError, TypeError, ValueError):
            raise SourceError(
                f'encoding={encoding!r} is unknown. Give one such as "latin1", "cp1252" '
                'or "utf-16".'
            ) from None
        same = encoding is None or encoding.lower().replace("-", "") == "utf8"
        if na is not None:
            na = (na,) if isinstance(na, str) else tuple(map(str, na))
        return cls(delimiter, decimal, "utf8" if same else encoding, header, na)

    @property
    def declared(self) -> dict[str, Any]:
        """Return what the user declared and a model remembers, as options of `open_source`.

        Examples
        --------
        >>> Dialect.of(decimal=",", header=False).declared
        {'decimal': ',', 'header': False}
        """
        return {name: value for name in REMEMBERED if (value := getattr(self, name)) is not None}


def delimiter_of(head: bytes) -> str:
    r"""Return the separator of a header: a comma, or another one if there is no comma.

    Examples
    --------
    >>> delimiter_of(b'"a,1";b;y\n1,5;2;3'), delimiter_of(b"a,b;c"), delimiter_of(b"a")
    (';', ',', ',')
    """
    line = re.split(rb"[\r\n]", head.removeprefix(b"\xef\xbb\xbf").lstrip(), maxsplit=1)[0]
    header = re.sub(rb'"[^"]*"', b"", line).decode(errors="replace")
    most = max(SEPARATORS, key=header.count)
    return most if most in header and "," not in header else ","


@dataclass(frozen=True)
class CsvText:
    """How a CSV text is to be read: its columns, and their types."""

    dialect: Dialect
    delimiter: str
    names: tuple[str, ...] = ()  # of all columns; () until they are known
    types: dict[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, path: str, dialect: Dialect, text: Sequence[Any], what: str) -> "CsvText":
        """Return the layout of a file, from its first block.

        Numbers are float64, since whole numbers in the first block may not stay whole; the columns
        `text` are text even if they look like numbers. Text that is not UTF-8, which Arrow reads as
        bytes, raises an error where it is used.
        """
        pa = arrow()
        with in_utf8(path, dialect) as stream:
            head = stream.read(TEXT_BLOCK)
        if dialect.encoding == "utf8":
            for start, why in NO_CSV.items():
                if head.startswith(start):
                    raise SourceError(f"{capital(what)} {why}.")
        layout = cls(dialect, dialect.delimiter or delimiter_of(head))
        with in_utf8(path, dialect) as stream:
            schema = layout.open(stream, what).schema
        try:
            names = tuple(schema.names)
        except UnicodeDecodeError:
            raise SourceError(f"The header of {what} is not UTF-8. {ENCODINGS}") from None
        if dialect.header is False:
            names = tuple(f"x{j}" for j in range(len(names)))
        types = {}
        for name, kind in zip(names, schema.types, strict=True):
            if name in text or pa.types.is_binary(kind):
                kind = pa.string()
            elif pa.types.is_integer(kind) or pa.types.is_null(kind):
                kind = pa.float64()
            types[name] = kind
        return replace(layout, names=names, types=types)

    @property
    def schema(self) -> Any:
        """Return the Arrow schema; two columns may have the same name."""
        return arrow().schema([(name, self.types[name]) for name in self.names])

    def tables(self, path: str, what: str, columns: Sequence[Any]) -> Iterator[Any]:
        """Yield the tables of some columns of a file."""
        try:
            with in_utf8(path, self.dialect) as stream:
                for batch in self.open(stream, what, columns):
                    yield arrow().Table.from_batches([batch])
        except arrow().ArrowInvalid as error:
            raise self.error(error, what) from None

    def open(self, stream: Any, what: str, columns: Sequence[Any] | None = None) -> Any:
        """Open a stream of UTF-8 text as a stream of batches.

        Without `columns` these are all columns, of the types that Arrow finds.
        """
        from pyarrow import csv as arrow_csv

        no_header = self.dialect.header is False
        # With several threads an error would not name its row; another thread reads ahead anyway.
        read = arrow_csv.ReadOptions(
            block_size=TEXT_BLOCK,
            use_threads=False,
            column_names=self.names if no_header else None,
            autogenerate_column_names=no_header and not self.names,
        )
        # A block may end with a quoted line break.
        parse = arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        na = MISSING if self.dialect.na is None else self.dialect.na
        convert = arrow_csv.ConvertOptions(
            include_columns=columns,
            column_types=self.types,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            decimal_point=self.dialect.decimal or ".",
            null_values=[*arrow_csv.ConvertOptions().null_values, *na],
        )
        try:
            return arrow_csv.open_csv(stream, read, parse, convert)
        except arrow().ArrowInvalid as error:
            if "Empty CSV" not in str(error):
                raise self.error(error, what) from None
            raise SourceError(
                f"{capital(what)} is empty or holds no rows. A header and at least one row are "
                "needed."
            ) from None

    def error(self, error: BaseException, what: str) -> SourceError:
        """Return an error about a cell that cannot be read, with the name of its column."""
        above = 1 if self.dialect.header is False else 2  # Arrow counts rows from 1, and the header
        match = re.search(
            r"column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+): "
            r"invalid (?:UTF8|value '(.*))",
            str(error),
        )
        if match is None or int(match[1]) >= len(self.names):
            text = re.sub(
                r"Row #(\d+)",
                lambda row: f"row {int(row[1]) - above} (counted from 0)",
                first_line(error),
            )
            return SourceError(f"{capital(what)} cannot be read: {text} {ADVICE}")
        name = self.names[int(match[1])]
        row = f" in row {int(match[2]) - above} (counted from 0)" if match[2] else ""
        if match[4] is None:
            return SourceError(f"Column {name!r} of {what} is not UTF-8{row}. {ENCODINGS}")
        cell = match[4].rstrip("'").strip()
        options = [f"give na={[cell[:80]]!r} if it is missing"]
        options += ['give decimal="," if the comma is the decimal point'] if "," in cell else []
        options += [f"give categorical_features={[name]!r} if these are codes"]
        return SourceError(
            f"Column {name!r} of {what} holds numbers in its first rows, but {cell[:80]!r}{row}. "
            f"Correct it, {', or '.join(options)}."
        )


def in_utf8(path: str, dialect: Dialect) -> Any:
    """Open a file as a stream of UTF-8; a compressed one is decompressed."""
    pa = arrow()
    stream = pa.input_stream(path)
    if dialect.encoding == "utf8":
        return stream
    return pa.transcoding_input_stream(stream, dialect.encoding, "utf8")
