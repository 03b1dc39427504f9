"""
A photograph from intensities alone
===================================

A detector measures intensities, and loses the phases. In coded diffraction, a picture is
multiplied by a random mask, and the intensities of the Fourier transform are measured, for a few
masks. ``PhaseRetriever`` only needs products with the measurement vectors and their adjoint, so
no matrix is formed.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import fft
from scipy.sparse.linalg import LinearOperator
from sklearn.datasets import load_sample_image

from quadlin import PhaseRetriever
from quadlin.metrics import align_phase, signal_error

photo = load_sample_image("flower.jpg").mean(axis=2)[100:356:2, 200:456:2]
side = len(photo)
rng = np.random.default_rng(0)
masks = rng.choice([1, -1, 1j, -1j], size=(6, side, side))


def forward(v):
    return fft.fft2(masks * v.reshape(side, side), norm="ortho").ravel()


def adjoint(u):
    u = fft.ifft2(u.reshape(masks.shape), norm="ortho")
    return np.sum(masks.conj() * u, axis=0).ravel()


A = LinearOperator((masks.size, side**2), matvec=forward, rmatvec=adjoint, dtype=complex)
intensities = np.abs(forward(photo)) ** 2

# %%
# With 1% of the intensities lost to dead pixels, ``loss="huber"`` leaves those out.

damaged = np.where(rng.random(len(intensities)) < 0.01, 0.0, intensities)
models = {
    "recovered": PhaseRetriever(random_state=0).fit(A, intensities),
    "1% dead pixels": PhaseRetriever(loss="huber", random_state=0).fit(A, damaged),
}
pictures = {"photograph": photo, "one mask": np.log(intensities[: side**2]).reshape(side, side)}
for name, model in models.items():
    error = signal_error(photo.ravel(), model.signal_)
    print(f"{name}: relative error {error:.0e}, {model.status_.name}")
    pictures[name] = align_phase(model.signal_, photo.ravel()).real.reshape(side, side)

fig, axes = plt.subplots(2, 2, figsize=(5, 5), layout="constrained")
for ax, (name, picture) in zip(axes.flat, pictures.items(), strict=True):
    ax.imshow(picture, cmap="gray")
    ax.set(title=name, xticks=[], yticks=[])
plt.show()

# %%
# **Finding.** Six masks determine 16,384 pixels to rounding, from a random start. The intensities
# of one mask look like noise.
