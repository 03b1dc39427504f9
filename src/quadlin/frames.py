"""Tables with named columns, looked at before they become arrays."""

from typing import Any

import narwhals as nw


def refuse_text_columns(X: Any) -> None:
    """Raise an error that names the columns of a frame that are not numbers."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return
    schema = frame.schema
    odd = [name for name, t in schema.items() if not (t.is_numeric() or t == nw.Boolean)]
    # An object column may still hold numbers only; scikit-learn's own conversion decides.
    odd = [name for name in odd if schema[name] != nw.Object]
    if odd:
        listed = ", ".join(f"{name!r} ({schema[name]})" for name in odd[:5])
        more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
        raise ValueError(
            f"could not convert string to float: the columns {listed}{more} are not numbers. "
            "Drop them, or encode them first, e.g. with sklearn.preprocessing.OneHotEncoder."
        )
