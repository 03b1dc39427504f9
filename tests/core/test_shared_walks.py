"""Solvers that share walks: the same numbers as alone, fewer walks, and no one left waiting."""

import numpy as np
import pytest

from quadlin.core.chunks import MemorySource
from quadlin.core.rows import Rows
from quadlin.core.shared_walks import SharedWalks


def total(chunk):
    return float((chunk.weight * chunk.y).sum())


def views_of(n=10, folds=3):
    rows = Rows.of(MemorySource(np.ones((n, 2)), np.arange(float(n))))
    both = SharedWalks(rows)
    return rows, both, [both.view(np.arange(n) % folds != i) for i in range(folds)]


def test_solvers_of_different_length_share_walks_and_get_the_sums_of_their_own_rows():
    rows, both, views = views_of()

    def solver(i):
        return [views[i].reduce(total) for _ in range(i + 1)]

    sums = both.run([lambda i=i: solver(i) for i in range(3)])
    alone = [sum(y for y in range(10) if y % 3 != i) for i in range(3)]
    assert sums == [[alone[i]] * (i + 1) for i in range(3)]
    assert rows.walks == 3
    assert [view.walks for view in views] == [1, 2, 3]
    assert views[0].reduce(total) == alone[0]
    assert rows.walks == 4


def test_an_error_of_one_solver_is_raised_after_the_others_have_ended():
    _, both, views = views_of()
    done = []

    def fails():
        views[0].reduce(total)
        raise ValueError("no optimum")

    def works(i):
        done.append([views[i].reduce(total) for _ in range(4)])

    with pytest.raises(ValueError, match="no optimum"):
        both.run([fails, lambda: works(1), lambda: works(2)])
    assert len(done) == 2


def test_an_interrupted_walk_ends_every_solver():
    _, both, views = views_of()
    after = []

    def interrupted(chunk):
        raise KeyboardInterrupt

    def solver(i):
        views[i].reduce(interrupted)
        after.append(i)

    with pytest.raises(KeyboardInterrupt):
        both.run([lambda i=i: solver(i) for i in range(3)])
    assert not after
