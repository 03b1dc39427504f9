r"""How sure a fit with pairs is: the law of the error of b, w, L and the products together."""

from math import nan, sqrt

import numpy as np

from quadlin.core.arrays import Array, namespace, to_numpy
from quadlin.core.model import Steps
from quadlin.solve.choose.left_out_errors import leaves_mean
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.lowrank.levels import Fields, settled_steps
from quadlin.solve.pairs.pair_joint import Joint
from quadlin.solve.pairs.pair_projection import UNSEEN


def pair_uncertainty(joint: Joint, fields: Fields, share: float) -> Uncertainty | None:
    r"""Return :math:`N(0, \sigma^2 H^{-1})`, H the Gram matrix of the regression: one pass.

    A product z_i·z_j is the step E Hᵀ + H Eᵀ with e_i in E and e_j/2 in H. The weights of the rows
    were multiplied by `share` for the search. None where not all parameters are in the regression.
    """
    search, fit = joint.search, joint.fit
    columns, units, before = fit.columns, search.units, search.rows.walks
    (d, k), q = columns.model.U.shape, len(columns.features)
    if q < d or (k and not columns.tangent):
        return None
    gram, ridge = search.normal(fit.i, fit.j)
    error = np.append(-joint.regression.still, 1.0)
    loss = max(float(error @ gram @ error), 0.0) / share  # rounding may make it negative
    W = _inverse_root((gram + ridge)[:-1, :-1] / share)
    dof = float(np.sum(W * (gram[:-1, :-1] @ W))) / share
    left = search.weight / share - dof
    noise = sqrt(loss / left) if left >= 1 else nan
    if leaves_mean(search.penalty.alpha[:2], search.weight):
        # A line may be true nevertheless: as large as the noise, a priori.
        at = np.arange(1, 1 + d)
        ridge[at, at] = d * share * search.penalty.scale
        W = _inverse_root((gram + ridge)[:-1, :-1] / share)
    first = np.unique(fit.i)
    U, free = (to_numpy(a).astype(float) for a in (columns.model.U, units.free))
    E = np.concatenate([U, (np.arange(d)[:, None] == first).astype(float)], axis=1)
    steps = np.zeros((d, W.shape[1], E.shape[1]))
    tangent = W[1 + d : columns.base].reshape(k, d, W.shape[1])
    steps[:, :, :k] = tangent.transpose(1, 2, 0)
    for m, (i, j) in enumerate(zip(fit.i, fit.j, strict=True)):
        steps[j, :, k + int(np.searchsorted(first, i))] += W[columns.base + m] / 2
    diagonal = 2 * np.sum(E[:, None, :] * steps, axis=2)
    xp = namespace(units.scale)

    def like(v: np.ndarray) -> Array:
        return xp.asarray(v, dtype=units.scale.dtype, device=units.scale.device)

    law = Steps(like(E), like(steps), like(W[1 : 1 + d]), like(W[0] + free @ diagonal))
    law = settled_steps(law, units, fields)
    passes = search.rows.walks - before
    return Uncertainty(units, law, noise, noise, dof, left, True, True, passes)


def _inverse_root(H: np.ndarray) -> np.ndarray:
    """Return W with W Wᵀ = H⁻¹, without what the rows and the ridge do not tell."""
    power = np.diag(H)  # none of a constant feature
    size = np.sqrt(np.where(power > 0, power, 1.0))
    values, V = np.linalg.eigh(H / np.outer(size, size))
    seen = values > UNSEEN * values.max()
    return np.asarray(V[:, seen] / np.sqrt(values[seen]) / size[:, None])
