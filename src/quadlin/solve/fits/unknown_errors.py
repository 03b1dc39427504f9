"""A warning where no rows are left to estimate the noise, which tells the cause."""

from quadlin.core.messages import Message, Option, warn
from quadlin.core.moments import Tally
from quadlin.solve.fits.uncertainty import Uncertainty

UNKNOWN = "Standard errors are not known (nan): "
LIGHT = 0.99  # of the number of rows: weights that sum to less are no repetitions of rows


def warn_if_unknown(law: Uncertainty, tally: Tally) -> None:
    """Warn if the standard errors of a fit are not known."""
    if law.noise >= 0:
        return
    if tally.weight < LIGHT * tally.counting:
        warn(
            UNKNOWN + f"the weights, which count as repetitions of rows, sum to only "
            f"{tally.weight:.4g} for {tally.counting:,} rows. Scale them to a mean of 1."
        )
        return
    text = (
        "the fit uses as many effective parameters as there are rows, {rows}, so that nothing is "
        "left to estimate the noise. Use more rows, fewer features, or a larger penalty, such as "
        "{alpha}."
    )
    warn(Message(UNKNOWN + text, rows=f"{tally.counting:,}", alpha=Option("alpha", tally.counting)))
