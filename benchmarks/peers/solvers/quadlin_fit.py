"""quadlin, with nothing tuned: the rank is given, as to all others, and no penalty."""

import warnings

from quadlin import FactorizationMachineRegressor, SecondOrderRegressor

TITLE = "quadlin"
SETTINGS = [{}]


class Reporting:
    """A callback of scikit-learn that reports the model of every step."""

    def __init__(self, report):
        self.report = report

    def setup(self, estimator, context): ...
    def teardown(self, estimator, context): ...
    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(self, estimator, context, *, fitted_estimator):
        passes = fitted_estimator.history_[-1].passes
        return self.report(fitted_estimator.predict, passes)


def skip(problem):
    return ""


def run(problem, report, folder):
    kind = SecondOrderRegressor if problem.has_diagonal else FactorizationMachineRegressor
    model = kind(problem.rank, alpha=0.0, pairs=None, random_state=0)
    warnings.simplefilter("ignore")  # stopped on purpose
    model.set_callbacks(Reporting(report))
    model.fit(problem.X, problem.y)
