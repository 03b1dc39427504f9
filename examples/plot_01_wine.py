"""
The chemistry of wine: which measurements act together?
=======================================================

178 Italian wines come with 13 chemical measurements. We predict the intensity of their colour
from the other twelve. A linear model misses something, and boosting needs more rows than these.
"""

# %%
# How well do the models predict wines that they have not seen? Five folds.

import matplotlib.pyplot as plt
from sklearn.datasets import load_wine
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold, cross_val_score

from quadlin import SecondOrderRegressor
from quadlin.plot import InteractionDisplay, PairDisplay

table = load_wine(as_frame=True).data
table = table.rename(columns={"od280/od315_of_diluted_wines": "od280/od315"})
X, y = table.drop(columns="color_intensity"), table["color_intensity"]
models = {
    "ridge regression": RidgeCV(),
    "gradient boosting": HistGradientBoostingRegressor(random_state=0),
    "quadlin": SecondOrderRegressor(random_state=0),
}
folds = KFold(5, shuffle=True, random_state=0)
for name, model in models.items():
    scores = cross_val_score(model, X, y, cv=folds)
    print(f"{name:18} R² {scores.mean():.2f}")

# %%
# Which products carry the difference? Standard errors need ``uncertainty=True``.

model = SecondOrderRegressor(uncertainty=True, random_state=0).fit(X, y)
for pair in model.interactions_.top(3):
    print(f"{pair.first} × {pair.second}: {pair.coefficient:+.3g} ± {pair.std_error:.2g}")

# %%
# The heatmap shows how much columns and pairs of columns move the prediction, in units of the
# target.

InteractionDisplay.from_estimator(model, X, columns=6).plot()
plt.show()

# %%
# The strongest pair: flavanoids deepen the colour where hue is high, and do not where it is low.

PairDisplay.from_estimator(model, X).plot()
plt.show()

# %%
# **Finding.** The products raise R² by 0.11, twice as much as boosting does. With 178 rows the
# standard errors of single products are large: the gain in R² is evidence that some columns
# interact, and the pairs are suggestions which.
