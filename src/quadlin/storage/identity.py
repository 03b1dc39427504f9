"""Which fit a checkpoint belongs to: digests of its rows, options and start."""

from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.chunks import RowSource
from quadlin.core.version import __version__

START_AGAIN = "Delete it to start again."


class CheckpointError(ValueError):
    """A checkpoint that a fit cannot continue from: which one, why, and what to do."""


def refuse_other_fit(path: Any, recorded: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raise unless the recorded identity is the one of this fit."""
    different = [name for name in identity if recorded.get(name) != identity[name]]
    if different:
        raise CheckpointError(
            f"{path} belongs to a fit with other {' and '.join(different)}. Use the same as "
            "before, or delete the file to start again. A completed fit no longer needs it."
        )


def identity_of(
    rows: RowSource, estimator: Any, start: Any = None, names: Any = None
) -> dict[str, Any]:
    """Return what identifies a fit: its rows, options, start and quadlin's version."""
    params = estimator.get_params(deep=False)
    seed = params.pop("random_state", None)
    options = {name: digest_of(value) for name, value in sorted(params.items())}
    if isinstance(seed, int | np.integer):
        options["random_state"] = repr(int(seed))  # else the journal's own seed is used
    return {
        "version of quadlin": __version__,
        "options": {"class": type(estimator).__name__, **options},
        "rows": rows.fingerprint(),
        "names": digest_of([str(name) for name in (() if names is None else names)]),
        "start": digest_of(start),
    }


def digest_of(value: Any) -> str:
    """Return a digest of numbers, text, arrays, and lists and dataclasses of them."""
    digest = blake2b(digest_size=16)
    _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if is_dataclass(value) and not isinstance(value, type):
        digest.update(type(value).__name__.encode())
        value = [getattr(value, f.name) for f in fields(value)]
    if isinstance(value, list | tuple):
        digest.update(f"[{len(value)}]".encode())
        for item in value:
            _add(digest, item)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        array = to_numpy(value)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    elif value is None or isinstance(value, str | int | float | Enum | np.dtype | type):
        digest.update(f"{type(value).__name__}:{value}".encode())
    else:  # a scorer, a splitter: what it is, not where it lies in memory
        attributes = getattr(value, "__dict__", {})
        pairs = [[str(key), attributes[key]] for key in sorted(attributes)]
        digest.update(f"{type(value).__name__}:{getattr(value, '__name__', '')}".encode())
        _add(digest, pairs or repr(type(value)))
