"""CSV text: what separates its columns, how its numbers and letters are written, its types."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from quadlin.core.messages import Message, Option, Phrase
from quadlin.data.arrow_batches import ADVICE, arrow
from quadlin.data.errors import SourceError, first_line

CSV_BLOCK = 1 << 23  # bytes; the columns' types are guessed from the first block
HEAD = 1 << 16  # bytes that show what a file is
SEPARATORS = (";", "\t", "|")  # beside the comma
# Numbers with commas or points anywhere: 1,5 and 1.234,5 and 1,234.5.
COMMA_NUMBER = r"^[-+]?(\d+([.,]\d+)*|[.,]\d+)([eE][-+]?\d+)?$"
SHOWN_ROWS = 1000  # that tell whether a column holds such numbers
UTF16 = Message("is not UTF-8 but UTF-16. Give {utf16}", utf16=Option("encoding", "utf-16"))
NO_CSV = {
    b"\x1f\x8b": "is packed by gzip. Unpack it first (zcat), or end the file's name in .csv.gz",
    b"PK\x03\x04": "is an Excel workbook or a ZIP archive. Save its table as CSV first",
    b"PAR1": Message("is a Parquet file. Give {parquet}", parquet=Option("format", "parquet")),
    b"\xff\xfe": UTF16,
    b"\xfe\xff": UTF16,
}


@dataclass(frozen=True)
class Dialect:
    """How a CSV text is written."""

    delimiter: str | None = None  # None: what the header shows
    decimal: str | None = None  # None: a point, and columns of numbers with commas are refused
    encoding: str = "utf8"

    @classmethod
    def of(cls, delimiter: Any, decimal: Any, encoding: Any) -> "Dialect":
        """Check what the user asked for."""
        single = isinstance(delimiter, str) and len(delimiter) == 1 and delimiter.isascii()
        if delimiter is not None and (not single or delimiter in '"\r\n\0'):
            raise SourceError(
                Message(
                    '{delimiter} must be one character, such as ";".',
                    delimiter=Option("delimiter", delimiter),
                )
            )
        if decimal not in (None, ".", ","):
            raise SourceError(
                Message('{decimal} must be "." or ",".', decimal=Option("decimal", decimal))
            )
        try:
            "".encode(encoding or "utf8")
        except (LookupError, TypeError, ValueError):
            raise SourceError(
                Message(
                    '{encoding} is unknown. Give one such as "latin1", "cp1252" or "utf-16".',
                    encoding=Option("encoding", encoding),
                )
            ) from None
        same = encoding is None or encoding.lower().replace("-", "") == "utf8"
        return cls(delimiter, decimal, "utf8" if same else encoding)

    def seen_in(self, head: bytes) -> "Dialect":
        """Return the dialect of a text that begins like this."""
        if self.delimiter is not None:
            return self
        return replace(self, delimiter=delimiter_of(head))


def delimiter_of(head: bytes) -> str:
    r"""Return what separates the names of a header: a comma, or another where there is none.

    Examples
    --------
    >>> delimiter_of(b'"a,1";b;y\n1,5;2;3'), delimiter_of(b"a,b;c"), delimiter_of(b"a")
    (';', ',', ',')
    """
    plain = re.sub(rb'"[^"]*"', b"", head.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n"))
    header = re.split(rb"[\r\n]", plain, maxsplit=1)[0].decode(errors="replace")
    most = max(SEPARATORS, key=header.count)
    return most if most in header and "," not in header else ","


def refuse_other(head: bytes, what: str) -> None:
    """Refuse what begins like something that is no CSV text."""
    for start, why in NO_CSV.items():
        if head.startswith(start):
            raise SourceError(Message("{what} {why}.", what=_capital(what), why=why))


def in_utf8(file: Any, dialect: Dialect) -> Any:
    """Open a path or a stream as a stream of UTF-8; a packed file is unpacked."""
    pa = arrow()
    stream = pa.input_stream(file) if isinstance(file, str) else file
    if dialect.encoding == "utf8":
        return stream
    return pa.transcoding_input_stream(stream, dialect.encoding, "utf8")


def open_csv_file(path: str, dialect: Dialect, columns: Any, types: dict[str, Any] | None) -> Any:
    """Open a CSV file as a stream of batches."""
    if dialect.delimiter is None or types is None:
        with in_utf8(path, dialect) as stream:
            head = stream.read(HEAD)
        if dialect.encoding == "utf8":
            refuse_other(head, f"file {path}")
        dialect = dialect.seen_in(head)
    return open_csv(in_utf8(path, dialect), dialect, columns, types, f"file {path}")


def open_csv(
    stream: Any, dialect: Dialect, columns: Any, types: dict[str, Any] | None, what: str
) -> Any:
    """Open UTF-8 text of a known dialect as a stream of batches."""
    pa = arrow()
    from pyarrow import csv

    # One thread: only then does an error name its row, and there is one reading ahead anyway.
    read = csv.ReadOptions(block_size=CSV_BLOCK, use_threads=False)
    # A quoted line break may stand at the end of a block.
    parse = csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True)
    convert = csv.ConvertOptions(
        include_columns=None if columns is None else list(columns),
        column_types=types,
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        decimal_point=dialect.decimal or ".",
    )
    try:
        return csv.open_csv(stream, read, parse, convert)
    except pa.ArrowInvalid as error:
        if "Empty CSV" not in str(error):
            raise
        raise SourceError(
            f"{_capital(what)} is empty or holds no rows. A header and at least one row are needed."
        ) from None


def look_csv(
    opened: Any, what: str, dialect: Dialect, text: Sequence[Any]
) -> tuple[Any, dict[str, str]]:
    """Return the types that the first block shows, and columns of numbers that have commas."""
    pa = arrow()
    try:
        opened.schema.names  # noqa: B018  the first to decode them
    except UnicodeDecodeError:
        raise SourceError(
            Message("The header of {what} is not UTF-8. {advice}", what=what, advice=ENCODINGS)
        ) from None
    fields = [
        # Arrow takes what is no UTF-8 for bytes; as text it is refused where it is used.
        pa.field(field.name, pa.string())
        if field.name in text or pa.types.is_binary(field.type)
        else field
        for field in opened.schema
    ]
    commas = {} if dialect.decimal == "." else _commas(opened, text)
    return pa.schema(fields), commas


def _commas(opened: Any, text: Sequence[Any]) -> dict[str, str]:
    """Return columns of text that are numbers with commas, each with one of them."""
    from pyarrow import compute

    pa = arrow()
    suspects = [f.name for f in opened.schema if pa.types.is_string(f.type) and f.name not in text]
    if not suspects or len(set(opened.schema.names)) < len(opened.schema.names):
        return {}
    try:
        first = opened.read_next_batch().slice(0, SHOWN_ROWS)
    except StopIteration:
        return {}
    found = {}
    for name in suspects:
        values = first.column(name).drop_null()
        with_comma = values.filter(compute.match_substring(values, ","))
        if (
            len(with_comma)
            and compute.all(compute.match_substring_regex(values, COMMA_NUMBER)).as_py()
        ):
            found[name] = with_comma[0].as_py()
    return found


def csv_types(schema: Any) -> tuple[Any, dict[str, Any]]:
    """Read numbers as float64: whole numbers in the first block may have fractions later."""
    pa = arrow()
    fields = []
    for field in schema:
        number = pa.types.is_integer(field.type) or pa.types.is_null(field.type)
        fields.append(pa.field(field.name, pa.float64() if number else field.type))
    schema = pa.schema(fields)
    return schema, {field.name: field.type for field in schema}


def csv_error(error: BaseException, what: str, names: Sequence[str]) -> str:
    """Say which cell cannot be read, in names instead of numbers where Arrow gives them."""
    found = re.search(
        r"column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+): "
        r"invalid (?:UTF8|value '(.*))",
        str(error),
    )
    if found is None or int(found[1]) >= len(names):
        return Message(
            "{what} cannot be read: {error} {advice}",
            what=_capital(what),
            error=first_line(error),
            advice=ADVICE["csv"],
        )
    name, kind = names[int(found[1])], {"double": "a number"}.get(found[3], found[3])
    row = f" in row {int(found[2]) - 2} (counted from 0)" if found[2] else ""
    if found[4] is None:
        return Message(
            "Column {name!r} of {what} is not UTF-8{row}. {advice}",
            name=name,
            what=what,
            row=row,
            advice=ENCODINGS,
        )
    return Message(
        "Column {name!r} of {what} looks like {kind} in its first rows, but{row} it holds "
        "'{value}. Correct it{python}.",
        name=name,
        what=what,
        kind=kind,
        row=row,
        value=found[4][:80],
        python=Phrase(f", or give levels={{{name!r}: [...]}} if it is text"),
    )


ENCODINGS = Message(
    "Give {latin1} if it is Western text from an older program, or its own encoding; or convert it "
    "with iconv -f latin1 -t utf8.",
    latin1=Option("encoding", "latin1"),
)


def _capital(what: str) -> str:
    return what[0].upper() + what[1:]
