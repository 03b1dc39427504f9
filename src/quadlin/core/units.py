"""From the user's units to the solver's: how features and target are standardised, and which
diagonals of M are modelled."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.losses import LOSSES, Loss
from quadlin.core.moments import TAU_FREE, Moments

LARGEST = 1e280  # of a variance, and 1/LARGEST the smallest: coefficients divide by it
RARE = 0.1  # standard deviation of a 0/1 column below which its penalty grows, as for a rare level


class Target(NamedTuple):
    """How the user's y becomes the solver's: y = mean + scale · f, with E f² = power."""

    mean: float
    scale: float
    centre: float  # E f, zero when there is an intercept to take it up
    power: float  # 1, or 0 for a target that is constant


@dataclass(frozen=True)
class Units:
    r"""From the user's units to the solver's.

    .. math:: z = (x - \mathrm{mean}) \circ \mathrm{scale} - \mathrm{rest}
    """

    mean: Array  # (d,), μ rounded to the rows' dtype, so that x − μ is what is computed
    scale: Array  # (d,), 1/σ; for a constant feature 0, or 1/|μ| if parts are not fitted
    kappa: Array  # (d,), E z³
    phi: Array  # (d,), E z⁴
    free: Array  # (d,), 1 where the diagonal of M is modelled, 0 where it is not
    target: "Target"
    penalty_scale: Array  # (d,), ρ: the ridge weighs ρ∘w and ρρᵀ∘M̄
    rest: Array  # (d,), the rounding error of μ/σ

    @cached_property
    def nu(self) -> Array:
        """Return μ/σ, the mean in standardised units."""
        return self.mean * self.scale + self.rest

    @cached_property
    def eps(self) -> float:
        """Return the rounding of numbers in these units."""
        return float(namespace(self.scale).finfo(self.scale.dtype).eps)

    def array(self, numbers: np.ndarray) -> Array:
        """Return numbers of numpy in the dtype and on the device of the units."""
        dtype, device = self.scale.dtype, self.scale.device
        return namespace(self.scale).asarray(numbers, dtype=dtype, device=device)

    def standardised(self, X: Array, columns: Array | None = None) -> Array:
        """Return z of rows, dense: all of it, or some columns."""
        xp, mean, scale, rest = namespace(X), self.mean, self.scale, self.rest
        if columns is not None:
            columns = xp.asarray(columns, device=None if issparse(X) else X.device)
            X = X[:, columns] if issparse(X) else xp.take(X, columns, axis=1)
            mean, scale, rest = (xp.take(v, columns) for v in (mean, scale, rest))
        x = X.toarray() if issparse(X) else X
        return (xp.astype(x, scale.dtype, copy=False) - mean) * scale - rest

    def standardised_target(self, y: Array) -> Array:
        """Return (y − mean)/scale in the dtype of the units, subtracted in the dtype of y."""
        standardised = (y - self.target.mean) / self.target.scale
        return namespace(y).astype(standardised, self.scale.dtype)

    @property
    def tau(self) -> Array:
        """Return τ = φ − 1 − κ²."""
        return namespace(self.phi).clip(self.phi - 1 - self.kappa**2, min=0)


def target_of(loss: Loss, moments: Moments, fit_intercept: bool) -> Target:
    """Centre and scale the target; without an intercept, zero stays zero.

    Targets whose means are a function of f are left unchanged: `centre` is the constant that fits
    them best, and `power` about its mean deviance.
    """
    mean, var = float(moments.mean[0]), float(moments.var[0])
    varies = bool(moments.varies(namespace(moments.mean).float64)[0])
    if loss.linked:
        centre = loss.start(mean, moments.weight, varies) if fit_intercept else 0.0
        return Target(0.0, 1.0, centre, loss.constant_loss(mean, var, centre) if varies else 0.0)
    if fit_intercept:
        return Target(mean, var**0.5 if varies else 1.0, 0.0, float(varies))
    power = mean**2 + var
    scale = power**0.5 if power > 0 else 1.0
    return Target(0.0, scale, mean / scale, float(power > 0))


def watchful_scale(units: Units) -> Array:
    """Return the scale, also of features that were constant so far, which may begin to vary."""
    xp = namespace(units.scale)
    return xp.where(units.scale == 0, 1 / xp.clip(xp.abs(units.mean), min=1), units.scale)


def units_of(
    features: Moments,
    free: Array,
    target: Target,
    dtype: Any,
    one_hot: Array | None = None,
    tied: bool = False,
    raw: bool = False,
) -> Units:
    """Make units from the moments of the features and those of the target.

    Where linear parts are `tied`, as b and w are to M if they are not fitted, a constant feature
    stands for them, as a column of ones does: it has z = 0, but μ/σ of size one.

    A one-hot column has ρ² = 1/σ, so that a rare level, which occurs in few rows, is shrunk more
    than a common one: half-way between the ridge on standardised columns (ρ² = 1, the same share
    for all) and on raw ones (ρ² = 1/σ²), and about as good as the better of the two.
    """
    xp = namespace(features.mean)
    varies = features.varies(dtype)
    sd = xp.where(varies, xp.sqrt(features.var), 1.0)
    rest = (features.mean - xp.astype(xp.astype(features.mean, dtype), xp.float64)) / sd
    rest = xp.where(varies, rest, 0.0)
    # The standard deviation of a two-valued column whose values differ by 1. For any column, it is
    # small if the column has the same value in most rows.
    spread = 1 / xp.sqrt(xp.where(varies, features.phi, 1.0) + 3)
    outside = varies if one_hot is None else varies & ~one_hot
    if raw:  # the mean of 1/ρ² is 1, so that predictions vary as much a priori as without it
        share = xp.where(outside, spread**2, 0.0)
        mean = xp.sum(share) / xp.clip(xp.sum(xp.astype(outside, share.dtype)), min=1.0)
        penalty_scale = xp.where(outside, xp.sqrt(mean) / spread, 1.0)
    else:
        rare = features.two_valued & varies
        penalty_scale = xp.where(rare, xp.sqrt(xp.clip(RARE / spread, min=1.0)), 1.0)
    if one_hot is not None:
        penalty_scale = xp.where(one_hot, 1 / xp.sqrt(sd), penalty_scale)

    stands_for = xp.abs(xp.where(tied & ~varies, features.mean, 0.0))
    of_constant = xp.where(stands_for > 0, 1 / xp.where(stands_for > 0, stands_for, 1.0), 0.0)

    def cast(v: Array) -> Array:
        return xp.astype(v, dtype)

    return Units(
        cast(features.mean),
        cast(xp.where(varies, 1 / sd, of_constant)),
        cast(xp.where(varies, features.kappa, 0.0)),
        cast(xp.where(varies, features.phi, 1.0)),
        cast(free & (varies | (stands_for > 0))),
        target,
        cast(penalty_scale),
        cast(rest),
    )


@dataclass(frozen=True)
class UnitsMaker:
    """Decides which diagonals of M are modelled, and checks that a model can fit the rows."""

    squares: bool | str  # everywhere, nowhere, or "auto": where they differ from linear terms
    fit_intercept: bool
    dtype: Any
    names: Sequence[str]
    fields: Sequence[np.ndarray] = field(default=())  # positions of one-hot groups
    fit_linear: bool = True
    loss: str = "squared"  # whose predictions these are: numbers, log-odds or logarithms of means
    wide: bool = False  # whether "auto" models no squares, as of sparse rows with many columns
    raw: bool = False  # whether the ridge is that of columns that are not standardised

    def __call__(self, features: Moments, target: Moments) -> Units:
        """Return the units for rows of these moments."""
        xp = namespace(features.mean)
        self.refuse_overflow(features, target)
        free = xp.asarray(self._free(features), device=features.mean.device)
        return units_of(
            features,
            free & features.varies(self.dtype) if self.fit_linear else free,
            target_of(LOSSES[self.loss], target, self.fit_intercept),
            self.dtype,
            self._one_hot(features),
            not (self.fit_linear and self.fit_intercept),
            self.raw,
        )

    def _one_hot(self, moments: Moments) -> Array | None:
        if not len(self.fields):
            return None
        member = np.zeros(len(self.names), dtype=bool)
        member[np.concatenate(self.fields)] = True
        return namespace(moments.mean).asarray(member, device=moments.mean.device)

    def _free(self, moments: Moments) -> Array:
        xp = namespace(moments.mean)
        if self.squares == "auto" and not self.wide:
            # Without a linear part, only the diagonal can carry the effect of two values.
            return (moments.tau >= TAU_FREE) | (not self.fit_linear)
        if self.squares in ("auto", False):
            return xp.zeros(moments.tau.shape, dtype=xp.bool)
        if self.fit_linear:
            self._refuse_two_valued(moments.two_valued & moments.varies(self.dtype))
        return xp.ones(moments.tau.shape, dtype=xp.bool, device=moments.tau.device)

    def _refuse_two_valued(self, bad: Array) -> None:
        if not bool(namespace(bad).any(bad)):
            return
        names = self._marked(bad)
        more = f" (and {len(names) - 1} more features)" if len(names) > 1 else ""
        raise ValueError(
            f"Feature {names[0]!r}{more} takes two values, so its square is its own "
            "linear term and the diagonal of M cannot be distinguished from w. Use "
            'squares="auto" (recommended) or squares=False.'
        )

    def refuse_overflow(self, features: Moments, target: Moments) -> None:
        """Raise an error for rows whose squares overflow or underflow."""
        xp = namespace(features.mean)
        finite = features.var < LARGEST
        finite = finite & (xp.abs(features.mean) < float(xp.finfo(self.dtype).max) / 16)
        lost = [m.differs & (m.var < 1 / LARGEST) for m in (features, target)]
        reasons = (
            (
                *(~finite, ~(target.var < LARGEST)),
                "has values too large to square without overflow. Divide it by a constant, or take "
                "its logarithm.",
            ),
            (
                *(finite & ~xp.isfinite(features.phi), target.var < 0),
                "varies only in rows whose weights are less than 1e-150 of the others', too little "
                "to tell its effect. Set these weights to 0, or raise them.",
            ),
            (
                *lost,
                "varies by too little to be squared without underflow. Multiply it by a constant.",
            ),
        )
        for of_features, of_target, reason in reasons:
            if bool(of_target[0]):
                raise ValueError(f"'y' {reason}")
            if bool(xp.any(of_features)):
                raise ValueError(f"{self._marked(of_features)[0]!r} {reason}")

    def _marked(self, marks: Array) -> list[str]:
        """Return the names of marked features."""
        return [name for name, mark in zip(self.names, to_numpy(marks), strict=True) if mark]
