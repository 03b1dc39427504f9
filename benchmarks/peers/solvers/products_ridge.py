"""scikit-learn's ridge on all products of two features."""

from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

TITLE = "products + Ridge"
SETTINGS = [{"alpha": 1e-3}]
LIMIT = 2e9  # bytes of the table of products


def skip(problem):
    n, d = problem.X.shape
    size = 4 * n * d * (d + 3) / 2
    if problem.is_sparse or size <= LIMIT:
        return ""
    return f"the {d * (d + 3) // 2:,} products of {n:,} rows are {size / 1e9:.0f} GB"


def run(problem, report, folder, alpha):
    solver = "sparse_cg" if problem.is_sparse else "auto"
    model = make_pipeline(
        PolynomialFeatures(2, include_bias=False, interaction_only=not problem.has_diagonal),
        Ridge(alpha, solver=solver),
    )
    model.fit(problem.X, problem.y)
    report(model.predict, 1)
