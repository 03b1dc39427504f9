"""Which ranks and penalties are tried: from ridge regression and all products to low ranks.

Penalties are searched by steps on a logarithmic scale from the best ones so far, as long as a step
improves the score: the grid has no edge that the best could lie on.
"""

from collections.abc import Sequence
from math import sqrt

from quadlin.estimators.cv_scores import Scores
from quadlin.solve.cells import REFERENCE, Point
from quadlin.solve.exact import Alpha

FIRST_RANK, MOST_RANK = 4, 16
LOWEST, HIGHEST = 1e-12, 1e6  # penalties as shares of the weight
GAIN = 3e-3  # of the score: a smaller one is no reason to go on
SHARES = (1e-4, 1e-2, 1.0)  # of the weight: penalties to begin with
COARSE, FINE = 10.0, sqrt(10.0)  # steps
FIRST, SECOND = (True, False), (False, True)  # which of the two penalties a step changes
BOTH = (True, True)


class Search:
    """The order in which ranks and penalties are scored, each told by the last where to begin."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores
        self.d: int = scores.d
        cells = scores.folds[0].cells
        self.n_rows, self.weight = cells.n_rows, cells.weight

    def grid(self, ranks: Sequence[int], alphas: Sequence[Alpha]) -> None:
        """Score every pair of a rank and penalties."""
        self.scores.score([(rank, alpha) for rank in ranks for alpha in alphas])

    def automatic(self, ranks: Sequence[int] | None) -> None:
        """Score ridge regression, then all products, then low ranks, then what is near the best."""
        products = self.d > 0 and self.scores.folds[0].cells.exact(linear=False) is not None
        if ranks is None or 0 in ranks:
            self.diagonal(0)
            self.walk(0, [BOTH], COARSE)
        if products and (ranks is None or self.d in ranks):
            self.diagonal(self.d)
            self.walk(self.d, [FIRST, SECOND], COARSE)
        if ranks is None:
            self.climb(self.most())
        else:
            for rank in ranks:
                if rank > 0 and not (products and rank == self.d):
                    self.low_rank(rank)
        self.finish(ranks)

    def finish(self, ranks: Sequence[int] | None) -> None:
        """Search finer at the best rank, and where it costs no walks at the one below as well."""
        rank, alpha = self.scores.best()
        self.walk(rank, [SECOND, FIRST] if rank else [BOTH], FINE)
        lower, cells = rank - 1, self.scores.folds[0].cells
        if 0 < lower < self.d - 1 and ranks is None and cells.outright(lower, alpha):
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
        half = (k // 2, self.scores.best(k)[1])
        cheap = k >= FIRST_RANK and self.scores.folds[0].cells.outright(*half)
        if cheap and self.better(k // 2, k):  # a worse rank may lie between two good ones
            self.climb_down(k // 2)

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
        first, second = (share * self.weight for share in REFERENCE)
        if self.scores.scores:
            other, alpha = self.scores.best()
            first = alpha[0]
            if other and self.scores.perfect((other, alpha)):  # there is no noise
                second = alpha[1]
        self.scores.score([(rank, (first, second))])
        self.walk(rank, [SECOND], COARSE)

    def diagonal(self, rank: int) -> None:
        """Score some penalties that are the same for w and for M."""
        penalties = [self.weight * share for share in SHARES]
        self.scores.score([(rank, (a, a)) for a in penalties])

    def walk(self, rank: int, ways: Sequence[tuple[bool, bool]], factor: float) -> None:
        """Change the penalties of a rank by a factor as long as that improves the score."""
        settled = 0  # ways in a row that led nowhere
        while settled < len(ways):
            way, ways = ways[0], [*ways[1:], ways[0]]
            moved = any(self.follow(rank, way, f) for f in (1 / factor, factor))
            settled = 0 if moved else settled + 1
            if len(ways) == 1:
                return

    def follow(self, rank: int, way: tuple[bool, bool], factor: float) -> bool:
        """Go one way while every step improves the score; tell whether the first one did."""
        moved = False
        while True:
            point = self.scores.best(rank)
            after = self.step(point, way, factor)
            if after is None or self.scores.perfect(point):
                return moved
            self.scores.score([after])
            before = self.scores.mean(point)
            if not self.scores.mean(after) > before + GAIN * abs(before):
                return moved
            moved = True

    def step(self, point: Point, way: tuple[bool, bool], factor: float) -> Point | None:
        """Return a point with the penalties that `way` marks multiplied; None beyond all sense."""
        rank, alpha = point
        first, second = (
            float(f"{a * factor:.10g}") if changes else a
            for a, changes in zip(alpha, way, strict=True)
        )
        inside = min(first, second) / self.weight >= LOWEST
        inside = inside and max(first, second) / self.weight <= HIGHEST
        return (rank, (first, second)) if inside else None
