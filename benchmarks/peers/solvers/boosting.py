"""scikit-learn's gradient boosting of trees on histograms."""

from sklearn.ensemble import HistGradientBoostingRegressor

TITLE = "gradient boosting"
SETTINGS = [{"trees": 200}]


def skip(problem):
    return "takes no sparse rows" if problem.is_sparse else ""


def run(problem, report, folder, trees):
    model = HistGradientBoostingRegressor(max_iter=trees, early_stopping=False, random_state=0)
    model.fit(problem.X, problem.y)
    report(model.predict, trees)
