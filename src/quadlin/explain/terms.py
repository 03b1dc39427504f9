"""Terms of a summary, with their tests."""

from math import nan
from typing import NamedTuple

from quadlin.solve.fits.uncertainty import standard_errors_of, two_sided


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

    @property
    def is_left_out(self) -> bool:
        """Tell whether a linear term is zero without having been estimated."""
        return self.kind == "linear" and self.estimate == 0 and not self.std_error > 0


class Tests(NamedTuple):
    """Tests and intervals by Student's distribution."""

    left: float  # degrees of freedom
    reach: float  # of intervals, in standard errors

    @classmethod
    def of(cls, left: float, level: float) -> "Tests":
        """Return the tests with this many degrees of freedom, and intervals of this level."""
        return cls(left, standard_errors_of(level, left))

    def term(
        self, name: str, kind: str, first: str, second: str, estimate: float, std_error: float
    ) -> Term:
        """Return a term with its test, where it has a standard error."""
        if not std_error > 0:
            if kind == "linear" and estimate == 0:
                std_error = nan  # nothing was estimated
            return Term(name, kind, first, second, estimate, std_error, nan, nan, nan, nan)
        t = estimate / std_error
        p, reach = two_sided(t, self.left), self.reach * std_error
        return Term(
            name, kind, first, second, estimate, std_error, t, p, estimate - reach, estimate + reach
        )
