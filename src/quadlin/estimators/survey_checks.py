"""What a survey of the rows shows before anything is fitted: targets and values worth a word."""

from collections.abc import Sequence

from quadlin.core.arrays import to_numpy
from quadlin.core.messages import Message, Option, warn
from quadlin.core.survey import Survey
from quadlin.explain.diagnosis import listed
from quadlin.solve.types import Options

MANY_ROWS, HANDFUL = 100, 6  # fewer rows that carry a fourth moment are worth a warning


def warn_of_target(surveyed: Survey, options: Options) -> None:
    """Warn of a target from which there is nothing to learn, or which the model cannot reach."""
    target, mean = surveyed.target, float(surveyed.target.mean[0])
    if not bool(target.varies(target.mean.dtype)[0]):
        warn(f"The target is {mean:.4g} in every row, so the model is constant.")
    if options.psd and not (options.fit_linear or options.fit_intercept) and mean < 0:
        warn(
            Message(
                "The targets are negative on average ({mean:.4g}), but the model predicts no "
                "negative numbers with {psd} and neither a linear term nor an intercept. Leave "
                "out {psd}, or change the sign of the targets.",
                mean=mean,
                psd=Option("psd", True),
            )
        )


def check_counts(surveyed: Survey, options: Options) -> None:
    """Refuse negative targets where they are to be counts."""
    low = surveyed.target.low
    if options.loss == "poisson" and low is not None and float(low[0]) < 0:
        raise ValueError(
            Message(
                "The targets go down to {low:.4g}, but {loss} is for counts and other targets ≥ 0. "
                "Leave those rows out, or use {other}.",
                low=float(low[0]),
                loss=Option("loss", "poisson"),
                other=Option("loss", "squared"),
            )
        )


def warn_of_extremes(
    surveyed: Survey, names: Sequence[str], options: Options, robust: bool
) -> None:
    """Warn where a handful of rows carry the fourth moment of the target or of features.

    Σz⁴ = nφ, and a row that is far from all others has z² ≈ n: so about n/φ rows carry it.
    """
    n = surveyed.features.weight
    if n < MANY_ROWS:
        return
    features, target = surveyed.features, surveyed.target
    few = to_numpy((features.phi > n / HANDFUL) & ~features.two_valued & (features.var > 0))
    extreme = [name for name, is_extreme in zip(names, few, strict=True) if is_extreme]
    if extreme:
        warn(
            f"A handful of rows have extreme values in {listed(extreme)}, and dominate squares and "
            "products. Check these values, or transform the columns, such as by a logarithm."
        )
    linked = options.loss != "squared"
    if float(target.phi[0]) > n / HANDFUL and not robust and not linked:
        warn(
            Message(
                "A handful of rows have extreme targets, and dominate a fit by squared errors. "
                "Check them, or use {huber}.",
                huber=Option("loss", "huber"),
            )
        )
