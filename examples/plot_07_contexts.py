"""
Who rates what, and when: contexts and genres
=============================================

Ratings depend on a user, a film, and a context such as hour and device. A factorization machine
learns a vector for each level of each column, and a linear model learns a bias for each.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from quadlin import FactorizationMachineRegressor

rng = np.random.default_rng(0)
sizes = {"user": 300, "film": 200, "hour": 24, "device": 4}
n = 20000
rows = pd.DataFrame({name: rng.integers(size, size=n) for name, size in sizes.items()})
genre = rng.random((200, 3)) < 0.4
rows[["comedy", "drama", "war"]] = genre[rows["film"]].astype(float)
vectors = {name: rng.normal(size=(size, 3)) * 0.5 for name, size in sizes.items()}
vectors["film"] += genre @ rng.normal(size=(3, 3)) * 0.5  # films of a genre are alike
parts = np.stack([vectors[name][rows[name]] for name in sizes])
products = (parts.sum(axis=0) ** 2 - (parts**2).sum(axis=0)) / 2
truth = 3 + 0.3 * rng.normal(size=300)[rows["user"]] + products.sum(axis=1)
rating = truth + 0.8 * rng.normal(size=n)
codes = list(sizes)
rows[codes] = rows[codes].astype(str).astype("category")

# %%
# Errors on 4,000 new ratings, against the truth without noise, for growing tables.

warnings.simplefilter("ignore")  # users without ratings so far are predicted as average ones
test = slice(16000, n)
counts = (1000, 2000, 4000, 8000, 16000)
errors = {"biases": [], "quadlin, ids alone": [], "quadlin, with genres": []}
for count in counts:
    train = slice(0, count)
    biases = make_pipeline(OneHotEncoder(handle_unknown="ignore"), RidgeCV(np.logspace(-1, 3, 9)))
    predicted = [biases.fit(rows[codes][train], rating[train]).predict(rows[codes][test])]
    for columns in (codes, list(rows)):
        model = FactorizationMachineRegressor(random_state=0)
        model.fit(rows[columns][train], rating[train])
        predicted.append(model.predict(rows[columns][test]))
    for name, p in zip(errors, predicted, strict=True):
        errors[name].append(np.sqrt(np.mean((p - truth[test]) ** 2)))

_, ax = plt.subplots(figsize=(5, 3.8), layout="constrained")
labels = {"xlabel": "ratings", "title": "error of the expected rating"}
pd.DataFrame(errors, counts).plot(ax=ax, loglog=True, marker="o", **labels)
plt.show()

# %%
# **Finding.** Biases stop improving early, because taste is a product of user and film. With few
# ratings per film the genres help; with many, the ids alone do as well.
