"""The page of a model: what it has learned as plain data and as HTML, with its pictures."""

import math
import warnings
from base64 import b64encode
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.util import find_spec
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from quadlin.core.arrays import to_numpy
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
from quadlin.explain.summary import ModelSummary
from quadlin.explain.tables import eigenvalues_name, left_side, p_value, prediction_name


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
