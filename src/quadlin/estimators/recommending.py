"""Recommendations of a factorization machine: the best items of each user, and embeddings."""

from collections.abc import Sequence
from typing import Any

import narwhals as nw
import numpy as np
from scipy.sparse import csr_array, csr_matrix
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import refuse_broken_sparse, to_numpy
from quadlin.core.losses import probability
from quadlin.data.columns import TableEncoder, check_frame, label_of
from quadlin.data.names import position_of, shortened
from quadlin.data.reader import fill_missing
from quadlin.estimators.checks import clear_errors, is_whole
from quadlin.estimators.columns import warn_unseen
from quadlin.estimators.fitted import Fitted
from quadlin.explain.effects import whole_columns
from quadlin.explain.tables import frame_of
from quadlin.solve.fields.draws import Best, Half, as_draws

SIDES = ("user_rows", "item_rows")
Frame = nw.DataFrame[Any]


class Recommending:
    """The best items of each user, and the vectors behind them."""

    fitted_: Any
    missing: str
    extrapolation: str

    def recommend(self, user_rows: Any, item_rows: Any, n: int = 10, *, exclude: Any = None) -> Any:
        """Return the n items with the highest predictions for each user.

        Parameters
        ----------
        user_rows, item_rows : two frames, or two arrays or sparse matrices
            Two frames together have the columns of the model; other columns, such as titles, are
            passed on. Columns that depend on neither, such as the device, belong to the users.
            Arrays have all features, with zeros for the other side. Unseen users and items
            are treated as average ones, apart from their other columns; a warning counts them.
            Items of a frame that are equal in all columns of the model count once.
        n : int, default=10
            Number of items per user; fewer if there are not enough.
        exclude : frame, array of int (n_pairs, 2) or None, default=None
            Pairs to leave out, such as known ones: a frame with some columns of both sides, such as
            the training rows, or positions of users and items. Of the columns that the frame shares
            with a side, only the ids are compared: the one that has most categories. So it does not
            matter if an age, the genres or the device have changed. Without categories, all shared
            columns are compared.

        Returns
        -------
        frame
            One row per user and item, best first: the columns of the user, `rank`, the columns of
            the item, and `prediction`. It is a frame of the same library as the input; for arrays
            it has the positions `user_row` and `item_row`.

        Notes
        -----
        With the columns split, f(u, i) = a_u + b_i + ⟨p_u, q_i⟩: no rows are formed for
        pairs, and all pairs cost O(users·items·k), times the number of draws. Memory: the factors
        of the items, k (times draws) numbers each, and blocks of fixed size.

        Examples
        --------
        >>> import pandas as pd
        >>> from quadlin import FactorizationMachineRegressor
        >>> ratings = pd.DataFrame({"user": list("aaabbbccc"), "film": list("xyzxyzxyz")})
        >>> likes = [5, 1, 2, 5, 1, 3, 1, 5, 2]
        >>> machine = FactorizationMachineRegressor(1, alpha=0.1, random_state=0)
        >>> machine = machine.fit(ratings, likes)
        >>> users, films = pd.DataFrame({"user": ["a", "c"]}), pd.DataFrame({"film": list("xyz")})
        >>> machine.recommend(users, films, 1)[["user", "film"]].values.tolist()
        [['a', 'x'], ['c', 'y']]
        >>> machine.recommend(users, films, 1, exclude=ratings[ratings.film == "x"]).film.tolist()
        ['z', 'y']
        """
        return self._best_items(user_rows, item_rows, n, exclude)

    def _best_items(
        self,
        user_rows: Any,
        item_rows: Any,
        n: int,
        exclude: Any,
        sign: float = 1.0,
        name: str = "prediction",
    ) -> Any:
        """Return the n items with the highest scores, ± the predictions, for each user."""
        check_is_fitted(self)
        if not is_whole(n, 1):
            raise ValueError(f"n={n!r} must be a whole number ≥ 1.")
        fitted = self._one_fitted()
        fill = fitted.fill if self.missing == "mean" else None
        clips = self.extrapolation == "clip"
        tables = TwoTables(fitted, user_rows, item_rows, fill, clips)
        machine = as_draws(fitted.state) if fitted.draws is None else fitted.draws
        best = machine.best_pairs(*tables.halves, int(n), tables.excluded(exclude), sign)
        most = fitted.largest_mean if clips else np.inf
        labels = fitted.loss.kind == "labels"
        values = probability(best.scores) if labels else fitted.loss.predicted(best.scores, most)
        return tables.frame(best, np.asarray(values), name)

    def embeddings(self, column: Any) -> Any:
        """Return the vectors of the levels of a column, as a pandas frame.

        Parameters
        ----------
        column : str or int
            A column that the model was fitted to, by name or by position among them.

        Returns
        -------
        frame, or a dict of columns without pandas
            One row per level (for a column of numbers one row): the `level`, of the dtype that the
            column had in `fit`, its `bias` with all
            other columns at their average (an average level of each field, and the training mean of
            other columns), and `v0`, `v1`, …, the vector v. The coefficient of the product of two
            levels is Σ_a sign(eigenvalues_[a]) v_a v'_a, so the prediction for a user and an item,
            with no other columns, is intercept + biases + that product. With draws they refer to
            the variational fit that the draws start from.

        Examples
        --------
        >>> import pandas as pd
        >>> from quadlin import FactorizationMachineRegressor
        >>> ratings = pd.DataFrame({"user": list("aaabbbccc"), "film": list("xyzxyzxyz")})
        >>> machine = FactorizationMachineRegressor(1, alpha=0.1, random_state=0)
        >>> machine = machine.fit(ratings, [5, 1, 2, 5, 1, 3, 1, 5, 2])
        >>> list(machine.embeddings("film").columns), machine.embeddings("film")["level"].tolist()
        (['level', 'bias', 'v0'], ['x', 'y', 'z'])
        """
        check_is_fitted(self)
        fitted = self._one_fitted()
        features, levels = _features_of(fitted, column)
        fields = np.concatenate([np.empty(0, dtype=int), *fitted.fields])
        machine = as_draws(fitted.state)
        w, V = machine.tables[0, :, 0], machine.tables[0, :, 1:]
        # Levels of fields are measured from their mean, so only other columns have one to add.
        others = np.setdiff1d(np.arange(len(V)), np.concatenate([features, fields]))
        average = to_numpy(fitted.state.features.mean)[others] @ V[others]
        bias = w[features] + V[features] @ (machine.signs * average)
        vectors = {f"v{a}": V[features, a] for a in range(V.shape[1])}
        return frame_of({"level": levels, "bias": bias, **vectors})

    def _one_fitted(self) -> Fitted:
        """Return what was learned, where it is one model."""
        fitted = self.fitted_
        if not isinstance(fitted, Fitted):
            labels = ", ".join(map(repr, fitted.classes.tolist()))
            raise ValueError(
                f"There is a model for each of the classes {labels}: use that of one class, "
                "one_vs_rest(label)."
            )
        return fitted


def _features_of(fitted: Fitted, column: Any) -> tuple[np.ndarray, Any]:
    """Return the features of a column and its levels, of the dtype that they had in the fit."""
    encoder = fitted.columns.encoder
    if encoder is not None:
        name = encoder.input_names[position_of(encoder.input_names, column)]
        features, has_levels = encoder.only([name])[1], name in encoder.text
        return features, encoder.level_values(name) if has_levels else [name]
    columns = whole_columns(fitted.names, fitted.fields, None)
    chosen = columns[position_of([each.name for each in columns], column)]
    return chosen.features, [chosen.name] if chosen.levels is None else list(chosen.levels)


class RecommendingLabels(Recommending):
    """The same where predictions are log-odds."""

    classes_: Any

    def recommend(
        self, user_rows: Any, item_rows: Any, n: int = 10, *, exclude: Any = None, label: Any = None
    ) -> Any:
        """Return the n items with the highest probabilities for each user.

        Parameters
        ----------
        user_rows, item_rows, n, exclude
            Tables of users and of items, the length of the lists, and rows to leave out: see
            :meth:`FactorizationMachineRegressor.recommend`.
        label : one of `classes_`, or None
            The class whose probability ranks the items, such as "like". None takes the second of
            two classes that are numbers or booleans: 1 of 0 and 1, True of False and True. Which
            of two texts is wanted is not known, so it must be given.

        Returns
        -------
        frame
            The columns of both tables, `rank`, and `probability=label` (`probability` without a
            label), user by user in the order of the list.

        Examples
        --------
        >>> import pandas as pd
        >>> from quadlin import FactorizationMachineClassifier
        >>> seen = pd.DataFrame({"user": list("aaabbbccc"), "film": list("xyzxyzxyz")})
        >>> answers = ["like", "no", "no", "like", "no", "no", "no", "like", "no"]
        >>> machine = FactorizationMachineClassifier(1, alpha=0.1, random_state=0)
        >>> machine = machine.fit(seen, answers)
        >>> users, films = pd.DataFrame({"user": ["a", "c"]}), pd.DataFrame({"film": list("xyz")})
        >>> best = machine.recommend(users, films, 1, label="like")
        >>> best[["user", "film"]].values.tolist(), best.columns[-1]
        ([['a', 'x'], ['c', 'y']], 'probability=like')
        """
        check_is_fitted(self)
        self._one_fitted()
        sign, name = _ranked_by(self.classes_.tolist(), label)
        return self._best_items(user_rows, item_rows, n, exclude, sign, name)


def _ranked_by(classes: list[Any], label: Any) -> tuple[float, str]:
    """Return the sign of the log-odds that rank items, and the name of their probabilities."""
    if label is None:
        if any(isinstance(each, str) for each in classes):
            raise ValueError(
                f"The classes are {classes[0]!r} and {classes[1]!r}: name the one whose "
                f"probability ranks the items, such as label={classes[0]!r}."
            )
        return 1.0, "probability"
    places = [i for i, each in enumerate(classes) if label_of(each) == label_of(label)]
    if not places:
        raise ValueError(
            f"label={label!r} is not a class; there are {classes[0]!r} and {classes[1]!r}."
        )
    return (1.0 if places[0] else -1.0), f"probability={classes[places[0]]}"


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
            return self._half_of(fill_missing(X, self.fill or {}, encoder.names)[0], features)
        features = np.array([columns.names.index(name) for name in names])
        finite = True if self.fill is None else "allow-nan"
        with clear_errors(chosen.to_native()):
            X = check_array(chosen.to_native(), dtype=np.float64, ensure_all_finite=finite)
        return self._half_of(fill_missing(X, self.fill or {}, names)[0], features)

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
                    "have all of them, with zeros for the other side."
                )
        has = [np.bincount(X.indices[X.data != 0], minlength=d) > 0 for X in (users, items)]
        if (both := np.flatnonzero(has[0] & has[1])).size:
            raise ValueError(
                f"Feature {columns.names[int(both[0])]!r} is not zero in user_rows and in "
                "item_rows: each feature belongs to one side, and is zero in the other."
            )
        first, second = (self._half_of(X, np.arange(d)) for X in (users, items))
        return first._replace(features=~has[1]), second._replace(features=has[1])

    def _half_of(self, X: Any, features: np.ndarray) -> Half:
        """Return rows of some features in all of them, limited as by `predict`."""
        X, reach = csr_array(X), self.fitted.reach
        X = csr_array((X.data, features[X.indices], X.indptr), (X.shape[0], len(reach.low)))
        return Half(reach.clipped(X)[0] if self.clips else X, features)

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


def keys_of(frame: Frame, names: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return what each row has in some columns, as text."""
    columns = ([label_of(value) for value in frame.get_column(name).to_list()] for name in names)
    return list(zip(*columns, strict=True))


def matches(
    pairs: Frame, frames: tuple[Frame, Frame] | None, encoder: TableEncoder | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of users and items that have the ids of a pair."""
    if frames is None:
        raise ValueError(
            "exclude is a frame, but user_rows and item_rows are arrays: give two columns of "
            "positions, those of users and those of items."
        )
    ids = [_ids(frame, pairs, side, encoder) for frame, side in zip(frames, SIDES, strict=True)]
    found = [np.arange(len(pairs))]  # those of pairs, then the rows of each side
    for frame, names in zip(frames, ids, strict=True):
        known, rows = pairs[found[0].tolist()], np.arange(len(frame))
        if len(frame) < len(known):  # the longer one has most rows that do not matter
            near = _among(known, frame, names)
            known, found = known[near.tolist()], [each[near] for each in found]
        else:
            rows = _among(frame, known, names)
        at: dict[tuple[str, ...], list[int]] = {}
        for i, key in zip(rows.tolist(), keys_of(frame[rows.tolist()], names), strict=True):
            at.setdefault(key, []).append(i)
        places = [at.get(key, []) for key in keys_of(known, names)]
        found = [np.repeat(each, [len(its) for its in places]) for each in found]
        found.append(np.array([i for its in places for i in its], dtype=np.intp))
    return found[1], found[2]


def _among(rows: Frame, others: Frame, names: list[Any]) -> np.ndarray:
    """Return the positions of rows whose values may also be those of other rows."""
    may = np.ones(len(rows), dtype=bool)
    for name in names:
        values, known = rows.get_column(name), others.get_column(name)
        plain = values.dtype == known.dtype and values.dtype not in (nw.List, nw.Object)
        if plain and not known.null_count():
            may &= values.is_in(known.unique().to_list()).to_numpy().astype(bool)
    return np.flatnonzero(may)


def _ids(frame: Frame, pairs: Frame, side: str, encoder: TableEncoder | None) -> list[Any]:
    """Return the shared column that identifies the rows of a side: the one of most categories.

    An age or genres may have changed since, and do not make another user or item. Without
    categories all shared columns do.
    """
    names = [name for name in frame.columns if name in pairs.columns]
    if not names:
        raise ValueError(
            f"`exclude` has no column in common with {side}: it has "
            f"{shortened(pairs.columns)}, and {side} {shortened(frame.columns)}."
        )
    levels = {} if encoder is None else dict(zip(encoder.input_names, encoder.levels, strict=True))
    size = {name: len(its) for name in names if (its := levels.get(str(name))) is not None}
    return [max(size, key=lambda name: size[name])] if size else names


def positions(pairs: Any, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return positions of users and items that were given, if they exist."""
    pairs = np.asarray(pairs)
    if pairs.size == 0:
        return np.empty(0, dtype=np.intp), np.empty(0, dtype=np.intp)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise ValueError(
            "exclude must be a frame with columns of user_rows and of item_rows, or whole numbers "
            f"in two columns, the positions of users and items; it has shape {pairs.shape} and "
            f"dtype {pairs.dtype}."
        )
    if (pairs < 0).any() or (pairs >= shape).any():
        raise ValueError(
            f"exclude has positions from {pairs.min()} to {pairs.max()}, but there are {shape[0]} "
            f"users and {shape[1]} items, numbered from 0."
        )
    return pairs[:, 0], pairs[:, 1]
