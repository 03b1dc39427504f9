"""The summary of a model: estimates, how sure they are, and how the fit went."""

from dataclasses import dataclass
from math import nan
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier

from quadlin.core.arrays import to_numpy, unflagged
from quadlin.core.losses import LOSSES
from quadlin.core.messages import printable
from quadlin.data import Source
from quadlin.data.names import shortened
from quadlin.explain.pair_report import Pair
from quadlin.explain.tables import (
    Records,
    columns_of,
    found_pairs,
    frame_of,
    left_side,
    p_value,
    pairs_are_named,
    predicts_through_link,
    product_name,
    rank_of,
    text_table,
)
from quadlin.solve.fits.status_advice import status_advice
from quadlin.solve.fits.uncertainty import NORMAL, standard_errors_of, two_sided
from quadlin.solve.lowrank.types import Status

TRAINING = "on the fitted rows (training)"
UNKNOWN = "not known without rows; give X and y to compute it"
SHOWN, SHOWN_PAIRS = 25, 10  # linear terms of a printed table, and pairs, by default
PAIRS_ARE = "The estimate of a pair is the coefficient of the product x_i·x_j in {}."
LEVELS_ARE = (
    "Coefficients of levels, such as city=Oslo, are differences from their mean over the fitted "
    "rows."
)
ERRORS_OF_PAIRS = (
    "Standard errors of {} pairs are robust ones (HC3), see pairs_; for those of all other terms:"
)
FOUND_PAIRS_ARE = (
    "Some pairs were selected because they fit these rows, so their p-values are too small: see "
    "pairs_."
)


NOT_ESTIMATED = "Not estimated, because they do not vary or are not in the model: {}."
SHRUNK = "Estimates are shrunk towards zero by the penalty, and the standard errors allow for that."
ROBUST = "Standard errors are robust: noise may differ between rows."
DRAWN = "Standard errors come from draws and are themselves uncertain by about 9%."
GIVEN = "Tests and intervals take the rank and the penalty as given."


class Quality(NamedTuple):
    """A score and where it comes from."""

    name: str  # "R²", "D²" of counts, or the score of a classifier
    value: float | None
    how: str  # the rows it was computed from, and how they were used
    bound: bool = False  # whether the value is only a lower bound

    def __str__(self) -> str:
        if self.value is None:
            return self.how
        return f"{'at least ' * self.bound}{self.value:.4f} {self.how}"


def quality_of(model: Any, X: Any = None, y: Any = None, sample_weight: Any = None) -> Quality:
    """Return R² of the rows given, or else what the fit itself knows about its rows."""
    name = LOSSES[model.loss].score
    if X is not None and (y is not None or isinstance(X, Source)):
        given = "on the rows given"
        if hasattr(y, "__len__"):
            given = f"on the {len(y):,} rows given"
        return Quality(name, float(model.score(X, y, sample_weight)), given)
    if name != "accuracy" and model.target_moments_.varies(np.float64)[0]:
        quality = _of_the_fit(model)
        if quality is not None:
            return quality
    return Quality(name, None, UNKNOWN)


def _of_the_fit(model: Any) -> Quality | None:
    variance = float(model.target_moments_.var[0])
    fitted, history = model.fitted_, model.history_
    law = fitted.law
    if hasattr(model, "best_score_") and model.scoring is None:  # minus the mean squared error
        folds = sum(name.startswith("split") for name in model.cv_results_)
        value = 1 + float(model.best_score_) / variance
        return Quality("R²", value, f"by cross-validation with {folds} folds")
    if fitted.train_score is not None:
        return Quality(LOSSES[model.loss].score, fitted.train_score, TRAINING)
    if LOSSES[model.loss].score == "D²":  # half the deviance, and the penalty
        value = 1 - float(history[-1].loss) / float(history[0].loss)
        return Quality("D²", value, TRAINING, bound=any(model.alpha_))
    if model.loss != "squared":
        return None
    if law is not None and np.isfinite(law.noise):
        # A value that was missing adds to the error of a fitted row, and not to the noise.
        noise = law.noise if law.of_gaps == 1 else law.error
        noise = noise * fitted.state.units.target.scale
        value = 1 - noise**2 * law.left / (law.left + law.dof) / variance
        return Quality("R²", value, TRAINING)
    value = 1 - float(history[-1].loss) / variance
    if not np.isfinite(value):
        return None
    if len(history) > 1 and history[-1].passes == history[-2].passes:
        return Quality("R²", value, "on the last batch, before the model learned from it")
    penalty = _penalty(model)
    if penalty is None:
        return Quality("R²", value, TRAINING, bound=True)
    return Quality("R²", value + penalty / variance, TRAINING)


@unflagged
def _penalty(model: Any) -> float | None:
    """Return the part of the objective that is no squared error; None where it is not known.

    Of one-hot fields it is not: constants have moved between their levels after the fit. Nor is it
    of pairs, which may have a penalty of their own.
    """
    fitted = model.fitted_
    if not any(model.alpha_):
        return 0.0
    if len(fitted.fields) or fitted.state.parts or fitted.status is Status.interrupted:
        return None
    low_rank, units = fitted.state.low_rank, fitted.state.units
    arrays = (units.penalty_scale, low_rank.w, low_rank.U, low_rank.s)
    rho, w, U, s = (to_numpy(a).astype(np.float64) for a in arrays)
    E = rho[:, None] * U
    squares = model.alpha_[0] * np.sum((rho * w) ** 2) if model.fit_linear else 0.0
    squares += 2 * model.alpha_[1] * np.sum(((E.T @ E) * s) * ((E.T @ E) * s).T)
    penalty = float(units.target.scale**2 * squares / float(model.moments_.weight))
    return penalty if np.isfinite(penalty) else None


class Term(NamedTuple):
    """One term of the model; what is not known is NaN."""

    term: str
    kind: str  # "intercept", "linear", "pair" of the low-rank part, "found pair" or "named pair"
    first: str  # the feature, or the first of a pair
    second: str  # the second of a pair
    estimate: float
    std_error: float
    t: float
    p: float  # two-sided, of Student's distribution
    low: float  # of the interval
    high: float
    strength: float  # change of the prediction per standard deviation, about the mean of the rows
    slope: float = nan  # per unit of a number, with all other features at their means
    slope_std: float = nan

    @property
    def is_left_out(self) -> bool:
        """Tell whether a linear term is zero without having been estimated."""
        return self.kind == "linear" and self.estimate == 0 and not self.std_error > 0


@dataclass(frozen=True)
class Tests:
    """Tests and intervals by Student's distribution."""

    left: float  # degrees of freedom
    level: float  # of intervals

    def term(
        self, kind: str, first: str, second: str, estimate: float, error: float, strength: float
    ) -> Term:
        """Return a term with its test, where it has a standard error."""
        name = product_name(first, second) if second else first or kind
        if not error > 0:
            if kind == "linear" and estimate == 0:
                error = nan  # nothing was estimated
            tested = (error, nan, nan, nan, nan)
        else:
            t, reach = estimate / error, standard_errors_of(self.level, self.left) * error
            tested = (error, t, two_sided(t, self.left), estimate - reach, estimate + reach)
        return Term(name, kind, first, second, estimate, *tested, strength)


@dataclass(frozen=True, repr=False)
class ModelSummary(Records[Term]):
    """Estimates with standard errors, t, p and intervals; printing it shows a table.

    Attributes
    ----------
    terms : list of Term
        The intercept, the linear terms and the strongest pairs. The `strength` of a term is how
        much it changes the prediction per standard deviation of its feature, with all others at
        their means, or of both of its features. The `slope` of a column of numbers is that change
        per unit of the feature, with its standard error `slope_std`.
    found_pairs : list of Pair
        Those of `pairs_`, with the share of R² of each.
    facts : dict of str to str
        How the fit went: rows, R², rank, penalties, noise and status, in words.
    quality : Quality
        R² as a number, and the rows it was computed from.
    notes : list of str
        How to read the table.
    level : float
        Probability of the intervals.
    statistic : {"t", "z"}
        Whether `t`, p and intervals are by Student's distribution, or by the normal one, as for
        labels and counts; `to_frame` names the column so.
    """

    terms: list[Term]
    found_pairs: list[Pair]
    facts: dict[str, str]
    quality: Quality
    notes: list[str]
    level: float
    statistic: str = "t"
    shown: int = SHOWN  # linear terms of the printed table

    @property
    def records(self) -> list[Term]:
        """Return the terms."""
        return self.terms

    def to_frame(self) -> Any:
        """Return the terms as a pandas frame, or as a dict of columns without pandas."""
        names = {"t": self.statistic}
        columns = columns_of(self.terms, Term)
        return frame_of({names.get(name, name): values for name, values in columns.items()})

    @property
    def shown_terms(self) -> list[Term]:
        """Return the terms of the printed table: estimated ones, of linear ones the strongest."""
        terms = [term for term in self.terms if not term.is_left_out]
        linear = [term for term in terms if term.kind == "linear"]
        hidden = set(map(id, linear[self.shown :]))
        return [term for term in terms if id(term) not in hidden]

    @property
    def has_errors(self) -> bool:
        """Tell whether the standard error of any term is known."""
        return any(np.isfinite(term.std_error) for term in self.terms)

    def __str__(self) -> str:
        width = max(map(len, self.facts))
        lines = [f"{name:<{width}}  {printable(fact)}" for name, fact in self.facts.items()]
        return "\n".join([*lines, "", *self._table(), "", *self.notes])

    def _table(self) -> list[str]:
        terms = self.shown_terms
        low, high = f"[{(1 - self.level) / 2:.4g}", f"{(1 + self.level) / 2:.4g}]"
        head, rows = ["", "estimate"], [[a.term, f"{a.estimate:+.4g}"] for a in terms]
        if self.has_errors:
            head += ["std error", self.statistic, "p", low, high]
            for a, row in zip(terms, rows, strict=True):
                row += [f"{a.std_error:.3g}", f"{a.t:.2f}", p_value(a.p)]
                row += [f"{a.low:.4g}", f"{a.high:.4g}"]
        lines = text_table(head, rows)
        hidden = sum(not term.is_left_out for term in self.terms) - len(terms)
        if hidden:
            what = f"{hidden:,} weaker linear term{'s' * (hidden > 1)}"
            lines.append(f"and {what}; to_frame() has all of them")
        return lines


def summary_of(
    model: Any, rows: tuple[Any, Any, Any], top: int | None, level: float
) -> ModelSummary:
    """Return the summary of a fitted estimator; see `SecondOrderRegressor.summary`."""
    shown, top = (SHOWN, SHOWN_PAIRS) if top is None else (max(0, top), max(0, top))
    law, names = model.fitted_.law, model.interactions_.names
    running = model.fitted_.state.running  # pairs that were found have tests without `law`, too
    left = law.left if law else running.solved.left if running else model.n_samples_seen_
    tests = Tests(max(float(left), 1.0), level)
    b_std = nan if law is None else float(model.intercept_std_)
    w_std = np.full(len(names), np.nan) if law is None else to_numpy(model.coef_std_)
    terms = []
    if model.fitted_.options.fit_intercept:
        terms.append(tests.term("intercept", "", "", float(model.intercept_), b_std, 0.0))
    coef, sd = to_numpy(model.coef_).astype(float), np.sqrt(to_numpy(model.moments_.var))
    parts = model.decomposition()
    slope = parts.slope * parts.scale  # at the mean: w + 2 M μ
    strength, of_numbers = slope * sd, np.isin(np.arange(len(coef)), parts.single)
    slope_std = w_std if law is None else to_numpy(law.slope_std())
    slopes = np.where(of_numbers, (slope, slope_std), nan).T.tolist()
    order = np.arange(len(coef))
    if len(coef) > shown:
        order = np.argsort(-np.abs(strength), kind="stable")
    terms += [
        tests.term("linear", names[j], "", coef[j], float(w_std[j]), float(strength[j]))._replace(
            slope=slopes[j][0], slope_std=slopes[j][1]
        )
        for j in order.tolist()
        if model.fitted_.options.fit_linear
    ]
    found = found_pairs(model)
    terms += _pairs(model, found, top, tests)
    quality = quality_of(model, *rows)
    facts, notes = _facts(model, quality), _notes(model, terms)
    statistic = "z" if law is not None and law.left >= NORMAL else "t"
    return ModelSummary(terms, found, facts, quality, notes, level, statistic, shown)


def _pairs(model: Any, found: list[Pair], top: int, tests: Tests) -> list[Term]:
    """Return the strongest pairs and all found or named ones, by their coefficients in y."""
    view, searched = model.interactions_, {(p.first, p.second): p for p in found}
    sd = dict(zip(view.names, view.sd.tolist(), strict=True))
    strongest = [(p.first, p.second) for p in view.top(top, squares=True)]
    terms, beside = [], "named pair" if pairs_are_named(model) else "found pair"
    for pair in dict.fromkeys([*strongest, *searched]):
        error = searched[pair].std_error if pair in searched else view.std_error(*pair)
        strength = view[pair] * sd[pair[0]] * sd[pair[1]]
        kind = beside if pair in searched else "pair"
        terms.append(tests.term(kind, *pair, view[pair], nan if error is None else error, strength))
    return terms


def _facts(model: Any, quality: Quality) -> dict[str, str]:
    first, second = model.alpha_
    noise = getattr(model, "noise_", None)
    facts = {
        "model": f"{type(model).__name__}, {left_side(model)} = b + xᵀw + xᵀMx",
        "rows": f"{model.n_samples_seen_:,}",
        "features": f"{len(model.interactions_.names):,}",
        quality.name: str(quality),
        "rank": rank_of(model),
        "penalty": f"{first:.3g} for w, {second:.3g} for M" if first or second else "none",
    }
    if not predicts_through_link(model):
        facts["noise"] = "not known" if noise is None else f"{noise:.4g} (standard deviation)"
    advice = status_advice(model.status_, model.get_params(deep=False))
    return {**facts, "status": f"{model.status_.name}. {advice}"}


def _notes(model: Any, terms: list[Term]) -> list[str]:
    law, kinds = model.fitted_.law, {term.kind for term in terms}
    left_out = [term.term for term in terms if term.is_left_out]
    predicted = "the log-odds" if is_classifier(model) else left_side(model)
    notes = [
        (any(kind.endswith("pair") for kind in kinds), PAIRS_ARE.format(predicted)),
        (left_out, NOT_ESTIMATED.format(shortened(left_out))),
        (len(model.fitted_.fields), LEVELS_ARE),
        ("found pair" in kinds, FOUND_PAIRS_ARE),
        (law is None, _how_to_have_errors(model, terms)),
    ]
    if law is not None:
        notes += [
            (any(model.alpha_), SHRUNK),
            (law.robust, ROBUST),
            (not law.exact, DRAWN),
            (model.rank_, GIVEN),
        ]
    return [note for applies, note in notes if applies]


def _how_to_have_errors(model: Any, terms: list[Term]) -> str:
    advice = "fit with uncertainty=True."
    if "uncertainty" not in model.get_params(deep=False):
        advice = "this estimator does not compute them."
    if not any(term.std_error > 0 for term in terms):
        return f"Standard errors, t, p and intervals: {advice}"
    return f"{ERRORS_OF_PAIRS.format('named' if pairs_are_named(model) else 'found')} {advice}"
