"""polylearn's coordinate descent, warm from sweep to sweep."""

import warnings

import numpy as np

TITLE = "polylearn"
SETTINGS = [{"start": 0.1}]
SWEEPS = 300


def skip(problem):
    try:
        import polylearn  # noqa: F401
    except ImportError as error:
        return f"not installed ({error})"
    return ""


def run(problem, report, folder, start):
    from polylearn import FactorizationMachineRegressor

    warnings.simplefilter("ignore")  # it warns of each sweep that it has not converged
    options = {"degree": 2, "n_components": problem.rank, "alpha": 1e-8, "beta": 1e-8, "tol": 0}
    model = FactorizationMachineRegressor(
        max_iter=1, warm_start=True, init_lambdas="ones", random_state=0, **options
    )
    centre, y = problem.y.mean(), problem.y.astype(np.float64)
    for sweep in range(SWEEPS):
        model.fit(problem.X, y - centre)
        if report(lambda X: centre + model.predict(X), sweep + 1):
            return
