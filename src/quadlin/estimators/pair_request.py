"""Which pairs an estimator asks for: its parameters checked, and names as positions."""

from collections.abc import Mapping, Sequence
from itertools import product
from numbers import Integral
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.chunks import MemorySource
from quadlin.core.messages import Message, Option
from quadlin.data import Source
from quadlin.data.encoder import text_columns
from quadlin.data.names import Name, positions_of
from quadlin.estimators.columns import Columns
from quadlin.estimators.parameters import is_auto
from quadlin.solve.pair_composite import PairRequest
from quadlin.solve.pair_regression import MOST_FEATURES
from quadlin.solve.pairs import HIERARCHIES

AUTO_FEATURES = 1000  # up to which pairs are looked for by default


def is_asked_for(pairs: Any) -> bool:
    """Tell whether pairs are wanted in any case, or only where the rows show some."""
    return not (pairs is None or is_auto(pairs))


def check_pairs(estimator: Any) -> None:
    """Refuse pairs that make no sense, saying what would."""
    pairs, hierarchy = estimator.pairs, estimator.hierarchy
    if hierarchy not in (None, *HIERARCHIES):
        allowed = ", ".join(map(repr, (None, *HIERARCHIES)))
        raise ValueError(
            Message(
                "{option} is not one of {allowed}.",
                option=Option("hierarchy", hierarchy),
                allowed=allowed,
            )
        )
    if not is_asked_for(pairs):
        return
    whole_number = isinstance(pairs, Integral) and not isinstance(pairs, bool) and int(pairs) >= 0
    if not (whole_number or _is_list_of_pairs(pairs)):
        raise ValueError(
            Message(
                '{option} must be "auto", None, a whole number ≥ 0, or a list of pairs of '
                "features, by position or name.",
                option=Option("pairs", pairs),
            )
        )
    wrong = {
        Option("psd", True): estimator.psd,
        Option("fit_linear", False): not estimator.fit_linear,
        Option("fit_intercept", False): not estimator.fit_intercept,
        Option("polish", False): not estimator.polish,
        Option("loss", "poisson"): estimator.loss == "poisson",
    }
    for option, conflicts in wrong.items():
        if conflicts:
            raise ValueError(
                Message(
                    "{pairs} cannot be combined with {option}: pairs are searched by least squares "
                    "beside b and w. Leave one of them out.",
                    pairs=Option("pairs"),
                    option=option,
                )
            )


def _is_list_of_pairs(pairs: Any) -> bool:
    if isinstance(pairs, str) or not isinstance(pairs, Sequence | np.ndarray):
        return False
    return all(not isinstance(p, str) and np.shape(p) == (2,) for p in pairs)


def is_sparse(source: MemorySource | Source) -> bool:
    """Tell whether rows are sparse."""
    return bool(source.sparse if isinstance(source, Source) else issparse(source.X))


def request_of(estimator: Any, columns: Columns, sparse: bool) -> PairRequest | None:
    """Return which pairs an estimator wants of these features; None if none.

    By default they are looked for where the rank is chosen as well, since a rank that is given is
    the rank of M.
    """
    names = columns.names
    pairs, hierarchy, d = estimator.pairs, estimator.hierarchy, len(names)
    if not is_asked_for(pairs):
        plain = estimator.fit_linear and estimator.fit_intercept and estimator.polish
        plain = plain and estimator.loss != "poisson"
        looks = is_auto(pairs) and is_auto(estimator.rank) and plain and not estimator.psd
        looks = looks and 2 <= d <= AUTO_FEATURES
        return PairRequest(hierarchy=hierarchy, asked=False) if looks else None
    if isinstance(pairs, Integral):
        if d > MOST_FEATURES and not sparse:
            raise ValueError(
                f"There are {d:,} features. The search looks at all products of at most "
                f"{MOST_FEATURES:,} features, and in sparse rows at those that occur. Select "
                "features, give a sparse matrix, or list the pairs."
            )
        return PairRequest(int(pairs), hierarchy=hierarchy) if pairs else None
    wholes = text_columns(columns.encoder)
    given = tuple(dict.fromkeys(p for pair in pairs for p in _positions(pair, names, wholes)))
    return PairRequest(given=given) if given else None


def _positions(
    pair: Sequence[Name], names: Sequence[str], wholes: Mapping[str, np.ndarray]
) -> list[tuple[int, int]]:
    """Return the products of two features; a text column stands for all its levels."""
    first, second = (positions_of(names, wholes, feature).tolist() for feature in pair)
    return [(min(i, j), max(i, j)) for i, j in product(first, second)]


def refuse_in_stream(estimator: Any) -> None:
    """Refuse to look for pairs of log-odds in rows that are seen once."""
    if is_asked_for(estimator.pairs):
        raise ValueError(
            Message(
                "{pairs} needs rows that can be read several times for labels, and a stream sees "
                "them once. Use `fit` on rows in memory or in a file, or leave the option out.",
                pairs=Option("pairs", estimator.pairs),
            )
        )
