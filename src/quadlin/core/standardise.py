"""From the moments of the rows and the user's choices to the units the solver works in."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.messages import Message, Option
from quadlin.core.moments import TAU_FREE, Moments
from quadlin.core.units import Units, target_of, target_of_counts, target_of_labels, units_of

LARGEST = 1e280  # of a variance, and 1/LARGEST the smallest: coefficients divide by it


@dataclass(frozen=True)
class UnitsMaker:
    """Decides which diagonals of M are modelled, and refuses what no model can be made of."""

    diagonal: str | Sequence[bool]  # "auto", "free", "zero" or one boolean per feature
    fit_intercept: bool
    dtype: Any
    names: Sequence[str]
    fields: Sequence[np.ndarray] = field(default=())  # positions of one-hot groups
    fit_linear: bool = True
    labels: bool = False  # whether targets are labels 0 and 1, and predictions their log-odds
    counts: bool = False  # whether predictions are the logarithms of the means of targets

    def __call__(self, features: Moments, target: Moments) -> Units:
        """Return the units for rows of these moments."""
        xp = namespace(features.mean)
        self.refuse_overflow(features, target)
        of_target = target_of_labels if self.labels else target_of
        of_target = target_of_counts if self.counts else of_target
        return units_of(
            features,
            xp.asarray(self._free(features), device=features.mean.device),
            of_target(target, self.fit_intercept),
            self.dtype,
            self._one_hot(features),
        )

    def _one_hot(self, moments: Moments) -> Array | None:
        if not len(self.fields):
            return None
        member = np.zeros(len(self.names), dtype=bool)
        member[np.concatenate(self.fields)] = True
        return namespace(moments.mean).asarray(member, device=moments.mean.device)

    def _free(self, moments: Moments) -> Array:
        xp = namespace(moments.mean)
        if isinstance(self.diagonal, str):
            if self.diagonal == "auto":
                # Without a linear part nobody else can say what the square of two values says.
                return (moments.tau >= TAU_FREE) | (not self.fit_linear)
            if self.diagonal == "zero":
                return xp.zeros(moments.tau.shape, dtype=xp.bool)
            wanted = xp.ones(moments.tau.shape, dtype=xp.bool, device=moments.tau.device)
        else:
            wanted = xp.asarray(list(self.diagonal), dtype=xp.bool, device=moments.tau.device)
        if self.fit_linear:
            self._refuse_two_valued(wanted & moments.two_valued & moments.varies(self.dtype))
        return wanted

    def _refuse_two_valued(self, bad: Array) -> None:
        if not bool(namespace(bad).any(bad)):
            return
        names = [name for name, b in zip(self.names, to_numpy(bad), strict=True) if b]
        more = f" (and {len(names) - 1} more features)" if len(names) > 1 else ""
        raise ValueError(
            Message(
                "Feature {name!r}{more} takes two values, so its square is its own linear term and "
                "the diagonal of M cannot be distinguished from w. Use {auto} (recommended) or "
                "{zero}.",
                name=names[0],
                more=more,
                auto=Option("diagonal", "auto"),
                zero=Option("diagonal", "zero"),
            )
        )

    def refuse_overflow(self, features: Moments, target: Moments) -> None:
        """Refuse rows whose squares overflow or underflow."""
        xp = namespace(features.mean)
        finite = (features.var < LARGEST) & xp.isfinite(features.phi)
        finite = finite & (xp.abs(features.mean) < float(xp.finfo(self.dtype).max) / 16)
        large = self._named(~finite, ~(target.var < LARGEST))
        if large:
            raise ValueError(
                f"{large[0]!r} has values too large to square without overflow. "
                "Divide it by a constant, or take its logarithm."
            )
        lost = [m.differs & (m.var < 1 / LARGEST) for m in (features, target)]
        small = self._named(*lost)
        if small:
            raise ValueError(
                f"{small[0]!r} varies by too little to be squared without underflow. "
                "Multiply it by a constant."
            )

    def _named(self, features: Array, target: Array) -> list[str]:
        """Return the names of what is marked."""
        names = ["y"] if bool(target[0]) else []
        if bool(namespace(features).any(features)):
            pairs = zip(self.names, to_numpy(features), strict=True)
            names += [name for name, marked in pairs if marked]
        return names
