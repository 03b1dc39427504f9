"""What a person should know about a fit, in words and numbers."""

from collections.abc import Sequence

import numpy as np

from quadlin.core.arrays import namespace, to_numpy
from quadlin.core.messages import Message, Option, Phrase, printable
from quadlin.core.moments import mip_report
from quadlin.core.rows import Rows
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.fit_state import FitState
from quadlin.solve.gauss_newton import GaussNewton
from quadlin.solve.levels import whole
from quadlin.solve.polish import leading_directions
from quadlin.solve.types import Options, Problem
from quadlin.solve.whitening import Full, Identity
from quadlin.stream.start import SIGNIFICANT

LEFT_OVER = 2.0  # times the noise level: a component of the residual that is worth a rank
NOTHING_LEFT = 1e-12  # of the constant model's loss
COLLINEAR = 1e-6  # an eigenvalue of the correlation matrix below this is a linear dependence


def diagnosis(
    state: FitState,
    rows: int,
    effective: float,
    names: Sequence[str],
    fields: Sequence[np.ndarray],
    options: Options,
    residual_edge: tuple[float, float] | None,
) -> str:
    """Say what there is to say about features, rows, rank and how the fit ended.

    `effective` is (Σω)²/Σω², the number of equally weighted rows that say as much.
    `residual_edge` is the leading eigenvalue that the residual still has, and its noise level;
    known only when there are rows to compute it from.
    """
    penalised = any(options.alpha)
    dof = degrees_of_freedom(*state.model.U.shape, **options.parts)
    lines: list[str] = [Message.joined([f"status: {state.status.name}.", state.status.value])]
    lines += _features(state, names)
    groups = whole(state.units, fields) if options.levels_are_ambiguous else []
    lines += _correlation(state, names, groups)
    if groups:
        lines.append(
            f"fields: {len(groups)} one-hot group(s) sum to one in every row; coefficients of "
            "their levels are measured from the mean."
        )
    lines += _levels(state, names, fields, penalised)
    lines += _rows(rows, effective, dof, penalised)
    lines += _rank(state, rows, penalised, residual_edge)
    return Message.joined(lines, "\n")


def residual_edge(rows: Rows, state: FitState, options: Options, seed: int) -> tuple[float, float]:
    """Return the leading eigenvalue of the residual's moment matrix, and that of noise alone."""
    xp = namespace(state.model.s)
    problem = Problem(rows, state.units, options, np.random.default_rng(seed))
    _, s, _ = leading_directions(GaussNewton(problem, state.white), state.model, 1)
    residual = problem.sums(state.model, squares=False)
    d, n = state.model.U.shape[0], residual.weight
    return float(xp.max(xp.abs(s))), (residual.loss / n * d / n) ** 0.5


def _features(state: FitState, names: Sequence[str]) -> list[str]:
    report = mip_report(state.features, names, state.units.scale.dtype)
    lines = []
    says = {
        "constant": "carry no information and were left out",
        "two-valued": "have no square of their own: M has no diagonal there",
        "nearly two-valued": "have squares that can hardly be told from the linear term",
    }
    for kind, meaning in says.items():
        found = [name for name, k in zip(report.names, report.kind, strict=True) if k == kind]
        if found:
            lines.append(f"features: {len(found)} {kind} ({listed(found)}) {meaning}.")
    return lines or ["features: all vary and have squares of their own."]


def _correlation(state: FitState, names: Sequence[str], groups: Sequence[np.ndarray]) -> list[str]:
    """Tell of correlation, and of dependences but those of one-hot groups, which are settled."""
    if isinstance(state.white, Identity):
        return ["correlation: none that matters, or none looked for."]
    varies = to_numpy(state.units.scale) > 0
    if not varies.any():
        return ["correlation: none, for no feature varies."]
    if not isinstance(state.white, Full):
        return ["correlation: found, and whitened by a low-rank model of it."]
    values, vectors = to_numpy(state.white.values), to_numpy(state.white.V)
    condition = float(values.max() / max(values[values >= COLLINEAR].min(), COLLINEAR))
    lines: list[str] = [f"correlation: found and whitened; condition number {condition:.1e}."]
    null = varies[:, None] * vectors[:, values < COLLINEAR]
    for group in groups:
        own = np.sqrt(to_numpy(state.features.var)[group])
        own /= np.linalg.norm(own)
        null[group] -= np.outer(own, own @ null[group])
    directions, sizes, _ = np.linalg.svd(null, full_matrices=False)
    found = directions[:, sizes > 0.5]
    if found.shape[1]:
        first = found[:, 0]
        heavy = [names[int(j)] for j in np.argsort(-np.abs(first))[:4] if abs(first[j]) > 0.1]
        lines.append(
            Message(
                "collinear: {count} linear dependence(s) among the features, e.g. between {names}. "
                "Predictions are fine; single coefficients there are not unique. Drop a column, or "
                "set {alpha} above 0.",
                count=found.shape[1],
                names=listed(heavy),
                alpha=Option("alpha"),
            )
        )
    return lines


def _levels(
    state: FitState, names: Sequence[str], fields: Sequence[np.ndarray], penalised: bool
) -> list[str]:
    """Name the levels that are seen in fewer rows than they have parameters."""
    if not len(fields):
        return []
    levels, k = np.concatenate(fields), state.model.s.shape[0]
    seen = to_numpy(state.features.mean)[levels] * state.features.weight
    rare = levels[seen < k + 1.5]
    if not len(rare):
        return []
    line = f"levels: {len(rare)} of {len(levels)} ({listed([names[j] for j in rare])}) are seen in "
    line += f"no more rows than the {k + 1} parameters that each has."
    advice = Message("Merge them, or shrink them by {alpha}, say.", alpha=Option("alpha", 1))
    return [line if penalised else Message.joined([line, advice])]


def _rows(rows: int, effective: float, dof: int, penalised: bool) -> list[str]:
    ratio = effective / max(dof, 1)
    weighted = f" (effectively {effective:.0f}, by their weights)" if effective < rows else ""
    line = f"rows: {rows}{weighted} for {dof} parameters, {ratio:.1f} each."
    if ratio < 1 and not penalised:
        advice = Message(
            "Too few to determine them: lower {rank}, or set {alpha} above 0.",
            rank=Option("rank"),
            alpha=Option("alpha"),
        )
        return [Message.joined([line, advice])]
    if ratio < 4 and not penalised:
        advice = Message(
            "Few when there is noise: try {alpha} above 0, or {cv}.",
            alpha=Option("alpha"),
            cv=Phrase("SecondOrderRegressorCV", Option("cv", True)),
        )
        return [Message.joined([line, advice])]
    return [line]


def _rank(
    state: FitState, rows: int, penalised: bool, residual_edge: tuple[float, float] | None
) -> list[str]:
    xp = namespace(state.model.s)
    d, k = state.model.U.shape
    sd = state.history[-1].loss ** 0.5 / state.units.target.scale
    edge = sd * (d / rows) ** 0.5
    strong = int(xp.sum(xp.astype(xp.abs(state.model.s) > SIGNIFICANT * edge, xp.int64)))
    lines: list[str] = []
    exact = state.history[-1].loss <= NOTHING_LEFT * state.history[0].loss
    if strong < k and not penalised:  # shrunk components say less
        lines.append(
            Message(
                "rank: {strong} of {k} components stand out from the noise; the rank may be too "
                "high. Try {rank}, or {alpha} above 0.",
                strong=strong,
                k=k,
                rank=Option("rank", strong),
                alpha=Option("alpha"),
            )
        )
    if residual_edge is not None and not exact:
        times = residual_edge[0] / residual_edge[1]
        if times > LEFT_OVER:
            lines.append(
                Message(
                    "rank: the residual still has a component of {times:.1f} times the noise "
                    "level; the rank may be too low (or some features have heavy tails). Try "
                    "{rank}.",
                    times=times,
                    rank=Option("rank", k + 1),
                )
            )
    if not lines and k == 0:
        return ["rank: 0, a linear model."]
    return lines or [f"rank: all {k} components stand out from the noise."]


def listed(names: Sequence[str]) -> str:
    """Return some names, safe to print, and how many more there are."""
    return ", ".join(map(printable, names[:5])) + (
        f" and {len(names) - 5} more" if len(names) > 5 else ""
    )
