"""Fit progress through scikit-learn's callbacks, behind the one hook that the solver knows."""

from collections.abc import Callable
from typing import Any

from sklearn.callback import CallbackSupportMixin, with_callbacks

__all__ = ["CallbackSupportMixin", "step_hook", "with_callbacks"]


def step_hook(
    estimator: Any, X: Any, y: Any, attributes: Callable[[Any], dict[str, Any]]
) -> tuple[Callable[[Any], bool] | None, Callable[[], None]]:
    """Return the hook to call after each step and the one to call at the end.

    `attributes(solution)` gives what makes a copy of the estimator ready to predict. Without
    callbacks nothing is set up and the hook is None.
    """
    if not (
        getattr(estimator, "_skl_callbacks", None) or hasattr(estimator, "_parent_callback_ctx")
    ):
        return None, lambda: None
    # How many rounds of reweighting there will be is not known in advance.
    steps = estimator.max_iter if estimator.loss == "squared" else None
    root = estimator._init_callback_context(max_subtasks=steps)
    root.call_on_fit_task_begin(estimator=estimator, X=X, y=y)

    def on_step(solution: Any) -> bool:
        task = root.subcontext(task_name="step")
        task.call_on_fit_task_begin(estimator=estimator, X=X, y=y)
        stop = task.call_on_fit_task_end(
            estimator=estimator,
            X=X,
            y=y,
            reconstruction_attributes=lambda: attributes(solution),
        )
        return bool(stop)

    def end() -> None:
        root.call_on_fit_task_end(
            estimator=estimator,
            X=X,
            y=y,
            reconstruction_attributes=lambda: {"_fitted": estimator._fitted},
        )

    return on_step, end
