"""fastFM's alternating least squares, warm from sweep to sweep."""

import numpy as np
from scipy.sparse import csc_matrix

TITLE = "fastFM (ALS)"
SETTINGS = [{"start": 0.1}, {"start": 0.3}]
SWEEPS = 300


def skip(problem):
    try:
        from fastFM import als  # noqa: F401
    except ImportError as error:
        return f"not installed ({error})"
    return ""


def run(problem, report, folder, start):
    from fastFM import als

    X, y = csc_matrix(problem.X, dtype=np.float64), problem.y.astype(np.float64)
    options = {"rank": problem.rank, "l2_reg_w": 1e-6, "l2_reg_V": 1e-6}
    model = als.FMRegression(n_iter=0, init_stdev=start, random_state=0, **options).fit(X, y)
    for sweep in range(SWEEPS):
        model.fit(X, y, n_more_iter=1)
        if report(lambda X: model.predict(csc_matrix(X, dtype=np.float64)), sweep + 1):
            return
