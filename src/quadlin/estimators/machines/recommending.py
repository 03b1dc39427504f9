"""Recommendations of a factorization machine: the best items of each user, and embeddings."""

from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from quadlin.core.arrays import to_numpy
from quadlin.core.losses import probability
from quadlin.core.messages import Message, Option
from quadlin.data.columns.names import position_of
from quadlin.estimators.machines.two_tables import TwoTables
from quadlin.estimators.regression.fitted import Fitted
from quadlin.explain.tables import frame_of
from quadlin.explain.whole_columns import whole_columns
from quadlin.solve.fields.pairwise_predictions import best_pairs, sides_of, sides_of_draws


class Recommending:
    """The best items of each user, and the vectors behind them."""

    fitted_: Any
    missing: str
    score_name = "prediction"
    _told: tuple[Fitted, set[Any]] | None = None  # the new items that the fitted model warned of

    def recommend(self, user_rows: Any, item_rows: Any, n: int = 10, *, exclude: Any = None) -> Any:
        """Return the n items with the highest predictions for each user.

        Parameters
        ----------
        user_rows, item_rows : two frames, or two arrays or sparse matrices
            Two frames together have the columns of the model; other columns, such as titles, are
            passed on. Columns that depend on neither, such as the device, belong to the users.
            Arrays have all features, with zeros in those of the other side. Unseen users and items
            are treated as average ones, apart from their other columns; a warning counts them, once
            for the same items.
        n : int, default=10
            Number of items per user; fewer if there are not enough.
        exclude : frame, array of int (n_pairs, 2) or None, default=None
            Pairs to leave out, such as known ones: a frame with some columns of both sides, such as
            the training rows, or positions of users and items. A pair is left out if it agrees in
            all columns that the frame shares with both.

        Returns
        -------
        frame
            One row per user and item, best first: the columns of the user, `rank`, those of the
            item, and `prediction` (for classifiers `probability`, that of ``classes_[1]``). It is a
            frame of the same library as the input; for arrays it has the positions `user_row` and
            `item_row`.

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
        check_is_fitted(self)
        if not isinstance(n, Integral) or isinstance(n, bool) or n < 1:
            raise ValueError(Message("{n} must be a whole number ≥ 1.", n=Option("n", n)))
        fitted = self._one_fitted()
        fill = fitted.fill if self.missing == "mean" else None
        if self._told is None or self._told[0] is not fitted:
            self._told = (fitted, set())
        tables = TwoTables(fitted, user_rows, item_rows, fill, self._told[1])
        users, items = tables.halves
        features = (users.features, items.features)
        left, right = (
            sides_of(fitted.state, features)
            if fitted.draws is None
            else sides_of_draws(fitted.draws, features)
        )
        best = best_pairs(users.X, left, right(items.X), int(n), tables.excluded(exclude))
        return tables.frame(best, self._as_scores(best.scores), self.score_name)

    def embeddings(self, column: Any) -> Any:
        """Return the vectors of the levels of a column, as a pandas frame.

        Parameters
        ----------
        column : str or int
            A column that the model was fitted to, by name or by position among them.

        Returns
        -------
        frame, or a dict of columns without pandas
            One row per level (for a column of numbers one row): the `level`, its `bias` with all
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

    def _as_scores(self, f: np.ndarray) -> np.ndarray:
        """Return predictions on the scale that is reported."""
        return f


def _features_of(fitted: Fitted, column: Any) -> tuple[np.ndarray, list[str]]:
    """Return the features of a column and how its levels are called."""
    encoder = fitted.columns.encoder
    if encoder is not None:
        name = encoder.input_names[position_of(encoder.input_names, column)]
        features = encoder.only([name])[1]
        levels = encoder.levels[encoder.input_names.index(name)]
        return features, [name] if levels is None else list(levels)
    columns = whole_columns(fitted.names, fitted.fields, None)
    chosen = columns[position_of([each.name for each in columns], column)]
    return chosen.features, [chosen.name] if chosen.levels is None else list(chosen.levels)


class RecommendingLabels(Recommending):
    """The same where predictions are log-odds."""

    score_name = "probability"

    def _as_scores(self, f: np.ndarray) -> np.ndarray:
        return np.asarray(probability(f))
