"""Rows in the dtype of a model, of the same library and on the same device."""

from scipy.sparse import issparse

from quadlin.core.arrays import Array, namespace, unflagged
from quadlin.stream.stream import Stream


@unflagged
def in_model_dtype(X: Array, caller: str, stream: Stream) -> Array:
    """Return rows in the dtype of a stream's model; refuse those of another namespace or device."""
    example, dtype = stream.example, stream.make_units.dtype
    xp, device = namespace(X), "cpu" if issparse(X) else X.device
    if example is not None and (xp, device) != (namespace(example), example.device):
        raise ValueError(
            f"Inputs passed to {caller}() must use the same namespace and the same device as those "
            f"passed to fit(): {namespace(example).__name__} on {example.device}, but they are "
            f"{xp.__name__} on {device}."
        )
    return X.astype(dtype, copy=False) if issparse(X) else xp.astype(X, dtype, copy=False)
