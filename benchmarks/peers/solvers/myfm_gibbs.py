"""myFM: factorization machines by Gibbs sampling; each draw is reported as it is made."""

import numpy as np
from scipy.sparse import csr_matrix

TITLE = "myFM"
SETTINGS = [{"start": 0.1}]
SWEEPS = 1000  # at most: the budget ends it


def skip(problem):
    try:
        import myfm  # noqa: F401
    except ImportError as error:
        return f"not installed ({error})"
    return ""


def run(problem, report, folder, start):
    import myfm

    model = myfm.MyFMRegressor(rank=problem.rank, init_stdev=start, random_seed=0)
    rows, test = csr_matrix(problem.X), csr_matrix(problem.X_test)
    centre, size = float(problem.y.mean()), float(problem.y.std())

    def on_sweep(sweep, fm, hyper, history):
        def predict(X):
            return centre + size * np.asarray(fm.predict_score(test, []))

        return report(predict, sweep + 1), None

    y = ((problem.y - centre) / size).astype(np.float64)
    model.fit(rows, y, n_iter=SWEEPS, n_kept_samples=1, callback=on_sweep)
