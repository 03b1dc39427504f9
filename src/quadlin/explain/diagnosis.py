"""The diagnosis of a fit, in words and numbers, with advice."""

from collections.abc import Sequence

import numpy as np

from quadlin.core.arrays import namespace, to_numpy
from quadlin.core.messages import printable
from quadlin.explain.mip import mip_report
from quadlin.explain.row_findings import RowFindings
from quadlin.explain.tables import rank_words
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.levels import whole
from quadlin.solve.lowrank.types import Options
from quadlin.solve.lowrank.whitening import Full, Identity
from quadlin.stream.power_iteration import SIGNIFICANT

LEFT_OVER = 2.0  # times the noise level: a component of the residual that is worth a rank
NOTHING_LEFT = 1e-12  # of the constant model's loss
OVERFITTED = 1.5  # times the error on the rows of the fit, of the error on rows left out
MANY_ROWS, FEW_ROWS = 100, 6  # fewer rows that carry a fourth moment are outliers
SHARED = "the penalty alone divides the effect between such columns. Drop a column."
NOT_UNIQUE = "single coefficients are not unique. Drop a column, or set `alpha` above 0."
COLLINEAR = 1e-6  # an eigenvalue of the correlation matrix below this is a linear dependence


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
    penalised, robust = any(options.alpha) or automatic, loss == "huber"
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
    if loss not in ("squared", "huber"):
        return []
    if findings is not None and findings.heavy:
        share, s = findings.heavy_share, "s" * (len(findings.heavy) > 1)
        which = f"row{s} {', '.join(map(str, findings.heavy))}"
        line = f"outliers: {share:.0%} of the squared error comes from {which} (counted from 0)."
    elif rows >= MANY_ROWS and float(state.target.phi[0]) > rows / FEW_ROWS:
        line = "outliers: a handful of rows have extreme targets."
    else:
        return []
    advice = [] if loss == "huber" else ['Check them, or use loss="huber".']
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
