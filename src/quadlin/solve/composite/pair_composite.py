"""The pairs that are requested, the low-rank part fitted with them, and the uncertainty of both."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import log, nan, sqrt

import numpy as np

from quadlin.core.arrays import namespace, to_numpy
from quadlin.core.model import Model, Steps, in_units
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units
from quadlin.solve.choose.candidates import BEGIN
from quadlin.solve.choose.choice import fit_choosing, search_of
from quadlin.solve.choose.penalties import maximised
from quadlin.solve.choose.rank_search import RankSearch, leaves_mean
from quadlin.solve.fits.error_steps import ErrorSteps
from quadlin.solve.fits.uncertainty import Uncertainty
from quadlin.solve.lowrank.design import EXACT_COLUMNS, Alpha, Design
from quadlin.solve.lowrank.levels import Fields, settled_steps
from quadlin.solve.lowrank.linear_model import Gram
from quadlin.solve.lowrank.types import Plan, Problem, finished
from quadlin.solve.pairs.pair_choice import SMALLEST
from quadlin.solve.pairs.pair_joint import Joint
from quadlin.solve.pairs.pair_regression import UNSEEN, uncorrelated
from quadlin.solve.pairs.pair_terms import PairTerms

SETTLED = 0.2  # the relative difference of penalties that are about the same


@dataclass(frozen=True)
class PairRequest:
    """Which pairs are requested."""

    most: int | None = None  # a maximum; None is the limit of the search
    given: tuple[tuple[int, int], ...] | None = None  # exactly these
    asked: bool = True  # by the user; otherwise a quick check of the rows comes first
    entry: tuple[int, ...] | None = None  # the step in which each given pair enters; None: in turn

    @classmethod
    def of(cls, terms: PairTerms, entry: np.ndarray) -> "PairRequest":
        """Return a request for products that were chosen, with the steps in which they entered."""
        given = tuple(zip(terms.i.tolist(), terms.j.tolist(), strict=True))
        return cls(given=given, entry=tuple(entry.tolist()))

    @property
    def products(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the given products, and the step in which each enters, from 1."""
        i, j = np.array(self.given or (), dtype=np.int64).reshape(-1, 2).T
        entry = range(1, len(i) + 1) if self.entry is None else self.entry
        return i, j, np.array(entry, dtype=np.int64)


@dataclass(frozen=True)
class ProductPrior:
    """The prior of products, and the noise of a row of weight 1."""

    like_low_rank: bool  # whether they have the penalty of L, which was given
    least: float = 0.0  # the smallest penalty
    noise: float | None = None  # its variance, if known

    def penalty(self, alpha: Alpha) -> float:
        """Return the penalty of a product, given those of w and L."""
        return max(alpha[1] if self.like_low_rank else 0.0, self.least)

    def weighing(self, share: float) -> "ProductPrior":
        """Return the same for rows whose weights are multiplied."""
        noise = None if self.noise is None else self.noise * share
        return replace(self, least=self.least * share, noise=noise)


@dataclass(frozen=True)
class LowRankPart:
    """The parts that are fitted together with pairs: w and L, with their penalties."""

    model: Model
    alpha: Alpha

    @classmethod
    def of(cls, rows: Rows, plan: Plan, units: Units) -> "LowRankPart":
        """Fit rows, and return the model in the given units."""
        search, surveyed = None, rows.reduce(survey)
        if plan.automatic.alpha and surveyed.target.var[0] > 0:
            of_rows = plan.make_units(surveyed.features, surveyed.target)
            search = search_of(rows, of_rows, plan, surveyed)
            search.thorough = False  # the result is only a start for pairs and L together
        state, chosen = fit_choosing(rows, plan, surveyed=surveyed, search=search)
        return cls(in_units(finished(state).model, state.units, units), chosen.alpha)

    @property
    def rank(self) -> int:
        """Return the rank of L."""
        return int(self.model.s.shape[0])

    def is_like(self, other: "LowRankPart") -> bool:
        """Return whether two fits have the same rank and about the same penalties."""
        return self.rank == other.rank and bool(np.allclose(self.alpha, other.alpha, rtol=SETTLED))


@dataclass(frozen=True)
class Composite:
    """Pairs and the low-rank part that was fitted with them."""

    joint: Joint
    alpha: Alpha  # of w and of L
    value: float  # log evidence

    @property
    def rank(self) -> int:
        """Return the rank of L."""
        return int(self.joint.search.columns.model.U.shape[1])

    @property
    def log_tried(self) -> float:
        """Return the log of the number of products that were tried."""
        return log(max(1, self.joint.search.criterion.candidates))

    @cached_property
    def left_out_squares(self) -> np.ndarray:
        """Return ωe² of each row when it is left out, for the standardised target: one pass."""
        return self.joint.search.left_out_squares()


def evidence_of(search: RankSearch, part: LowRankPart, ridge: Plan) -> float:
    """Return the log evidence of a rank, fitted to the rows of a search.

    With more parameters than fit in a matrix, it is that of ridge regression plus the log Bayes
    factor of what the rank explains in addition; `ridge` is the plan of ridge regression.
    """
    rows, units, options, d, k = search.rows, search.units, search.options, search.d, part.rank
    if not k:
        return search.ridge().evidence
    dof, weight = options.dof(d, k), search.weight
    if dof > EXACT_COLUMNS and k < d:
        problem = Problem(rows, units, options, np.random.default_rng(search.seed))
        models = (LowRankPart.of(rows, ridge, units).model, part.model)
        before, after = (problem.sums(model, squares=False).loss for model in models)
        gain = evidence_of_rank(before, after, weight - d - 1, dof - d - 1)
        return search.ridge().evidence + gain
    if k == d:
        candidate = search.candidate(k)
    else:
        gram = Gram.of(rows, Design.at(part.model.U, units, options))
        begin = np.log(np.maximum(part.alpha, 1e-9 * weight) / gram.weight).tolist()
        starts = [begin, [begin[0], log(BEGIN)], [begin[0], log(BEGIN / 50)]]
        candidate = search.noted(k, maximised(gram, starts), part.model, gram)
    assert candidate is not None
    return candidate.merit


def evidence_of_rank(before: float, after: float, rows: float, dof: float) -> float:
    r"""Return the log Bayes factor of `dof` parameters, with their most likely prior variance.

    .. math:: \max_g\; \tfrac{N - q}{2} \log(1 + g)
              - \tfrac{N}{2} \log(1 + g \tfrac{\mathrm{RSS}_1}{\mathrm{RSS}_0})

    It grows as ½(N log(RSS₀/RSS₁) − q(1 + log F)), where F is the gain per parameter in units of
    the noise.
    """
    if dof >= rows - 1 or before <= 0:
        return 0.0
    ratio = min(max(after / before, SMALLEST), 1.0)
    F = (1 - ratio) / dof / (ratio / (rows - dof))
    g = max(F - 1, 0.0)
    return ((rows - dof) * log(1 + g) - rows * log(1 + g * ratio)) / 2


def pair_uncertainty(joint: Joint, fields: Fields, share: float) -> Uncertainty | None:
    r"""Return :math:`N(0, \sigma^2 H^{-1})`, with H the Gram matrix of the regression: one pass.

    A product z_i·z_j is the step E Hᵀ + H Eᵀ with e_i in E and e_j/2 in H. The weights of the rows
    were multiplied by `share` for the search. None if some parameters are not in the regression.
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
    freedom = search.weight / share - dof
    noise = sqrt(loss / freedom) if freedom >= 1 else nan
    if leaves_mean(search.penalty.alpha[:2], search.weight):
        # There may be a slope nevertheless: a priori, it is as large as the noise.
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
    xp, like = namespace(units.scale), {"dtype": units.scale.dtype, "device": units.scale.device}
    parts = (E, steps, W[1 : 1 + d], W[0] + free @ diagonal)
    law = settled_steps(Steps(*(xp.asarray(v, **like) for v in parts)), units, fields)
    passes = search.rows.walks - before
    return Uncertainty(units, ErrorSteps.of(law), noise, noise, dof, freedom, True, True, passes)


def _inverse_root(H: np.ndarray) -> np.ndarray:
    """Return W with W Wᵀ = H⁻¹, without directions that rows and ridge do not determine."""
    power = np.diag(H)  # 0 for a constant feature
    size = np.sqrt(np.where(power > 0, power, 1.0))
    return uncorrelated(H / np.outer(size, size), UNSEEN) / size[:, None]
