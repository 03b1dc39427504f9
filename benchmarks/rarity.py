"""Words of a text: how much more rare columns should shrink, and what quadlin chooses.

Texts of some 40 words by Zipf's law, as 0/1, counts or TF-IDF. The target is linear in them, with
coefficients proportional to (standard deviation of the column)^(−p): p = 0 are equal coefficients
of raw columns, p = 1 those of standardised columns. The noise has the variance of the signal.

    python benchmarks/rarity.py

prints R² against the noise-free target on 2,000 new texts, as means over the seeds: ridge
regression on raw and on standardised columns, whose penalty is chosen by five folds, and quadlin
with `rarity=None` and by default.
"""

import argparse
import warnings

import numpy as np
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from quadlin import SecondOrderRegressor

WORDS, LENGTH, NEW_ROWS = 1000, 40, 2000
KINDS, POWERS, ROWS = ("0/1", "counts", "TF-IDF"), (0.0, 0.5, 1.0), (600, 3000)


def texts(n, kind, power, seed):
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, WORDS + 1)
    lengths = np.maximum(3, rng.poisson(LENGTH, n))
    words = rng.choice(WORDS, lengths.sum(), p=share / share.sum())
    rows = np.repeat(np.arange(n), lengths)
    X = csr_array((np.ones(len(words)), (rows, words)), shape=(n, WORDS))
    X.sum_duplicates()
    if kind == "0/1":
        X.data[:] = 1
    elif kind == "TF-IDF":
        X = csr_array(TfidfTransformer(sublinear_tf=True).fit_transform(X))
    sd = X.toarray().std(axis=0)
    f = X @ (rng.standard_normal(WORDS) * np.where(sd > 0, sd, 1) ** -power)
    f = (f - f.mean()) / f.std()
    return X, f, f + rng.standard_normal(n)


def ridge(*steps):
    grid = {"ridge__alpha": 10.0 ** np.arange(-2, 5.1, 0.5)}
    return GridSearchCV(make_pipeline(*steps, Ridge()), grid, cv=5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    print("columns  p     rows   raw ridge  standardised  rarity=None  quadlin  rarity_")
    for kind in KINDS:
        for power in POWERS:
            for n in ROWS:
                scores, chosen = [], []
                for seed in range(seeds):
                    X, f, y = texts(n + NEW_ROWS, kind, power, seed)
                    models = (
                        ridge(),
                        ridge(StandardScaler(with_mean=False)),
                        SecondOrderRegressor(rarity=None),
                        SecondOrderRegressor(),
                    )
                    new = [m.fit(X[:n], y[:n]).predict(X[n:]) for m in models]
                    scores.append([1 - np.mean((g - f[n:]) ** 2) / np.var(f[n:]) for g in new])
                    chosen.append(models[-1].rarity_)
                raw, standard, none, auto = np.mean(scores, axis=0)
                print(f"{kind:7}  {power:<4}  {n:<5}  {raw:9.3f}  {standard:12.3f}  {none:11.3f}  "
                      f"{auto:7.3f}  {', '.join(map(str, chosen))}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
