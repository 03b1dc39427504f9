"""How often PhaseRetriever finds the signal, and a picture found from coded diffraction.

Gaussian vectors, no noise unless said, nothing tuned; recovered means a relative error of at most
1e-6 up to sign or phase (1.5 times the Cramér–Rao bound with noise or gross errors).
Run: python benchmarks/phase.py [--d 256] [--trials 20] [--picture docs/phase.png]
"""

import argparse
import time
import warnings

import numpy as np
from scipy import fft
from scipy.sparse.linalg import LinearOperator

from quadlin import PhaseRetriever
from quadlin.metrics import align_phase, signal_error

# kind, measurements per entry, standard deviation of the noise and share of gross errors in y
CASES = [
    ("real", 4, 0.0, 0.0),
    ("complex", 4, 0.0, 0.0),
    ("real", 3, 0.0, 0.0),
    ("complex", 3, 0.0, 0.0),
    ("real", 8, 0.1, 0.0),
    ("complex", 8, 0.1, 0.0),
    ("complex", 8, 0.0, 0.05),
]


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


def race(d, trials):
    print("| vectors | n/d | noise | gross errors | recovered | worst error | products | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, multiple, noise, gross in CASES:
        errors, relative, products, seconds = [], [], [], []
        for seed in range(trials):
            A, z, rng = draw(kind, multiple * d, d, seed)
            y = np.abs(A @ z) ** 2 + noise * rng.standard_normal(len(A))
            wrong = rng.uniform(size=len(A)) < gross
            y[wrong] = 100 * rng.uniform(size=np.count_nonzero(wrong))
            model = PhaseRetriever(loss="huber" if gross else "squared", random_state=seed)
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(A, y)
            seconds.append(time.perf_counter() - start)
            products.append(model.history_[-1].passes)
            errors.append(signal_error(z, model.signal_))
            relative.append(errors[-1] / (1.5 * bound(A, z, noise) if noise else 1e-6))
        print(
            f"| {kind} | {multiple} | {noise:g} | {gross:.0%} | "
            f"{sum(r <= 1 for r in relative)}/{trials} | {max(errors):.0e} | "
            f"{int(np.median(products))} | {np.median(seconds):.2f} |",
            flush=True,
        )


def fourier_masks(side, count, rng):
    """Return |FFT(mask ∘ picture)|² of random masks as an operator."""
    masks = rng.choice([1, -1, 1j, -1j], size=(count, side, side))

    def forward(v):
        return fft.fft2(masks * v.reshape(side, side), norm="ortho").ravel()

    def adjoint(u):
        return np.sum(
            masks.conj() * fft.ifft2(u.reshape(masks.shape), norm="ortho"), axis=0
        ).ravel()

    shape = (masks.size, side * side)
    return LinearOperator(shape, matvec=forward, rmatvec=adjoint, dtype=complex)


def test_picture(side):
    """Return a picture of discs, stripes and letters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1, 1), dpi=side)
    axes = figure.add_axes((0, 0, 1, 1))
    x, y = np.meshgrid(np.linspace(0, 1, 256), np.linspace(0, 1, 256))
    sky = 0.35 + 0.4 * y + 0.08 * np.sin(60 * x * (1 + y))
    sky[(x - 0.72) ** 2 + (y - 0.28) ** 2 < 0.025] = 1.0
    sky[y > 0.8 - 0.35 * np.abs(np.sin(5 * x + 1)) * (1 - x)] = 0.15
    axes.imshow(sky, cmap="gray", vmin=0, vmax=1, extent=(0, 1, 0, 1), aspect="auto")
    axes.text(0.5, 0.12, "|a·z|²", color="white", ha="center", fontsize=14)
    axes.axis("off")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].mean(axis=2) / 255


def draw_picture(path, side=128, count=6):
    from matplotlib.figure import Figure

    rng = np.random.default_rng(0)
    z = test_picture(side).ravel()
    A = fourier_masks(side, count, rng)
    y = np.abs(A @ z) ** 2
    start = time.perf_counter()
    model = PhaseRetriever(random_state=0).fit(A, y)
    error, products = signal_error(z, model.signal_), model.history_[-1].passes
    print(
        f"coded diffraction, {count} masks, {side} × {side}: error {error:.0e}, "
        f"{products} products, {time.perf_counter() - start:.1f} s"
    )
    figure = Figure(figsize=(7.5, 2.8), layout="constrained")
    intensities = np.fft.fftshift(y.reshape(count, side, side)[0])
    pictures = {
        "the picture": z.reshape(side, side),
        f"one of {count} measured intensities (log)": np.log(intensities + 1e-3),
        f"recovered, error {error:.0e}": align_phase(model.signal_, z).real.reshape(side, side),
    }
    for axes, (title, picture) in zip(figure.subplots(1, 3), pictures.items(), strict=True):
        axes.imshow(picture, cmap="gray")
        axes.set_title(title, fontsize=9)
        axes.axis("off")
    figure.savefig(path, dpi=85)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--d", type=int, default=256)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--picture", default="", help="draw this PNG instead")
    options = parser.parse_args()
    if options.picture:
        draw_picture(options.picture)
    else:
        race(options.d, options.trials)


if __name__ == "__main__":
    main()
