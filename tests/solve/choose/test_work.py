"""What a choice need not compute, or not again."""

import numpy as np
import pytest

from quadlin.core.chunks import MemorySource
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.datasets import make_second_order
from quadlin.solve.choose import choice, linear_choice, rank_climb
from quadlin.solve.choose.automatic import RankSearch
from quadlin.solve.choose.candidates import Candidates
from quadlin.solve.choose.rank import HeldOut
from quadlin.solve.lowrank import restarts
from quadlin.solve.lowrank.types import Automatic, Options, Plan
from quadlin.solve.lowrank.whitening import whitener


def counted(monkeypatch, owner, name):
    """Return a list that grows with each call of a function."""
    calls, function = [], getattr(owner, name)

    def counting(*args, **kwargs):
        calls.append(args)
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, counting)
    return calls


def made(X, y):
    rows = Rows.of(MemorySource(X, y))
    surveyed = rows.reduce(survey)
    return rows, UnitsMaker("auto", True, X.dtype, None)(surveyed.features, surveyed.target)


def search(X, y):
    return RankSearch(*made(X, y), Options(rank=0), len(y), float(len(y)), 0)


def test_many_starts_are_tried_once_for_each_rank_that_folds_compare(monkeypatch):
    data = make_second_order(600, 8, rank=2, noise=0.5, random_state=0)
    searches = counted(monkeypatch, restarts, "optima")
    args = Options(rank=1), 600.0, np.random.default_rng(0)
    assert HeldOut(*made(data.X, data.y), *args).rank((1.0, 1.0)) == 2
    assert len(searches) <= 4  # ranks 3 to 0, in each of five folds


@pytest.mark.parametrize(("n", "splits"), [(300, 0), (900, 1)])
def test_rows_are_held_out_only_to_try_higher_ranks_than_the_evidence_did(monkeypatch, n, splits):
    for module in (choice, rank_climb):
        monkeypatch.setattr(module, "EXACT_COLUMNS", 150)  # up to rank 2 of 40 features
    data = make_second_order(n, 40, rank=2, noise=0.5, random_state=0)
    held_out = counted(monkeypatch, choice, "HeldOut")
    fits = counted(monkeypatch, choice, "fit_table")
    rows = Rows.of(MemorySource(data.X, data.y))
    make_units = UnitsMaker("auto", True, data.X.dtype, None)
    plan = Plan(Options(rank=0), make_units, 0, Automatic(True, True))
    state, options = choice.fit_choosing(rows, plan)
    assert options.rank == state.model.s.shape[0] == 2
    # 240 of 300 rows try rank 2 at most, 720 of 900 rank 6: neither is better, nor fitted again.
    assert (len(held_out), len(fits)) == (splits, 0)


def test_what_is_expected_of_products_is_computed_once(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 8))
    linear = search(X, X @ rng.standard_normal(8) + rng.standard_normal(300))
    ridge, products = linear.ridge(), linear.candidate(8)
    computed = counted(monkeypatch, linear_choice, "expected_errors")
    for _ in range(3):
        assert linear.is_behind(products, 0.5 * linear.left_out(ridge))
        linear.squares.clear()
    assert len(computed) == 1


def test_a_low_rank_that_is_not_there_is_fitted_once(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 60))
    X += 2 * rng.standard_normal((200, 3)) @ rng.standard_normal((3, 60))
    noise = search(X, rng.standard_normal(200))
    fits = counted(monkeypatch, Candidates, "near_optimum")
    candidate = noise.low_rank(2)
    assert candidate.evidence < noise.ridge().evidence + 1
    assert len(fits) == 1


def test_products_of_which_nothing_is_left_are_not_asked_about_rows_left_out(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 60))
    X += 2 * rng.standard_normal((200, 3)) @ rng.standard_normal((3, 60))
    noise = search(X, rng.standard_normal(200))
    asked = counted(monkeypatch, linear_choice, "left_out_squares_by_rows")
    products = noise.candidate(60)
    assert noise.is_ridge(products)
    assert noise.better_linear(noise.ridge(), products).rank == 0
    assert not asked


def test_the_last_fit_of_few_rows_takes_few_passes():
    data = make_second_order(250, 40, rank=3, noise=0.5, random_state=1)
    few = search(data.X, data.y)
    candidate = few.candidate(3)
    walks = few.rows.walks
    choice = few.fitted(candidate, few)
    # Gauss–Newton steps by conjugate gradients take 64 passes here.
    assert few.rows.walks - walks < 30
    other, _ = few.fit(choice.options, candidate.model)
    assert choice.solution.history[-1].loss <= 1.001 * other.history[-1].loss


def test_products_of_features_are_summed_once():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((12_000, 30))
    X[:, 1] += X[:, 0]  # there is something to whiten
    whole = search(X, X @ rng.standard_normal(30) + rng.standard_normal(12_000))
    sample = whole.sampled(2)
    assert sample is not whole
    whole.fitted(sample.given(0), sample)
    walks = whole.rows.walks
    whole.ridge()
    assert whole.white is not None
    assert whole.covariance is not None
    assert whole.rows.walks == walks
    white = whitener(whole.rows, whole.units, "full", 0.1, rng)
    given = whitener(whole.rows, whole.units, "full", 0.1, rng, whole.covariance)
    np.testing.assert_allclose(given.size, white.size, rtol=1e-9)
