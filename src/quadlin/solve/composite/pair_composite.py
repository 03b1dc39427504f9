"""What pairs are asked for, what is fitted beside them, and the evidence of both."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np

from quadlin.core.model import Model, degrees_of_freedom
from quadlin.solve.choose.automatic import RankSearch
from quadlin.solve.choose.candidates import BEGIN
from quadlin.solve.choose.penalty_search import maximised
from quadlin.solve.lowrank.exact import EXACT_COLUMNS, Alpha
from quadlin.solve.lowrank.tangent_gram import tangent_gram
from quadlin.solve.lowrank.types import Problem
from quadlin.solve.pairs.pair_choice import SMALLEST
from quadlin.solve.pairs.pair_joint import Joint
from quadlin.solve.pairs.pair_terms import PairTerms

SETTLED = 0.2  # the relative difference of penalties that are about the same


@dataclass(frozen=True)
class PairRequest:
    """Which pairs are wanted."""

    most: int | None = None  # at most; None is the search's own limit
    given: tuple[tuple[int, int], ...] | None = None  # exactly these
    hierarchy: str | None = None
    asked: bool = True  # by the user; else the rows are looked at first, and only a little
    entry: tuple[int, ...] | None = None  # of those given: which enter together; None is one by one

    @classmethod
    def of(cls, terms: PairTerms, entry: np.ndarray) -> "PairRequest":
        """Return a request for products that were taken, by the steps in which they entered."""
        given = tuple(zip(terms.i.tolist(), terms.j.tolist(), strict=True))
        return cls(given=given, entry=tuple(entry.tolist()))

    @property
    def products(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the products that are given, and the step in which each enters, from 1."""
        i, j = np.array(self.given or (), dtype=np.int64).reshape(-1, 2).T
        entry = range(1, len(i) + 1) if self.entry is None else self.entry
        return i, j, np.array(entry, dtype=np.int64)


@dataclass(frozen=True)
class Beside:
    """What is fitted beside pairs: w and L, with their penalties."""

    model: Model
    alpha: Alpha

    @property
    def rank(self) -> int:
        """Return the rank of L."""
        return int(self.model.s.shape[0])

    def is_like(self, other: "Beside") -> bool:
        """Tell whether two fits have the same rank and about the same penalties."""
        return self.rank == other.rank and bool(np.allclose(self.alpha, other.alpha, rtol=SETTLED))


@dataclass(frozen=True)
class Composite:
    """Pairs and what is beside them."""

    joint: Joint
    alpha: Alpha  # of w and of L
    value: float  # log evidence

    @property
    def rank(self) -> int:
        """Return the rank of L."""
        return int(self.joint.search.columns.model.U.shape[1])

    @property
    def looked(self) -> float:
        """Return the log of the number of products that were looked at."""
        return log(max(1, self.joint.search.criterion.candidates))

    @cached_property
    def left_out_squares(self) -> np.ndarray:
        """Return ωe² of each row when it is left out, of the standardised target: a pass."""
        return self.joint.search.left_out_squares()


def evidence_beside(search: RankSearch, beside: Beside, ridge: Callable[[], Model]) -> float:
    """Return the log evidence of a rank, fitted to the rows of a search.

    With more parameters than a matrix holds, it is that of ridge regression and the Bayes factor
    of what the rank explains more; `ridge` fits the ridge regression.
    """
    rows, units, options, d, k = search.rows, search.units, search.options, search.d, beside.rank
    if not k:
        return search.ridge().evidence
    dof, weight = degrees_of_freedom(d, k, **options.parts), search.weight
    if dof > EXACT_COLUMNS and k < d:
        problem = Problem(rows, units, options, np.random.default_rng(search.seed))
        before, after = (problem.sums(m, squares=False).loss for m in (ridge(), beside.model))
        more = evidence_of_rank(before, after, weight - d - 1, dof - d - 1)
        return search.ridge().evidence + more
    if k == d:
        candidate = search.candidate(k)
    else:
        tangent = tangent_gram(rows, units, options, beside.model.U)
        gram = tangent.centred(weight)
        begin = np.log(np.maximum(beside.alpha, 1e-9 * weight) / gram.weight).tolist()
        starts = [begin, [begin[0], log(BEGIN)], [begin[0], log(BEGIN / 50)]]
        candidate = search.noted(k, maximised(gram, starts), beside.model, tangent)
    assert candidate is not None
    return candidate.merit


def evidence_of_rank(before: float, after: float, rows: float, dof: float) -> float:
    r"""Return the log of the Bayes factor of `dof` parameters, their prior variance the likeliest.

    .. math:: \max_g\; \tfrac{N - q}{2} \log(1 + g)
              - \tfrac{N}{2} \log(1 + g \tfrac{\mathrm{RSS}_1}{\mathrm{RSS}_0})

    It grows as ½(N log(RSS₀/RSS₁) − q(1 + log F)), F the gain per parameter in units of the noise.
    """
    if dof >= rows - 1 or before <= 0:
        return 0.0
    left = min(max(after / before, SMALLEST), 1.0)
    F = (1 - left) / dof / (left / (rows - dof))
    g = max(F - 1, 0.0)
    return ((rows - dof) * log(1 + g) - rows * log(1 + g * left)) / 2
