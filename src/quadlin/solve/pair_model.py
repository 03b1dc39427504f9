r"""A low-rank part and a few pairs together, y = b + xᵀw + xᵀ(L + S)x, chosen by one criterion."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log

import numpy as np

from quadlin.core.arrays import lead, to_numpy
from quadlin.core.block import Block
from quadlin.core.chunks import Chunk
from quadlin.core.model import Model, predict
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.pair_choice import SMALLEST
from quadlin.solve.pair_fit import PairFit
from quadlin.solve.pairs import PairSearch
from quadlin.solve.polish import fit_rows
from quadlin.solve.rank import choose_rank
from quadlin.solve.types import Options

STARTS = 4  # fits of a low-rank part at most
CHOICES = 4  # of pairs beside L, each after a joint fit
JOINT_STEPS, JOINT_TOL = 8, 1e-7  # Gauss–Newton steps of the joint fit; relative change of the loss


@dataclass(frozen=True)
class Products:
    r"""A few products :math:`\sum_m a_m z_{i_m} z_{j_m}`: the sparse part S of L + S."""

    i: np.ndarray  # (m,), i ≤ j
    j: np.ndarray  # (m,)
    coef: np.ndarray  # (m,), a: twice the entry of S, or once on its diagonal

    def of(self, block: Block) -> np.ndarray:
        """Return the sum for the rows of a block."""
        values: np.ndarray = to_numpy(block.columns(self.i) * block.columns(self.j)) @ self.coef
        return values


@dataclass(frozen=True)
class PairModel:
    """A model and products in standardised units, its loss and its value by the criterion."""

    model: Model
    units: Units
    products: Products
    loss: float  # Σω r²
    value: float  # of the criterion, less that of the linear fit
    walks: int

    def predict(self, rows: Rows) -> np.ndarray:
        """Return predictions in the user's units."""
        f = np.concatenate(rows.collect(_predicted, self.model, self.products, self.units))
        y: np.ndarray = self.units.target.mean + self.units.target.scale * f
        return y


def _predicted(chunk: Chunk, model: Model, products: Products, units: Units) -> np.ndarray:
    block = Block(chunk.X, units)
    f: np.ndarray = to_numpy(predict(model, block)) + products.of(block)
    return f


def evidence_of_rank(before: float, after: float, rows: float, dof: float) -> float:
    r"""Return −2 log of the Bayes factor of `dof` parameters, their prior variance the likeliest.

    .. math:: \min_g\; N \log(1 + g \tfrac{\mathrm{RSS}_1}{\mathrm{RSS}_0}) - (N - q) \log(1 + g)

    It grows as q(1 + log F) − N log(RSS₀/RSS₁), F the gain per parameter in units of the noise:
    what the extended BIC's q·log N becomes where parameters share one variance.
    """
    if dof >= rows - 1 or before <= 0:
        return 0.0
    left = min(max(after / before, SMALLEST), 1.0)
    F = (1 - left) / dof / (left / (rows - dof))
    g = max(F - 1, 0.0)
    return rows * log(1 + g * left) - (rows - dof) * log(1 + g)


def stepped(model: Model, beta: np.ndarray, tangent: bool) -> Model:
    """Return the model moved along the columns' coefficients: M + UHᵀ + HUᵀ, of the same rank."""
    U, s = (to_numpy(a).astype(float) for a in (model.U, model.s))
    (d, k), free = U.shape, to_numpy(model.free)
    w, c = to_numpy(model.w) + beta[1 : d + 1], model.c + beta[0]
    if tangent:
        H = beta[d + 1 :].reshape(k, d).T
        basis = np.linalg.qr(np.concatenate([U, H], axis=1))[0]
        B, T = basis.T @ U, basis.T @ H
        values, vectors = lead((B * s) @ B.T + B @ T.T + T @ B.T, k)
        before, U, s = free @ (U * U) @ s, basis @ vectors, values
        c = c + free @ (U * U) @ s - before  # c is the mean of f; the columns were not centred
    return replace(model, U=U, s=s, w=w, c=float(c))


def joined(search: PairSearch, fit: PairFit) -> tuple[PairSearch, PairFit]:
    """Let L move together with w and the pairs, to the joint optimum: one or two walks a step."""
    for _ in range(JOINT_STEPS):
        if not search.columns.tangent:
            break
        b = search.columns.base
        model = stepped(search.columns.model, fit.beta[:b], True)
        moved = search.moved(model)
        again = moved.refit(fit)
        if again.loss >= fit.loss * (1 - JOINT_TOL):
            break
        search, fit = moved, again
    return search, fit


def compose(
    rows: Rows,
    units: Units,
    options: Options,
    *,
    rank: int | str = "auto",
    fields: Sequence[np.ndarray] = (),
    hierarchy: str | None = None,
    seed: int = 0,
) -> PairModel:
    """Return the best of pairs alone, L alone, L with pairs, and pairs with L.

    Pairs are searched beside the linear fit. Where the residual's moments then show nothing of low
    rank, that is all. Else a low-rank part is fitted to y, and to what the pairs leave, and pairs
    are searched beside each; L is fitted once more to what those pairs leave, since pairs that only
    stood for L have gone. The value of the criterion decides. An integer `rank` is kept.
    """
    search_beside = partial(
        PairSearch, rows, units, alpha=options.alpha, fields=fields, hierarchy=hierarchy
    )
    walked = rows.walks
    plain = search_beside()
    fit = plain.run()
    alone = _model(plain, fit, _value(plain, fit, 0))
    if rank == 0 or (rank == "auto" and not plain.looks_low_rank()):
        return replace(alone, walks=rows.walks - walked)
    starts: list[PairModel | None] = [None, *([alone] if len(fit.i) else [])]
    candidates = [alone] if rank == "auto" else []
    tried = {pairs_of(alone.products)}
    for start in starts:  # which grows
        target = rows if start is None else _less_pairs(rows, start)
        rng = np.random.default_rng(seed)
        k = choose_rank(target, units, options, plain.weight, rng) if rank == "auto" else int(rank)
        if k == 0:
            continue
        solution, _ = fit_rows(target, units, replace(options, rank=k), plain.weight, rng)
        search = search_beside(model=solution.model)
        search, fit = settled(search, always=start is not None)
        candidate = _model(search, fit, _value(plain, fit, k))
        candidates.append(candidate)
        if fit.loss <= SMALLEST * plain.power:  # exact: nothing is left to choose by
            candidates = [candidate]
            break
        if len(fit.i) and len(starts) < STARTS and pairs_of(candidate.products) not in tried:
            tried.add(pairs_of(candidate.products))
            starts.append(candidate)
    best = min(candidates or [alone], key=lambda c: c.value)
    return replace(best, walks=rows.walks - walked)


def settled(search: PairSearch, always: bool) -> tuple[PairSearch, PairFit]:
    """Choose pairs and fit them jointly with L in turn, until the choice stays the same."""
    fit = search.run()
    for _ in range(CHOICES):
        if not (always or len(fit.i)):
            break
        before = pairs_of(fit)
        search, fit = joined(search, fit)
        fit = search.run()  # beside a better L, other pairs may do
        if pairs_of(fit) == before:
            break
    return search, fit


def pairs_of(fit: Products | PairFit) -> frozenset[tuple[int, int]]:
    """Return the pairs, in no order."""
    return frozenset(zip(fit.i.tolist(), fit.j.tolist(), strict=True))


def _value(plain: PairSearch, fit: PairFit, rank: int) -> float:
    """Return the criterion less that of the linear fit: first the pairs are paid for, then L."""
    before = plain.loss_with(fit.i, fit.j)
    value = plain.criterion(before, fit.dof, fit.taken) - plain.criterion(plain.base_loss, 0, 0)
    if not rank:
        return value
    dof = degrees_of_freedom(plain.d, rank, linear=False, intercept=False)
    return value + evidence_of_rank(before, fit.loss, plain.freedom - fit.dof, dof)


def _model(search: PairSearch, fit: PairFit, value: float) -> PairModel:
    base, i, j = search.columns.base, fit.i, fit.j
    model = stepped(search.columns.model, fit.beta[:base], search.columns.tangent)
    S = Products(i, j, fit.coef)
    return PairModel(model, search.units, S, fit.loss, value, 0)


def _less_pairs(rows: Rows, fit: PairModel) -> Rows:
    """Return the rows with targets less what the pairs say."""
    y = np.concatenate(rows.collect(_less, fit.products, fit.units))
    return rows.reweighted(np.ones(len(y)), y)


def _less(chunk: Chunk, products: Products, units: Units) -> np.ndarray:
    part = products.of(Block(chunk.X, units))
    y: np.ndarray = to_numpy(chunk.y) - units.target.scale * part
    return y
