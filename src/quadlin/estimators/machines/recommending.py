"""Recommendations of a factorization machine: the best items of each user, and embeddings."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import to_numpy
from quadlin.core.losses import probability
from quadlin.data.encoder import label_of
from quadlin.data.names import position_of
from quadlin.estimators.checks import is_whole
from quadlin.estimators.fitted import Fitted
from quadlin.estimators.machines.two_tables import TwoTables
from quadlin.explain.decomposition import whole_columns
from quadlin.explain.tables import frame_of
from quadlin.solve.fields.pairwise_predictions import Side, best_pairs, sides_of, sides_of_draws


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
            Arrays have all features, with zeros in those of the other side. Unseen users and items
            are treated as average ones, apart from their other columns; a warning counts them.
            Items of a frame that are equal in all columns of the model count once. Columns named
            after users or customers in `item_rows` cause a warning.
        n : int, default=10
            Number of items per user; fewer if there are not enough.
        exclude : frame, array of int (n_pairs, 2) or None, default=None
            Pairs to leave out, such as known ones: a frame with some columns of both sides, such as
            the training rows, or positions of users and items. Of the columns that the frame shares
            with a side, only the ids are compared: the categories of the model, largest first,
            that tell the rows of the side apart. So it does not matter if an age or the genres have
            changed. Without such categories, all shared columns are compared.

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
        self, user_rows: Any, item_rows: Any, n: int, exclude: Any, ranked: "_Ranked | None" = None
    ) -> Any:
        """Return the n items with the highest scores for each user."""
        check_is_fitted(self)
        if not is_whole(n, 1):
            raise ValueError(f"n={n!r} must be a whole number ≥ 1.")
        fitted = self._one_fitted()
        fill = fitted.fill if self.missing == "mean" else None
        clips = self.extrapolation == "clip"
        tables = TwoTables(fitted, user_rows, item_rows, fill, clips)
        users, items = tables.halves
        features = (users.features, items.features)
        left, right = (
            sides_of(fitted.state, features)
            if fitted.draws is None
            else sides_of_draws(fitted.draws, features)
        )
        if ranked is not None and ranked.reverses:
            left, right = _reversed(left, 1.0), _reversed(right, -1.0)
        best = best_pairs(users.X, left, right(items.X), int(n), tables.excluded(exclude))
        if ranked is None:
            return tables.frame(
                best,
                fitted.loss.predicted(best.scores, fitted.largest_mean if clips else np.inf),
                "prediction",
            )
        return tables.frame(best, np.asarray(probability(best.scores)), ranked.name)

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
        raw = fitted.state.raw
        values = np.asarray(raw.eigenvalues, dtype=np.float64)
        V = to_numpy(raw.components).T * np.sqrt(2 * np.abs(values))
        # Levels of fields are measured from their mean, so only other columns have one to add.
        others = np.setdiff1d(np.arange(len(V)), np.concatenate([features, fields]))
        average = to_numpy(fitted.state.features.mean)[others] @ V[others]
        bias = to_numpy(raw.coef)[features] + V[features] @ (np.sign(values) * average)
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


class _Ranked(NamedTuple):
    """By which class's probability a classifier ranks items."""

    reverses: bool  # whether it is the first class, whose log-odds are those of the model reversed
    name: str  # of the column of probabilities


def _reversed(side: Callable[[Any], Side], sign: float) -> Callable[[Any], Side]:
    """Return one of two sides whose predictions are together those of the other class."""

    def reverse(X: Any) -> Side:
        alone, factor = side(X)
        return Side(-alone, sign * factor)

    return reverse


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
        ranked = _ranked_by(self.classes_.tolist(), label)
        return self._best_items(user_rows, item_rows, n, exclude, ranked)


def _ranked_by(classes: list[Any], label: Any) -> _Ranked:
    """Return which of two classes ranks items."""
    if label is None:
        if any(isinstance(each, str) for each in classes):
            raise ValueError(
                f"The classes are {classes[0]!r} and {classes[1]!r}: name the one whose "
                f"probability ranks the items, such as label={classes[0]!r}."
            )
        return _Ranked(False, "probability")
    places = [i for i, each in enumerate(classes) if label_of(each) == label_of(label)]
    if not places:
        raise ValueError(
            f"label={label!r} is not a class; there are {classes[0]!r} and {classes[1]!r}."
        )
    return _Ranked(places[0] == 0, f"probability={classes[places[0]]}")
