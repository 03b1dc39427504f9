"""
Low rank, or a few pairs? The spectrum tells
============================================

Interactions come in two shapes. A few *pairs* of features may interact, or a few *combinations*
of all features. A product x₁x₂ = ¼(x₁ + x₂)² − ¼(x₁ − x₂)² has two eigenvalues, of opposite
signs, so five separate pairs are a matrix of rank ten.
"""

import matplotlib.pyplot as plt
import numpy as np

from quadlin import SecondOrderRegressor
from quadlin.plot import SpectrumDisplay

rng = np.random.default_rng(0)
X = rng.standard_normal((3000, 20))
combination = rng.standard_normal((2, 20)) / 20**0.5
targets = {
    "two combinations": (X @ combination[0]) ** 2 - (X @ combination[1]) ** 2,
    "five pairs": sum(X[:, 2 * i] * X[:, 2 * i + 1] for i in range(5)),
}
train, new = slice(0, 1000), slice(1000, 3000)

# %%
# For each truth we fit a low-rank matrix alone, pairs alone, and the default, which may use
# either or both.

options = {
    "low rank": {"pairs": None},
    "pairs": {"rank": 0, "pairs": 10},
    "default": {},
}
spectra = {}
for name, target in targets.items():
    y = target + 0.5 * rng.standard_normal(3000)
    for label, kind in options.items():
        model = SecondOrderRegressor(random_state=0, **kind).fit(X[train], y[train])
        error = np.mean((model.predict(X[new]) - target[new]) ** 2) / np.var(target[new])
        count = len(model.pairs_.pairs) if model.pairs_ is not None else 0
        print(f"{name}, {label}: rank {model.rank_}, {count} pairs, R² {1 - error:.3f}")
    whole = SecondOrderRegressor(rank=12, alpha=0, pairs=None, random_state=0)
    spectra[name] = SpectrumDisplay.from_estimator(whole.fit(X[train], y[train]))

# %%
# The spectra of a fit of rank 12: the eigenvalues, and the level that noise reaches.

for name, spectrum in spectra.items():
    spectrum.plot()
    spectrum.ax_.set_title(name, pad=22)
    plt.show()

# %%
# **Finding.** Two combinations are two eigenvalues far above the noise. Five pairs are ten
# eigenvalues of similar size, half of them negative. The default chooses the right shape in both
# cases.
