"""What a fitted model says of itself, in the user's units and by the user's names."""

import numpy as np
from sklearn.exceptions import NotFittedError

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.moments import Moments
from quadlin.data.encoder import TableEncoder
from quadlin.data.fields import field_numbers
from quadlin.data.names import Name, position_of
from quadlin.explain.interactions import Interactions
from quadlin.solve.fit_state import Learned
from quadlin.solve.types import Record, Status
from quadlin.solve.uncertainty import Uncertainty
from quadlin.stream.stream import Stream


class Fitted:
    """The attributes of a fitted estimator; before `fit` there are none."""

    _fitted: Stream
    _fields: tuple[np.ndarray, ...]  # the positions of the features of each field
    _encoder: TableEncoder | None
    _law: Uncertainty | None
    _fill: dict[str, float] | None = None

    n_features_in_: int

    def interaction(self, first: Name, second: Name) -> float:
        """Return M_ij for two features, by position or name.

        x_i·x_j has coefficient 2 M_ij, which is what ``interactions_.top()`` lists.
        """
        return self.interactions_[first, second]

    def interaction_std(self, first: Name, second: Name) -> float:
        """Return the standard error of M_ij; that of the coefficient of x_i·x_j is twice it.

        Needs ``uncertainty=True``.
        """
        law, names = self._known_law(), self._names()
        i, j = position_of(names, first), position_of(names, second)
        return 0.0 if self.interactions_.vanishes(i, j) else law.interaction_std(i, j)

    @property
    def noise_(self) -> float:
        """Return the standard deviation of the noise. Needs ``uncertainty=True``."""
        return self._known_law().noise * self._fitted.current.units.target.scale

    @property
    def coef_std_(self) -> Array:
        """Return the standard errors of `coef_`. Needs ``uncertainty=True``."""
        return self._known_law().coef_std()[0]

    @property
    def intercept_std_(self) -> float:
        """Return the standard error of `intercept_`. Needs ``uncertainty=True``."""
        return self._known_law().coef_std()[1]

    @property
    def coef_(self) -> Array:
        """Return w in the user's units, one entry a feature of `interactions_.names`."""
        coef = self._learned("coef_").raw.coef
        return coef if self._fitted.options.fit_linear else namespace(coef).zeros_like(coef)

    @property
    def intercept_(self) -> float:
        """Return b in the user's units."""
        intercept = self._learned("intercept_").raw.intercept
        return intercept if self._fitted.options.fit_intercept else 0.0

    @property
    def components_(self) -> Array:
        """Return the orthonormal rows of the low-rank part."""
        return self._learned("components_").raw.components

    @property
    def eigenvalues_(self) -> Array:
        """Return the signed eigenvalues of the low-rank part, by falling size."""
        return self._learned("eigenvalues_").raw.eigenvalues

    @property
    def has_diagonal_(self) -> Array:
        """Return where M has a diagonal."""
        return self._learned("has_diagonal_").units.free > 0

    @property
    def moments_(self) -> Moments:
        """Return the moments of the features."""
        return self._learned("moments_").features

    @property
    def rank_(self) -> int:
        """Return the rank that was fitted."""
        return int(self._learned("rank_").model.s.shape[0])

    @property
    def history_(self) -> tuple[Record, ...]:
        """Return the loss after each step."""
        return self._learned("history_").history

    @property
    def status_(self) -> Status:
        """Return how the fit ended."""
        return self._learned("status_").status

    @property
    def n_iter_(self) -> int:
        """Return the number of steps."""
        return max(1, self._learned("n_iter_").history[-1].step)

    @property
    def n_samples_seen_(self) -> int:
        """Return the number of rows learned from."""
        self._learned("n_samples_seen_")
        return int(self._fitted.rows)

    @property
    def interactions_(self) -> Interactions:
        """Return a view of M in the user's units."""
        learned = self._learned("interactions_")
        model, scale = learned.model, to_numpy(learned.units.scale).astype(np.float64)
        return Interactions(
            to_numpy(model.U) * scale[:, None],
            to_numpy(model.s) * learned.units.target.scale,
            to_numpy(learned.units.free) > 0,
            field_numbers(self._fields, len(scale)),
            np.sqrt(to_numpy(learned.features.var)),
            self._names(),
        )

    @property
    def encoder_(self) -> TableEncoder | None:
        """Return the encoder of the text columns, None where there are none."""
        self._learned("encoder_")
        return self._encoder

    @property
    def fill_(self) -> dict[str, float] | None:
        """Return what stood for missing numbers, by column; None where nothing was filled."""
        self._learned("fill_")
        return self._fill

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    def _learned(self, attribute: str) -> Learned:
        if not self.__sklearn_is_fitted__():
            # An AttributeError too, so that hasattr() tells the truth.
            raise NotFittedError(
                f"This {type(self).__name__} has no {attribute} before `fit` or `partial_fit`."
            )
        return self._fitted.current

    def _known_law(self) -> Uncertainty:
        self._learned("standard error")
        if self._law is None:
            raise AttributeError(
                "Standard errors are known after `fit` with uncertainty=True, and not after "
                "`partial_fit`. Set uncertainty=True and fit."
            )
        return self._law

    def _names(self) -> list[str]:
        if self._encoder is not None:
            return list(self._encoder.names)
        names = getattr(self, "feature_names_in_", None)
        return [f"x{j}" for j in range(self.n_features_in_)] if names is None else list(names)
