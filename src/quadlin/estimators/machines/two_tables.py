"""Two tables, such as users and items, whose columns together are those of a fitted model."""

import re
from collections.abc import Sequence
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import csr_array, csr_matrix
from sklearn.utils import check_array

from quadlin.core.arrays import refuse_broken_sparse
from quadlin.core.messages import warn
from quadlin.data.columns import check_frame
from quadlin.data.names import shortened
from quadlin.data.reader import fill_missing
from quadlin.estimators.checks import clear_errors
from quadlin.estimators.columns import warn_unseen
from quadlin.estimators.fitted import Fitted, Reach
from quadlin.estimators.machines.excluded_pairs import SIDES, Frame, keys_of, matches, positions
from quadlin.explain.tables import frame_of
from quadlin.solve.fields.pairwise_predictions import Best, Half

# Columns that identify those who are recommended something, not what is recommended to them.
PEOPLE = re.compile(
    r"user|customer|member|visitor|viewer|reader|listener|client|person|people|subscriber", re.I
)


class TwoTables:
    """Rows of users and of items: frames with columns of their own, or arrays of all features."""

    def __init__(
        self, fitted: Fitted, user_rows: Any, item_rows: Any, fill: Any, clips: bool = True
    ) -> None:
        self.fitted, self.fill = fitted, fill
        self.clips = clips  # whether features are limited, as by extrapolation="clip"
        users, items = (self._frame_or_none(rows) for rows in (user_rows, item_rows))
        self.frames: tuple[Frame, Frame] | None = None  # None for arrays
        for rows, side in zip((user_rows, item_rows), SIDES, strict=True):
            if hasattr(rows, "shape") and not rows.shape[0]:
                raise ValueError(f"{side} has no rows. Give at least one.")
        self.item_of: np.ndarray | None = None  # of each row of items, where some repeat others
        if users is not None and items is not None:
            self.frames, self.item_of = _with_distinct_items(users, items, fitted.columns.inputs)
            self.halves = self._of_frames(self.frames)
        elif users is None and items is None:
            self.halves = self._of_arrays([user_rows, item_rows])
        else:
            frame, other = SIDES if items is None else SIDES[::-1]
            raise ValueError(
                f"{frame} is a frame, but {other} is not. Give two frames, or two arrays with all "
                "features."
            )

    def _frame_or_none(self, rows: Any) -> Frame | None:
        numbers = set(self.fitted.columns.number_names)
        check_frame(rows, lambda name: str(name) not in numbers)  # other columns are only copied
        frame = nw.from_native(rows, eager_only=True, pass_through=True)
        return frame if isinstance(frame, nw.DataFrame) else None

    def _of_frames(self, frames: tuple[Frame, Frame]) -> tuple[Half, Half]:
        inputs = self.fitted.columns.inputs
        named = [[str(name) for name in frame.columns] for frame in frames]
        used = [[name for name in inputs if name in names] for names in named]
        if twice := [name for name in named[0] if name in named[1]]:
            raise ValueError(
                f"user_rows and item_rows both have a column {twice[0]!r}. Leave it out of one of "
                "them, or rename it if they mean different things."
            )
        if gone := [name for name in inputs if name not in (*used[0], *used[1])]:
            raise ValueError(
                f"The model was fitted to {shortened(gone, 5)} as well, but neither "
                f"{SIDES[0]} nor {SIDES[1]} has such a column; they have "
                f"{shortened(named[0])} and {shortened(named[1])}. Give tables that "
                "together have the columns of the model."
            )
        for names, chosen, side in zip(named, used, SIDES, strict=True):
            if not chosen:
                raise ValueError(
                    f"{side} has none of the columns that the model was fitted to: it has "
                    f"{shortened(names)}, and the model {shortened(inputs)}."
                )
        _warn_if_swapped(*used)
        users, items = zip(frames, used, strict=True)
        return self._half(*users), self._half(*items)

    def _half(self, frame: Frame, names: Sequence[str]) -> Half:
        """Return rows of a frame as numbers, in the features that its columns become."""
        columns = self.fitted.columns
        chosen = frame.select([name for name in frame.columns if str(name) in names])
        chosen = chosen.select(sorted(chosen.columns, key=lambda name: names.index(str(name))))
        if columns.encoder is not None:
            encoder, features = columns.encoder.only(names)
            X, unseen = encoder.encode(chosen.to_native(), self.fill is not None)
            if unseen:
                warn_unseen(unseen)
            X, _ = fill_missing(X, self.fill or {}, encoder.names)
            return self._within_reach(Half(csr_array(X), features))
        features = np.array([columns.names.index(name) for name in names])
        finite = True if self.fill is None else "allow-nan"
        with clear_errors(chosen.to_native()):
            X = check_array(chosen.to_native(), dtype=np.float64, ensure_all_finite=finite)
        return self._within_reach(Half(fill_missing(X, self.fill or {}, names)[0], features))

    def _of_arrays(self, rows: list[Any]) -> tuple[Half, Half]:
        """Split the features of arrays: those that no item has belong to the users."""
        columns = self.fitted.columns
        if columns.encoder is not None:
            raise ValueError(
                "The model was fitted to rows with categorical columns, so user_rows and item_rows "
                f"must be frames, which together have {shortened(columns.inputs, 5)}."
            )
        for X, side in zip(rows, SIDES, strict=True):
            refuse_broken_sparse(X, str(side))
        users, items = (csr_array(check_array(X, accept_sparse="csr")) for X in rows)
        d = len(columns.names)
        for X, side in zip((users, items), SIDES, strict=True):
            if X.shape[1] != d:
                raise ValueError(
                    f"{side} has {X.shape[1]} features, but the model was fitted to {d}. Arrays "
                    "have all of them, with zeros in those of the other side."
                )
        has = [np.bincount(X.indices[X.data != 0], minlength=d) > 0 for X in (users, items)]
        if (both := np.flatnonzero(has[0] & has[1])).size:
            raise ValueError(
                f"Feature {columns.names[int(both[0])]!r} is not zero in user_rows and in "
                "item_rows: each feature belongs to one side, and is zero in the other."
            )
        features = [np.flatnonzero(~has[1]), np.flatnonzero(has[1])]
        first, second = (
            self._within_reach(Half(X[:, c], c))
            for X, c in zip((users, items), features, strict=True)
        )
        return first, second

    def _within_reach(self, half: Half) -> Half:
        """Return rows as `predict` uses them."""
        if not self.clips:
            return half
        reach, at = self.fitted.reach, half.features
        low, high = np.asarray(reach.low)[at], np.asarray(reach.high)[at]
        return half._replace(X=Reach(low, high).clipped(half.X)[0])

    def excluded(self, pairs: Any) -> csr_matrix | None:
        """Return the pairs that are left out as a matrix, users by items."""
        if pairs is None:
            return None
        shape = (self.halves[0].X.shape[0], self.halves[1].X.shape[0])
        frame = self._frame_or_none(pairs)
        if frame is None:
            n_items = shape[1] if self.item_of is None else len(self.item_of)
            users, items = positions(pairs, (shape[0], n_items))
            items = items if self.item_of is None else self.item_of[items]
        else:
            users, items = matches(frame, self.frames, self.fitted.columns.encoder)
        return csr_matrix((np.ones(len(users), dtype=bool), (users, items)), shape=shape)

    def frame(self, best: Best, values: np.ndarray, name: str) -> Any:
        """Return the best pairs as a frame of the users' library, or of their positions."""
        if self.frames is None:
            return frame_of(
                {"user_row": best.users, "item_row": best.items, "rank": best.ranks, name: values}
            )
        users, items = self.frames
        if users.implementation is not items.implementation:
            raise ValueError(
                f"user_rows is a frame of {users.implementation} and item_rows one of "
                f"{items.implementation}. Give two of the same library."
            )
        columns = [*users.columns, *items.columns]
        if taken := [c for c in columns if str(c) in ("rank", name)]:
            raise ValueError(
                f"A column is called {taken[0]!r}, which is also the name of a column of the "
                "result. Rename it."
            )
        parts = [
            nw.maybe_reset_index(frame[rows.tolist()])
            for frame, rows in ((users, best.users), (items, best.items))
        ]
        backend = users.implementation
        added = [
            nw.new_series(title, data, backend=backend)
            for title, data in (("rank", best.ranks), (name, values))
        ]
        return nw.concat(
            [parts[0], nw.maybe_reset_index(added[0].to_frame()), parts[1], added[1].to_frame()],
            how="horizontal",
        ).to_native()


def _warn_if_swapped(users: Sequence[str], items: Sequence[str]) -> None:
    """Warn if the items have a column whose name is one of people, and the users have none."""
    people = [name for name in items if PEOPLE.search(name)]
    if people and not any(PEOPLE.search(name) for name in users):
        warn(
            f"{SIDES[1]} has the column {people[0]!r}, and {SIDES[0]} has "
            f"{shortened(users)}: the result lists the best rows of the former for "
            "each row of the latter. If the tables are swapped, give that of the "
            "users first."
        )


def _with_distinct_items(
    users: Frame, items: Frame, inputs: Sequence[str]
) -> tuple[tuple[Frame, Frame], np.ndarray | None]:
    """Return the frames with items that are the same to the model once, the first of each.

    Where there are such, also the position of each row among those that are kept.
    """
    names = [name for name in items.columns if str(name) in inputs]
    plain = [name for name in names if items.get_column(name).dtype not in (nw.List, nw.Object)]
    if not names or (plain and not bool(items.select(plain).is_duplicated().any())):
        return (users, items), None
    number: dict[tuple[str, ...], int] = {}
    of_row = np.array([number.setdefault(key, len(number)) for key in keys_of(items, names)])
    first = np.unique(of_row, return_index=True)[1]
    return (users, nw.maybe_reset_index(items[first.tolist()])), of_row
