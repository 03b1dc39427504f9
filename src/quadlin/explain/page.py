"""The page of a model: what it has learned as plain data and as HTML, with its pictures."""

import math
import warnings
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from quadlin.core.arrays import to_numpy
from quadlin.core.losses import LOSSES
from quadlin.core.messages import printable
from quadlin.core.version import __version__
from quadlin.data import Source, is_dask
from quadlin.explain.displays import (
    ContributionDisplay,
    Display,
    InteractionDisplay,
    PairDisplay,
    SpectrumDisplay,
)
from quadlin.explain.effects import MOST_COLUMNS, Effects
from quadlin.explain.summary import LEVELS_ARE, quality_of
from quadlin.explain.tables import (
    eigenvalues_name,
    found_pairs,
    left_side,
    pairs_are_named,
    prediction_name,
    product_name,
    rank_of,
)
from quadlin.solve.fits.status_advice import status_advice
from quadlin.solve.fits.uncertainty import Uncertainty

DPI = 150
COLUMNS = 8  # of the heat map: more could not be read on a telephone

WORDS = {
    "pairs": (
        "The coefficient multiplies the product x_i·x_j in the prediction. The strength is the "
        "coefficient for features of standard deviation 1, so that features with different units "
        "can be compared."
    ),
    "found_pairs": (
        "Products that a search added to the model, in order of entry. The pairs were chosen "
        "because they fit these rows, so weak ones look stronger than they are. "
    ),
    "named_pairs": ("Products that were added to the model by name. "),
    "shares": (
        "The share is how much R² (for labels, the explained deviance) would fall without the pair."
    ),
    "linear": (
        "The slope is how much the prediction rises per unit of a feature, with all columns at "
        "the means of the fitted rows. The strength is the rise per standard deviation."
    ),
    "levels": f" {LEVELS_ARE}",
}


def _text(name: str) -> str:
    """Return a style sheet or a template that lies beside this module."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def html_page(title: str, style: str, template: str, values: Mapping[str, Any]) -> str:
    """Fill a Jinja template and return a complete page.

    Parameters
    ----------
    title : str
        Of the page.
    style : str
        CSS that is added to that of every page.
    template : str
        The body. Values are escaped, and their control characters are made visible.
    values : mapping
        What the template shows, beside `title`.

    Returns
    -------
    str

    Examples
    --------
    >>> "<p>a &lt; b</p>" in html_page("Model", "", "<p>{{ name }}</p>", {"name": "a < b"})
    True
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
        keep_trailing_newline=True,
    )
    body = Markup(environment.from_string(template).render(values, title=title))
    page = environment.from_string(_text("page.html.jinja"))
    return page.render(title=title, style=Markup(_text("page.css") + style), body=body)


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
        heat = InteractionDisplay.from_estimator(model, X, columns=COLUMNS)
        words = (
            f"Strength of each pair of columns: the standard deviation, over {heat.rows}, of what "
            "the pair adds to the prediction. For two columns of numbers, the sign is that of the "
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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=display.size, layout="constrained")
    FigureCanvasAgg(figure)
    file = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # drawn as an empty box
        display.plot(figure.subplots())
        figure.savefig(file, format="png", dpi=DPI)
    return Picture(heading, words, "data:image/png;base64," + b64encode(file.getvalue()).decode())


def model_page(title: str, content: dict[str, Any], pictures: Sequence[Picture] = ()) -> str:
    """Return a page of what `describe` says about a model, its diagnosis as a list of lines."""
    effects = content["effects"] or {"columns": [], "pairs": [], "levels": []}
    values = {
        "model": content,
        "interactions": _named(content["interactions"]),
        "found_pairs": _named(content["found_pairs"]),
        "slopes": _named(content["linear"]),
        "effects": content["effects"] and effects | {"levels": _named(effects["levels"])},
        "wholes": [
            ("column alone", _named(effects["columns"])),
            ("pair of columns", _named(effects["pairs"])),
        ],
        "pictures": pictures,
        "eigenvalues": list(enumerate(content["eigenvalues"], 1)),
        "eigenvalues_name": eigenvalues_name(content["rank"], content["features"]).capitalize(),
        "words": WORDS,
    }
    return html_page(title, _text("model.css"), _text("model.html.jinja"), values)


def _named(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts of a model with their names: features, columns, levels and products of two."""

    def name(part: dict[str, Any]) -> Any:
        if "second" in part:
            product = product_name(part["first"], part["second"])
            return f"{part['order']}. {product}" if "order" in part else product
        if "level" in part:
            return f"{part['column']}={part['level']}"
        return part["feature"] if "feature" in part else part["column"]

    return [{**part, "name": name(part)} for part in parts]


def report_page(model: Any, X: Any, y: Any, target: str | None, top: int) -> str:
    """Return the page of a fitted estimator; see `SecondOrderRegressor.report`."""
    name = target or getattr(y, "name", None)
    content = describe(model, max(0, top), X, y, None if name is None else str(name))
    content["diagnosis"] = content["diagnosis"].splitlines()
    about = f" about {content['target']}" if content["target"] else ""
    title = f"What the model says{about}"
    return model_page(title, content, pictures_of(model, X, content["target"]))


def describe(
    model: Any, top: int, X: Any = None, y: Any = None, target: str | None = None
) -> dict[str, Any]:
    """Return what a fitted model has learned, as plain data.

    Parameters
    ----------
    model : fitted estimator
        Its public attributes are read.
    top : int
        How many interactions, linear terms and columns to list, the strongest first.
    X, y : rows and targets, or None
        Rows to measure R² and effects with.
    target : str or None
        Name of the target; by default that of the column it was read from, where that is known.

    Returns
    -------
    dict
        The parts of the answer by name.
    """
    law, view = model.fitted_.law, model.interactions_
    errors = None if law is None or math.isnan(law.noise) else mean_slope_errors(model)
    interactions = [
        pair._asdict() | ({"std_error": None} if errors is None else {})
        for pair in view.top(top, squares=True)
    ]
    quality = quality_of(model, X, y)
    target = target or getattr(model.fitted_.columns, "target", None)
    noise = float(getattr(model, "noise_", math.nan))
    return {
        "class": type(model).__name__,
        "version": __version__,
        "target": target,
        "formula": f"{_bracketed(left_side(model, target))} = b + xᵀw + xᵀMx",
        "rows": model.n_samples_seen_,
        "features": len(view.names),
        "rank": model.rank_,
        "rank_in_words": rank_of(model),
        "alpha": list(model.alpha_),
        "intercept": float(model.intercept_),
        "eigenvalues": to_numpy(model.eigenvalues_).tolist(),
        "noise": noise if math.isfinite(noise) else None,
        "score": quality.name,
        "r2": quality.value,
        "r2_of": quality.how,
        "r2_is_bound": quality.bound,
        "status": model.status_.name,
        "advice": status_advice(model.status_, model.get_params(deep=False)),
        "std_errors": None if errors is None else _kind_of_errors(model, law),
        "interactions": interactions,
        "linear": _strongest_slopes(model, errors, top),
        "found_pairs": [pair._asdict() for pair in found_pairs(model)],
        "pairs_are_named": pairs_are_named(model),
        "effects": _effects(model, top, X),
        "history": [
            {"step": r.step, "passes": r.passes, "loss": float(r.loss)} for r in model.history_
        ],
        "diagnosis": model.diagnose(),
    }


def _strongest_slopes(model: Any, errors: np.ndarray | None, top: int) -> list[dict[str, Any]]:
    names, coef = model.interactions_.names, to_numpy(model.coef_).astype(float)
    parts = model.decomposition()  # measured from the mean: w + 2 M μ, in standardised units
    slopes = parts.slope * parts.scale
    strength = slopes * np.sqrt(to_numpy(model.moments_.var))
    order = np.argsort(-np.abs(strength), kind="stable")[:top]
    return [
        {
            "feature": names[j],
            "slope": float(slopes[j]),
            "strength": float(strength[j]),
            "std_error": None if errors is None else float(errors[j]),
            "coefficient": float(coef[j]),
        }
        for j in order.tolist()
        if slopes[j] != 0
    ]


def _bracketed(words: str) -> str:
    """Return words in which an equals sign does not look like that of the formula."""
    return f"({words})" if "=" in words else words


def _kind_of_errors(model: Any, law: Uncertainty) -> str:
    """Return which standard errors those of coefficients are; those of pairs are always robust."""
    if law.robust:
        return "robust to noise that differs between rows"
    return "for equal noise in all rows" if not LOSSES[model.loss].linked else "of the likelihood"


def _effects(model: Any, top: int, X: Any) -> dict[str, Any] | None:
    if len(model.decomposition().columns) > MOST_COLUMNS:
        return None
    effects: Effects = model.effects(X)
    return {
        "rows": effects.rows,
        "reference": effects.reference,
        "columns": [{"column": e.first, "strength": e.strength} for e in effects.columns[:top]],
        "pairs": [effect._asdict() for effect in effects.pairs[:top]],
        "levels": [level._asdict() for level in effects.strongest_levels(top)],
        "are_centred": bool(model.fitted_.fields),
    }


def mean_slope_errors(model: Any) -> np.ndarray:
    """Return the standard errors of the slopes (d,). Needs a law of the errors."""
    fitted, mean = model.fitted_, to_numpy(model.moments_.mean).astype(float)
    return np.asarray(fitted.law.slope_std(mean, fitted.fields))
