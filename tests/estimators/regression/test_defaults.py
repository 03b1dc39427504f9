"""Right by default: rank and penalties are learned, and what a fit cost is what was walked."""

import warnings

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import RidgeCV

from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    SecondOrderClassifier,
    SecondOrderRegressor,
    SecondOrderRegressorCV,
    open_source,
)
from quadlin.core.chunks import MemorySource
from quadlin.data import Source
from quadlin.datasets import make_second_order
from quadlin.metrics import nmse
from quadlin.solve.fields.field_machine import FieldMachine


def test_the_rank_and_no_penalty_are_found_without_noise():
    data = make_second_order(1500, 20, rank=3, n_test=200, random_state=0)
    model = SecondOrderRegressor(random_state=0).fit(data.X, data.y)
    assert (model.rank_, model.alpha_) == (3, (0.0, 0.0))
    assert nmse(data.y_test, model.predict(data.X_test)) < 1e-10


def test_with_noise_the_default_is_better_than_the_true_rank_without_penalty():
    # Four rows per parameter and as much noise as signal: the penalty is worth more than its error.
    data = make_second_order(320, 20, rank=3, noise=2.0, n_test=2000, random_state=1)
    default = SecondOrderRegressor(random_state=0).fit(data.X, data.y)
    told = SecondOrderRegressor(rank=3, alpha=0.0, random_state=0).fit(data.X, data.y)
    assert min(default.alpha_) > 0
    assert default.score(data.X_test, data.y_test) > told.score(data.X_test, data.y_test)


def test_the_default_is_never_much_worse_than_ridge_regression():
    # Linear targets with few rows, where a quadratic part can only do harm. One seed in ten may
    # take a component that is not there; it costs a few percent of the error.
    ratios = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X, X_test = rng.standard_normal((60, 12)), rng.standard_normal((2000, 12))
        w = rng.standard_normal(12)
        y, truth = X @ w + 3 * rng.standard_normal(60), X_test @ w
        ours = SecondOrderRegressor(random_state=0).fit(X, y).predict(X_test)
        ridge = RidgeCV(np.logspace(-3, 4, 30)).fit(X, y).predict(X_test)
        noise = 9.0
        ratios.append(
            (np.mean((ours - truth) ** 2) + noise) / (np.mean((ridge - truth) ** 2) + noise)
        )
    assert np.exp(np.mean(np.log(ratios))) < 1.03
    assert max(ratios) < 1.25


def test_given_numbers_are_kept():
    data = make_second_order(400, 8, rank=2, noise=1.0, random_state=0)
    model = SecondOrderRegressor(rank=3, alpha=(2.0, 5.0), random_state=0).fit(data.X, data.y)
    assert (model.rank_, model.alpha_) == (3, (2.0, 5.0))
    some = SecondOrderRegressor(rank=3, random_state=0).fit(data.X, data.y)
    assert some.rank_ == 3
    assert min(some.alpha_) > 0


def test_the_choice_does_not_depend_on_the_order_of_the_rows():
    data = make_second_order(300, 10, rank=2, noise=1.0, random_state=0)
    order = np.argsort(data.y)
    a = SecondOrderRegressor(random_state=0).fit(data.X, data.y)
    b = SecondOrderRegressor(random_state=0).fit(data.X[order], data.y[order])
    assert a.rank_ == b.rank_
    np.testing.assert_allclose(a.predict(data.X), b.predict(data.X), atol=1e-3)


def test_the_same_rows_give_the_same_model_without_a_seed():
    # 36 parameters of rank 3 and as many rows twice: another start may end elsewhere.
    data = make_second_order(80, 10, rank=3, noise=1.0, random_state=0)
    np.random.seed(0)  # noqa: NPY002
    a = SecondOrderRegressor(3, alpha=0.0).fit(data.X, data.y)
    np.random.seed(1)  # noqa: NPY002
    b = SecondOrderRegressor(3, alpha=0.0).fit(data.X, data.y)
    np.testing.assert_array_equal(a.predict(data.X), b.predict(data.X))


def test_a_line_that_a_few_extreme_rows_carry_is_not_worse_than_the_mean():
    # Cubes of heavy tails, and a target that does not follow them: test rows lie far outside, and a
    # penalty of largest evidence has 1.15 and 1.14 times the squared error of the mean.
    for seed in (2, 9):
        rng = np.random.default_rng(seed)
        X = rng.standard_t(4, (3400, 10)) ** 3
        y = np.sign(X[:, 0]) * (X[:, 1] > 0) + 0.5 * rng.standard_normal(3400)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = SecondOrderRegressor(random_state=0).fit(X[:400], y[:400])
            f = model.predict(X[400:])
        assert np.mean((f - y[400:]) ** 2) < 1.01 * np.mean((y[:400].mean() - y[400:]) ** 2)


def test_a_line_that_gross_errors_among_many_rows_carry_is_not_worse_than_the_mean():
    # Five of 2,000 targets are off by 1,000 standard deviations. Without a look at rows left out,
    # which 200 rows per parameter do not need otherwise, it has 1.03 times the error of the mean.
    data = make_second_order(2000, 10, rank=2, noise=0.5, n_test=1000, random_state=0)
    y = data.y.copy()
    y[np.random.default_rng(0).choice(2000, 5, replace=False)] += 1e3 * y.std()
    with pytest.warns(UserWarning, match="extreme targets"):
        model = SecondOrderRegressor(random_state=0).fit(data.X, y)
    errors = [np.mean((f - data.y_test) ** 2) for f in (model.predict(data.X_test), y.mean())]
    assert errors[0] < 1.001 * errors[1]


def test_a_weak_line_of_many_rows_is_kept():
    # It explains 2% of the variance, so little that it must be looked at, but 2,000 rows agree.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 5))
    y = 0.15 * X[:, 0] + rng.standard_normal(2000)
    model = SecondOrderRegressor(random_state=0).fit(X, y)
    assert model.coef_[0] == pytest.approx(0.15, abs=0.07)  # three standard errors


def test_five_gross_errors_choose_neither_rank_nor_penalty_with_hubers_loss():
    data = make_second_order(2000, 10, rank=2, noise=0.5, n_test=1000, random_state=0)
    y = data.y.copy()
    y[:5] += 1e4
    model = SecondOrderRegressor(loss="huber", random_state=0).fit(data.X, y)
    clean = SecondOrderRegressor(random_state=0).fit(data.X, data.y)
    assert model.rank_ == clean.rank_ == 2
    errors = [nmse(data.y_test, m.predict(data.X_test)) for m in (model, clean)]
    # Huber's loss is 95% as efficient with normal noise; the rest is room for the draw.
    assert errors[0] < 1.3 * errors[1]


def test_a_line_that_all_but_a_few_rows_ask_for_is_kept():
    # A target that saturates, in five of 600 rows a hundred times as far out as in the others.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, 8))
    X[:600:120] *= 100
    f = 10 * np.tanh(X @ rng.standard_normal(8) / 10)
    y = f + rng.standard_normal(900)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the extreme rows
        model = SecondOrderRegressor(pairs=None).fit(X[:600], y[:600])
    assert model.score(X[600:], y[600:]) > 0.3  # .47; RidgeCV has .07, the mean 0, the truth .85


@pytest.mark.parametrize("n", [40, 76, 300, 2000])
def test_a_stream_chooses_in_its_first_batch_and_is_never_worse_than_the_mean(n):
    data = make_second_order(n, 25, rank=2, noise=0.5, n_test=1000, random_state=0)
    model = SecondOrderRegressor(random_state=0).partial_fit(data.X, data.y)
    # 76 parameters: with few rows the mean is all there is, and estimating it costs 1/n.
    assert nmse(data.y_test, model.predict(data.X_test)) < (1.2 if n < 100 else 0.2)
    if n == 2000:
        assert model.rank_ == 2


def test_more_parameters_than_a_matrix_holds_are_judged_by_rows_held_out():
    data = make_second_order(9000, 400, rank=3, noise=0.1, n_test=500, random_state=0)
    model = SecondOrderRegressor(random_state=0, tol=1e-4).fit(data.X, data.y)
    assert model.rank_ == 3
    assert nmse(data.y_test, model.predict(data.X_test)) < 0.02


COUNTED = [
    {},
    {"rank": 2},
    {"alpha": 0.0},
    {"rank": 2, "alpha": 0.0},
    {"rank": 2, "alpha": 1.0, "uncertainty": True},
    {"loss": "huber"},
    {"loss": "huber", "rank": 1, "alpha": 0.0, "uncertainty": True},
    {"polish": False, "rank": 2},
    {"polish": False, "step": "plain", "rank": 1, "max_iter": 3},
    {"whiten": "lowrank", "rank": 2, "alpha": 0.0},
    {"fields": None},
    {"pairs": None},
    {"pairs": 1},
    {"pairs": [("x0", "x1")], "rank": 1, "alpha": 0.0},
    {"pairs": 2, "uncertainty": "robust"},
    {"psd": True, "rank": 1},
    {"pairs": 2, "hierarchy": "weak"},
    {"max_memory": 100_000},
    {"fit_linear": False, "rank": 1},
    {"fit_intercept": False, "rank": 1},
    {"diagonal": "zero", "rank": 1},
    {"missing": "mean", "rank": 1, "alpha": 1.0},
    {"missing": "mean", "rank": 1, "alpha": 1.0, "uncertainty": "robust"},
    {"estimator": FactorizationMachineRegressor},
    {"loss": "poisson"},
    {"loss": "poisson", "rank": 1, "alpha": 1.0, "uncertainty": True},
    {"estimator": SecondOrderClassifier, "rank": 1},
    {"estimator": SecondOrderClassifier, "rank": 0, "alpha": 1.0, "pairs": 1},
    {"estimator": SecondOrderClassifier, "rank": 1, "alpha": 1.0, "uncertainty": True},
    {"estimator": SecondOrderClassifier, "rank": 1, "alpha": 1.0, "uncertainty": "robust"},
    {"estimator": SecondOrderClassifier, "rank": 1, "alpha": 1.0, "missing": "mean"},
    {"estimator": FactorizationMachineClassifier, "rank": 1, "alpha": 1.0},
    {"estimator": SecondOrderClassifier, "rank": 0, "alpha": 1.0, "class_weight": "balanced"},
    {"estimator": SecondOrderClassifier, "rank": 0, "pairs": None, "classes": 3},
    {"estimator": SecondOrderClassifier, "rank": 1, "alpha": 1.0, "classes": 3},
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("options", COUNTED, ids=str)
def test_the_passes_of_the_history_are_the_walks_over_the_rows(options, monkeypatch):
    data = make_second_order(300, 6, rank=2, noise=0.5, random_state=0)
    X = np.column_stack([data.X, data.X[:, 0] > 0])  # a 0/1 column, whose fields are sought
    walks, original = [], Source.__iter__

    def counted(self):
        walks.append(1)
        return original(self)

    monkeypatch.setattr(Source, "__iter__", counted)
    estimator = {"estimator": SecondOrderRegressor, **options}["estimator"]
    classes = options.get("classes", 2)
    options = {n: value for n, value in options.items() if n not in ("estimator", "classes")}
    y = data.y
    if options.get("loss") == "poisson":
        y = np.random.default_rng(0).poisson(np.exp(y / y.std() / 2))
    elif "Classifier" in estimator.__name__:
        y = np.searchsorted(np.quantile(y, np.arange(1, classes) / classes), y)
    missing = options.get("missing", "error")
    if missing == "mean":
        X[np.random.default_rng(1).random(X.shape) < 0.05] = np.nan
    source = open_source(X, target=y.astype(float), missing=missing)
    walks.clear()
    model = estimator(random_state=0, **options).fit(source)
    passes = model.n_passes_ if "Classifier" in estimator.__name__ else model.history_[-1].passes
    assert passes == len(walks)


@pytest.mark.parametrize("draws", [None, 5])
@pytest.mark.parametrize(
    ("estimator", "classes"),
    [
        (FactorizationMachineRegressor, None),
        (FactorizationMachineClassifier, 2),
        (FactorizationMachineClassifier, 3),
    ],
)
def test_a_sweep_over_rows_of_fields_counts_as_a_pass(estimator, classes, draws, monkeypatch):
    rng = np.random.default_rng(0)
    user, item = rng.integers(8, size=300), rng.integers(6, size=300)
    y = rng.standard_normal(8)[user] * rng.standard_normal(6)[item] + rng.standard_normal(300)
    if classes is not None:
        y = np.searchsorted(np.quantile(y, np.arange(1, classes) / classes), y)
    X, passes = np.hstack([np.eye(8)[user], np.eye(6)[item]]), []

    def counted(original):
        return lambda self: passes.append(1) or original(self)

    monkeypatch.setattr(MemorySource, "__iter__", counted(MemorySource.__iter__))
    monkeypatch.setattr(FieldMachine, "sweep", counted(FieldMachine.sweep))
    model = estimator(rank=1, draws=draws, random_state=0).fit(X, y)
    reported = model.history_[-1].passes if classes is None else model.n_passes_
    assert reported == len(passes)


@pytest.mark.parametrize(
    "options", [{}, {"pairs": 1}, {"loss": "huber"}, {"missing": "mean", "uncertainty": True}]
)
def test_the_passes_of_cross_validation_are_the_walks_over_the_rows(options, monkeypatch):
    data = make_second_order(200, 5, rank=1, noise=0.5, random_state=0)
    if "missing" in options:
        data.X[np.random.default_rng(1).random(data.X.shape) < 0.05] = np.nan
    walks, original = [], MemorySource.__iter__

    def counted(self):
        walks.append(self.rows)
        return original(self)

    monkeypatch.setattr(MemorySource, "__iter__", counted)
    monkeypatch.setattr("quadlin.core.sums.cut_rows", lambda chunk, columns: [chunk])  # no walk
    model = SecondOrderRegressorCV([0, 1], [0.1, 1.0], 2, random_state=0, **options)
    model.fit(data.X, data.y)
    assert model.n_passes_ == len(walks)
    assert set(walks) == {200}


def test_a_factorization_machine_chooses_too():
    data = make_second_order(
        3000, 12, rank=2, distribution="bernoulli", parameter=0.3, n_test=100, random_state=0
    )
    model = FactorizationMachineRegressor(random_state=0).fit(data.X, data.y)
    assert nmse(data.y_test, model.predict(data.X_test)) < 1e-8


def test_extreme_values_are_noticed():
    data = make_second_order(2000, 5, rank=1, noise=0.5, random_state=0)
    X, y = data.X.copy(), data.y.copy()
    y[:3] += 1e4
    with pytest.warns(UserWarning, match=r"extreme targets.*loss=\"huber\""):
        SecondOrderRegressor(random_state=0).fit(X, y)
    for typing_error in (1e3, 1e6, -1e12):  # beside the last, all other values are the same
        X[7, 3] = typing_error
        with pytest.warns(UserWarning, match="extreme values in x3"):
            SecondOrderRegressor(random_state=0).fit(X, data.y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SecondOrderRegressor(random_state=0).fit(data.X, data.y)


def test_rare_words_are_not_extreme_values_but_typing_errors_are():
    rng = np.random.default_rng(0)
    X = rng.poisson(np.geomspace(0.005, 0.5, 30), (600, 30)).astype(float)
    X[5, 0] = 3.0  # a rare word three times in one text
    y = X[:, -1] + rng.standard_normal(600)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SecondOrderRegressor(rank=0).fit(csr_array(X), y)
    X[5, 3] = 3000.0
    with pytest.warns(UserWarning, match="extreme values in x3, and"):
        SecondOrderRegressor(rank=0).fit(csr_array(X), y)


def degenerate(rng, kind, n, d):
    """Return features of some awkward kind."""
    X = rng.standard_normal((n, d))
    made = {
        "normal": X,
        "binary": (X > 0).astype(float),
        "constant": np.full((n, d), 3.0),
        "twins": np.column_stack([X[:, :1], X[:, :1], X])[:, :d],
        "cauchy": rng.standard_cauchy((n, d)),
        "huge": 1e30 * X,
        "tiny": 1e-30 * X,
        "one-hot": np.eye(d)[rng.integers(0, d, n)],
        "mixed": np.where(np.arange(d) % 2, X > 0, X),
    }
    return made[kind]


OPTIONS = [{}, {"loss": "huber"}, {"psd": True}, {"fit_linear": False}, {"polish": False}]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("made", [SecondOrderRegressor, FactorizationMachineRegressor])
def test_awkward_tables_end_in_a_model_that_is_no_worse_than_the_mean(made, options, capfd):
    kinds = ["normal", "binary", "constant", "twins", "cauchy", "huge", "tiny", "one-hot", "mixed"]
    for seed, kind in enumerate(kinds):
        rng = np.random.default_rng(seed)
        n, d = int(rng.choice([2, 3, 5, 20, 60])), int(rng.choice([1, 2, 6, 12]))
        X = degenerate(rng, kind, n, d)
        y = [rng.standard_normal(n), np.zeros(n), rng.standard_cauchy(n)][seed % 3]
        for method in ["fit"] if "loss" in options else ["fit", "partial_fit"]:
            model = getattr(made(random_state=0, **options), method)(X, y)
            error = np.mean((model.predict(X) - y) ** 2)
            assert np.isfinite(error), (kind, n, d, method)
            if "loss" not in options:
                # A stream's later steps follow new rows only: on noise they may cost 5%.
                room = 1 + (1e-6 if method == "fit" else 0.05)
                assert error <= room * np.var(y) + 1e-12 * np.mean(y**2), (kind, n, d, method)
    assert "illegal value" not in "".join(capfd.readouterr())  # what LAPACK prints by itself


def test_rows_that_stand_several_times_count_once():
    # 60 rows drawn with replacement, of which some 38 are different: taken for 60, the few of them
    # would be fitted exactly, and noise taken for none.
    ratios = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X, X_test = rng.standard_normal((60, 10)), rng.standard_normal((2000, 10))
        y, rows = X[:, 0] + rng.standard_normal(60), rng.integers(0, 60, 60)
        model = SecondOrderRegressor(random_state=0).fit(X[rows], y[rows])
        ratios.append((np.mean((model.predict(X_test) - X_test[:, 0]) ** 2) + 1) / 2)
    assert np.median(ratios) < 1.2  # beside the mean


def test_the_scale_of_the_weights_does_not_change_the_choice():
    data = make_second_order(200, 8, rank=2, noise=1.0, random_state=0)
    one, other = (
        SecondOrderRegressor(random_state=0).fit(data.X, data.y, np.full(200, weight))
        for weight in (1.0, 5.0)
    )
    assert one.rank_ == other.rank_
    np.testing.assert_allclose(5 * np.array(one.alpha_), other.alpha_, rtol=1e-3)
    np.testing.assert_allclose(one.predict(data.X), other.predict(data.X), atol=1e-3)


def test_the_diagnosis_of_a_linear_model_speaks_of_no_components():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 4))
    model = SecondOrderRegressor(rank=0, random_state=0).fit(X, X[:, 0] + rng.standard_normal(100))
    assert "rank: 0, a linear model." in model.diagnose()


@pytest.mark.parametrize("rank", [3, "auto"])
@pytest.mark.parametrize("intercept", [False, True])
def test_all_products_are_tried_without_a_linear_part_too(rank, intercept):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    y = np.sum(X**2, axis=1) + 0.1 * rng.standard_normal(40)  # of full rank
    options = {"fit_linear": False, "fit_intercept": intercept, "random_state": 0}
    model = SecondOrderRegressor(rank=rank, **options).fit(X, y)
    assert model.rank_ == 3
    assert model.score(X, y) > 0.99


@pytest.mark.parametrize("rank", [0, 1, "auto"])
def test_rows_that_are_all_the_same_are_fitted_by_their_mean(rank):
    y = np.arange(7.0)
    model = SecondOrderRegressor(rank, uncertainty=True).fit(np.full((7, 1), 3.0), y)
    np.testing.assert_allclose(model.predict([[3.0]]), y.mean())


def test_a_model_without_parameters_has_predictions_with_a_spread():
    X = np.zeros((20, 2))
    y = np.random.default_rng(0).standard_normal(20)
    model = SecondOrderRegressor(1, fit_intercept=False, uncertainty=True).fit(X, y)
    f, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(std, np.sqrt(np.mean(y**2)))
    assert f.shape == std.shape == (20,)


@pytest.mark.parametrize("draw", [0, 1])
def test_the_rank_with_a_given_penalty_depends_neither_on_the_seed_nor_on_units(draw):
    # Fifths are drawn by what rows hold in units of their own, and each of them judges.
    data = make_second_order(2400, 12, rank=3, noise=1.5, random_state=draw)
    rows, y, units = data.X[:400], data.y[:400], 2.0 ** np.arange(-6, 6)
    ranks = [
        SecondOrderRegressor(alpha=0.0, random_state=seed).fit(X, y).rank_
        for seed, X in [(0, rows), (1, rows), (0, rows * units)]
    ]
    assert ranks == [3, 3, 3]


def test_rounding_of_few_rows_does_not_decide_between_a_line_and_the_mean():
    # Errors of rows left out are the same for all small penalties but the smallest, whose errors
    # are rounding: a walk across that plain ended there for five of twelve changes in the last bit.
    X = np.array(
        [
            [2.83421555e-01, 1.41841274e00, 1.0, 9.99902708e03],
            [1.34539778e01, -1.29132703e00, 1.0, 9.99983137e03],
            [1.01810055e01, -9.46240841e-01, 0.0, 1.00012037e04],
            [9.63439009e-01, 1.68364323e00, 1.0, 9.99895537e03],
        ]
    )
    y = np.array([1.11517476, 1.45898812, 1.01415539, 1.10661437])
    weight = np.array([4.53061808, 1.21848166, 1.0, 2.44731627])
    model = SecondOrderRegressor(rank=0, random_state=0)
    spreads = []
    for seed in range(12):
        last_bit = 1 + 1e-15 * np.random.default_rng(seed).standard_normal(X.shape)
        spreads.append(np.ptp(model.fit(X * last_bit, y, sample_weight=weight).predict(X)))
    assert max(spreads) < 1e-6
