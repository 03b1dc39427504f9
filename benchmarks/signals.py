"""How many measurements recover a signal or a matrix, without noise unless stated.

    python benchmarks/signals.py phase [--d 256] [--trials 20]
    python benchmarks/signals.py flow [--d 64] [--trials 10]
    python benchmarks/signals.py sensing [--trials 5]

"phase" prints how often PhaseRetriever finds a signal from Gaussian vectors, with default options:
a relative error of at most 1e-6 up to sign or phase, or 1.5 times the Cramér–Rao bound with noise.
"flow" prints the same without noise, from few measurements, beside a truncated amplitude flow.
"sensing" prints the share of matrices that MatrixSensing recovers to 1e-6, by rank and measurements
per unknown: M of both signs, 30 × 30, or 30 × 20 for pairs of vectors.
"""

import argparse
import time
import warnings

import numpy as np

from quadlin import MatrixSensing, PhaseRetriever
from quadlin.metrics import degrees_of_freedom, signal_error

CASES = [  # kind, measurements per entry, standard deviation of the noise, share of gross errors
    *(("real", 4, 0.0, 0.0), ("complex", 4, 0.0, 0.0), ("real", 3, 0.0, 0.0)),
    *(("complex", 3, 0.0, 0.0), ("real", 8, 0.1, 0.0), ("complex", 8, 0.1, 0.0)),
    ("complex", 8, 0.0, 0.05),
]
D, E = 30, 20
RANKS = (1, 2, 3, 4, 5)
RATIOS = (1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
VECTORS = {
    "Gaussian": lambda rng, n, d: rng.standard_normal((n, d)),
    "±1": lambda rng, n, d: rng.choice([-1.0, 1.0], size=(n, d)),
    "0/1, 30% ones": lambda rng, n, d: np.where(rng.uniform(size=(n, d)) < 0.3, 1.0, 0.0),
}


def draw(kind, n, d, seed):
    """Return vectors whose entries have variance 1, and a signal of norm 1."""
    rng = np.random.default_rng(seed)
    A, z = rng.standard_normal((n, d)), rng.standard_normal(d)
    if kind == "complex":
        A = (A + 1j * rng.standard_normal((n, d))) / np.sqrt(2)
        z = z + 1j * rng.standard_normal(d)
    return A, z / np.linalg.norm(z), rng


def bound(A, z, noise):
    """Return the Cramér–Rao bound of the relative error: σ·√tr (JᵀJ)⁺."""
    J = 2 * (A @ z).conj()[:, None] * A
    J = np.hstack([J.real, -J.imag]) if np.iscomplexobj(A) else J
    values = np.linalg.eigvalsh(J.T @ J)
    return noise * np.sqrt(np.sum(1 / values[np.iscomplexobj(A) :]))  # the phase is not measured


def phase(o):
    print("| vectors | n/d | noise | gross errors | recovered | worst error | products | CPU s |")
    print("|---" * 8 + "|")
    for kind, multiple, noise, gross in CASES:
        errors, relative, products, seconds = [], [], [], []
        for seed in range(o.trials or 20):
            A, z, rng = draw(kind, multiple * o.d, o.d, seed)
            y = np.abs(A @ z) ** 2 + noise * rng.standard_normal(len(A))
            wrong = rng.uniform(size=len(A)) < gross
            y[wrong] = 100 * rng.uniform(size=np.count_nonzero(wrong))
            model = PhaseRetriever(loss="huber" if gross else "squared", random_state=seed)
            start = time.process_time()
            model.fit(A, y)
            seconds.append(time.process_time() - start)
            products.append(model.history_[-1].passes)
            errors.append(signal_error(z, model.signal_))
            relative.append(errors[-1] / (1.5 * bound(A, z, noise) if noise else 1e-6))
        found = f"{sum(r <= 1 for r in relative)}/{len(errors)} | {max(errors):.0e}"
        cost = f"{int(np.median(products))} | {np.median(seconds):.2f}"
        print(f"| {kind} | {multiple} | {noise:g} | {gross:.0%} | {found} | {cost} |", flush=True)


def amplitude_flow(A, y, steps=2000, step=0.6, gamma=0.7):
    """Recover z from |Az|² by truncated amplitude flow (Wang, Giannakis and Eldar, 2018)."""
    n = len(A)
    size, psi = np.sqrt(y), np.linalg.norm(A, axis=1)
    # The start is orthogonality-promoting: the vectors with the largest |aᵀz|/|a|.
    most = np.argsort(-size / psi)[: -(-n // 6)]
    B = A[most] / psi[most][:, None]
    z = np.linalg.eigh(B.conj().T @ B)[1][:, -1] * np.sqrt(np.mean(y))
    for _ in range(steps):
        p = A @ z
        kept = np.abs(p) >= size / (1 + gamma)
        residual = kept * (p - size * p / np.maximum(np.abs(p), 1e-300))
        z = z - step / n * (A.conj().T @ residual)
        if np.linalg.norm(residual) <= 1e-10 * np.linalg.norm(size):
            break
    return z


def flow(o):
    print("| vectors | n/d | PhaseRetriever | truncated amplitude flow |\n" + "|---" * 4 + "|")
    places = [("real", m) for m in (1.6, 2.0, 2.5, 3.0)]
    for kind, multiple in places + [("complex", m) for m in (2.5, 3.0, 3.5, 4.0)]:
        found = np.zeros(2, dtype=int)
        for seed in range(o.trials or 10):
            A, z, _ = draw(kind, int(multiple * o.d), o.d, seed)
            y = np.abs(A @ z) ** 2
            ours = PhaseRetriever(random_state=seed).fit(A, y).signal_
            found += [signal_error(z, v) <= 1e-6 for v in (ours, amplitude_flow(A, y))]
        print(f"| {kind} | {multiple} | {found[0]} | {found[1]} of {o.trials or 10} |", flush=True)


def measured(vectors, k, ratio, seed, pairs):
    """Return vectors (or two of them), their measurements, and the matrix."""
    rng, kind = np.random.default_rng(seed), VECTORS[vectors]
    U, V = (np.linalg.qr(rng.standard_normal((d, k)))[0] for d in (D, E))
    if pairs:
        n = int(np.ceil(ratio * k * (D + E - k)))
        A, B = kind(rng, n, D), kind(rng, n, E)
        return (A, B), np.sum((A @ U) * (B @ V), axis=1), U @ V.T
    signs = np.where(np.arange(k) % 2, -1.0, 1.0)
    n = int(np.ceil(ratio * degrees_of_freedom(D, k, linear=False, intercept=False)))
    A = kind(rng, n, D)
    return A, (A @ U) ** 2 @ signs, U * signs @ U.T


def success(vectors, k, ratio, pairs, trials):
    count = 0
    for seed in range(trials):
        rows, y, M = measured(vectors, k, ratio, seed, pairs)
        model = MatrixSensing(rank=k, random_state=seed).fit(rows, y)
        count += np.linalg.norm(model.matrix_ - M) <= 1e-6 * np.linalg.norm(M)
    return count / trials


def sensing(o):
    panels = [(f"aᵀMa, {name}", name, False) for name in VECTORS]
    panels += [(f"aᵀMb, {name}", name, True) for name in ("Gaussian", "0/1, 30% ones")]
    for title, vectors, pairs in panels:
        print(f"\n{title}\n\n| rank | " + " | ".join(f"{r:g}" for r in RATIOS) + " |")
        print("|---" * (len(RATIOS) + 1) + "|")
        for k in RANKS:
            shares = [success(vectors, k, ratio, pairs, o.trials or 5) for ratio in RATIOS]
            print(f"| {k} | " + " | ".join(f"{s:.0%}" for s in shares) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["phase", "flow", "sensing"])
    parser.add_argument("--d", type=int, default=256, help="entries of a signal")
    parser.add_argument("--trials", type=int, help="default: 20 signals, 5 matrices")
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    {"phase": phase, "flow": flow, "sensing": sensing}[o.what](o)


if __name__ == "__main__":
    main()
