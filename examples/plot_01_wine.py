"""
Wine
====
"""

from sklearn.datasets import load_wine

from quadlin import SecondOrderRegressor
from quadlin.plot import InteractionDisplay

table = load_wine(as_frame=True)
X = table.data.drop(columns="color_intensity")
y = table.data["color_intensity"]
model = SecondOrderRegressor(random_state=0).fit(X, y)
InteractionDisplay.from_estimator(model, X).plot()
