"""The pictures of a page: displays drawn into PNG files that the page carries with it."""

import warnings
from base64 import b64encode
from collections.abc import Iterator
from importlib.util import find_spec
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from quadlin.data import Source, is_dask
from quadlin.explain.contribution_display import ContributionDisplay
from quadlin.explain.drawing import Display
from quadlin.explain.effects import MOST_COLUMNS
from quadlin.explain.interaction_display import InteractionDisplay, SpectrumDisplay
from quadlin.explain.surface_display import PairDisplay
from quadlin.explain.tables import prediction_name

DPI = 150
COLUMNS = 8  # of the heat map: more could not be read on a telephone


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
