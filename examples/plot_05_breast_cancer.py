"""
Breast cancer: are the probabilities right?
===========================================

569 tumours come with 30 measurements of cell nuclei, and are benign or malignant. A classifier's
probabilities should be calibrated: of the tumours with a probability of 0.8, about 80% should be
benign.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.calibration import calibration_curve
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from quadlin import SecondOrderClassifier

X, y = load_breast_cancer(return_X_y=True)
models = {
    "quadlin": SecondOrderClassifier(random_state=0),
    "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    "boosting": HistGradientBoostingClassifier(random_state=0),
}

# %%
# Every probability is predicted by a model that has not seen the tumour.

fig, ax = plt.subplots(figsize=(5, 4.2), layout="constrained")
ax.plot([0, 1], [0, 1], color="0.6", linestyle="--")
folds = StratifiedKFold(5, shuffle=True, random_state=0)
for (name, model), marker in zip(models.items(), "osD", strict=True):
    p = cross_val_predict(model, X, y, cv=folds, method="predict_proba")[:, 1]
    accuracy = np.mean((p > 0.5) == y)
    unsure = np.mean((p > 0.05) & (p < 0.95))
    print(f"{name}: accuracy {accuracy:.3f}, log-loss {log_loss(y, p):.3f}, unsure {unsure:.0%}")
    share, predicted = calibration_curve(y, p, n_bins=5, strategy="uniform")
    ax.plot(predicted, share, marker=marker, label=name)
ax.set(xlabel="predicted probability of benign", ylabel="share", title="share of benign tumours")
ax.legend()
plt.show()

# %%
# **Finding.** No interaction stands out here, and quadlin fits a linear model of the log-odds. It
# is as accurate as logistic regression, and both are better than boosting. Most predictions are
# near 0 or 1, so the middle bins hold few tumours and their points scatter: this table is too
# small to prove calibration, but shows no gross error of it.
