"""CSV text: its separators, the notation of its numbers, its encoding and its types."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from quadlin.data.columns.columns import as_codes
from quadlin.data.columns.errors import SourceError, first_line
from quadlin.data.sources.arrow_batches import ADVICE, arrow
from quadlin.data.sources.csv_cells import checked_signs

CSV_BLOCK = 1 << 23  # bytes; the columns' types are guessed from the first block
HEAD = 1 << 16  # bytes that show what a file is
LONGEST_MARK = 20  # letters of a word that may mark a missing value
SEPARATORS = (";", "\t", "|")  # in addition to the comma
# What a model remembers; not the encoding, since UTF-8 read as Latin-1 is garbled without an error.
REMEMBERED = ("delimiter", "decimal", "thousands", "header", "na")
UTF16 = 'is not UTF-8 but UTF-16. Give encoding="utf-16"'
NO_CSV = {
    b"\x1f\x8b": "is compressed with gzip. Decompress it (zcat), or rename it to end in .csv.gz",
    b"PK\x03\x04": "is an Excel workbook or a ZIP archive. Save its table as CSV first",
    b"PAR1": 'is a Parquet file. Give format="parquet"',
    b"\xff\xfe": UTF16,
    b"\xfe\xff": UTF16,
}


@dataclass(frozen=True)
class Dialect:
    """How a CSV text is written."""

    delimiter: str | None = None  # None: the one in the header
    decimal: str | None = None  # None: a point, and columns of numbers with commas are refused
    thousands: str | None = None  # the thousands separator of numbers
    encoding: str = "utf8"
    header: bool | None = None  # None: there is one, and one that looks like data is refused
    na: tuple[str, ...] | None = None  # in addition to the usual; None: those of the first block
    names: tuple[str, ...] | None = None  # of the columns, if the header does not give them
    blank_lines: int = 0  # before the header
    padded: tuple[str, ...] = ()  # missing values of the first block, with their spaces
    grouped: tuple[str, ...] = ()  # columns of numbers that may have thousands separators

    @classmethod
    def of(
        cls,
        delimiter: Any = None,
        decimal: Any = None,
        encoding: Any = None,
        header: Any = None,
        na: Any = None,
        thousands: Any = None,
    ) -> "Dialect":
        """Check the options that the user gave."""
        single = isinstance(delimiter, str) and len(delimiter) == 1 and delimiter.isascii()
        if delimiter is not None and (not single or delimiter in '"\r\n\0'):
            raise SourceError(f'delimiter={delimiter!r} must be one character, such as ";".')
        if decimal not in (None, ".", ","):
            raise SourceError(f'decimal={decimal!r} must be "." or ",".')
        decimal, thousands = checked_signs(decimal, thousands)
        try:
            "".encode(encoding or "utf8")
        except (LookupError, TypeError, ValueError):
            raise SourceError(
                f'encoding={encoding!r} is unknown. Give one such as "latin1", "cp1252" '
                'or "utf-16".'
            ) from None
        same = encoding is None or encoding.lower().replace("-", "") == "utf8"
        if header not in (None, True, False):
            raise SourceError(f"header={header!r} must be True or False.")
        if na is not None:
            na = (na,) if isinstance(na, str) else tuple(na)
            if not all(isinstance(marker, str) for marker in na):
                raise SourceError(f'na={na!r} must be a list of texts, such as ["?"].')
        return cls(delimiter, decimal, thousands, "utf8" if same else encoding, header, na)

    def seen_in(self, head: bytes) -> "Dialect":
        """Return the dialect of a text that begins like this."""
        dialect = replace(self, delimiter=self.delimiter or delimiter_of(head))
        row, blank_lines = _first_row(head, str(dialect.delimiter))
        if self.header is False:
            return replace(dialect, names=tuple(f"x{j}" for j in range(len(row))))
        plain = [re.sub(r"\s*[\r\n]\s*", " ", name.strip()) for name in row]
        # Columns without a name are left out; until then, spaces of different lengths name them.
        names = tuple(name or " " * plain[:j].count("") for j, name in enumerate(plain))
        if list(names) == row or "\ufffd" in "".join(names):  # not UTF-8, which is refused later
            return dialect
        return replace(dialect, names=names, blank_lines=blank_lines)

    @property
    def declared(self) -> dict[str, Any]:
        """Return what the user declared and a model remembers, as options of `open_source`.

        Examples
        --------
        >>> Dialect.of(thousands=",", header=False).declared
        {'decimal': '.', 'thousands': ',', 'header': False}
        """
        return {name: value for name in REMEMBERED if (value := getattr(self, name)) is not None}

    @property
    def missing(self) -> list[str]:
        """Return the marks of missing values, without spaces around them: -999 and -999.0."""
        from pyarrow.csv import ConvertOptions

        integers = [marker for marker in self.na or () if re.fullmatch(r"[-+]?\d+", marker)]
        zeros = [f"{marker}{self.decimal or '.'}{'0' * n}" for marker in integers for n in (1, 2)]
        return [*ConvertOptions().null_values, *(self.na or ()), *zeros]

    @property
    def null_values(self) -> list[str]:
        """Return the marks of missing values, also with a space on either side."""
        spaced = [
            f"{a}{marker}{b}" for marker in self.missing for a in ("", " ") for b in ("", " ")
        ]
        return [*dict.fromkeys([*spaced, *self.padded])]


def delimiter_of(head: bytes) -> str:
    r"""Return the separator of a header: a comma, or another one if there is no comma.

    Examples
    --------
    >>> delimiter_of(b'"a,1";b;y\n1,5;2;3'), delimiter_of(b"a,b;c"), delimiter_of(b"a")
    (';', ',', ',')
    """
    plain = re.sub(rb'"[^"]*"', b"", head.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n"))
    header = re.split(rb"[\r\n]", plain, maxsplit=1)[0].decode(errors="replace")
    most = max(SEPARATORS, key=header.count)
    return most if most in header and "," not in header else ","


def _first_row(head: bytes, delimiter: str) -> tuple[list[str], int]:
    """Return the cells of the first row, and how many blank lines are above it."""
    text = StringIO(head.removeprefix(b"\xef\xbb\xbf").decode(errors="replace"), newline="")
    blank_lines = 0
    for row in csv.reader(text, delimiter=delimiter):
        if row:
            return row, blank_lines
        blank_lines += 1
    return [], blank_lines


def refuse_other(head: bytes, what: str) -> None:
    """Refuse bytes whose beginning shows that they are not CSV text."""
    for start, why in NO_CSV.items():
        if head.startswith(start):
            raise SourceError(f"{_capital(what)} {why}.")


def in_utf8(file: Any, dialect: Dialect) -> Any:
    """Open a path or a stream as a stream of UTF-8; a compressed file is decompressed."""
    pa = arrow()
    stream = pa.input_stream(file) if isinstance(file, str) else file
    if dialect.encoding == "utf8":
        return stream
    return pa.transcoding_input_stream(stream, dialect.encoding, "utf8")


def open_csv_file(
    path: str, dialect: Dialect, columns: Any = None, types: dict[str, Any] | None = None
) -> Any:
    """Open a CSV file as a stream of batches."""
    with in_utf8(path, dialect) as stream:
        head = stream.read(HEAD)
        while not head.count(b"\n") and len(head) < CSV_BLOCK and (more := stream.read(HEAD)):
            head += more
    if dialect.encoding == "utf8":
        refuse_other(head, f"file {path}")
    dialect = dialect.seen_in(head)
    return open_csv(in_utf8(path, dialect), dialect, columns, types, f"file {path}")


def open_csv(
    stream: Any, dialect: Dialect, columns: Any, types: dict[str, Any] | None, what: str
) -> Any:
    """Open UTF-8 text of a known dialect as a stream of batches."""
    pa = arrow()
    from pyarrow import csv as arrow_csv

    # With several threads an error would not name its row, and another thread reads ahead anyway.
    read = arrow_csv.ReadOptions(block_size=CSV_BLOCK, use_threads=False)
    if dialect.names is not None:
        read.column_names, read.skip_rows = list(dialect.names), dialect.blank_lines
        read.skip_rows_after_names = int(dialect.header is not False)
    # A block may end with a quoted line break.
    parse = arrow_csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True)
    convert = arrow_csv.ConvertOptions(
        include_columns=None if columns is None else list(columns),
        column_types=types,
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        decimal_point=dialect.decimal or ".",
        null_values=dialect.null_values,
    )
    try:
        return arrow_csv.open_csv(stream, read, parse, convert)
    except pa.ArrowInvalid as error:
        if "parse error: Row #" in str(error):
            raise SourceError(csv_error(error, what, (), dialect)) from None
        if "Empty CSV" not in str(error):
            raise
        raise SourceError(
            f"{_capital(what)} is empty or holds no rows. A header and at least one row are needed."
        ) from None


def csv_types(schema: Any, grouped: Sequence[str] = ()) -> tuple[Any, dict[str, Any]]:
    """Return a schema with float64 numbers: whole numbers in the first block may not stay whole.

    Arrow cannot read thousands separators, so it reads the columns `grouped` as text.
    """
    pa = arrow()
    fields = []
    for field in schema:
        number = pa.types.is_integer(field.type) or pa.types.is_null(field.type)
        fields.append(pa.field(field.name, pa.float64() if number else field.type))
    schema = pa.schema(fields)
    types = {field.name: field.type for field in schema}
    return schema, types | dict.fromkeys(grouped, pa.string())


def csv_error(error: BaseException, what: str, names: Sequence[str], dialect: Dialect) -> str:
    """Return a message about a cell that cannot be read, with names instead of Arrow's numbers."""
    match = re.search(
        r"column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+): "
        r"invalid (?:UTF8|value '(.*))",
        str(error),
    )
    if match is None or int(match[1]) >= len(names):
        widths = re.search(r"Row #2: Expected (\d+) columns, got (\d+)", str(error))
        short = widths and int(widths[1]) < int(widths[2]) and dialect.header is not False
        title = " If the first line is a title or a comment, remove it."
        if str(error).endswith(dialect.delimiter or ","):
            title = " If each row ends with a separator, end the header with one, too."
        return "{what} cannot be read: {error} {advice}{title}".format(
            what=_capital(what),
            error=(
                re.sub(
                    r"Row #(\d+)",
                    lambda row: f"row {int(row[1]) - _above(dialect)} (counted from 0)",
                    first_line(error),
                )
            ),
            advice=ADVICE["csv"],
            title=title if short else "",
        )
    name, kind = names[int(match[1])], {"double": "a number"}.get(match[3], match[3])
    row = f" in row {int(match[2]) - _above(dialect)} (counted from 0)" if match[2] else ""
    if match[4] is None:
        return f"Column {name!r} of {what} is not UTF-8{row}. {ENCODINGS}"
    cell = match[4].rstrip("'").strip()
    return (
        "Column {name!r} of {what} looks like {kind} in its first rows, but{row} "
        "it holds '{value}. Correct it{missing}, or {codes} if these are codes."
    ).format(
        name=name,
        what=what,
        kind=kind,
        row=row,
        value=match[4][:80],
        missing=(f", give na={([cell])!r} if it is missing" if len(cell) <= LONGEST_MARK else ""),
        codes=as_codes(name),
    )


ENCODINGS = (
    'Give encoding="latin1" if it is Western text from an older program, or '
    "another encoding; or convert it with iconv -f latin1 -t utf8."
)


def _above(dialect: Dialect) -> int:
    """Return by how much Arrow's row numbers are larger: they start at 1 and count the header."""
    return 1 if dialect.header is False else 2


def _capital(what: str) -> str:
    return what[0].upper() + what[1:]
