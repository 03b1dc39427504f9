"""The diagnosis of a fit, in words and numbers, with advice."""

from collections.abc import Sequence
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
from quadlin.explain.tables import rank_words, text_table
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.grid import squared_errors
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Design
from quadlin.solve.lowrank.gauss_newton import GaussNewton
from quadlin.solve.lowrank.levels import whole
from quadlin.solve.lowrank.linear_model import Gram
from quadlin.solve.lowrank.polish import leading_directions
from quadlin.solve.lowrank.types import Options, Problem
from quadlin.solve.lowrank.whitening import Full, Identity
from quadlin.stream.strict import SIGNIFICANT

LEAST_PENALTY = 1e-9  # of the weight: dependent columns leave a matrix that has no inverse
HANDFUL = 5  # rows
LEFT_OVER = 2.0  # times the noise level: a component of the residual that is worth a rank
NOTHING_LEFT = 1e-12  # of the constant model's loss
OVERFITTED = 1.5  # times the error on the rows of the fit, of the error on rows left out
MANY_ROWS, FEW_ROWS = 100, 6  # fewer rows that carry a fourth moment are outliers
SHARED = "the penalty alone divides the effect between such columns. Drop a column."
NOT_UNIQUE = "single coefficients are not unique. Drop a column, or set `alpha` above 0."
COLLINEAR = 1e-6  # an eigenvalue of the correlation matrix below this is a linear dependence


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
        Names of the features; None takes those of a frame, or x0, x1, …
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
    columns = (varies, moments.two_valued, moments.tau < TAU_FREE)
    kinds = [
        "constant" if not v else "two-valued" if two else "nearly two-valued" if small else "free"
        for v, two, small in zip(*map(to_numpy, columns), strict=True)
    ]
    names = names if names is not None else [f"x{j}" for j in range(len(kinds))]
    return MipReport(list(names), moments.tau, kinds)


def _numbers(rows: Any) -> Array:
    """Return rows as an array of numbers, or as CSR."""
    if issparse(rows):
        return csr_array(rows)
    try:
        X = rows if is_array_api_obj(rows) else np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        X = None
    if X is None or X.ndim != 2 or X.shape[0] == 0:
        raise TypeError(
            "mip_report takes Moments, or rows of numbers (n_samples, n_features); text columns "
            f"have no moments. It was given a {type(rows).__name__}."
        )
    return X


@dataclass(frozen=True)
class RowFindings:
    """Numbers about the rows that a fit is diagnosed with, errors in the user's units."""

    edge: tuple[float, float] | None  # the residual's leading eigenvalue, and that of noise alone
    error: float  # root mean square
    left_out_error: float | None  # the same when each row is left out; None if it is not known
    heavy: tuple[int, ...]  # the rows that carry most of the squared error, if they are a handful
    heavy_share: float  # of the squared error


def row_findings(rows: Rows, state: FitState, options: Options, seed: int) -> RowFindings:
    """Look at the rows: seven passes, and O(p²) memory up to 1,500 parameters.

    Other rows than those of the fit have only errors: a residual that is not orthogonal to columns
    such as the levels of a category shows directions that whitening makes large.
    """
    squares, weight = map(to_numpy, squared_errors(state.model, state.units, rows))
    total = float(weight @ squares)
    unit, n = state.units.target.scale, float(weight.sum())
    top = np.argsort(-weight * squares)[:HANDFUL]
    shares = np.cumsum((weight * squares)[top]) / max(total, 1e-300)
    few = len(squares) >= 20 * HANDFUL and shares[-1] > 0.5
    count = int(np.argmax(shares > 0.5)) + 1 if few else 0
    fitted = _were_fitted(rows, state)
    left_out = _left_out(rows, state, options, n) if fitted else None
    return RowFindings(
        residual_edge(rows, state, options, seed) if fitted else None,
        unit * sqrt(total / n),
        None if left_out is None else unit * sqrt(left_out),
        tuple(sorted(int(i) for i in top[:count])),
        float(shares[count - 1]) if count else 0.0,
    )


def _were_fitted(rows: Rows, state: FitState) -> bool:
    """Tell whether rows have the extremes of those of the fit, which do not depend on weights."""
    features, of_fit = rows.reduce(survey).features, state.features
    pairs = ((features.low, of_fit.low), (features.high, of_fit.high))
    return all(b is None or np.array_equal(to_numpy(a), to_numpy(b)) for a, b in pairs)


def residual_edge(rows: Rows, state: FitState, options: Options, seed: int) -> tuple[float, float]:
    """Return the leading eigenvalue of the residual's moment matrix, and that of noise alone."""
    xp = namespace(state.model.s)
    problem = Problem(rows, state.units, options, np.random.default_rng(seed))
    _, s, _ = leading_directions(GaussNewton(problem, state.white), state.model, 1)
    residual = problem.sums(state.model, squares=False)
    d, n = state.model.U.shape[0], residual.weight
    return float(xp.max(xp.abs(s))), (residual.loss / n * d / n) ** 0.5


def _left_out(rows: Rows, state: FitState, options: Options, weight: float) -> float | None:
    """Return the mean squared error of rows left out, where a matrix of the parameters fits.

    The penalties are those of a low-rank M: pairs beside it have another one.
    """
    dof = options.dof(*state.model.U.shape)
    if state.parts is not None or dof > EXACT_COLUMNS:
        return None
    first, second = (max(alpha, LEAST_PENALTY * weight) for alpha in options.alpha)
    gram = Gram.of(rows, Design.at(state.model.U, state.units, options))
    try:
        return float(gram.left_out(rows, (first, second)).squares.sum()) / weight
    except np.linalg.LinAlgError:
        return None


def diagnosis(
    state: FitState,
    advice: str,
    rows: int,
    effective: float,
    names: Sequence[str],
    fields: Sequence[np.ndarray],
    options: Options,
    findings: RowFindings | None,
    loss: str = "squared",
    automatic: bool = False,
) -> str:
    """Describe the status, features, rows, errors and rank of a fit, with advice.

    `advice` is that about the status. `effective` is (Σω)²/Σω², the number of equally weighted rows
    with the same information. `findings` is None without rows. `automatic` tells whether the
    penalties were chosen from the rows.
    """
    penalised, robust = any(options.alpha) or automatic, LOSSES[loss].robust
    dof = state.n_parameters(options)
    lines: list[str] = [" ".join([f"status: {state.status.name}.", advice])]
    lines += _features(state, names, options.fit_linear)
    groups = whole(state.units, fields) if options.levels_are_ambiguous else []
    lines += _correlation(state, names, groups, penalised)
    if groups:
        lines.append(
            f"fields: {len(groups)} one-hot group{'s' if len(groups) > 1 else ''}, whose columns "
            "sum to one in every row; coefficients of levels are measured from the mean."
        )
    lines += _levels(state, names, fields, penalised)
    lines += _rows(rows, effective, dof, penalised, options.rank > 0)
    outliers = _outliers(state, rows, findings, loss)
    lines += outliers
    lines += _errors(findings, state, automatic)
    if not outliers or robust:  # outliers hide how large the components are
        lines += _rank(state, rows, penalised, None if findings is None else findings.edge)
    return "\n".join(lines)


def _outliers(state: FitState, rows: int, findings: RowFindings | None, loss: str) -> list[str]:
    """Name the rows whose targets dominate squared errors, if they are a handful.

    Labels and counts are not fitted by squared errors.
    """
    if LOSSES[loss].linked:
        return []
    if findings is not None and findings.heavy:
        share, s = findings.heavy_share, "s" * (len(findings.heavy) > 1)
        which = f"row{s} {', '.join(map(str, findings.heavy))}"
        line = f"outliers: {share:.0%} of the squared error comes from {which} (counted from 0)."
    elif rows >= MANY_ROWS and float(state.target.phi[0]) > rows / FEW_ROWS:
        line = "outliers: a handful of rows have extreme targets."
    else:
        return []
    advice = [] if LOSSES[loss].robust else ['Check them, or use loss="huber".']
    return [" ".join([line, *advice])]


def _errors(findings: RowFindings | None, state: FitState, automatic: bool) -> list[str]:
    """Compare the error on the rows with that on rows left out: the difference is overfitting."""
    if findings is None:
        return []
    if findings.left_out_error is None:
        return [f"error: {findings.error:.3g} on these rows (as an RMSE)."]
    inside, outside = findings.error, findings.left_out_error
    line = f"error: {inside:.3g} on these rows, {outside:.3g} when each is left out (as an RMSE)."
    sd = float(state.target.var[0]) ** 0.5
    if outside <= max(OVERFITTED * inside, NOTHING_LEFT**0.5 * sd):
        return [line]
    worse = " It is worse than the mean of the targets." if outside > sd else ""
    gap = f"The difference is overfitting.{worse}"
    advice: str = 'Use alpha="auto" to choose the penalties.'
    if automatic:
        advice = "Leave out features that do not matter, or add rows."
    return [" ".join([line, gap, advice])]


def _features(state: FitState, names: Sequence[str], fit_linear: bool) -> list[str]:
    report = mip_report(state.features, names, state.units.scale.dtype)
    lines = []
    meanings = {
        "constant": "without information, and left out",
        "two-valued": "squares equal linear terms, so M has no diagonal there",
        "nearly two-valued": "squares can hardly be distinguished from linear terms",
    }
    if not fit_linear:  # then the squares are all there is
        meanings |= dict.fromkeys(
            ("two-valued", "nearly two-valued"),
            "squares take the place of linear terms, which are not fitted",
        )
    for kind, meaning in meanings.items():
        alike = [name for name, k in zip(report.names, report.kind, strict=True) if k == kind]
        if alike:
            lines.append(f"features: {len(alike)} {kind} ({listed(alike)}): {meaning}.")
    return lines or ["features: all vary, and their squares differ from linear terms."]


def _correlation(
    state: FitState, names: Sequence[str], groups: Sequence[np.ndarray], penalised: bool
) -> list[str]:
    """Describe correlation, and linear dependences other than those within one-hot groups."""
    if isinstance(state.white, Identity):
        return ["correlation: none that matters, or not tested."]
    varies = to_numpy(state.units.scale) > 0
    if not varies.any():
        return ["correlation: none, because no feature varies."]
    if not isinstance(state.white, Full):
        return ["correlation: some, whitened by a low-rank model of it."]
    values, vectors = to_numpy(state.white.values), to_numpy(state.white.V)
    condition = float(values.max() / max(values[values >= COLLINEAR].min(), COLLINEAR))
    lines: list[str] = [f"correlation: some, whitened; condition number {condition:.1e}."]
    null = varies[:, None] * vectors[:, values < COLLINEAR]
    for group in groups:
        constant = np.sqrt(to_numpy(state.features.var)[group])
        constant /= np.linalg.norm(constant)
        null[group] -= np.outer(constant, constant @ null[group])
    directions, sizes, _ = np.linalg.svd(null, full_matrices=False)
    dependences = directions[:, sizes > 0.5]
    if dependences.shape[1]:
        first = dependences[:, 0]
        heavy = [names[int(j)] for j in np.argsort(-np.abs(first))[:4] if abs(first[j]) > 0.1]
        which = SHARED if penalised else NOT_UNIQUE
        lines.append(
            f"collinear: {dependences.shape[1]} linear dependence(s) among the features, e.g. "
            f"between {listed(heavy)}. Predictions are not affected, but {which}"
        )
    return lines


def _levels(
    state: FitState, names: Sequence[str], fields: Sequence[np.ndarray], penalised: bool
) -> list[str]:
    """Name the levels that are seen in fewer rows than they have parameters."""
    if not len(fields):
        return []
    levels, k = np.concatenate(fields), state.low_rank.s.shape[0]
    seen = to_numpy(state.features.mean)[levels] * state.features.weight
    rare = levels[seen < k + 1.5]
    if not len(rare):
        return []
    line = f"levels: {len(rare)} of {len(levels)} ({listed([names[j] for j in rare])}) are seen in "
    line += f"no more rows than the {k + 1} parameters that each has."
    advice = "Merge them, or shrink them with a penalty such as alpha=1."
    return [line if penalised else " ".join([line, advice])]


def _rows(rows: int, effective: float, dof: int, penalised: bool, low_rank: bool) -> list[str]:
    ratio = effective / max(dof, 1)
    weighted = f" (effectively {effective:.0f}, by their weights)" if effective < rows else ""
    line = f"rows: {rows}{weighted} for {dof} parameters, {ratio:.1f} each."
    if ratio >= 4 or penalised:
        return [line]
    if ratio < 1:
        fewer = "lower `rank`" if low_rank else "fewer features"
        advice = f'Too few to determine them: use alpha="auto", or {fewer}.'
    else:
        cv = "SecondOrderRegressorCV"
        advice = f'Few when there is noise: use alpha="auto", or {cv}.'
    return [" ".join([line, advice])]


def _rank(
    state: FitState, rows: int, penalised: bool, residual_edge: tuple[float, float] | None
) -> list[str]:
    model, pairs = state.low_rank, 0 if state.parts is None else len(state.parts.terms.i)
    xp = namespace(model.s)
    d, k = model.U.shape
    sd = state.history[-1].loss ** 0.5 / state.units.target.scale
    edge = sd * (d / rows) ** 0.5
    strong = int(xp.sum(xp.astype(xp.abs(model.s) > SIGNIFICANT * edge, xp.int64)))
    lines: list[str] = []
    exact = state.history[-1].loss <= NOTHING_LEFT * state.history[0].loss
    if strong < k and not penalised:  # shrunk components may look like noise
        lines.append(
            f"rank: {strong} of {k} components stand out from the noise; the rank may "
            f'be too high. Try rank={strong!r}, or alpha="auto".'
        )
    if residual_edge is not None and not exact:
        times = residual_edge[0] / residual_edge[1]
        if times > LEFT_OVER and k < d:  # of full rank there is nothing to add
            lines.append(
                f"rank: the residual still has a component of {times:.1f} times the noise "
                "level; the rank may be too low (or some features have heavy tails). Try "
                f"rank={k + 1!r}."
            )
    if lines:
        return lines
    words = rank_words(k, d, pairs, penalised)
    if k == 0:
        return [f"rank: {words}."]
    components = f"{'all' if strong == k else f'{strong} of'} {k} components"
    start = "" if words == str(k) else f"{words}; "
    return [f"rank: {start}{components} stand out from the noise."]


def listed(names: Sequence[str]) -> str:
    """Return some names, safe to print, and how many more there are."""
    return ", ".join(map(printable, names[:5])) + (
        f" and {len(names) - 5} more" if len(names) > 5 else ""
    )
