r"""The search for a few pairs, y = b + xᵀw + xᵀ(L + S)x with S of few entries.

The moments of the residual, :math:`\sum \omega r z_i z_j`, divided by their standard errors after
(1, z_i, z_j) are projected out of the product, say which products are worth a look; a second walk
gives the Gram matrix of those, of all features and of L's tangent directions, on which `Stepwise`
chooses; a third gives the moments of what is then left, and standard errors that do not trust a
few rows. Repeated until nothing changes: three walks where nothing interacts, two a round else.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from scipy.stats import norm as normal
from scipy.stats import t as student

from quadlin.core.arrays import to_numpy
from quadlin.core.chunks import Chunk
from quadlin.core.engine import reduce
from quadlin.core.model import Model, constant_model
from quadlin.core.units import Units
from quadlin.solve.pair_choice import SMALLEST, Choice, Criterion, Stepwise
from quadlin.solve.pair_sums import (
    Columns,
    ProductMoments,
    Scores,
    joint_gram,
    product_moments,
    scores,
)

MOST_FEATURES = 3000  # three d×d matrices are kept
MOST_TANGENT = 1500  # columns of L's tangent space that are projected out
SHORTLIST, ROUNDS, MOST_PAIRS = 48, 60, 32
WORTH_A_LOOK = 0.5  # of the t² for entry: screening projects out two features only
JITTER = 1e-11  # of a column's power: columns that others explain are as good as left out
EDGE = 1.0  # times the noise edge
FEWEST = 10.0  # rows beyond the parameters
EXCHANGEABLE = 6.0  # a difference of the criterion that is no strong evidence, 2·log(20)
MAIN_EFFECT = 4.0  # t² of a feature's own term, for a hierarchy


@dataclass(frozen=True)
class PairFit:
    """The pairs taken, by order of entry, and the regression they are taken into."""

    i: np.ndarray  # (m,), i ≤ j
    j: np.ndarray  # (m,)
    coef: np.ndarray  # (m,), of z_i·z_j
    std: np.ndarray  # (m,), robust (HC3), given the choice
    columns: Columns
    beta: np.ndarray  # of all columns: 1, features, tangent, products
    loss: float  # Σω r², with the penalty
    criterion: float
    path: tuple[float, ...]  # the criterion with the first 0, 1, … of what was taken
    alternatives: tuple[tuple[tuple[int, int], tuple[int, int], float], ...]  # pair, other, cost
    base_dof: float
    candidates: int
    walks: int


@dataclass(frozen=True)
class Projected:
    """What is left of products and response after the base is projected out of them."""

    rest: np.ndarray  # (m + 1, m + 1)
    onto: np.ndarray  # (base, m + 1), the coefficients of the projection
    inverse: np.ndarray  # (base, base)

    def beta(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients with these products, base first, and the inverse Gram matrix."""
        size = np.sqrt(np.maximum(np.diag(self.rest)[index], 1e-300))
        S = self.rest[np.ix_(index, index)] / np.outer(size, size)
        S = np.linalg.pinv(S, rcond=1e-9, hermitian=True) / np.outer(size, size)
        gamma, P = S @ self.rest[index, -1], self.onto[:, index]
        beta = np.concatenate([self.onto[:, -1] - P @ gamma, gamma])
        corner = -P @ S
        inverse = np.block([[self.inverse + P @ S @ P.T, corner], [corner.T, S]])
        return beta, inverse


class PairSearch:
    """Rows, what is fitted in any case, and which products may be taken."""

    def __init__(
        self,
        source: Iterable[Chunk],
        units: Units,
        *,
        model: Model | None = None,
        alpha: tuple[float, float] = (0.0, 0.0),
        hierarchy: str | None = None,
        fields: Sequence[np.ndarray] = (),
    ) -> None:
        d = units.scale.shape[0]
        if d > MOST_FEATURES:
            raise ValueError(f"Pairs of {d} dense features need {d}×{d} matrices.")
        model = constant_model(units, 0, units.target.centre) if model is None else model
        k = model.U.shape[1]
        self.source, self.units, self.walks = source, units, 0
        self.alpha, self.fields = alpha, [np.sort(np.asarray(f)) for f in fields]
        nothing = np.zeros(0, np.int64)
        tangent = 0 < k * d <= MOST_TANGENT
        self.columns = Columns(units, model, np.arange(d), tangent, nothing, nothing)
        self.burden = to_numpy(units.burden).astype(float) ** 2
        self.moments: ProductMoments = self._sum(product_moments, self.columns)
        self.base = to_numpy(self._sum(joint_gram, self.columns, True).gram)
        self.power = self.moments.weight * units.target.power
        projected = self._projected(self.base)
        self.base_loss = float(projected.rest[-1, -1])
        raw = self.base[:-1, :-1]
        self.base_dof = float(np.sum(projected.inverse * raw))
        self.rows = self.moments.weight - self.base_dof
        self.allowed = self._allowed(projected, hierarchy)
        self.blocks = self._blocks()
        self.criterion = Criterion(
            max(self.rows, 1.0),
            int(np.triu(self.allowed).sum()) + len(self.blocks),
            max(self.power, 1e-300),
        )

    def _sum(self, fn, *params):
        self.walks += 1
        return reduce(fn, self.source, *params)

    def run(self, most: int | None = None) -> PairFit:
        """Search until a round changes nothing."""
        most = max(0, min(MOST_PAIRS, int(self.rows // 10))) if most is None else most
        d = self.units.scale.shape[0]
        shortlist: list[tuple[int, ...]] = []  # groups: flat positions i·d + j
        taken: list[tuple[int, ...]] = []
        banned: set[tuple[int, ...]] = set()
        step, choice, projected = self._stepwise(shortlist)
        beta, inverse = projected.beta(np.zeros(0, np.int64))
        columns, spread = self.columns, np.zeros(0)
        if self.rows < FEWEST or choice.loss <= SMALLEST * self.power:
            return self._fit(columns, beta, spread, step, choice)
        self.score = score = self._sum(scores, columns, beta, inverse)
        for _ in range(ROUNDS):
            look = self._worth_a_look(score, len(taken)) if len(taken) < most else []
            new = [g for g in look if g not in shortlist]
            doubtful = [] if new else self._doubtful(step, choice, beta, score)
            if not (new or doubtful):
                break
            if new:
                shortlist = sorted({*shortlist, *new})
                step, _, projected = self._stepwise(shortlist)
            banned |= {self.shortlisted[g] for g in doubtful}
            start = [shortlist.index(g) for g in taken if g not in banned]
            choice = step.run(start, [shortlist.index(g) for g in banned], most)
            taken = [shortlist[g] for g in choice.taken]
            index = step.columns(choice.taken)
            beta, inverse = projected.beta(index)
            i, j = self._ij(shortlist)
            columns = self.columns.with_pairs(i[index], j[index])
            self.score = score = self._sum(scores, columns, beta, inverse)
            spread = score.spread
        return self._fit(columns, beta, spread, step, choice)

    def loss_with(self, i: np.ndarray, j: np.ndarray) -> float:
        """Return Σω r² of the base with some products: a walk."""
        if not len(i):
            return self.base_loss
        d = self.units.scale.shape[0]
        step, _, _ = self._stepwise([(int(p),) for p in i * d + j])
        return step.judged(tuple(range(len(i)))).loss

    def moved(self, model: Model) -> "PairSearch":
        """Return the same search beside another L of the same rank: a walk."""
        other = copy(self)
        other.columns = replace(self.columns, model=model)
        other.base = to_numpy(other._sum(joint_gram, other.columns, True).gram)
        other.base_loss = float(other._projected(other.base).rest[-1, -1])
        return other

    def refit(self, fit: "PairFit") -> "PairFit":
        """Return the regression with the same products: a walk."""
        d = self.units.scale.shape[0]
        step, _, projected = self._stepwise([(int(p),) for p in fit.i * d + fit.j])
        choice = step.judged(tuple(range(len(fit.i))))
        index = step.columns(choice.taken)
        beta, _ = projected.beta(index)
        i, j = self._ij(self.shortlisted)
        columns = self.columns.with_pairs(i[index], j[index])
        order = [list(zip(i, j, strict=True)).index(p) for p in zip(fit.i, fit.j, strict=True)]
        return self._fit(columns, beta, fit.std[np.argsort(order)], step, choice)

    def looks_low_rank(self) -> bool:
        """Tell whether the last residual's moments have an eigenvalue above the noise edge.

        In whitened coordinates they are, without interactions, a symmetric matrix of noise whose
        eigenvalues end at 2 sd(r) √(nd).
        """
        G, weight = to_numpy(self.score.moments), self.moments.weight
        G = np.where(self.allowed, G, 0.0)
        values, V = np.linalg.eigh(to_numpy(self.moments.second) / weight)
        seen = values > 1e-6 * values[-1]
        V = V[:, seen] / np.sqrt(values[seen])
        size = np.abs(np.linalg.eigvalsh(V.T @ G @ V)).max()
        noise = max(self.score.loss / max(self.rows, 1.0), SMALLEST * self.units.target.power)
        return bool(size > EDGE * 2 * sqrt(noise * weight * seen.sum()))

    def _doubtful(
        self, step: Stepwise, choice: Choice, beta: np.ndarray, score: Scores
    ) -> list[int]:
        """Return what was taken, of single products, though a few rows carry it."""
        order = {c: m for m, c in enumerate(step.columns(choice.taken))}
        gamma = beta[self.columns.base :]
        least = self.criterion.entry(max(len(choice.taken) - 1, 0))
        doubtful = []
        for g in choice.taken:
            if len(step.groups[g]) == 1:
                m = order[step.groups[g][0]]
                t2 = gamma[m] ** 2 / max(float(score.spread[m]), 1e-300)
                carried = max(float(score.squares[m]) ** 2 / float(score.fourths[m]) - 1, 0.1)
                log_p = student.logsf(sqrt(t2), carried)
                if log_p > normal.logsf(sqrt(least)):
                    doubtful.append((-log_p, g))
        return [g for p, g in doubtful if p == min(doubtful)[0] or p < -normal.logsf(sqrt(least) / 2)]

    def _fit(
        self,
        columns: Columns,
        beta: np.ndarray,
        spread: np.ndarray,
        step: Stepwise,
        choice: Choice,
    ) -> PairFit:
        i, j = self._ij([self.shortlisted[g] for g in range(len(step.groups))])
        path = tuple(
            step.judged(choice.taken[:k]).value for k in range(len(choice.taken) + 1)
        )
        others = []
        for g in choice.taken:
            if len(step.groups[g]) == 1:
                c = step.groups[g][0]
                for other, cost in step.exchanges(choice, g, EXCHANGEABLE):
                    if len(step.groups[other]) == 1:
                        o = step.groups[other][0]
                        others.append(((int(i[c]), int(j[c])), (int(i[o]), int(j[o])), cost))
        return PairFit(
            columns.i,
            columns.j,
            beta[columns.base :],
            np.sqrt(spread),
            columns,
            beta,
            choice.loss,
            choice.value,
            path,
            tuple(others),
            self.base_dof,
            self.criterion.candidates,
            self.walks,
        )

    def _ij(self, groups: Sequence[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the products of all groups, each once, in order."""
        flat = np.array(sorted({p for g in groups for p in g}), dtype=np.int64)
        return np.divmod(flat, self.units.scale.shape[0])

    def _stepwise(
        self, shortlist: Sequence[tuple[int, ...]]
    ) -> tuple[Stepwise, Choice, Projected]:
        self.shortlisted = list(shortlist)
        i, j = self._ij(shortlist)
        gram = self.base
        if len(i):
            columns = self.columns.with_pairs(i, j)
            tall = to_numpy(self._sum(joint_gram, columns, False).gram)
            b = self.columns.base
            gram = np.block([[self.base[:b, :b], tall[:b]], [tall[:b].T, tall[b:]]])
        projected = self._projected(gram, i, j)
        place = {p: m for m, p in enumerate((i * self.units.scale.shape[0] + j).tolist())}
        groups = [np.array([place[p] for p in g]) for g in shortlist]
        step = Stepwise(projected.rest, groups, self.criterion)
        return step, step.judged(()), projected

    def _projected(
        self, gram: np.ndarray, i: Sequence[int] = (), j: Sequence[int] = ()
    ) -> Projected:
        """Project the base out of products and response, with the ridge on all of them."""
        b, d = self.columns.base, self.units.scale.shape[0]
        gram = gram.copy()
        (first, second), rho = self.alpha, self.burden
        w = to_numpy(self.columns.model.w).astype(float)
        ridge = first * rho
        own = np.arange(1, d + 1)
        gram[own, own] += ridge  # |ρ∘(w + β)|², the model's w being there already
        gram[own, -1] -= ridge * w
        gram[-1, own] -= ridge * w
        gram[-1, -1] += ridge @ w**2
        if second:
            k = self.columns.model.U.shape[1]
            if self.columns.tangent:
                more = np.arange(d + 1, b)
                gram[more, more] += 4 * second * np.tile(rho, k)
            i, j = np.asarray(i, int), np.asarray(j, int)
            own = b + np.arange(len(i))
            gram[own, own] += second * (1 + (i == j)) * rho[i] * rho[j]
        power = np.diag(gram)[:b]
        size = np.sqrt(np.where(power > 0, power, 1.0))
        scaled = gram[:b, :b] / np.outer(size, size) + JITTER * np.eye(b)
        inverse = np.linalg.inv(scaled) / np.outer(size, size)
        onto = inverse @ gram[:b, b:]
        rest = gram[b:, b:] - gram[:b, b:].T @ onto
        return Projected((rest + rest.T) / 2, onto, (inverse + inverse.T) / 2)

    def _worth_a_look(self, score: Scores, taken: int) -> list[tuple[int, ...]]:
        """Return products and blocks of products with large moments of the residual."""
        G = to_numpy(score.moments)
        noise = max(score.loss / self.rows, 1e-300)
        t2 = np.where(self.allowed, G**2 / (noise * np.where(self.allowed, self.left, 1.0)), 0.0)
        least = WORTH_A_LOOK * self.criterion.entry(taken)
        flat = np.flatnonzero(np.triu(t2).ravel() > least)
        flat = flat[np.argsort(-t2.ravel()[flat], kind="stable")[:SHORTLIST]]
        groups = [(int(p),) for p in flat]
        d, price = len(G), np.log(self.criterion.rows)
        worth = []
        for rows, cols in self.blocks:
            grid = np.ix_(rows, cols)
            dof = max(1, len(rows) - 1) * max(1, len(cols) - 1)
            gain = t2[grid].sum() + t2.T[grid].sum() * (rows[0] > cols[0]) - dof * price
            if gain > WORTH_A_LOOK * least:
                pairs = sorted(
                    min(a, c) * d + max(a, c) for a in rows for c in cols if self.allowed[a, c]
                )
                worth.append((-gain, tuple(int(p) for p in pairs)))
        return groups + [g for _, g in sorted(worth)[:4] if len(g) > 1]

    def _allowed(self, projected: Projected, hierarchy: str | None) -> np.ndarray:
        """Return which products may be taken: those that are not a part of w, as asked for."""
        m = self.moments
        C, K, F = (to_numpy(a) for a in (m.second, m.third, m.fourth))
        with np.errstate(all="ignore"):
            var = np.diag(C)
            det = np.outer(var, var) - C**2
            pull = (K**2 * var[None, :] + K.T**2 * var[:, None] - 2 * C * K * K.T) / det
            np.fill_diagonal(pull, np.diag(K) ** 2 / var)
            self.left = F - C**2 / m.weight - pull
            allowed = self.left > 1e-6 * F
        free = to_numpy(self.units.free) > 0
        np.fill_diagonal(allowed, np.diag(allowed) & free)
        varies = to_numpy(self.units.scale) > 0
        allowed &= np.outer(varies, varies)
        for field in self.fields:
            allowed[np.ix_(field, field)] = False
        if hierarchy is not None:
            d = len(C)
            w = projected.onto[1 : d + 1, -1] + to_numpy(self.columns.model.w)
            noise = projected.rest[-1, -1] / max(self.rows, 1.0)
            t2 = w**2 / (noise * np.diag(projected.inverse)[1 : d + 1])
            main = t2 > MAIN_EFFECT
            both = np.logical_and if hierarchy == "strong" else np.logical_or
            allowed &= both.outer(main, main)
        return allowed

    def _blocks(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return pairs of a field with another or with a feature."""
        inside = np.zeros(len(self.allowed), bool)
        for field in self.fields:
            inside[field] = True
        alone = [np.array([j]) for j in np.flatnonzero(~inside)]
        blocks = []
        for a, field in enumerate(self.fields):
            for other in [*self.fields[a + 1 :], *alone]:
                if self.allowed[np.ix_(field, other)].sum() > 1:
                    blocks.append((field, other))
        return blocks


def search_pairs(source: Iterable[Chunk], units: Units, *, most: int | None = None, **kw) -> PairFit:
    return PairSearch(source, units, **kw).run(most)
