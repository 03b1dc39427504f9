"""scikit-learn's PolynomialCountSketch, random products of two features, and ridge on them."""

from sklearn.kernel_approximation import PolynomialCountSketch
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

TITLE = "PolynomialCountSketch + Ridge"
SETTINGS = [{"components": components} for components in (300, 1000)]


def skip(problem):
    return ""


def run(problem, report, folder, components):
    sketch = PolynomialCountSketch(degree=2, coef0=1, n_components=components, random_state=0)
    model = make_pipeline(sketch, Ridge(1e-3))
    model.fit(problem.X, problem.y)
    report(model.predict, 1)
