"""What all displays share: axes, styles, ticks, legends, and names as plain text.

Colours are those of Okabe and Ito, with a marker and a line style each, so that a picture can be
read in grey and by the colour-blind.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from quadlin.core.messages import printable

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^v<P"
LINES = ("-", "--", "-.", ":")
LETTERS_PER_INCH = 9  # in a line of a legend, all columns together
Styles = Mapping[str, Mapping[str, Any]]  # by name: keywords of matplotlib, such as color


def new_axes(ax: Any, size: tuple[float, float], columns: int = 1) -> Any:
    """Return the axes given, or those of a new figure of that size, side by side if several."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:  # pragma: no cover
        raise ImportError('Plots need matplotlib: pip install "quadlin[plot]".') from error
    if ax is not None:
        return ax
    return plt.subplots(1, columns, figsize=size, layout="constrained", sharey=True)[1]


class Display:
    """A picture whose numbers are computed once and drawn by `plot`, on the axes `ax_`."""

    ax_: Any = None
    figure_: Any = None

    @property
    def size(self) -> tuple[float, float]:
        """Return the size of a figure of its own, in inches."""
        return 6.4, 4.0

    def plot(self, ax: Any = None) -> Self:
        """Draw the picture.

        Parameters
        ----------
        ax : matplotlib axes or None
            Where to draw; None makes a new figure.

        Returns
        -------
        self
            With the axes as `ax_` and their figure as `figure_`.
        """
        ax = new_axes(ax, self.size)
        self._draw(ax)
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _draw(self, ax: Any) -> None:
        raise NotImplementedError


def style_of(number: int, name: str, styles: Styles) -> dict[str, Any]:
    """Return how to draw a series: as `styles` says, or by its number."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number % len(LINES)],
        "markersize": 4.5,
        "linewidth": 1.4,
        **styles.get(name, {}),
    }


def finish(
    ax: Any,
    x_label: str,
    y_label: str,
    title: str | None,
    legend: bool = True,
    legend_title: str | None = None,
) -> None:
    """Put words, a grid, ticks that can be read and a legend on the axes."""
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    if title:
        ax.set_title(title)
    ax.grid(True, which="major", alpha=0.3)
    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_scale() == "log":  # as numbers are written in words, and drawn much faster
            _tick(axis)
    labels = ax.get_legend_handles_labels()[1]
    if legend and labels:  # below the picture, where they hide nothing
        from matplotlib import rcParams
        from matplotlib.transforms import ScaledTranslation

        columns = legend_columns(labels, ax.figure.get_figwidth())
        under = -0.05 * rcParams["font.size"]  # inches: under the label of the axis
        below = ScaledTranslation(0, under, ax.figure.dpi_scale_trans)
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "ncols": columns}
        place["bbox_transform"] = ax.transAxes + below
        ax.legend(title=legend_title, frameon=False, fontsize="small", **place)


def legend_columns(labels: Sequence[str], inches: float) -> int:
    """Return in how many columns a legend below a figure of some width has room."""
    return max(1, min(3, int(LETTERS_PER_INCH * inches) // max(map(len, labels))))


def _tick(axis: Any) -> None:
    """Give a logarithmic axis at least a few ticks with numbers."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    between = "25" if high < 50 * low else ""  # where hardly a power of ten is seen
    axis.set_major_formatter(lambda value, _: _short(value))
    axis.set_minor_formatter(lambda value, _, first=between: _short(value, first))
    if high < 8 * low and not isinstance(axis.get_major_locator(), FixedLocator):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:g}")


def _short(value: float, first: str = "123456789") -> str:
    """Return 1e-6 for 1e-06, and 0.1, 1, 10, 100 as they are; nothing if it begins otherwise."""
    if f"{value:.0e}"[0] not in first:
        return ""
    if 0.01 <= value < 1_000_000:
        return f"{value:g}"
    digits, power = f"{value:.0e}".split("e")
    return f"{digits}e{int(power)}"


def plain(name: str, most: int = 28) -> str:
    r"""Return a name that matplotlib draws as it is: no formula between dollars, no controls.

    Of a name with more than `most` letters the middle is left out.

    Examples
    --------
    >>> print(plain("cost in $ per $"))
    cost in \$ per \$
    >>> plain("the number of rooms in the building")
    'the number of room… building'
    """
    name = printable(name)
    if len(name) > most:
        start = 2 * most // 3
        name = f"{name[:start]}…{name[start + 1 - most :]}"
    return name.replace("$", r"\$")


def legend_above(ax: Any) -> None:
    """Put the legend between the title and the picture, where it hides nothing."""
    handles, labels = ax.get_legend_handles_labels()
    if labels:
        above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": len(labels)}
        ax.legend(handles, labels, frameon=False, fontsize="small", borderaxespad=0.2, **above)


def signed_bars(
    draw: Any, places: np.ndarray, values: np.ndarray, labels: tuple[str, str], **style: Any
) -> None:
    """Draw positive and negative bars in different colours and hatches, by a method of the axes."""
    for sign, colour, hatch, label in zip((1, -1), COLOURS, ("", "//"), labels, strict=False):
        mine = np.sign(values) == sign
        if mine.any():
            look = {"color": colour, "hatch": hatch, "edgecolor": "white", "label": label}
            draw(places[mine], values[mine], **look, **style)


def decimals(largest: float, digits: int = 2) -> int:
    """Return how many decimals show that many digits of the largest of some numbers.

    Examples
    --------
    >>> decimals(0.76), decimals(12.0), decimals(3400.0), decimals(0.76, digits=3)
    (2, 0, 0, 3)
    """
    return max(0, digits - 1 - int(np.floor(np.log10(largest)))) if largest > 0 else 0


def power_of(largest: float, low: float = 1e-3, high: float = 1e5) -> int:
    """Return the power of ten, a multiple of three, in which large or small numbers are written.

    Examples
    --------
    >>> power_of(76.0), power_of(1.27e6), power_of(3e-5), power_of(0.0), power_of(5e4, high=1e4)
    (0, 6, -6, 0, 3)
    """
    usual = not 0 < largest < np.inf or low <= largest < high
    return 0 if usual else 3 * int(np.floor(np.log10(largest) / 3))
