"""The callbacks of scikit-learn 1.9 and later, behind the one hook of the solver.

No other module knows what scikit-learn calls them. A version without these names calls no callback,
and fits as if there were none; `tests/estimators/test_callbacks.py` says which name is gone.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from quadlin.estimators.fitted import Attributes, OnStep

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # before scikit-learn 1.9 there are no callbacks
    CallbackSupportMixin = object

    def with_callbacks(fit: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method as it is."""
        return fit


__all__ = ["CallbackSupportMixin", "FitCallbacks", "watched"]
OWN, BEGIN = "_skl_callbacks", "_init_callback_context"  # an attribute and a method of the mixin

Method = TypeVar("Method", bound=Callable[..., Any])


def watched(fit: Method) -> Method:
    """Let a method tell callbacks of its steps; its type stays the same."""
    watched: Method = with_callbacks(fit)
    return watched


class FitCallbacks:
    """The callbacks of one fit; without any, nothing is set up and `on_step` is None."""

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:
        self.estimator, self.rows = estimator, {"X": X, "y": y}
        self.root: Any = None
        self.on_step: OnStep | None = None  # what to call after each step; it tells whether to stop
        begin = getattr(estimator, BEGIN, None)
        if begin and getattr(estimator, OWN, None):
            # How many samples and rounds of reweighting there will be is not known in advance.
            self.root = begin(max_subtasks=None)
            self.root.call_on_fit_task_begin(estimator=estimator, **self.rows)
            self.on_step = self._step

    def _step(self, attributes: Attributes) -> bool:
        context = self.root.subcontext(task_name="step")
        context.call_on_fit_task_begin(estimator=self.estimator, **self.rows)
        return self._end(context, attributes)

    def end(self, attributes: Attributes) -> None:
        """Tell the callbacks that the fit is over."""
        if self.root is not None:
            self._end(self.root, attributes)

    def _end(self, context: Any, attributes: Attributes) -> bool:
        return bool(
            context.call_on_fit_task_end(
                estimator=self.estimator, **self.rows, reconstruction_attributes=attributes
            )
        )
