"""Fit progress through scikit-learn's callbacks (1.9 and later), behind the solver's one hook."""

from collections.abc import Callable
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # before scikit-learn 1.9 there are no callbacks

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing: no callbacks can be set."""

    def with_callbacks(fit: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method as it is."""
        return fit


__all__ = ["CallbackSupportMixin", "FitCallbacks", "with_callbacks"]

Attributes = Callable[[], dict[str, Any]]  # what makes a copy of the estimator ready to predict


class FitCallbacks:
    """The callbacks of one fit; without callbacks nothing is set up and `on_step` is None."""

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:
        self.estimator, self.rows = estimator, {"X": X, "y": y}
        self.root: Any = None
        if getattr(estimator, "_skl_callbacks", None) or hasattr(estimator, "_parent_callback_ctx"):
            # How many samples and rounds of reweighting there will be is not known in advance.
            self.root = estimator._init_callback_context(max_subtasks=None)
            self.root.call_on_fit_task_begin(estimator=estimator, **self.rows)

    @property
    def on_step(self) -> Callable[[Attributes], bool] | None:
        """Return what to call after each step; it tells whether to stop."""
        return None if self.root is None else self._step

    def _step(self, attributes: Attributes) -> bool:
        context = self.root.subcontext(task_name="step")
        context.call_on_fit_task_begin(estimator=self.estimator, **self.rows)
        return self._end(context, attributes)

    def end(self, attributes: Attributes) -> None:
        """Tell that the fit is over."""
        if self.root is not None:
            self._end(self.root, attributes)

    def _end(self, context: Any, attributes: Attributes) -> bool:
        return bool(
            context.call_on_fit_task_end(
                estimator=self.estimator, **self.rows, reconstruction_attributes=attributes
            )
        )
