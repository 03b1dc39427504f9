"""The diagnosis of a fit, in words and numbers, with advice."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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
from quadlin.explain.tables import rank_of, text_table
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.fits.grid import squared_errors
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Design
from quadlin.solve.lowrank.gauss_newton import GaussNewton
from quadlin.solve.lowrank.levels import whole
from quadlin.solve.lowrank.linear_model import Gram
from quadlin.solve.lowrank.polish import leading_directions
from quadlin.solve.lowrank.types import Options, Problem
from quadlin.solve.lowrank.whitening import Full
from quadlin.stream.strict import SIGNIFICANT

LEAST_PENALTY = 1e-9  # of the weight: dependent columns leave a matrix that has no inverse
HANDFUL = 5  # rows
LEFT_OVER = 2.0  # times the noise level: a component of the residual that is worth a rank
NOTHING_LEFT = 1e-12  # of the constant model's loss
OVERFITTED = 1.5  # times the error on the rows of the fit, of the error on rows left out
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
class Diagnosis:
    """A fitted estimator, and the rows that it is diagnosed with, if any; printing it shows all.

    With rows: seven passes, and O(p²) memory up to 1,500 parameters. Other rows than those of the
    fit have only errors: a residual that is not orthogonal to columns such as the levels of a
    category shows directions that whitening makes large.
    """

    model: Any  # the estimator
    advice: str  # about its status
    rows: Rows | None
    automatic: bool  # whether the penalties were chosen from the rows
    seed: int

    def __str__(self) -> str:
        lines = [f"status: {self.state.status.name}. {self.advice}"]
        outliers = self._outliers()
        lines += [*self._features(), *self._dependences(), *self._counts(), *outliers]
        lines += self._errors()
        if not outliers or LOSSES[self.model.loss].robust:  # they hide how large components are
            lines += self._rank()
        return "\n".join([*lines, *self._ids()])

    @property
    def state(self) -> FitState:
        """Return what was fitted."""
        state: FitState = self.model.fitted_.state
        return state

    @property
    def options(self) -> Options:
        """Return how it was fitted."""
        options: Options = self.model.fitted_.options
        return options

    @property
    def penalised(self) -> bool:
        """Tell whether the penalties shrink anything, or would if that were better."""
        return any(self.options.alpha) or self.automatic

    @cached_property
    def squares(self) -> tuple[np.ndarray, np.ndarray]:
        """Return squared standardised errors of the rows, and their weights."""
        assert self.rows is not None
        squares, weight = squared_errors(self.state.model, self.state.units, self.rows)
        return to_numpy(squares), to_numpy(weight)

    @cached_property
    def were_fitted(self) -> bool:
        """Tell whether rows have the extremes of those of the fit, whatever the weights."""
        if self.rows is None:
            return False
        features, of_fit = self.rows.reduce(survey).features, self.state.features
        pairs = ((features.low, of_fit.low), (features.high, of_fit.high))
        return all(b is None or np.array_equal(to_numpy(a), to_numpy(b)) for a, b in pairs)

    def _features(self) -> list[str]:
        names, dtype = self.model.fitted_.names, self.state.units.scale.dtype
        report = mip_report(self.state.features, names, dtype)
        squares = "squares equal linear terms, so M has no diagonal there"
        nearly = "squares can hardly be distinguished from linear terms"
        if not self.options.fit_linear:  # then the squares are all there is
            squares = nearly = "squares take the place of linear terms, which are not fitted"
        meanings = {"constant": "without information, and left out", "two-valued": squares}
        lines = []
        for kind, meaning in (meanings | {"nearly two-valued": nearly}).items():
            alike = [name for name, k in zip(report.names, report.kind, strict=True) if k == kind]
            if alike:
                lines.append(f"features: {len(alike)} {kind} ({listed(alike)}): {meaning}.")
        return lines or ["features: all vary, and their squares differ from linear terms."]

    def _dependences(self) -> list[str]:
        """Name one-hot groups, and linear dependences among other features."""
        state, fields = self.state, self.model.fitted_.fields
        groups = whole(state.units, fields) if self.options.levels_are_ambiguous else []
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
            first, names = dependences[:, 0], self.model.fitted_.names
            heavy = [names[int(j)] for j in np.argsort(-np.abs(first))[:4] if abs(first[j]) > 0.1]
            lines.append(
                f"collinear: {dependences.shape[1]} linear dependence(s) among the features, e.g. "
                f"between {listed(heavy)}. Predictions are not affected, but "
                f"{SHARED if self.penalised else NOT_UNIQUE}"
            )
        return lines

    def _counts(self) -> list[str]:
        """Compare the rows with the parameters."""
        rows, effective = self.model.fitted_.n_rows, self.model.fitted_.learned.tally.effective
        dof = self.state.n_parameters(self.options)
        ratio = effective / max(dof, 1)
        weighted = f" (effectively {effective:.0f}, by their weights)" if effective < rows else ""
        line = f"rows: {rows}{weighted} for {dof} parameters, {ratio:.1f} each."
        if ratio >= 4 or self.penalised:
            return [line]
        fewer = "lower `rank`" if self.options.rank else "fewer features"
        few = "Few when there is noise" if ratio >= 1 else "Too few to determine them"
        return [f'{line} {few}: use alpha="auto", or {fewer}.']

    def _outliers(self) -> list[str]:
        """Name the rows whose targets dominate squared errors, if they are a handful.

        Labels and counts are not fitted by squared errors.
        """
        if self.rows is None or LOSSES[self.model.loss].linked:
            return []
        errors = self.squares[0] * self.squares[1]
        top = np.argsort(-errors)[:HANDFUL]
        shares = np.cumsum(errors[top]) / max(float(errors.sum()), 1e-300)
        if len(errors) < 20 * HANDFUL or shares[-1] <= 0.5:
            return []
        count = int(np.argmax(shares > 0.5)) + 1
        which = f"row{'s' * (count > 1)} {', '.join(map(str, sorted(top[:count].tolist())))}"
        line = (
            f"outliers: {float(shares[count - 1]):.0%} of the squared error comes from {which} "
            "(counted from 0)."
        )
        return [
            line if LOSSES[self.model.loss].robust else f'{line} Check them, or use loss="huber".'
        ]

    def _errors(self) -> list[str]:
        """Compare the error with that on rows left out: the difference is overfitting."""
        if self.rows is None:
            return []
        squares, weight = self.squares
        unit, n = self.state.units.target.scale, float(weight.sum())
        inside = unit * sqrt(float(weight @ squares) / n)
        left_out = self._left_out(n)
        if left_out is None:
            return [f"error: {inside:.3g} on these rows (as an RMSE)."]
        outside = unit * sqrt(left_out)
        line = (
            f"error: {inside:.3g} on these rows, {outside:.3g} when each is left out (as an RMSE)."
        )
        sd = float(self.state.target.var[0]) ** 0.5
        if outside <= max(OVERFITTED * inside, NOTHING_LEFT**0.5 * sd):
            return [line]
        worse = " It is worse than the mean of the targets." if outside > sd else ""
        advice = 'Use alpha="auto" to choose the penalties.'
        if self.automatic:
            advice = "Leave out features that do not matter, or add rows."
        return [f"{line} The difference is overfitting.{worse} {advice}"]

    def _left_out(self, weight: float) -> float | None:
        """Return the mean squared error of rows left out, where a matrix of the parameters fits.

        The penalties are those of a low-rank M: pairs beside it have another one.
        """
        state, options, rows = self.state, self.options, self.rows
        dof = options.dof(*state.model.U.shape)
        if rows is None or not self.were_fitted or state.parts is not None or dof > EXACT_COLUMNS:
            return None
        first, second = (max(alpha, LEAST_PENALTY * weight) for alpha in options.alpha)
        gram = Gram.of(rows, Design.at(state.model.U, state.units, options))
        try:
            return float(gram.left_out(rows, (first, second)).squares.sum()) / weight
        except np.linalg.LinAlgError:
            return None

    def _rank(self) -> list[str]:
        """Compare the components, and what the residual has beside them, with noise."""
        state, model, n = self.state, self.state.low_rank, self.model.fitted_.n_rows
        d, k = model.U.shape
        edge = state.history[-1].loss ** 0.5 / state.units.target.scale * (d / n) ** 0.5
        strong = int((abs(to_numpy(model.s)) > SIGNIFICANT * edge).sum())
        lines: list[str] = []
        if strong < k and not self.penalised:  # shrunk components may look like noise
            lines.append(
                f"rank: {strong} of {k} components stand out from the noise; the rank may "
                f'be too high. Try rank={strong!r}, or alpha="auto".'
            )
        exact = state.history[-1].loss <= NOTHING_LEFT * state.history[0].loss
        times = 0.0 if exact or k == d else self._times_noise()  # of full rank nothing is missing
        if times > LEFT_OVER:
            lines.append(
                f"rank: the residual still has a component of {times:.1f} times the noise "
                "level; the rank may be too low (or some features have heavy tails). Try "
                f"rank={k + 1!r}."
            )
        if lines:
            return lines
        words = rank_of(self.model)
        if k == 0:
            return [f"rank: {words}."]
        components = f"{'all' if strong == k else f'{strong} of'} {k} components"
        start = "" if words == str(k) else f"{words}; "
        return [f"rank: {start}{components} stand out from the noise."]

    def _times_noise(self) -> float:
        """Return the leading eigenvalue of the residual's moments, over that of noise alone."""
        if self.rows is None or not self.were_fitted:
            return 0.0
        rng = np.random.default_rng(self.seed)
        problem = Problem(self.rows, self.state.units, self.options, rng)
        _, s, _ = leading_directions(GaussNewton(problem, self.state.white), self.state.model, 1)
        residual = problem.sums(self.state.model, squares=False)
        d, n = self.state.model.U.shape[0], residual.weight
        return float(abs(to_numpy(s)).max() / (residual.loss / n * d / n) ** 0.5)

    def _ids(self) -> list[str]:
        if self.rows is None:
            return []
        fitted = self.model.fitted_
        ids = find_ids(self.rows, fitted.columns.number_names, fitted.names)
        return [
            f"columns: {listed(ids)} hold whole numbers that look like ids. If their order "
            f"means nothing, give categorical_features={ids!r}, or drop them."
        ] * bool(ids)


def listed(names: Sequence[str]) -> str:
    """Return some names, safe to print, and how many more there are."""
    return ", ".join(map(printable, names[:5])) + (
        f" and {len(names) - 5} more" if len(names) > 5 else ""
    )
