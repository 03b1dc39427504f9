"""The methods of all studies: one name, colour, marker and line each, the same in every picture."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from quadlin.paper.descent import descend
from quadlin.paper.displays import ConvergenceDisplay, LevelDisplay
from quadlin.paper.iterations import ITERATIONS
from quadlin.paper.laws import law_name
from quadlin.paper.library import iterate, polish
from quadlin.paper.race import Solver
from quadlin.paper.study import Frame

Style = Mapping[str, Any]  # keywords of matplotlib
FITS = ("plain", "guarded", "polished")  # that most studies compare


@dataclass(frozen=True)
class Method:
    """A method by its name in pictures and tables, and how it is drawn."""

    name: str
    colour: str
    marker: str
    line: str = "-"

    @property
    def style(self) -> Style:
        """Return how to draw it."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line}


METHODS = {  # see `quadlin.paper.iterations` for the first five
    "published": Method("authors' code", "#88CCEE", "X"),
    "plain": Method("plain MES", "#0072B2", "o"),
    "gaussian": Method("2016 MES", "#DDCC77", "8", ":"),
    "literal": Method("literal MES", "#56B4E9", "v", ":"),
    "uncentred": Method("uncentred MES", "#999933", "p", ":"),
    "guarded": Method("quadlin MES", "#009E73", "s"),
    "polished": Method("quadlin polished", "#000000", "D"),
    "psd": Method("L-BFGS, M positive", "#7F7F7F", "h", "--"),
    "stream": Method("quadlin one pass", "#332288", "*", "--"),
    "gd_printed": Method("printed GD", "#D55E00", "^", "--"),
    "gd_standardised": Method("standardised GD", "#E69F00", "<", "--"),
    "gd_centred": Method("centred GD", "#CC79A7", ">", "--"),
    "convex": Method("nuclear norm", "#AA4499", "P", "-."),
    "signs": Method("L-BFGS with given signs", "#117733", "1", "-."),
    "factors": Method("L-BFGS on U and V", "#661100", "2", "-."),
}
LAW_STYLES: Mapping[str, Style] = {
    "gaussian": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "truncated": {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    "bernoulli": {"color": "#009E73", "marker": "^", "linestyle": ":"},
}
LAWS = tuple(LAW_STYLES)  # that most studies compare
USER_COLOURS = ("#AA3377", "#228833", "#BBBB00", "#004488")  # of solvers of users
USER_MARKERS = "X8H+"

# The solvers of the panels, in the order in which they are drawn.
SOLVERS: dict[str, Solver] = {
    **{key: partial(iterate, method=key) for key in ITERATIONS},
    "polished": polish,
    "gd_printed": partial(descend, form="printed"),
    "gd_standardised": partial(descend, form="standardised"),
    "gd_centred": partial(descend, form="centred"),
}


def name_of(key: str) -> str:
    """Return the name of a method; that of a user's solver is its key."""
    return METHODS[key].name if key in METHODS else key


def styles(keys: Iterable[str]) -> dict[str, Style]:
    """Return the style of each method by its name."""
    chosen: dict[str, Style] = {}
    brought = 0
    for key in keys:
        if key in METHODS:
            chosen[METHODS[key].name] = METHODS[key].style
        else:
            colour = USER_COLOURS[brought % len(USER_COLOURS)]
            chosen[key] = {"color": colour, "marker": USER_MARKERS[brought % 4], "linestyle": "-"}
            brought += 1
    return chosen


def styles_by_law(keys: Iterable[str], laws: Iterable[str]) -> dict[str, Style]:
    """Return a style for each "method, law": the method's colour, the law's marker and line."""
    laws = list(laws)
    return {
        f"{METHODS[key].name}, {law_name(law)}": {**LAW_STYLES[law], "color": METHODS[key].colour}
        for key in keys
        for law in laws
    }


def points(frame: Frame, x: str, y: str, by: Any = "method", name: Any = name_of) -> dict[str, Any]:
    """Return two columns for each method, or each value of other columns, by its name."""
    groups = frame.groupby(by, sort=False)
    return {name(key): (part[x].to_numpy(), part[y].to_numpy()) for key, part in groups}


def trials(
    frame: Frame, x: str, y: str, by: Any = "method", name: Any = name_of
) -> dict[str, list[Any]]:
    """Return two columns for each method, or each value of other columns, seed by seed."""
    groups = frame.groupby(by, sort=False)
    return {name(key): list(points(part, x, y, "seed").values()) for key, part in groups}


def levels_by_method(
    frame: Frame,
    x: tuple[str, str],
    y: tuple[str, str],
    title: str,
    level: tuple[float | None, str] = (None, ""),
    by: str = "method",
) -> LevelDisplay:
    """Return the display of y against x for each method, on logarithmic axes.

    `x` and `y` are columns with their words, `level` a number with its words.
    """
    shown, labels = points(frame, x[0], y[0], by), (x[1], y[1], title)
    return LevelDisplay(
        shown, *level, *labels, log_x=True, log_y=True, styles=styles(frame[by].unique())
    )


def errors_by_method(frame: Frame, **labels: Any) -> ConvergenceDisplay:
    """Return the display of the test error of each method against the passes over the rows."""
    labels = {"x_label": "passes over the rows", "stepwise": True, **labels}
    look = styles(frame["method"].unique())
    return ConvergenceDisplay.from_trials(trials(frame, "passes", "nmse"), styles=look, **labels)
