"""Ctrl-C while rank and penalties are being chosen: the best candidate so far, without a pass."""

from dataclasses import replace
from math import sqrt

import numpy as np

from quadlin.core.arrays import moved, namespace, solved
from quadlin.core.model import Model
from quadlin.solve.choose.candidates import Candidates
from quadlin.solve.lowrank.tangent_gram import Candidate, TangentGram
from quadlin.solve.lowrank.types import Options, Record, Solution, Status


def best_so_far(search: Candidates, options: Options) -> tuple[Options, Solution, float] | None:
    """Return the best candidate of a search that was interrupted; None where there is none yet.

    Of low ranks it is the model that their evidence was computed at, of ridge regression the one
    that its sums give; all products would take another pass.

    Returns
    -------
    options, solution, noise
        With the rank and the penalties of the candidate, the status `interrupted`, and σ of the
        standardised target.
    """
    tried = [*search.candidates(), *([search.latest] if search.latest is not None else [])]
    models = [(c, _model_of(c, search)) for c in tried]
    fitted = [(c, model) for c, model in models if model is not None]
    if not fitted:
        return None
    best, model = max(fitted, key=lambda pair: pair[0].merit)
    unit, walks = search.units.target.scale**2, search.rows.walks
    history = (
        Record(0, walks, search.units.target.power * unit),
        Record(1, walks, best.noise * unit),
    )
    chosen = replace(options, rank=best.rank, alpha=best.alpha)
    return chosen, Solution(model, search.units, Status.interrupted, history), sqrt(best.noise)


def _model_of(candidate: Candidate, search: Candidates) -> Model | None:
    if candidate.model is not None:
        return candidate.model
    gram, units = candidate.gram, search.units
    if candidate.rank or not search.plain or not isinstance(gram, TangentGram):
        return None
    G = np.asarray(gram.products, dtype=np.float64)
    beta = solved(G[:-1, :-1] + np.diag(gram.penalty(candidate.alpha)), G[:-1, -1:])[:, 0]
    xp, d = namespace(units.scale), len(beta) - 1
    w = xp.astype(moved(beta[1:], units.scale) / units.penalty_scale, units.scale.dtype)
    U = xp.zeros((d, 0), dtype=w.dtype, device=units.scale.device)
    return Model(U, w[:0], w, float(beta[0]), units.free)
