"""
A stream against a fit
======================

``partial_fit`` sees every row once and keeps O(kd) numbers. How much worse is it than ``fit``,
which may read the rows as often as it likes? And how far are both from the best that an unbiased
estimate can do?
"""

import matplotlib.pyplot as plt
import numpy as np

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
from quadlin.metrics import degrees_of_freedom

d, k, noise = 20, 2, 1.0
counts = (1000, 2000, 5000, 10000, 20000, 50000)
bound = noise**2 * degrees_of_freedom(d, k) / np.array(counts)
errors = {"fit": [], "partial_fit": [], "partial_fit, no rows kept": []}
for seed in range(3):
    data = make_second_order(50000, d, rank=k, noise=noise, n_test=2000, random_state=seed)
    found = {name: [] for name in errors}
    streams = {
        "partial_fit": SecondOrderRegressor(rank=k, alpha=0, random_state=0),
        "partial_fit, no rows kept": SecondOrderRegressor(
            rank=k, alpha=0, max_memory="minimal", random_state=0
        ),
    }
    before = 0
    for count in counts:
        fitted = SecondOrderRegressor(rank=k, alpha=0, random_state=0)
        models = {"fit": fitted.fit(data.X[:count], data.y[:count])}
        for name, stream in streams.items():
            models[name] = stream.partial_fit(data.X[before:count], data.y[before:count])
        before = count
        for name, model in models.items():
            found[name].append(np.mean((model.predict(data.X_test) - data.y_test) ** 2))
    for name, values in found.items():
        errors[name].append(values)

# %%
# The dashed line is σ²·dof/n, the excess risk of least squares with n rows.

fig, ax = plt.subplots(figsize=(5, 4), layout="constrained")
ax.loglog(counts, bound, "--", color="0.4", label="σ²·dof/n")
for (name, values), marker in zip(errors.items(), "osD", strict=True):
    mean = np.mean(values, axis=0)
    ax.loglog(counts, mean, marker=marker, label=name)
    print(f"{name:26} {mean[-1] / bound[-1]:.2f} times the bound with 50,000 rows")
ax.set(xlabel="rows", title="mean squared error without noise")
ax.legend()
plt.show()

# %%
# **Finding.** After the first batch, the stream follows the bound as closely as the fit does.
# Without a first batch it takes some ten thousand rows to find M, and then catches up.
