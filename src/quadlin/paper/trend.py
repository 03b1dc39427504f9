"""Power laws through measurements, with the uncertainty of their exponents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Power:
    """An exponent and its standard error, NaN for too few points; shown with ± two of them."""

    exponent: float
    error: float

    def __str__(self) -> str:
        spread = f" ± {2 * self.error:.2f}" if np.isfinite(self.error) else ""
        return f"{self.exponent:+.2f}{spread}".replace("-", "−")

    def near(self, value: float, slack: float) -> bool:
        """Tell whether the exponent is a value, up to `slack` and two standard errors."""
        return bool(abs(self.exponent - value) <= self._allowed(slack))

    def at_most(self, value: float, slack: float) -> bool:
        """Tell whether the exponent is at most a value, up to `slack` and two standard errors."""
        return bool(self.exponent - value <= self._allowed(slack))

    def _allowed(self, slack: float) -> float:
        return slack + (2 * self.error if np.isfinite(self.error) else 0.0)


def powers(factors: Mapping[str, Any], values: Any) -> dict[str, Power]:
    """Fit values = a·Π factorᵖ by least squares of the logarithms; return each p by name.

    Factors that do not vary, and values that are not positive and finite, are left out.
    """
    y = np.asarray(values, dtype=float)
    columns = {name: np.asarray(x, dtype=float) for name, x in factors.items()}
    good = np.isfinite(y) & (y > 0)
    varied = {name: x[good] for name, x in columns.items() if len(np.unique(x[good])) > 1}
    unknown = {name: Power(float("nan"), float("nan")) for name in columns}
    rows = int(good.sum())
    if not varied or rows <= len(varied):
        return unknown
    design = np.column_stack([np.ones(rows), *(np.log(x) for x in varied.values())])
    target = np.log(y[good])
    solution, _, rank, _ = np.linalg.lstsq(design, target, rcond=None)
    if rank < design.shape[1]:
        return unknown
    spare = rows - design.shape[1]
    error = np.full(len(solution), np.nan)
    if spare > 0:
        residual = target - design @ solution
        covariance = np.linalg.inv(design.T @ design) * (residual @ residual) / spare
        error = np.sqrt(np.diag(covariance))
    fitted = zip(varied, solution[1:], error[1:], strict=True)
    return unknown | {name: Power(float(p), float(e)) for name, p, e in fitted}


def power(x: Any, y: Any) -> Power:
    """Fit y = a·xᵖ and return p."""
    return powers({"x": x}, y)["x"]
