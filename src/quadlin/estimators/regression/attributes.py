"""The attributes of a fitted estimator, in the user's units and by the user's names."""

from typing import Any

from sklearn.exceptions import NotFittedError

from quadlin.core.arrays import Array, namespace
from quadlin.core.moments import Moments
from quadlin.data.columns.encoder import TableEncoder
from quadlin.data.columns.names import Name
from quadlin.estimators.regression.fitted import Fitted
from quadlin.explain.interactions import Interactions, report_of_products
from quadlin.explain.pair_report import PairReport
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.lowrank.types import Record, Status


class FittedAttributes:
    """The attributes of a fitted estimator; before `fit` there are none."""

    fitted_: Fitted  # everything that was learned; tools such as `save` read it
    n_features_in_: int
    extrapolation: str = "free"  # of estimators without the parameter

    def interaction(self, first: Name, second: Name) -> float:
        """Return the coefficient of x_i·x_j in y.

        It is 2 M_ij for two features and M_ii for a square, as in ``interactions_.top()``. O(k).

        Parameters
        ----------
        first, second : str or int
            The features, by name or by position.

        Returns
        -------
        float

        Examples
        --------
        >>> import numpy as np
        >>> from quadlin import SecondOrderRegressor
        >>> X = np.random.default_rng(0).standard_normal((200, 3))
        >>> model = SecondOrderRegressor(uncertainty=True).fit(X, 3 * X[:, 0] * X[:, 2] + X[:, 1])
        >>> round(model.interaction("x0", "x2"), 6), round(model.interaction_std(0, 2), 6)
        (3.0, 0.0)
        """
        return self.interactions_[first, second]

    def interaction_std(self, first: Name, second: Name) -> float:
        """Return the standard error of `interaction`. Needs ``uncertainty=True``.

        Parameters
        ----------
        first, second : str or int
            As for `interaction`.

        Returns
        -------
        float
        """
        self._law()
        error = self.interactions_.std_error(first, second)
        assert error is not None
        return error

    @property
    def noise_(self) -> float:
        """Return the standard deviation of the noise.

        Needs ``uncertainty=True``, draws, or a machine that was fitted by its posterior.
        """
        loss = self._fitted("noise_").options.loss
        if loss != "squared":
            kind = "labels" if loss == "logistic" else "counts"
            raise AttributeError(
                f"noise_ is not defined for {kind}: their variance follows from their mean."
            )
        draws = self._fitted("noise_").draws
        if draws is not None:
            return draws.noise
        if self.fitted_.law is None and self.fitted_.noise is not None:
            return self.fitted_.noise
        return self._law().observation_noise * self.fitted_.state.units.target.scale

    @property
    def coef_std_(self) -> Array:
        """Return the standard errors of `coef_`. Needs ``uncertainty=True``."""
        return self._law().coef_std()[0]

    @property
    def intercept_std_(self) -> float:
        """Return the standard error of `intercept_`. Needs ``uncertainty=True``."""
        return self._law().coef_std()[1]

    @property
    def coef_(self) -> Array:
        """Return w in the user's units, one entry per feature of `interactions_.names`."""
        fitted = self._fitted("coef_")
        coef = fitted.state.raw.coef
        return coef if fitted.options.fit_linear else namespace(coef).zeros_like(coef)

    @property
    def intercept_(self) -> float:
        """Return b in the user's units."""
        fitted = self._fitted("intercept_")
        return fitted.state.raw.intercept if fitted.options.fit_intercept else 0.0

    @property
    def components_(self) -> Array:
        """Return the orthonormal rows of the low-rank part."""
        return self._fitted("components_").state.raw_low_rank.components

    @property
    def eigenvalues_(self) -> Array:
        """Return the signed eigenvalues of the low-rank part, in order of decreasing size."""
        return self._fitted("eigenvalues_").state.raw_low_rank.eigenvalues

    @property
    def has_diagonal_(self) -> Array:
        """Return which features have a diagonal entry in M."""
        return self._fitted("has_diagonal_").state.units.free > 0

    @property
    def moments_(self) -> Moments:
        """Return the moments of the features."""
        return self._fitted("moments_").state.features

    @property
    def target_moments_(self) -> Moments:
        """Return the moments of the target, as those of one feature."""
        return self._fitted("target_moments_").state.target

    @property
    def rank_(self) -> int:
        """Return the rank that was fitted, that of the low-rank part beside pairs."""
        return int(self._fitted("rank_").state.low_rank.s.shape[0])

    @property
    def pairs_(self) -> PairReport | None:
        """Return the pairs of features beside the low-rank part; None if there was no search."""
        fitted = self._fitted("pairs_")
        if (report := fitted.pair_report) is None:
            return None
        left = max(1.0, fitted.n_rows if fitted.law is None else float(fitted.law.left))
        rank = int(fitted.state.low_rank.s.shape[0])
        return report_of_products(report, fitted.interactions(), left, rank)

    @property
    def alpha_(self) -> tuple[float, float]:
        """Return the penalties of w and of M, given or chosen."""
        return self._fitted("alpha_").options.alpha

    @property
    def rarity_(self) -> float | None:
        """Return how much more rare columns were shrunk than common ones, given or chosen."""
        return self._fitted("rarity_").rarity

    @property
    def history_(self) -> tuple[Record, ...]:
        """Return the loss after each step."""
        return self._fitted("history_").state.history

    @property
    def status_(self) -> Status:
        """Return how the fit ended."""
        return self._fitted("status_").state.status

    @property
    def n_iter_(self) -> int:
        """Return the number of steps."""
        return max(1, self._fitted("n_iter_").state.history[-1].step)

    @property
    def n_samples_seen_(self) -> int:
        """Return the number of rows learned from."""
        return self._fitted("n_samples_seen_").n_rows

    @property
    def interactions_(self) -> Interactions:
        """Return a view of M as coefficients of products, in the user's units."""
        return self._fitted("interactions_").interactions()

    @property
    def encoder_(self) -> TableEncoder | None:
        """Return the encoder of the text columns, None where there are none."""
        return self._fitted("encoder_").columns.encoder

    @property
    def fill_(self) -> dict[str, float] | None:
        """Return the replacements of missing numbers, by column; None if nothing was filled."""
        return self._fitted("fill_").columns.fill

    def __sklearn_is_fitted__(self) -> bool:
        return "fitted_" in vars(self)

    def _fitted(self, attribute: str) -> Fitted:
        if not self.__sklearn_is_fitted__():
            # An AttributeError too, so that hasattr() tells the truth.
            raise NotFittedError(
                f"This {type(self).__name__} has no {attribute} before `fit` or `partial_fit`."
            )
        return self.fitted_

    def _require_spread(self) -> None:
        """Raise where the standard deviations of predictions are not known."""
        fitted = self._fitted("standard deviations")
        if fitted.draws is None:
            require_law(fitted, self, "Standard deviations of predictions")

    def _trusted(self, X: Array) -> tuple[Array, int]:
        """Return rows as `predict` uses them, and how many of them are held at a bound."""
        return self.fitted_.trust.clipped(X) if self.extrapolation == "clip" else (X, 0)

    def _law(self) -> Uncertainty:
        return require_law(self._fitted("standard errors"), self)


def require_law(fitted: Fitted, estimator: Any, what: str = "Standard errors") -> Uncertainty:
    """Return the law of the error of a fit; raise where it is not known."""
    if fitted.law is not None:
        return fitted.law
    if fitted.state.status is Status.interrupted:
        text = "The fit was interrupted before its standard errors were computed. Fit again."
    elif hasattr(estimator, "draws") and fitted.noise is not None and what != "Standard errors":
        text = (
            f"{what} need a fit with draws=200, which is fast and allows for unseen levels, or "
            "with uncertainty=True. Set one of them and call `fit` again."
        )
    elif getattr(estimator, "uncertainty", False):
        text = (
            f"{what} are not known, because this model was learned by `partial_fit`, or before "
            "uncertainty=True was set. Call `fit`, which computes them."
        )
    else:
        text = f"{what} need a fit with uncertainty=True. Set it and call `fit` again."
        if hasattr(estimator, "draws"):
            text += (
                " For rows of one-hot fields, draws=200 also gives the noise and standard "
                "deviations of predictions, with penalties learned."
            )
    raise AttributeError(text)
