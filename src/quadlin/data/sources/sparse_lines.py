"""Lines of svmlight (libsvm) and libffm text as sparse rows."""

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from quadlin.data.columns.errors import SourceError, first_line

BLOCK = 1 << 22  # bytes parsed at once
LONGEST = 1 << 28  # bytes of a line; a file with longer lines is not text
ADVICE = {
    "svmlight": "A line is “target index:value index:value …”, with increasing indices.",
    "libffm": "A line is “target field:index:value …”.",
}


def whole_lines(handle: Any, limit: int | None) -> Iterator[bytes]:
    """Yield blocks of whole lines."""
    rest = b""
    while limit is None or limit > 0:
        data = handle.read(BLOCK if limit is None else min(BLOCK, limit))
        if not data:
            break
        if isinstance(data, str):
            raise SourceError('The stream is in text mode. Open it in binary mode ("rb").')
        limit = None if limit is None else limit - len(data)
        end = data.rfind(b"\n") + 1
        if end:
            yield rest + data[:end]
            rest = data[end:]
        else:
            rest += data
            if len(rest) > LONGEST:
                raise SourceError("A line is longer than 256 MB, so these are not lines of rows.")
    if rest:
        yield rest


def parsed_block(block: bytes, format: str, path: str, line: int) -> tuple[csr_array, np.ndarray]:
    """Return the rows and targets of a block of lines, or refuse a line that cannot be read."""
    parse = _svmlight if format == "svmlight" else _libffm
    try:
        return parse(block)
    except MemoryError:
        raise
    except Exception:  # parse line by line to find the one to name
        for text in block.splitlines():
            try:
                line += len(parse(text + b"\n")[1])
            except Exception as error:
                shown = text[:60].decode(errors="replace")
                raise SourceError(
                    f"Row {line} of {path} (counted from 0) is not {format}: {shown!r}: "
                    f"{first_line(error)} {ADVICE[format]}"
                ) from None
        raise


def _svmlight(block: bytes) -> tuple[csr_array, np.ndarray]:
    if b"\0" in block:
        raise ValueError("it contains a NUL byte")
    from sklearn.datasets import load_svmlight_file  # slow to import

    X, y = load_svmlight_file(BytesIO(block), zero_based=True)
    return csr_array(X), y


def _libffm(block: bytes) -> tuple[csr_array, np.ndarray]:
    lines = [line for line in block.splitlines() if line.strip()]
    tokens = [line.split() for line in lines]
    counts = np.array([len(entries) - 1 for entries in tokens], dtype=np.int64)
    y = np.array([float(entries[0]) for entries in tokens])
    fields, indices, data = _triples([entry for entries in tokens for entry in entries[1:]])
    row = np.repeat(np.arange(len(y)), counts)
    order = np.lexsort((indices, row))
    row, indices, fields, data = row[order], indices[order], fields[order], data[order]
    if np.any((row[1:] == row[:-1]) & (indices[1:] == indices[:-1])):
        raise ValueError("an index occurs twice in a row")
    width = int(indices.max(initial=0)) + 1
    X = csr_array((data, indices, np.concatenate([[0], np.cumsum(counts)])), shape=(len(y), width))
    X.fields = fields
    return X, y


def _triples(entries: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the fields, indices and values of entries such as 3:17:0.5."""
    triples = [entry.split(b":") for entry in entries]
    if any(len(triple) != 3 for triple in triples):
        raise ValueError("an entry is not field:index:value")
    places = [(int(a), int(b)) for a, b, _ in triples]
    data = np.array([float(c) for _, _, c in triples], dtype=np.float64)
    if min((min(place) for place in places), default=0) < 0:
        raise ValueError("a field or an index is negative")
    if max((max(place) for place in places), default=0) > np.iinfo(np.int64).max // 2:
        raise ValueError("a field or an index is too large")
    fields, indices = (np.array([place[i] for place in places], dtype=np.int64) for i in (0, 1))
    return fields, indices, data


def placed(X: csr_array, width: int | None, base: int, path: str) -> csr_array:
    """Return rows of `width` features with indices from 0; in the text they start at `base`.

    An index of a feature that does not exist is refused. Indices have 32 bits if that is enough.
    """
    indices = X.indices - base
    if X.nnz and indices.min() < 0:
        raise SourceError(
            f"{path} has an index 0, but its indices start at 1. Use zero_based=True."
        )
    if X.nnz and width is not None and indices.max() >= width:
        raise SourceError(
            f"{path} has index {int(indices.max()) + base}, but there are {width} "
            "features. Raise `n_features`, or check the file."
        )
    kind = np.int32 if max(width or X.shape[1], X.nnz) < np.iinfo(np.int32).max else np.int64
    parts = X.data, indices.astype(kind), X.indptr.astype(kind)
    return csr_array(parts, shape=(X.shape[0], width or X.shape[1]))
