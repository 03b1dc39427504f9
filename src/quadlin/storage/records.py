"""Records of JSON and arrays in a file, one after another; each is complete or missing."""

import json
import os
import struct
from hashlib import blake2b
from math import prod
from typing import BinaryIO

import numpy as np

from quadlin.storage.tensor_file import DTYPES, JSON

FRAME = struct.Struct("<QQ16s")  # bytes of JSON, bytes of arrays, digest of both
JSON_LIMIT = 64 << 20
LARGEST_SIDE = 1 << 48  # of an array; numpy refuses larger ones with an error of its own


class FrameError(Exception):
    """The next record is missing, incomplete, or holds what no record can hold."""


def write_frame(file: BinaryIO, content: JSON, arrays: dict[str, np.ndarray]) -> None:
    """Append a record: JSON, and arrays by name.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     write_frame(file, {"sum": "moments"}, {"mean": np.ones(2)})
    ...     _ = file.seek(0)
    ...     read_frame(file)
    ({'sum': 'moments'}, {'mean': array([1., 1.])})
    """
    plain = {
        name: np.asarray(a, a.dtype.newbyteorder("<"), order="C") for name, a in arrays.items()
    }
    index = [[name, a.dtype.str, list(a.shape)] for name, a in plain.items()]
    text = json.dumps([content, index]).encode()
    data = [a.reshape(-1).view(np.uint8).data for a in plain.values()]
    digest = blake2b(text, digest_size=16)
    for part in data:
        digest.update(part)
    file.write(FRAME.pack(len(text), sum(a.nbytes for a in plain.values()), digest.digest()) + text)
    for part in data:
        file.write(part)


def read_frame(file: BinaryIO) -> tuple[JSON, dict[str, np.ndarray]]:
    """Return the JSON and the arrays of the next record, or raise a FrameError.

    Memory: what the record takes in the file, twice.
    """
    head = file.read(FRAME.size)
    if len(head) < FRAME.size:
        raise FrameError("There are no more records.")
    length, size, digest = FRAME.unpack(head)
    if length > JSON_LIMIT or length + size > os.fstat(file.fileno()).st_size - file.tell():
        raise FrameError("It was cut short.")
    text, data = file.read(length), file.read(size)
    actual = blake2b(text, digest_size=16)
    actual.update(data)
    if actual.digest() != digest:
        raise FrameError("It is damaged.")
    try:
        content, index = json.loads(text)
        return content, _arrays(index, data)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FrameError(f"It was not written by quadlin ({error}).") from error


def _arrays(index: JSON, data: bytes) -> dict[str, np.ndarray]:
    """Cut the bytes into arrays; a forged index raises a ValueError or a TypeError."""
    arrays, start = {}, 0
    for name, dtype, shape in index:
        if not isinstance(name, str) or dtype not in tuple(DTYPES.values()):
            raise ValueError("its index names an unknown type")
        if any(type(n) is not int or not 0 <= n <= LARGEST_SIDE for n in shape):
            raise ValueError("its index names an impossible shape")
        stop = start + np.dtype(dtype).itemsize * prod(shape)
        if stop > len(data):
            raise ValueError("its arrays are larger than it is")
        array = np.frombuffer(data[start:stop], dtype).reshape(shape).copy()  # to be writeable
        if not np.isfinite(array).all():
            raise ValueError("it has values that are not finite")
        arrays[name], start = array, stop
    if start != len(data):
        raise ValueError("its arrays are smaller than it is")
    return arrays
