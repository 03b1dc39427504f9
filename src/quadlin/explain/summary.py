"""The summary of a model as text, as plain data and as a page of HTML with pictures."""

import math
import warnings
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from io import BytesIO
from math import nan
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier

from quadlin.core.arrays import to_numpy
from quadlin.core.losses import LOSSES
from quadlin.core.messages import printable
from quadlin.core.version import __version__
from quadlin.data import Source, is_dask
from quadlin.data.names import shortened
from quadlin.explain.displays import (
    ContributionDisplay,
    Display,
    InteractionDisplay,
    PairDisplay,
    SpectrumDisplay,
)
from quadlin.explain.effects import MOST_COLUMNS, Effects
from quadlin.explain.interactions import Pair
from quadlin.explain.tables import (
    SHOWN,
    Records,
    columns_of,
    eigenvalues_name,
    found_pairs,
    frame_of,
    left_side,
    p_value,
    pairs_are_named,
    prediction_name,
    predicts_through_link,
    product_name,
    rank_of,
    text_table,
)
from quadlin.solve.fits.uncertainty import NORMAL, standard_errors_of, two_sided

SHOWN_TERMS = 25  # linear terms of a printed table, by default


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
    return _of_the_fit(model, name) or Quality(
        name, None, "not known without rows; give X and y to compute it"
    )


def _of_the_fit(model: Any, name: str) -> Quality | None:
    """Return the score of the fitted rows by the objective; a penalty makes it a bound."""
    fitted, history, training = model.fitted_, model.history_, "on the fitted rows (training)"
    variance = float(model.target_moments_.var[0])
    if fitted.train_score is not None:
        return Quality(name, fitted.train_score, training)
    if name == "accuracy" or model.loss == "huber":
        return None
    if not model.target_moments_.varies(np.float64)[0]:
        return None
    if name == "R²" and getattr(model, "scoring", model) is None:  # minus the mean squared error
        folds = sum(key.startswith("split") for key in model.cv_results_)
        value = 1 + float(model.best_score_) / variance
        return Quality(name, value, f"by cross-validation with {folds} folds")
    if len(history) > 1 and history[-1].passes == history[-2].passes:
        training = "on the last batch, before the model learned from it"
    value = 1 - float(history[-1].loss) / (variance if name == "R²" else float(history[0].loss))
    return Quality(name, value, training, any(model.alpha_)) if np.isfinite(value) else None


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
        The pairs of `pairs_`, with the share of R² of each.
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
    shown: int = SHOWN_TERMS  # linear terms of the printed table

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
            lines.append(f"and {what}; a larger `top` shows more")
        return lines


def summary_of(
    model: Any, rows: tuple[Any, Any, Any], top: int | None, level: float
) -> ModelSummary:
    """Return the summary of a fitted estimator; see `SecondOrderRegressor.summary`."""
    shown, top = (SHOWN_TERMS, SHOWN) if top is None else (max(0, top), max(0, top))
    fitted, view, parts = model.fitted_, model.interactions_, model.decomposition()
    law, names = fitted.law, view.names
    running = fitted.state.running  # pairs that were found have tests without `law`, too
    known = law.left if law else running.freedom if running else model.n_samples_seen_
    left = max(float(known), 1.0)

    def term(
        kind: str, pair: tuple[str, str], estimate: float, error: float | None, strength: float
    ) -> Term:
        name = product_name(*pair) if pair[1] else pair[0] or kind
        if error is None or not (error or estimate):
            error = nan
        t = estimate / error if error else nan
        reach = standard_errors_of(level, left) * (error or nan)
        tested = (error, t, two_sided(t, left), estimate - reach, estimate + reach)
        return Term(name, kind, *pair, estimate, *tested, strength)

    terms = []
    if fitted.options.fit_intercept:
        b_std = None if law is None else float(model.intercept_std_)
        terms.append(term("intercept", ("", ""), float(model.intercept_), b_std, 0.0))
    coef, sd = to_numpy(model.coef_).astype(float), np.sqrt(to_numpy(model.moments_.var))
    unknown = np.full(len(names), nan)
    w_std = unknown if law is None else to_numpy(model.coef_std_).astype(float)
    slope_std = unknown if law is None else to_numpy(law.slope_std())
    slope = parts.slope * parts.scale  # at the mean: w + 2 M μ
    strength, of_numbers = slope * sd, np.isin(np.arange(len(coef)), parts.single)
    slopes = np.where(of_numbers, (slope, slope_std), nan).T.tolist()
    order = np.arange(len(coef))
    if len(coef) > shown:
        order = np.argsort(-np.abs(strength), kind="stable")
    for j in order.tolist():
        linear = term("linear", (names[j], ""), coef[j], w_std[j], float(strength[j]))
        terms.append(linear._replace(slope=slopes[j][0], slope_std=slopes[j][1]))
    found = found_pairs(model)
    beside = {e[:2]: e for e in (view.interaction(p.first, p.second) for p in found)}
    words = "named pair" if pairs_are_named(model) else "found pair"
    for pair, each in ({p[:2]: p for p in view.top(top, squares=True)} | beside).items():
        kind = words if pair in beside else "pair"
        terms.append(term(kind, pair, each.coefficient, each.std_error, each.strength))
    quality = quality_of(model, *rows)
    facts, notes = _facts(model, quality), _notes(model, terms)
    statistic = "z" if law is not None and law.left >= NORMAL else "t"
    return ModelSummary(terms, found, facts, quality, notes, level, statistic, shown)


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
    return {**facts, "status": f"{model.status_.name}. {model.status_.value}"}


def _notes(model: Any, terms: list[Term]) -> list[str]:
    law, kinds = model.fitted_.law, {term.kind for term in terms}
    left_out = [term.term for term in terms if term.is_left_out]
    predicted = "the log-odds" if is_classifier(model) else left_side(model)
    notes = {
        f"The estimate of a pair is the coefficient of the product x_i·x_j in {predicted}.": bool(
            kinds - {"intercept", "linear"}
        ),
        "Not estimated, because they do not vary or are not in the model: "
        f"{shortened(left_out)}.": left_out,
        "Coefficients of levels, such as city=Oslo, are differences from their mean over the "
        "fitted rows.": len(model.fitted_.fields),
        "Some pairs were selected because they fit these rows, so their p-values are too small: "
        "see pairs_.": "found pair" in kinds,
    }
    if law is None:
        notes[_how_to_have_errors(model, terms)] = True
    else:
        notes |= {
            "Estimates are shrunk towards zero by the penalty. "
            "The standard errors allow for that.": any(model.alpha_),
            "Standard errors are robust: noise may differ between rows.": law.robust,
            "Standard errors come from draws and are themselves uncertain by about "
            "9%.": not law.exact,
            "Tests and intervals take the rank and the penalty as given.": model.rank_,
        }
    return [note for note, applies in notes.items() if applies]


def _how_to_have_errors(model: Any, terms: list[Term]) -> str:
    advice = "fit with uncertainty=True."
    if "uncertainty" not in model.get_params(deep=False):
        advice = "this estimator does not compute them."
    if not any(term.std_error > 0 for term in terms):
        return f"Standard errors, t, p and intervals: {advice}"
    return f"Standard errors of pairs are those of pairs_, robust (HC3). All others: {advice}"


class Picture(NamedTuple):
    """A picture with its words."""

    heading: str
    words: str
    source: str  # a data URI


def pictures_of(model: Any, X: Any = None, target: str | None = None) -> list[Picture]:
    """Return the pictures of a fitted estimator; none without matplotlib.

    Parameters
    ----------
    model : fitted estimator
        The model.
    X : rows or None
        Rows to draw over the surface and to measure effects with; the first is taken apart.
    target : str or None
        Name of the target.
    """
    if find_spec("matplotlib") is None or len(model.decomposition().columns) > MOST_COLUMNS:
        return []
    return [_picture(*parts) for parts in _displays(model, X, target)]


def _displays(model: Any, X: Any, target: str | None) -> Iterator[tuple[str, str, Display]]:
    """Yield the heading, the words and the display of each picture."""
    here = X is not None and not isinstance(X, Source) and not is_dask(X)
    if model.effects().pairs:
        heat = InteractionDisplay.from_estimator(model, X)
        words = (
            f"Strength of each pair of columns: the standard deviation, over {heat.rows}, of what "
            "the pair adds to the prediction. For two columns of numbers it has the sign of the "
            "coefficient of their product. Grey cells are columns alone. "
            f"{heat.shown}"
        ).rstrip()
        yield "Which columns interact", words, heat
        pair = PairDisplay.from_estimator(model, X if here else None)
        pair.target = prediction_name(model, target)
        words = (
            f"The prediction over {' and '.join(pair.names)}, the strongest pair, with all other "
            f"columns at {pair.reference}.{pair.points_are}"
        )
        yield "The strongest pair", words, pair
    if here and X.shape[0] and model.fitted_.draws is None:
        one = ContributionDisplay.from_estimator(model, X)
        words = (
            f"What columns and pairs add to the {one.target} for the first row given, measured "
            f"from {one.reference}."
        )
        yield "One prediction", words, one
    if model.rank_:
        spectrum = SpectrumDisplay.from_estimator(model)
        words = "Eigenvalues of the low-rank part of M for standardised features."
        band = " Those inside the grey band could be noise."
        yield "Spectrum", words + band * bool(np.isfinite(spectrum.noise)), spectrum


def _picture(heading: str, words: str, display: Display) -> Picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=display.size, layout="constrained")
    file = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # drawn as an empty box
        display.plot(figure.subplots())
        figure.savefig(file, format="png", dpi=150)
    return Picture(heading, words, "data:image/png;base64," + b64encode(file.getvalue()).decode())


def model_page(
    title: str, summary: ModelSummary, content: dict[str, Any], pictures: Sequence[Picture] = ()
) -> str:
    """Return a complete page of a summary and of what `describe` adds.

    Values are escaped, and their control characters are made visible.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise ImportError('HTML pages need Jinja: pip install "quadlin[html]".') from None

    def shown(value: Any) -> Any:
        markup = not isinstance(value, str) or isinstance(value, Markup)
        return value if markup else printable(value)

    environment = Environment(
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    here = files(__package__)
    style, template = (
        here.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.html.jinja")
    )
    return environment.from_string(template).render(
        title=title,
        style=Markup(style),
        summary=summary,
        model=content,
        terms=[t._asdict() | {"p": p_value(t.p)} for t in summary.shown_terms],
        found_pairs=[p._asdict() | {"term": p.name} for p in summary.found_pairs],
        effects=content["effects"],
        pictures=pictures,
        eigenvalues=list(enumerate(content["eigenvalues"], 1)),
        eigenvalues_name=eigenvalues_name(content["rank"], content["features"]).capitalize(),
    )


def report_page(model: Any, X: Any, y: Any, target: str | None, top: int) -> str:
    """Return the page of a fitted estimator; see `SecondOrderRegressor.report`."""
    name = target or getattr(y, "name", None)
    summary = model.summary(X, y, top=top)
    content = describe(model, summary, top, X, None if name is None else str(name))
    about = f" of {content['target']}" if content["target"] else ""
    pictures = pictures_of(model, X, content["target"])
    return model_page(f"Model{about}", summary, content, pictures)


def describe(
    model: Any, summary: ModelSummary, top: int, X: Any = None, target: str | None = None
) -> dict[str, Any]:
    """Return what a fitted model has learned, as plain data.

    Parameters
    ----------
    model : fitted estimator
        Its public attributes are read.
    summary : ModelSummary
        Of the model.
    top : int
        How many columns, pairs of columns and levels to list, the strongest first.
    X : rows or None
        Rows to measure effects with.
    target : str or None
        Name of the target; by default of the column it was read from, where that is known.

    Returns
    -------
    dict
        The parts of the answer by name; `docs/reference/commands.md` lists them.
    """
    target, quality = target or getattr(model.fitted_.columns, "target", None), summary.quality
    noise, left = float(getattr(model, "noise_", math.nan)), left_side(model, target)
    return {
        "class": type(model).__name__,
        "version": __version__,
        "target": target,
        "formula": f"{f'({left})' if '=' in left else left} = b + xᵀw + xᵀMx",
        "rows": model.n_samples_seen_,
        "features": len(model.interactions_.names),
        "rank": model.rank_,
        "alpha": list(model.alpha_),
        "intercept": float(model.intercept_),
        "eigenvalues": to_numpy(model.eigenvalues_).tolist(),
        "noise": noise if math.isfinite(noise) else None,
        "score": quality.name,
        "r2": quality.value,
        "r2_of": quality.how,
        "r2_is_bound": quality.bound,
        "status": model.status_.name,
        "advice": model.status_.value,
        "terms": [term._asdict() for term in summary],
        "notes": summary.notes,
        "found_pairs": [pair._asdict() for pair in summary.found_pairs],
        "effects": _effects(model, top, X),
        "history": [
            {"step": r.step, "passes": r.passes, "loss": float(r.loss)} for r in model.history_
        ],
        "diagnosis": model.diagnose().splitlines(),
    }


def _effects(model: Any, top: int, X: Any) -> dict[str, Any] | None:
    """Return the strongest columns, pairs of columns and levels, each with its name."""
    if len(model.decomposition().columns) > MOST_COLUMNS:
        return None
    effects: Effects = model.effects(X)
    return {
        "rows": effects.rows,
        "reference": effects.reference,
        "columns": [e._asdict() | {"name": e.name} for e in effects.columns[:top]],
        "pairs": [e._asdict() | {"name": e.name} for e in effects.pairs[:top]],
        "levels": [e._asdict() | {"name": e.name} for e in effects.strongest_levels(top)],
    }
