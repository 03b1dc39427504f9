"""The warnings of quadlin, which `warnings.filterwarnings` can tell apart.

A fit that neither converged nor was stopped gives scikit-learn's `ConvergenceWarning`, with the
advice of its `status_`. The other warnings are these; each of them is a `UserWarning`.

Examples
--------
>>> import warnings
>>> from quadlin.exceptions import ExtrapolationWarning
>>> warnings.filterwarnings("error", category=ExtrapolationWarning)  # no prediction far outside
>>> warnings.filterwarnings("default", category=ExtrapolationWarning)
"""


class DataWarning(UserWarning):
    """Rows, targets or weights that can be fitted, but that look wrong or tell little."""


class UnseenLevelWarning(DataWarning):
    """Levels, or missing values, of a column that the fit did not see; they count as average."""


class ExtrapolationWarning(DataWarning):
    """Rows far outside the training rows, whose features were limited."""


class OptionWarning(UserWarning):
    """An option that has another effect than one would expect, or none."""
