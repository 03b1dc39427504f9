"""Which ranks and penalties are tried: from ridge regression and all products to low ranks.

Penalties are powers of √10 times the weight, searched by steps from the best ones so far as long
as a step improves the score: the grid has no edge that the best could lie on.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quadlin.estimators.cv.cv_scores import CVScores
from quadlin.estimators.rows.parameters import alphas as penalties
from quadlin.estimators.rows.parameters import is_whole
from quadlin.solve.fits.grid import Point
from quadlin.solve.lowrank.exact import Alpha
from quadlin.solve.lowrank.restarts import FEW

FIRST_RANK, MOST_RANK = 4, 16
LOWEST, HIGHEST = -24, 12  # penalties as powers of √10, times the weight
GAIN = 3e-3  # of the score: a smaller one is no reason to go on
RIDGES = (-8, -4, 0, 4, 8)  # penalties to begin with: scores may have two valleys, far apart
PRODUCTS = (-4, 0, 4)  # the same for M beside the best one of w
REFERENCE = -3  # the penalty of M that low ranks begin with where nothing tells
COARSE, FINE = 2, 1  # steps
FIRST, SECOND = (True, False), (False, True)  # which of the two penalties a step changes
BOTH = (True, True)

Powers = tuple[int, int]  # of √10


class CVSearch:
    """The order in which ranks and penalties are scored; each begins where the last ended."""

    def __init__(self, scores: CVScores) -> None:
        self.scores = scores
        self.d: int = scores.d
        cells = scores.folds[0].cells
        self.n_rows, self.weight = cells.n_rows, cells.weight
        self.powers: dict[Alpha, Powers] = {}

    def grid(self, ranks: Sequence[int], alphas: Sequence[Alpha]) -> None:
        """Score every pair of a rank and penalties, one rank after the other."""
        for rank in ranks:
            self.scores.score([(rank, alpha) for alpha in alphas])

    def automatic(self, ranks: Sequence[int] | None) -> None:
        """Score ridge regression, then all products, then low ranks, then what is near the best."""
        products = self.d > 0 and self.scores.folds[0].cells.exact(linear=False) is not None
        if ranks is None or 0 in ranks:
            self.scores.score([self.point(0, (i, i)) for i in RIDGES])
            self.walk(0, [BOTH], COARSE)
        if products and (ranks is None or self.d in ranks):
            first = self.powers_of(0)[0] if self.tried(0) else RIDGES[1]
            places = [(first, j) for j in PRODUCTS] + [(i, i) for i in RIDGES[:2]]
            self.scores.score([self.point(self.d, powers) for powers in places])
            self.walk(self.d, [FIRST, SECOND, BOTH], COARSE)
        if ranks is None:
            self.climb(self.most())
        else:
            for rank in ranks:
                if rank > 0 and not (products and rank == self.d):
                    self.low_rank(rank)
        self.finish(ranks)

    def beside_pairs(self, scores: CVScores, ranks: Sequence[int] | None) -> "CVSearch":
        """Score points with pairs: rank 0 and the best low rank, or those given, near their best.

        `scores` has the same folds, with pairs.
        """
        search = CVSearch(scores)
        search.powers = self.powers
        if ranks is None:
            low = [p for p in self.scores.scores if 0 < p[0] < self.d]
            ranks = [0, *([max(low, key=self.scores.mean)[0]] if low else [])]
        for rank in ranks:
            scores.score([self.scores.best(rank)])
            search.walk(rank, [SECOND] if rank else [BOTH], COARSE)
        return search

    def finish(self, ranks: Sequence[int] | None) -> None:
        """Search finer at the best rank, and with few features at the one below as well."""
        rank, _ = self.scores.best()
        self.walk(rank, [SECOND, FIRST] if rank else [BOTH], FINE)
        lower = rank - 1
        if 0 < lower < self.d - 1 and ranks is None and self.d <= FEW:
            self.low_rank(lower)
            self.walk(lower, [SECOND, FIRST], FINE)
            if self.scores.best()[0] == lower:
                self.finish(ranks)

    def most(self) -> int:
        """Return the largest low rank: a row per parameter at least, about."""
        return min(self.d - 1, max(1, self.n_rows // max(1, self.d)), MOST_RANK)

    def climb(self, most: int) -> None:
        """Go up by doubles where one more is better, and down by ones while that is better."""
        if most < 1 or (self.tried(0) and self.scores.perfect(self.scores.best(0))):
            return
        k = min(FIRST_RANK, most)
        self.low_rank(k)
        down = k > 1 and self.better(k - 1, k)
        while not down and k < most and self.better(k + 1, k):
            double = min(2 * k, most)
            while double > k + 1 and not self.better(double, k + 1):
                double = (k + 1 + double) // 2
            k = double
        k = self.climb_down(k)
        cheap = k >= FIRST_RANK and self.d <= FEW
        if cheap and self.better(k // 2, k):  # a worse rank may lie between two good ones
            self.climb_down(k // 2)
        if k > 1:
            self.climb_from_one(k)

    def climb_from_one(self, most: int) -> None:
        """Search penalties of rank 1, and go up by ones while that is better.

        A single component may be better than many, with penalties that many cannot do without.
        """
        k = 1
        self.low_rank(k)
        self.walk(k, [SECOND], COARSE)
        while k + 1 < most and self.better(k + 1, k):
            k += 1

    def climb_down(self, k: int) -> int:
        """Go down by ones while that is better; return where that ends."""
        while k > 1 and self.better(k - 1, k):
            k -= 1
        return k

    def better(self, rank: int, other: int) -> bool:
        """Tell whether a rank, with the penalties of the best so far, is at least as good."""
        self.low_rank(rank)
        if self.scores.perfect(self.scores.best(rank)):
            return True
        return self.score_of(rank) >= self.score_of(other)

    def tried(self, rank: int) -> bool:
        """Tell whether a rank has a score."""
        return any(point[0] == rank for point in self.scores.scores)

    def score_of(self, rank: int) -> float:
        """Return the best score of a rank."""
        return self.scores.mean(self.scores.best(rank))

    def low_rank(self, rank: int) -> None:
        """Score a rank with the penalties of the best low rank; the first one searches its own."""
        low = [p for p in self.scores.scores if 0 < p[0] < self.d]
        if low:
            best = max(low, key=self.scores.mean)
            self.scores.score([(rank, best[1])])
            return
        if self.tried(self.d):
            powers = self.powers_of(self.d)
        else:
            powers = (self.powers_of(0)[0] if self.tried(0) else 2 * REFERENCE, REFERENCE)
        self.scores.score([self.point(rank, powers)])
        self.walk(rank, [SECOND], COARSE)

    def point(self, rank: int, powers: Powers) -> Point:
        """Return a rank with penalties that are powers of √10, times the weight."""
        first, second = (float(f"{self.weight * 10 ** (i / 2):.10g}") for i in powers)
        self.powers[first, second] = powers
        return rank, (first, second)

    def powers_of(self, rank: int) -> Powers:
        """Return the best penalties of a rank."""
        return self.powers[self.scores.best(rank)[1]]

    def walk(self, rank: int, ways: Sequence[tuple[bool, bool]], size: int) -> None:
        """Change the penalties of a rank by a factor as long as that improves the score."""
        settled = 0  # ways in a row that led nowhere
        while settled < len(ways):
            way, ways = ways[0], [*ways[1:], ways[0]]
            moved = any(self.follow(rank, way, step) for step in (-size, size))
            settled = 0 if moved else settled + 1
            if len(ways) == 1:
                return

    def follow(self, rank: int, way: tuple[bool, bool], step: int) -> bool:
        """Go one way while every step improves the score; tell whether the first one did."""
        moved = False
        while True:
            point = self.scores.best(rank)
            first, second = (
                i + step * changes for i, changes in zip(self.powers[point[1]], way, strict=True)
            )
            inside = min(first, second) >= LOWEST and max(first, second) <= HIGHEST
            if not inside or self.scores.perfect(point):
                return moved
            after = self.point(rank, (first, second))
            self.scores.score([after])
            before = self.scores.mean(point)
            if not self.scores.mean(after) > before + GAIN * abs(before):
                return moved
            moved = True


def checked_alphas(alphas: Any) -> list[Alpha]:
    """Return the penalties to try; raise if they are not penalties."""
    if not isinstance(alphas, Sequence | np.ndarray) or len(alphas) == 0:
        raise ValueError(f"alphas={alphas!r} must be a list of at least one penalty.")
    return [penalties(alpha) for alpha in alphas]


def checked_ranks(ranks: Sequence[int] | None, d: int) -> list[int] | None:
    """Return the ranks to try; raise if they are not ranks. None leaves them to the search."""
    if ranks is None:
        return None
    if not isinstance(ranks, Sequence | np.ndarray):
        raise ValueError(f"ranks={ranks!r} must be a list of whole numbers ≥ 0.")
    if not len(ranks) or not all(is_whole(k, 0) for k in ranks):
        raise ValueError(f"ranks={ranks!r} must be a list of whole numbers ≥ 0, with at least one.")
    return sorted({min(int(k), d) for k in ranks})
