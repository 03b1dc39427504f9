"""Which features interact: a search for a few pairs in addition to the linear model."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units, UnitsMaker
from quadlin.data import Source, open_source
from quadlin.data.columns import text_columns
from quadlin.data.engines import engine_for
from quadlin.data.fields import fields_of
from quadlin.data.names import Categories, positions_of
from quadlin.data.source import cached
from quadlin.explain.interactions import PairReport, report_of
from quadlin.solve.fits.fit_state import squared_errors
from quadlin.solve.lowrank.observations import row_hash
from quadlin.solve.lowrank.polish import fit_rows
from quadlin.solve.lowrank.types import Options, finished
from quadlin.solve.pairs.products import MOST_FEATURES, whole
from quadlin.solve.pairs.search import PairFit, PairSearch, sparse_search


def folds(n_rows: int, count: int) -> np.ndarray:
    """Return the fold of each row, by a hash of its number; all are of about the same size.

    Examples
    --------
    >>> folds(8, 2), np.bincount(folds(1001, 2))
    (array([0, 0, 1, 0, 1, 0, 1, 1]), array([501, 500]))
    """
    return np.argsort(np.argsort(row_hash(np.arange(n_rows)), kind="stable")) % count


@dataclass(frozen=True)
class PairSetting:
    """What a search needs besides the rows."""

    source: Source
    groups: Sequence[np.ndarray]
    make_units: UnitsMaker
    most: int | None  # pairs
    excluded: np.ndarray | None = None  # (d, d), products that may not be taken

    def validated(self, rows: Rows, surveyed: Survey, cv: int, steps: int) -> list[float]:
        """Return R² of rows left out, with 0, 1, … `steps` of the pairs found on the others."""
        part, loss = folds(surveyed.tally.rows, cv), np.zeros(steps + 1)
        for left_out in range(cv):
            fit = self.found(rows, part != left_out, "the rows of a fold")
            test, units = rows.reweighted((part == left_out).astype(float)), fit.search.all_units
            for m in range(len(loss)):
                first = fit.entry <= m
                again = fit.search.tested(fit.i[first], fit.j[first])
                model = whole(again.model, again.terms)
                squares, weight = map(to_numpy, squared_errors(model, units, test))
                loss[m] += units.target.scale**2 * float(weight @ squares)
        target = surveyed.target
        values: list[float] = (1 - loss / (target.weight * float(target.var[0]))).tolist()
        return values

    def stability(self, rows: Rows, surveyed: Survey, times: int, fit: PairFit) -> list[float]:
        """Return in which share of resamples of the rows each pair of a fit is chosen again."""
        n, found, rng = surveyed.tally.rows, Counter[tuple[int, int]](), np.random.default_rng(0)
        for _ in range(times):
            drawn = np.bincount(rng.integers(n, size=n), minlength=n)
            found.update(self.found(rows, drawn, "a resample of X").terms.pairs)
        pairs = zip(fit.i.tolist(), fit.j.tolist(), strict=True)
        return [found[pair] / times for pair in pairs]

    def found(self, rows: Rows, weight: np.ndarray, which: str) -> PairFit:
        """Return the pairs of rows with other weights."""
        some = rows.reweighted(weight.astype(float))
        return self.search(some, some.reduce(survey), which).run(self.most)

    def search(
        self, rows: Rows, surveyed: Survey, which: str, fit: PairFit | None = None
    ) -> PairSearch:
        """Return the search on some rows, given the linear model; `fit` is to be tested there."""
        units = self.make_units(surveyed.features, surveyed.target)
        self._refuse(units, surveyed, which)
        limits: dict[str, Any] = {"fields": self.groups}
        if self.source.width <= MOST_FEATURES or not self.source.sparse:
            return PairSearch(rows, units, excluded=self.excluded, **limits)
        if self.excluded is not None:
            raise ValueError(
                f"`exclude` needs at most {MOST_FEATURES:,} features, and there are "
                f"{self.source.width:,}. Leave it out, or select features."
            )
        weight = surveyed.features.weight
        linear, _ = fit_rows(rows, units, Options(rank=0), weight, np.random.default_rng(0))
        finished(linear)
        if fit is None:
            return sparse_search(rows, units, model=linear.model, **limits)
        features = np.unique(np.concatenate([fit.i, fit.j]))
        return PairSearch(rows, units, model=linear.model, features=features, **limits)

    def _refuse(self, units: Units, surveyed: Survey, which: str) -> None:
        """Raise an error for rows in which no pair can be found."""
        in_groups = sum(len(group) for group in self.groups)
        if self.source.width - in_groups + len(self.groups) < 2:
            raise ValueError(f"X has one feature ({self.source.names[0]}), but a pair needs two.")
        d, n = int((to_numpy(units.scale) > 0).sum()), surveyed.tally.counting
        if n < d + 2:
            raise ValueError(
                f"There are {n} rows (of weight above 0) and {d} features that vary in {which}. "
                f"The linear model and the pairs need at least {d + 2} rows. Select features "
                "or add rows."
            )
        if not units.target.power:
            raise ValueError(f"The target is constant in {which}, so there is nothing to explain.")


def excluded_among(exclude: Sequence[Any], source: Source) -> np.ndarray | None:
    """Return which products may not be taken, as a matrix; None if all may."""
    if not len(exclude):
        return None
    mask, wholes = np.zeros((source.width, source.width), bool), text_columns(source.encoder)
    for item in exclude:
        both = isinstance(item, Sequence | np.ndarray) and not isinstance(item, str)
        if both and len(item) != 2:
            raise ValueError(f"exclude lists features and pairs of features, not {item!r}.")
        first, *second = (
            positions_of(source.names, wholes, feature) for feature in (item if both else [item])
        )
        other = second[0] if second else np.arange(source.width)
        mask[np.ix_(first, other)] = mask[np.ix_(other, first)] = True
    return mask


def find_pairs(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    max_pairs: int | str = "auto",
    categorical_features: Categories = "from_dtype",
    squares: bool = True,
    exclude: Sequence[Any] = (),
    test_on: str | None = None,
    cv: int | None = None,
    stability: int | None = None,
    engine: Any = None,
    missing: str | None = None,
) -> PairReport:
    r"""Find the pairs of features whose products improve a linear model.

    .. math:: y = b + x^\top w + \sum_m a_m\, x_{i_m} x_{j_m} + \text{noise}

    All products compete: those suggested by the moments of the residual enter, leave and are
    exchanged one at a time while this lowers the extended BIC, which charges for having searched
    all of them. A product that is supported by only a few rows is not accepted.

    Parameters
    ----------
    X : array, sparse matrix, frame, path or Source
        Rows. Text columns become one-hot columns, such as ``city=Oslo``; the names of columns are
        kept. Anything that :func:`quadlin.open_source` opens is accepted if it can be read more
        than once.
    y : array or column name
        The target: one number or one of two labels per row, or the name of a column of X. None for
        a Source, which has its own. The second of two labels in sorted order counts as 1, the first
        as 0.
    sample_weight : array, column name or None
        Weights, which count as repetitions of rows.
    max_pairs : int or "auto"
        Maximum number of pairs; "auto" is one per ten residual degrees of freedom, from 1 to 32.
    categorical_features : "from_dtype", None or list
        Names of columns whose values are categories, and groups of one-hot columns as lists of
        names or positions. Text columns are categories, and one-hot groups are detected unless None
        is given. The products of a group with another group, or with a feature, also compete as
        one block.
    squares : bool
        Whether squares of features are candidates, too.
    exclude : list of features and pairs of features
        Features that may not be in any pair, by position or name (their linear terms stay), and
        pairs that may not be taken, such as ``("area", "rooms")``. A text column stands for its
        levels.
    test_on : None or "half"
        The rows for the standard errors. None: the searched rows. "half": one half of the rows is
        searched, and coefficients, standard errors and p-values come from the other. A hash of the
        row number assigns each row to a half, so the same rows in the same order give the same
        halves; each needs two more rows than there are features.
    cv : int or None
        Number of folds. The search is repeated without each of them, and `PairReport.validated` is
        R² on the left-out rows with the first 0, 1, … of the pairs found on the others. A hash of
        the row number assigns each row to a fold.
    stability : int or None
        Number of resamples. The search is repeated on so many samples of the rows, drawn with
        replacement, and `PairReport.stability` is the share of them in which each pair was chosen.
    engine : None, "serial", "threads", int or Dask client
        Where the sums over rows are computed, as in ``SecondOrderRegressor.fit``.
    missing : {"error", "drop", "mean"} or None
        How missing values are handled, as in :func:`quadlin.open_source`; None is an error.

    Returns
    -------
    PairReport

    Raises
    ------
    ValueError
        If rows have missing values or the wrong shape, if y is constant, if there are fewer than
        two features, or fewer rows than features + 2.

    Notes
    -----
    **What the selection does to the tests.** Standard errors are robust (HC3) and
    correct for given pairs. But the pairs were chosen because their products fit these rows, so
    with ``test_on=None`` the coefficients of weak pairs are too large on average and p-values are
    too small. The p-values of ``test_on="half"`` are honest, since their rows were not used for the
    choice; the drawback is that weak pairs are found less often in half of the rows. Among
    correlated features a small p-value does not mean that the pair would be chosen again: another
    product may explain the same. `stability` shows how often it is.

    The search considers products only: if a feature has a curved effect, its product with a
    correlated feature may look useful. `PairReport.exchangeable` lists pairs that could replace
    each other.

    Coefficients of products of levels that enter together, as a block, are determined up to a
    constant per level. The smallest are reported, each with its own test and share; to judge a
    whole block, see `PairReport.path`, which has R² with and without it.

    Cost: one pass over the rows for O(d²) sums at the start and two per round, O(nd²) each; memory
    O(d²) for up to 3,000 features. Sparse rows may have more; then only products that occur in at
    least ten rows are candidates.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((500, 20))
    >>> y = X[:, 0] - X[:, 3] + 2 * X[:, 3] * X[:, 7] + rng.standard_normal(500)
    >>> report = find_pairs(X, y)
    >>> [(pair.first, pair.second, round(pair.coefficient)) for pair in report.pairs]
    [('x3', 'x7', 2)]
    """
    _check_options(max_pairs, test_on, cv, stability)
    source = _opened(X, y, sample_weight, missing, categorical_features)
    rows = Rows(engine_for(source, engine))
    groups = fields_of(categorical_features, source, source.encoder, source.names, rows.reduce)
    make_units = UnitsMaker("auto" if squares else False, True, source.dtype, source.names, groups)
    most = None if max_pairs == "auto" else int(max_pairs)
    setting = PairSetting(source, groups, make_units, most, excluded_among(exclude, source))
    searched, which, tested = rows, "X", None
    if test_on == "half":
        first = folds(rows.reduce(survey).tally.rows, 2).astype(float)
        searched, which = rows.reweighted(first), "the half of X that is searched"
    surveyed = searched.reduce(survey)
    fit = setting.search(searched, surveyed, which).run(most)
    if test_on == "half":
        other = rows.reweighted(1 - first)
        test = setting.search(other, other.reduce(survey), "the half of X for the tests", fit)
        tested = test.tested(fit.i, fit.j)
    report = report_of(source.names, fit, surveyed.tally.counting, tested)
    if cv is not None:
        validated = setting.validated(rows, surveyed, int(cv), len(report.path) - 1)
        report = replace(report, validated=validated)
    if stability is not None:
        shares = setting.stability(rows, surveyed, int(stability), fit)
        report = replace(report, stability=shares)
    return report


def _check_options(max_pairs: Any, test_on: Any, cv: Any, stability: Any) -> None:
    """Raise an error for options that make no sense, saying what would."""
    if test_on not in (None, "half"):
        raise ValueError(f"test_on={test_on!r} must be None or 'half'.")
    for name, value, least in (("cv", cv, 2), ("stability", stability, 1)):
        if value is not None and not (_is_whole(value, least) and test_on is None):
            raise ValueError(
                f"{name}={value!r} must be None or a whole number ≥ {least}, without `test_on`."
            )
    if max_pairs != "auto" and not _is_whole(max_pairs, 0):
        raise ValueError(f'max_pairs={max_pairs!r} must be a whole number ≥ 0, or "auto".')


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _opened(X: Any, y: Any, weight: Any, missing: str | None, given: Categories) -> Source:
    """Return the rows with their target, encoded once where they fit into memory."""
    if isinstance(X, Source) and not (y is None and weight is None and missing is None):
        raise ValueError("Open the source with target=..., weight=... and missing=... instead.")
    single = () if given is None or isinstance(given, str) else given
    names = [column for column in single if isinstance(column, str)]
    options: dict[str, Any] = {"missing": missing, "categorical_features": names}
    source = open_source(X, target=_coded(y), weight=weight, **options)
    if not source.has_target:
        raise ValueError("There is no target. Give y, or open the source with target=....")
    if not source.again:
        raise ValueError(
            "The search reads the rows several times, but these can be read only once. Give an "
            "array, a frame or a file."
        )
    return cached(source)


def _coded(y: Any) -> Any:
    """Return two labels as 0 and 1, and other targets as they are."""
    if y is None or isinstance(y, str) or not hasattr(y, "__len__"):
        return y
    values = np.asarray(y)
    text = values.dtype.kind == "O" and all(isinstance(value, str) for value in values.flat)
    if values.ndim != 1 or not (text or values.dtype.kind in "USb"):
        return y
    labels = np.unique(values)
    return (values == labels[-1]).astype(float) if len(labels) == 2 else y
