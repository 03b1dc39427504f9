"""The diagnosis of a fit, in words and numbers, with advice."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj
from scipy.sparse import csr_array, issparse

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.losses import LOSSES
from quadlin.core.messages import printable
from quadlin.core.moments import TAU_FREE, Moments, survey
from quadlin.core.rows import Rows
from quadlin.data.columns import find_ids
from quadlin.explain.tables import ROUNDING, rank_of, text_table
from quadlin.solve.fits.fit_state import FitState, squared_errors
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Design
from quadlin.solve.lowrank.gauss_newton import GaussNewton
from quadlin.solve.lowrank.levels import whole
from quadlin.solve.lowrank.linear_model import Gram
from quadlin.solve.lowrank.polish import leading_directions
from quadlin.solve.lowrank.types import Problem
from quadlin.solve.lowrank.whitening import Full
from quadlin.solve.pairs.regression import COLLINEAR
from quadlin.stream.batch import SIGNIFICANT

HANDFUL, MANY = 5, 100  # rows that dominate a sum, and of how many at least


@dataclass(frozen=True)
class MipReport:
    """Which features have a diagonal of M distinguishable from w (the paper's MIP, per feature).

    Examples
    --------
    >>> import numpy as np
    >>> X = np.column_stack([np.arange(8.0), np.arange(8) % 2, np.ones(8)])
    >>> print(mip_report(Moments.of(X), ["age", "member", "unit"]))
    feature      τ  kind
    age      0.762  free
    member   0.000  two-valued
    unit     0.000  constant
    """

    names: Sequence[str]
    tau: Array  # (d,)
    kind: Sequence[str]  # "free", "nearly two-valued", "two-valued" or "constant"

    def __str__(self) -> str:
        tau = (f"{float(tau):.3f}" for tau in to_numpy(self.tau))
        rows = zip(self.names, tau, self.kind, strict=True)
        return "\n".join(text_table(["feature", "τ", "kind"], list(rows)))


def mip_report(
    moments: Moments | Any, names: Sequence[str] | None = None, dtype: Any = None
) -> MipReport:
    """Tell which features have a diagonal of M that can be estimated.

    Parameters
    ----------
    moments : Moments, or rows as an array, CSR or a frame of numbers
        The moments of the features, or the features themselves.
    names : sequence of str or None
        Names of the features; None takes the names of a frame, or x0, x1, …
    dtype : dtype or None
        The dtype of the fit. A feature that varies by less than its rounding counts as constant;
        None is float64.

    Returns
    -------
    MipReport

    Examples
    --------
    >>> import numpy as np
    >>> list(mip_report(np.array([[0.0, 1.0], [1.0, 2.0], [0.0, 4.0], [1.0, 7.0]])).kind)
    ['two-valued', 'free']
    """
    if not isinstance(moments, Moments):
        if names is None and hasattr(moments, "columns"):
            names = [str(name) for name in moments.columns]
        moments = Moments.of(_numbers(moments))
    xp = namespace(moments.tau)
    varies = moments.varies(xp.float64 if dtype is None else dtype)
    columns = (~varies, moments.two_valued, moments.tau < TAU_FREE)
    words = ["constant", "two-valued", "nearly two-valued"]
    kinds = np.select(list(map(to_numpy, columns)), words, "free").tolist()
    names = names if names is not None else [f"x{j}" for j in range(len(kinds))]
    return MipReport(list(names), moments.tau, kinds)


def _numbers(rows: Any) -> Array:
    """Return rows as an array of numbers, or as CSR."""
    if issparse(rows):
        return csr_array(rows)
    with suppress(TypeError, ValueError):
        X = rows if is_array_api_obj(rows) else np.asarray(rows, dtype=np.float64)
        if X.ndim == 2 and X.shape[0]:
            return X
    raise TypeError(
        "mip_report takes Moments, or rows of numbers (n_samples, n_features); text columns "
        f"have no moments. It was given a {type(rows).__name__}."
    )


def diagnose(model: Any, rows: Rows | None, automatic: bool, seed: int) -> str:
    """Return the diagnosis of a fitted estimator: see `SecondOrderRegressor.diagnose`.

    With rows: seven passes, and O(p²) memory up to 1,500 parameters. Rows other than the fitted
    ones have only errors: a residual that is not orthogonal to columns such as the levels of a
    category shows directions that whitening makes large.

    Parameters
    ----------
    model : fitted estimator
        The model.
    rows : Rows or None
        The rows that it is diagnosed with.
    automatic : bool
        Whether the penalties were chosen from the rows.
    seed : int
        Of the directions in which the residual is searched for another component.
    """
    fitted, loss = model.fitted_, LOSSES[model.loss]
    state, penalised = fitted.state, any(fitted.options.alpha) or automatic
    lines = [f"status: {state.status.name}. {state.status.value}"]
    lines += [*_features(fitted), *_dependences(fitted, penalised), _counts(fitted, penalised)]
    known, outliers = None, list[str]()
    if rows is not None:
        known = rows if _were_fitted(state, rows) else None
        squares, weight = map(to_numpy, squared_errors(state.model, state.units, rows))
        if not loss.linked:  # labels and counts are not fitted by squared errors
            outliers = _outliers(squares * weight, loss.robust)
        lines += [*outliers, _errors(fitted, known, squares, weight)]
    if not outliers or loss.robust:  # outliers hide how large components are
        lines += _rank(model, known, penalised, seed)
    if rows is not None and (ids := find_ids(rows, fitted.columns.number_names, fitted.names)):
        lines.append(
            f"columns: {listed(ids)} hold whole numbers that look like ids. If their order "
            f"means nothing, give categorical_features={ids!r}, or drop them."
        )
    return "\n".join(lines)


def _were_fitted(state: FitState, rows: Rows) -> bool:
    """Tell whether rows have the same extremes as the fitted rows, whatever the weights."""
    features, of_fit = rows.reduce(survey).features, state.features
    pairs = ((features.low, of_fit.low), (features.high, of_fit.high))
    return all(np.array_equal(to_numpy(a), to_numpy(b)) for a, b in pairs)


def _features(fitted: Any) -> list[str]:
    """Name the features without a square of their own."""
    report = mip_report(fitted.state.features, fitted.names, fitted.state.units.scale.dtype)
    meanings = {
        "constant": "without information, and left out",
        "two-valued": "squares equal linear terms, so M has no diagonal there",
        "nearly two-valued": "squares can hardly be distinguished from linear terms",
    }
    lines = []
    for kind, meaning in meanings.items():
        alike = [name for name, k in zip(report.names, report.kind, strict=True) if k == kind]
        if alike:
            lines.append(f"features: {len(alike)} {kind} ({listed(alike)}): {meaning}.")
    return lines or ["features: all vary, and their squares differ from linear terms."]


def _dependences(fitted: Any, penalised: bool) -> list[str]:
    """Name one-hot groups, and linear dependences among other features."""
    state = fitted.state
    groups = whole(state.units, fitted.fields) if fitted.options.levels_are_ambiguous else []
    lines = [f"fields: {len(groups)} one-hot group(s), whose columns sum to one in every row."]
    lines = lines if groups else []
    if not isinstance(state.white, Full) or not (state.units.scale > 0).any():
        return lines
    values, vectors = to_numpy(state.white.values), to_numpy(state.white.V)
    null = (to_numpy(state.units.scale) > 0)[:, None] * vectors[:, values < COLLINEAR]
    for group in groups:
        constant = np.sqrt(to_numpy(state.features.var)[group])
        constant /= np.linalg.norm(constant)
        null[group] -= np.outer(constant, constant @ null[group])
    directions, sizes, _ = np.linalg.svd(null, full_matrices=False)
    dependences = directions[:, sizes > 0.5]
    if dependences.shape[1]:
        first = dependences[:, 0]
        heavy = [fitted.names[int(j)] for j in np.argsort(-np.abs(first))[:4]]
        advice = "single coefficients are not unique. Drop a column, or set `alpha` above 0."
        if penalised:
            advice = "the penalty alone divides the effect between such columns. Drop a column."
        lines.append(
            f"collinear: {dependences.shape[1]} linear dependence(s) among the features, e.g. "
            f"between {listed(heavy)}. Predictions are not affected, but {advice}"
        )
    return lines


def _counts(fitted: Any, penalised: bool) -> str:
    """Compare the rows with the parameters."""
    rows, effective = fitted.n_rows, fitted.learned.tally.effective
    dof = fitted.state.n_parameters(fitted.options)
    ratio = effective / max(dof, 1)
    weighted = f" (effectively {effective:.0f}, by their weights)" if effective < rows else ""
    line = f"rows: {rows}{weighted} for {dof} parameters, {ratio:.1f} each."
    if ratio >= 1 or penalised:
        return line
    fewer = "lower `rank`" if fitted.options.rank else "fewer features"
    return f'{line} Too few to determine them: use alpha="auto", or {fewer}.'


def _outliers(errors: np.ndarray, robust: bool) -> list[str]:
    """Name the rows whose targets dominate squared errors, if they are a handful."""
    top = np.argsort(-errors)[:HANDFUL]
    shares = np.cumsum(errors[top]) / max(float(errors.sum()), 1e-300)
    if len(errors) < MANY or shares[-1] <= 0.5:
        return []
    count = int(np.argmax(shares > 0.5)) + 1
    which = f"row{'s' * (count > 1)} {', '.join(map(str, sorted(top[:count].tolist())))}"
    line = (
        f"outliers: {float(shares[count - 1]):.0%} of the squared error comes from {which} "
        "(counted from 0)."
    )
    return [line if robust else f'{line} Check them, or use loss="huber".']


def _errors(fitted: Any, known: Rows | None, squares: np.ndarray, weight: np.ndarray) -> str:
    """Compare the error with that on rows left out: the difference is overfitting."""
    unit, n = fitted.state.units.target.scale, float(weight.sum())
    inside = unit * sqrt(float(weight @ squares) / n)
    left_out = None if known is None else _left_out(fitted, known, n)
    if left_out is None:
        return f"error: {inside:.3g} on these rows (as an RMSE)."
    outside = f"{unit * sqrt(left_out):.3g} when each is left out (as an RMSE)"
    return f"error: {inside:.3g} on these rows, {outside}."


def _left_out(fitted: Any, rows: Rows, weight: float) -> float | None:
    """Return the mean squared error of rows left out, where a matrix of the parameters fits.

    Only without pairs, since the penalty of a pair is another one.
    """
    state, options = fitted.state, fitted.options
    if state.parts is not None or options.dof(*state.model.U.shape) > EXACT_COLUMNS:
        return None
    # Without any penalty the matrix of dependent columns has no inverse.
    first, second = (max(alpha, ROUNDING * weight) for alpha in options.alpha)
    gram = Gram.of(rows, Design.at(state.model.U, state.units, options))
    try:
        return float(gram.left_out(rows, (first, second)).squares.sum()) / weight
    except np.linalg.LinAlgError:
        return None


def noise_eigenvalue(fitted: Any) -> float:
    """Return about how large the largest eigenvalue of noise alone would be, in units of y."""
    loss = float(fitted.state.history[-1].loss)
    return sqrt(loss * len(fitted.names) / max(1, fitted.n_rows))


def _rank(model: Any, known: Rows | None, penalised: bool, seed: int) -> list[str]:
    """Compare the components, and what the residual has besides, with noise."""
    fitted, state = model.fitted_, model.fitted_.state
    d, k = state.low_rank.U.shape
    sizes = abs(to_numpy(state.low_rank.s)) * state.units.target.scale
    strong = int((sizes > SIGNIFICANT * noise_eigenvalue(fitted)).sum())
    lines: list[str] = []
    if strong < k and not penalised:  # shrunk components may look like noise
        lines.append(
            f"rank: {strong} of {k} components stand out from the noise; the rank may "
            f'be too high. Try rank={strong!r}, or alpha="auto".'
        )
    exact = state.history[-1].loss <= ROUNDING * state.history[0].loss
    if known is not None and not exact and k < d:  # of full rank nothing is missing
        times = _times_noise(fitted, known, seed)
        if times > SIGNIFICANT:
            lines.append(
                f"rank: the residual still has a component of {times:.1f} times the noise "
                "level; the rank may be too low (or some features have heavy tails). Try "
                f"rank={k + 1!r}."
            )
    if lines:
        return lines
    words = rank_of(model)
    if k == 0:
        return [f"rank: {words}."]
    components = f"{'all' if strong == k else f'{strong} of'} {k} components"
    start = "" if words == str(k) else f"{words}; "
    return [f"rank: {start}{components} stand out from the noise."]


def _times_noise(fitted: Any, rows: Rows, seed: int) -> float:
    """Return the leading eigenvalue of the residual's moments, relative to noise alone."""
    state = fitted.state
    problem = Problem(rows, state.units, fitted.options, np.random.default_rng(seed))
    _, s, _ = leading_directions(GaussNewton(problem, state.white), state.model, 1)
    residual = problem.sums(state.model, squares=False)
    d, n = state.model.U.shape[0], residual.weight
    return float(abs(to_numpy(s)).max() / (residual.loss / n * d / n) ** 0.5)


def listed(names: Sequence[str]) -> str:
    """Return some names, safe to print, and how many more there are."""
    return ", ".join(map(printable, names[:5])) + (
        f" and {len(names) - 5} more" if len(names) > 5 else ""
    )
