"""Where the search for ranks and penalties goes, on scores that are known by a formula."""

from math import log10
from types import SimpleNamespace

import pytest

from quadlin.estimators.cv.cv_search import CVSearch

WEIGHT = 100.0


class Known:
    """Scores that are minus a function of the rank and of log10 of the penalties per weight."""

    def __init__(self, error, d=6, products=True):
        exact = SimpleNamespace() if products else None
        cells = SimpleNamespace(n_rows=100, weight=WEIGHT, exact=lambda linear: exact)
        self.error, self.d, self.folds = error, d, [SimpleNamespace(cells=cells)]
        self.scores = {}

    def score(self, points):
        for rank, alpha in points:
            logs = [log10(a / WEIGHT) for a in alpha]
            self.scores.setdefault((rank, alpha), -self.error(rank, *logs))

    def mean(self, point):
        return self.scores[point]

    def best(self, rank=None):
        return max((p for p in self.scores if rank in (None, p[0])), key=self.scores.get)

    def perfect(self, point):
        return False


@pytest.mark.parametrize(("left", "right"), [(1.0, 1.2), (1.2, 1.0)])
def test_of_two_valleys_of_the_penalty_the_deeper_one_is_chosen(left, right):
    def error(rank, first, second):
        return min(left + (first + 3.4) ** 2, right + (first - 3.4) ** 2)

    surface = Known(error)
    CVSearch(surface).automatic([0])
    assert -surface.mean(surface.best()) < 1.05  # steps of √10: at most 0.25 of a power off


def test_the_best_penalties_lie_within_half_a_step_however_far_they_are():
    def error(rank, first, second):
        return 1 + (first + 9.2) ** 2 + (second - 4.7) ** 2 + (rank - 3) ** 2

    surface = Known(error)
    CVSearch(surface).automatic(None)
    assert surface.best()[0] == 3
    assert -surface.mean(surface.best()) < 1 + 2 * 0.25**2 + 3e-3


def test_no_penalty_is_scored_twice_by_rounding():
    def error(rank, first, second):
        return 1 + abs(first + 2.3) + abs(second - 1.2) + 0.1 * rank

    surface = Known(error)
    CVSearch(surface).automatic(None)
    logs = [(k, round(log10(a), 6), round(log10(b), 6)) for k, (a, b) in surface.scores]
    assert len(set(logs)) == len(logs)


def test_a_single_component_is_tried_with_penalties_of_its_own():
    def error(rank, first, second):
        if rank == 1:  # with the penalties of the others it is worse than they are
            return 1.0 + 0.1 * (second + 1.5) ** 2
        return {4: 1.1, 3: 1.15, 5: 1.15, 2: 1.2}.get(rank, 1.3) + 0.1 * second**2

    surface = Known(error)
    CVSearch(surface).automatic(None)
    assert surface.best()[0] == 1
    assert -surface.mean(surface.best()) < 1.02  # steps of √10, as above


def test_penalties_of_all_products_are_followed_along_a_diagonal_valley():
    def error(rank, first, second):
        if rank == 0:
            return 3.0 + 0.1 * first**2
        return 1.0 + 4 * (first - second + 1) ** 2 + 0.1 * (first + 3) ** 2

    surface = Known(error)
    CVSearch(surface).automatic([0, 6])
    assert -surface.mean(surface.best()) < 1.05  # a step of one penalty alone rises by 4
