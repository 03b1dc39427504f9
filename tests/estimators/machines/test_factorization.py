"""Factorization machines on one-hot fields: the posterior instead of a chosen rank and penalty."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import RidgeCV

import field_problems
from field_problems import table
from quadlin import (
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    Status,
    load,
    open_source,
    save,
    to_onnx,
)
from quadlin.datasets import make_second_order
from quadlin.solve.fields.field_machine import FieldMachine
from quadlin.solve.fields.variational import SWEEPS

USERS, ITEMS, NOISE = 200, 150, 0.8


def ratings(n=8000, seed=0):
    """Return rows and targets; some users and items are popular."""
    rng = np.random.default_rng(seed)
    user, item = (_popular(rng, size, n) for size in (USERS, ITEMS))
    w, v = 0.5 * rng.standard_normal(USERS), 0.35 * rng.standard_normal((USERS, 3))
    cells = w[:, None] + 0.5 * rng.standard_normal(ITEMS) + v @ rng.standard_normal((ITEMS, 3)).T
    X = sparse.csr_array(np.hstack([np.eye(USERS)[user], np.eye(ITEMS)[item]]))
    return X, 3.5 + cells[user, item] + NOISE * rng.standard_normal(n)


def _popular(rng, size, n):
    share = 1 / (10 + np.arange(size))
    return rng.choice(size, n, p=share / share.sum())


X, Y = ratings()
TRAIN, TEST = slice(0, 6500), slice(6500, None)


def fitted(**options):
    return FactorizationMachineRegressor(random_state=0, **options).fit(X[TRAIN], Y[TRAIN])


@pytest.fixture(scope="module")
def variational():
    return fitted()


@pytest.fixture(scope="module")
def drawn():
    return fitted(draws=150)


def rmse(prediction):
    return float(np.sqrt(np.mean((prediction - Y[TEST]) ** 2)))


def test_the_default_beats_biases_and_a_fit_without_penalty(variational):
    biases = RidgeCV(np.logspace(-1, 2, 7)).fit(X[TRAIN], Y[TRAIN])
    plain = fitted(rank=5, alpha=0.0)
    error = rmse(variational.predict(X[TEST]))
    # Interactions are 37% of the variance beside the noise. Three draws of the table gave ratios of
    # .93, .86 and .89 to the biases, whose standard error on 1,500 rows is near .01.
    assert error < 0.96 * rmse(biases.predict(X[TEST]))
    # Without a penalty the fit ends once it gains less than its statistical error: 1.45 here, and
    # 1.86 at the very optimum.
    assert error < 0.7 * rmse(plain.predict(X[TEST]))


def test_components_that_the_rows_do_not_need_are_dropped(variational):
    assert variational.rank_ == 3
    assert variational.status_ is Status.converged
    assert variational.n_iter_ <= variational.max_iter
    losses = [record.loss for record in variational.history_]
    assert losses[-1] < min(losses[0], 0.7 * Y.var())
    # About 5,000 degrees of freedom are left: the standard error is 1% of it.
    assert variational.noise_ == pytest.approx(NOISE, rel=0.05)
    wide = fitted(rank=8)
    assert wide.rank_ == 8
    np.testing.assert_allclose(wide.predict(X[TEST]), variational.predict(X[TEST]), atol=1e-3)


def test_draws_are_as_good_as_the_variational_fit_and_know_how_sure_they_are(variational, drawn):
    mean, std = drawn.predict(X[TEST], return_std=True)
    assert rmse(mean) < 1.01 * rmse(variational.predict(X[TEST]))
    # 1,500 rows: the share within 95% has a standard error of .006.
    assert 0.90 < np.mean(np.abs(Y[TEST] - mean) < 1.96 * std) < 0.99
    # About 5,000 degrees of freedom are left: the standard error is 1% of it.
    assert drawn.noise_ == pytest.approx(NOISE, rel=0.05)
    assert std.min() > drawn.noise_
    assert drawn.status_ is Status.converged
    assert len(drawn.history_) > 150 + len(variational.history_)
    np.testing.assert_array_equal(drawn.coef_, variational.coef_)


@pytest.mark.parametrize(("share", "size"), [(0.0, 0.0), (0.05, 8.0), (0.02, 1e5)])
def test_hubers_loss_keeps_the_posterior_and_leaves_out_gross_errors(variational, share, size):
    rng = np.random.default_rng(100)  # another stream than the users': errors are spread over them
    wrong = rng.random(6500) < share
    y = Y[TRAIN] + size * Y[TRAIN].std() * wrong * rng.choice([-1, 1], len(wrong))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of another model, or of extreme targets
        robust = FactorizationMachineRegressor(loss="huber", random_state=0).fit(X[TRAIN], y)
    # Huber's loss is 95% as efficient, and a twentieth of the rows is lost, of which the noise in
    # predictions is a part: well within 3% of the error. Least squares ends 5% off, or nowhere.
    assert rmse(robust.predict(X[TEST])) < 1.03 * rmse(variational.predict(X[TEST]))
    assert robust.rank_ in (2, 3)  # the third component is the weakest
    assert robust.noise_ == pytest.approx(variational.noise_, rel=0.15)
    if share:
        plain = FactorizationMachineRegressor(random_state=0).fit(X[TRAIN], y)
        assert rmse(plain.predict(X[TEST])) > 1.05 * rmse(robust.predict(X[TEST]))


def test_a_new_user_gets_the_mean_of_all_and_a_wider_interval(variational, drawn):
    items = sparse.csr_array(np.hstack([np.zeros((ITEMS, USERS)), np.eye(ITEMS)]))
    users = sparse.csr_array(np.repeat(np.eye(USERS, USERS + ITEMS), ITEMS, axis=0))
    pairs = users + sparse.csr_array(np.tile(items.toarray(), (USERS, 1)))
    seen = np.asarray(X[TRAIN].sum(axis=0)).ravel()[:USERS] > 0
    mean_of_users = variational.predict(pairs).reshape(USERS, ITEMS)[seen].mean(axis=0)
    # The mean of a field is shrunk towards zero by the weight of one of its 200 levels.
    np.testing.assert_allclose(variational.predict(items), mean_of_users, atol=0.05)
    mean, std = drawn.predict(items, return_std=True)
    # A mean of 150 draws of what users have in common, of standard deviation near .1.
    assert np.sqrt(np.mean((mean - mean_of_users) ** 2)) < 0.1
    # A user's own bias and factors have a standard deviation of √(.5² + 3·.35²) = .79 where the
    # factors of items have one of 1.
    spread = np.sqrt(np.mean(std**2 - drawn.noise_**2))
    assert spread == pytest.approx(0.79, rel=0.3)


def test_a_level_without_rows_predicts_as_none_at_all():
    rows = X[TRAIN].toarray()
    kept = rows[:, 7] == 0
    for options in ({}, {"draws": 20}):
        model = FactorizationMachineRegressor(
            fields=[range(USERS), range(USERS, USERS + ITEMS)], random_state=0, **options
        ).fit(rows[kept], Y[TRAIN][kept])
        cold = X[TEST].toarray()
        cold[:, :USERS] = 0
        gone = model.predict(cold)
        cold[:, 7] = 1
        np.testing.assert_allclose(model.predict(cold), gone, atol=1e-4)


@pytest.mark.parametrize("kind", ["two", "side", "near", "more"])
def test_columns_beside_the_fields_may_have_any_unit(kind):
    rows, y, fields, weight = table(kind)
    options = {"rank": 3, "fields": fields, "random_state": 0}
    models = []
    for scale, shift in ((1.0, 0.0), (1000.0, 40000.0)):
        moved = rows.copy()
        if kind != "two":
            age = 7 + 9 + 3
            moved[:, age] = scale * moved[:, age] + shift
        gone = moved.copy()
        gone[:40, fields[0]] = 0
        gone[20:60, fields[1]] = 0
        model = FactorizationMachineRegressor(**options).fit(moved, y, weight)
        drawn = FactorizationMachineRegressor(draws=5, **options).fit(moved, y, weight)
        models.append([model.predict(gone), drawn.predict(gone)])
    np.testing.assert_allclose(*models, rtol=1e-3, atol=1e-3)


def test_interactions_are_those_between_fields():
    rows, y, fields, weight = table("side")
    model = FactorizationMachineRegressor(rank=2, fields=fields, random_state=0)
    user, item, job, age = fields[0][0], fields[1][0], fields[2][0], 7 + 9 + 3
    y = y + 2 * rows[:, age] * rows[:, fields[1][:4]].sum(axis=1)  # y alone is noise
    model.fit(rows, 10 * y + 3, weight)
    assert model.interaction(user, job) == pytest.approx(0, abs=1e-9)
    assert model.interaction(user, age) == pytest.approx(0, abs=1e-9)
    assert abs(model.interaction(age, item)) > 1e-6
    M = model.components_.T @ np.diag(model.eigenvalues_) @ model.components_
    quadratic = np.einsum("ni,ij,nj->n", rows, M, rows) - rows**2 @ np.diag(M)
    np.testing.assert_allclose(
        model.intercept_ + rows @ model.coef_ + quadratic, model.predict(rows), atol=1e-9
    )


def test_weights_are_repetitions():
    weight = np.random.default_rng(1).integers(0, 3, size=6500)
    repeated = np.repeat(np.arange(6500), weight)
    models = [
        FactorizationMachineRegressor(random_state=0).fit(X[TRAIN], Y[TRAIN], weight),
        FactorizationMachineRegressor(random_state=0).fit(X[repeated], Y[repeated]),
    ]
    predictions = [model.predict(X[TEST]) for model in models]
    np.testing.assert_allclose(*predictions, rtol=1e-6)


def test_float32_rows_give_float32_predictions(variational):
    model = FactorizationMachineRegressor(random_state=0)
    model.fit(X[TRAIN].astype(np.float32), Y[TRAIN])
    prediction = model.predict(X[TEST].astype(np.float32))
    assert prediction.dtype == np.float32
    np.testing.assert_allclose(prediction, variational.predict(X[TEST]), atol=1e-3)


def test_rows_without_noise_are_recovered_exactly():
    rows, y, _, cells = field_problems.ratings(noise=0.0)
    model = FactorizationMachineRegressor(random_state=0).fit(rows, y)
    assert np.abs(model.predict(field_problems.every_cell()) - cells.ravel()).max() < 1e-6


def test_cells_that_contradict_others_hardly_change_the_fit():
    rng = np.random.default_rng(0)
    item = X[:, USERS:].argmax(axis=1)
    kinds = np.array(["war", "love", "fun"])
    genres = np.array(["|".join(kinds[row]) for row in rng.random((ITEMS, 3)) < 0.4])
    age = rng.integers(18, 80, USERS)[X[:, :USERS].argmax(axis=1)]
    frame = pd.DataFrame({"user": X[:, :USERS].argmax(axis=1), "item": item, "age": age})
    frame["genres"] = genres[item]
    options = {"categorical_features": ["user", "item"], "multi_hot": ["genres"]}
    models = []
    for cells in (0, 1, 60):
        rows = frame.copy()
        rows.loc[rng.permutation(6500)[:cells], "genres"] = ""
        rows.loc[rng.permutation(6500)[:cells], "age"] += 1
        model = FactorizationMachineRegressor(random_state=0, **options)
        models.append(model.fit(rows[:6500], Y[TRAIN]))
    assert [model.rank_ for model in models] == [6, 6, 6]  # three for each of two entities
    errors = [rmse(model.predict(frame[6500:])) for model in models]
    # 1% of the cells say nothing of the genres, which say nothing here beside the items.
    assert max(errors[1:]) < 1.005 * errors[0]


def test_numbers_that_vary_from_row_to_row_keep_the_other_path():
    rng = np.random.default_rng(0)
    wide = sparse.hstack([X[:500, :], rng.standard_normal((500, 1))], format="csr")
    model = FactorizationMachineRegressor(2, random_state=0).fit(wide, Y[:500])
    assert model.fitted_.draws is None
    with pytest.raises(ValueError, match="whose levels determine all other columns"):
        FactorizationMachineRegressor(2, draws=10).fit(wide, Y[:500])


@pytest.mark.parametrize(("strength", "share"), [(0.0, 1.1), (0.7, 0.8)])
def test_a_column_that_varies_by_row_leaves_a_machine_no_worse_than_biases(strength, share):
    rng = np.random.default_rng(1)
    user, item, hour = rng.integers(0, 30, 1600), rng.integers(0, 20, 1600), rng.normal(size=1600)
    P, Q = rng.normal(0, strength, (30, 2)), rng.normal(size=(20, 2))
    truth = rng.normal(0, 0.5, 30)[user] + rng.normal(0, 0.5, 20)[item] + 0.3 * hour
    truth = truth + np.sum(P[user] * Q[item], axis=1)
    y = truth + rng.normal(size=1600)
    rows = pd.DataFrame({"user": user.astype(str), "item": item.astype(str), "hour": hour})
    errors = []
    for options in ({}, {"rank": 0}):
        machine = FactorizationMachineRegressor(**options).fit(rows[:600], y[:600])
        errors.append(np.sqrt(np.mean((machine.predict(rows[600:]) - truth[600:]) ** 2)))
    # Of twelve draws (six of them without products) one was 13% worse, and with products all were
    # better by 30 to 47%.
    assert errors[0] < share * errors[1]


@pytest.mark.parametrize(("users", "items", "n"), [(60, 40, 2000), (240, 160, 10_000)])
def test_a_column_that_varies_by_row_hides_no_products_of_many_levels(users, items, n):
    rng = np.random.default_rng(0)
    user, item = rng.integers(users, size=n), rng.integers(items, size=n)
    P, Q = rng.normal(0, 0.4, (users, 4)), rng.normal(size=(items, 4))
    truth = rng.normal(0, 0.4, users)[user] + rng.normal(0, 0.5, items)[item]
    truth = truth + np.sum(P[user] * Q[item], axis=1)
    rows = pd.DataFrame({"user": user.astype(str), "item": item.astype(str)})
    numbers = {"hour": rng.uniform(0, 24, n), "age": rng.normal(40, 10, n)}
    numbers["price"] = rng.gamma(2, 3, n)
    noise, errors, part = 0.7 * rng.normal(size=n), [], n * 4 // 5
    for X, f in ((rows, truth), (rows.assign(**numbers), truth + 0.03 * numbers["hour"])):
        model = FactorizationMachineRegressor(random_state=0).fit(X[:part], (f + noise)[:part])
        errors.append(np.sqrt(np.mean((model.predict(X) - f)[part:] ** 2)))
    # Rank 0 before, with twice the error. The error without the columns is that of four factors;
    # least squares, which can choose the rank of 103 features but not of 403, comes close to it.
    assert model.rank_ >= 2
    assert errors[1] < (1.05 if users > 100 else 1.2) * errors[0]


def test_products_are_found_where_few_ratings_hide_them_from_small_factors():
    rng = np.random.default_rng(0)
    users, items, n = 300, 120, 12_000
    user, item = rng.integers(users, size=n), rng.integers(items, size=n)
    P, Q = rng.normal(0, 0.3, (users, 3)), rng.normal(size=(items, 3))
    y = rng.normal(0, 0.4, users)[user] + rng.normal(0, 0.5, items)[item]
    y = y + np.sum(P[user] * Q[item], axis=1) + 0.5 * rng.normal(size=n)
    frame = pd.DataFrame({"user": user.astype(str), "item": item.astype(str)})
    model = FactorizationMachineRegressor(random_state=0).fit(frame[:6000], y[:6000])
    error = np.sqrt(np.mean((model.predict(frame[6000:]) - y[6000:]) ** 2))
    # The noise is .5, biases alone leave .5² + 3·.3² = .72², and 20 ratings per user pay .08 for
    # three factors of each. Inference from small factors found no products and ended at .74.
    assert model.rank_ == 3
    assert error < 0.62


def test_a_number_whose_slope_differs_from_level_to_level_is_left_to_least_squares():
    rng = np.random.default_rng(1)
    n, users, items = 6000, 200, 150
    user, item, hour = rng.integers(users, size=n), rng.integers(items, size=n), rng.normal(size=n)
    P, Q = rng.normal(0, 0.5, (users, 2)), rng.normal(size=(items, 2))
    y = np.sum(P[user] * Q[item], axis=1) + rng.normal(size=users)[user] * hour
    y = y + 0.5 * rng.normal(size=n)
    X = pd.DataFrame({"user": user.astype(str), "item": item.astype(str), "hour": hour})
    model = FactorizationMachineRegressor(random_state=0).fit(X[:5000], y[:5000])
    # Without slopes by level R² is at most .29: they are 1 of 1.75 of the variance.
    assert model.score(X[5000:], y[5000:]) > 0.33


def test_draws_refuse_what_has_no_posterior_in_words():
    data = make_second_order(100, 3, rank=1, random_state=0)
    with pytest.raises(ValueError, match="at least two one-hot fields"):
        FactorizationMachineRegressor(draws=10).fit(data.X, data.y)
    for options, words in [
        ({"draws": 1}, "draws=1 must be None or a whole number"),
        ({"draws": 10, "loss": "huber"}, 'cannot be combined with loss="huber"'),
        ({"draws": 10, "psd": True}, "cannot be combined with psd=True"),
        ({"draws": 10, "fit_linear": False}, "cannot be combined with fit_linear=False"),
        ({"draws": 10, "uncertainty": True}, "cannot be combined with uncertainty=True"),
        ({"draws": 10, "alpha": 1.0}, "cannot be combined with alpha=1.0"),
    ]:
        with pytest.raises(ValueError, match=words):
            FactorizationMachineRegressor(**options).fit(X[:500], Y[:500])
    machine = FactorizationMachineRegressor(draws=10)
    with pytest.raises(ValueError, match="use `fit`"):
        machine.partial_fit(X[:500], Y[:500])
    with pytest.raises(ValueError, match="at least two one-hot fields"):
        machine.fit(open_source(X[:500].toarray(), target=Y[:500]))


def test_text_columns_and_levels_never_seen():
    frame = pd.DataFrame(
        {
            "user": [f"u{j}" for j in X[:, :USERS].argmax(axis=1)],
            "item": [f"i{j}" for j in X[:, USERS:].argmax(axis=1)],
        }
    )
    model = FactorizationMachineRegressor(draws=50, random_state=0).fit(frame[:2000], Y[:2000])
    new = frame[:200].assign(user="nobody")
    with pytest.warns(UserWarning, match="treated as an average level"):
        _, wide = model.predict(new, return_std=True)
    _, std = model.predict(frame[:200], return_std=True)
    assert wide.mean() > 1.05 * std.mean()


def test_a_stream_does_not_go_on_from_a_posterior_and_says_so(variational, tmp_path):
    save(variational, tmp_path / "model.safetensors")
    before = variational.predict(X[TEST])
    for machine in (variational, load(tmp_path / "model.safetensors")):
        with pytest.raises(ValueError, match="`fit` on the old and the new rows together"):
            machine.partial_fit(X[TEST], Y[TEST])
        np.testing.assert_array_equal(machine.predict(X[TEST]), before)
        assert machine.n_samples_seen_ == len(Y[TRAIN])
    labels = FactorizationMachineClassifier(random_state=0).fit(X[TRAIN], Y[TRAIN] > 0)
    with pytest.raises(ValueError, match="`fit` on the old and the new rows together"):
        labels.partial_fit(X[TEST], Y[TEST] > 0)


@pytest.mark.parametrize("kind", [FactorizationMachineRegressor, FactorizationMachineClassifier])
def test_ids_that_were_not_declared_are_warned_of(kind):
    user, item = (
        np.asarray(X[:, c].argmax(axis=1)).ravel() for c in (slice(USERS), slice(USERS, None))
    )
    ids = pd.DataFrame({"user": user, "item": item + 1000})
    y = Y if kind is FactorizationMachineRegressor else np.median(Y) < Y
    with pytest.warns(
        UserWarning, match=r"'user', 'item' .*categorical_features=\['user', 'item'\]"
    ):
        kind(1, alpha=1.0, random_state=0).fit(ids, y)
    with pytest.warns(UserWarning, match=r"categorical_features=\[0, 1\]"):
        kind(1, alpha=1.0, random_state=0).fit(ids.to_numpy(), y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        kind(1, random_state=0, categorical_features=["user", "item"]).fit(ids, y)


def test_draws_are_saved_and_loaded(drawn, variational, tmp_path):
    for model in (drawn, variational):
        save(model, tmp_path / "model.safetensors")
        again = load(tmp_path / "model.safetensors")
        np.testing.assert_array_equal(again.predict(X[TEST]), model.predict(X[TEST]))
        assert again.get_params() == model.get_params()
        assert again.noise_ == model.noise_
    save(drawn, tmp_path / "drawn.safetensors")
    again = load(tmp_path / "drawn.safetensors")
    pairs = zip(*(m.predict(X[TEST], return_std=True) for m in (again, drawn)), strict=True)
    for one, other in pairs:
        np.testing.assert_array_equal(one, other)


def test_onnx_holds_the_variational_fit_and_refuses_draws(drawn, variational):
    assert to_onnx(variational).graph.output[0].name == "y"
    with pytest.raises(ValueError, match="means over draws"):
        to_onnx(drawn)


def test_a_diagnosis_advises_no_penalty_where_it_was_learned(variational):
    text = variational.diagnose()
    assert "converged" in text
    assert "alpha" not in text


@pytest.mark.parametrize(("options", "at"), [({}, 4), ({"draws": 10, "max_iter": 2}, 20)])
def test_ctrl_c_leaves_the_last_sweep_of_the_variational_fit(monkeypatch, options, at):
    calls, sweep = [], FieldMachine.sweep

    def interrupted(machine):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        sweep(machine)

    monkeypatch.setattr(FieldMachine, "sweep", interrupted)
    model = FactorizationMachineRegressor(random_state=0, **options)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[TRAIN], Y[TRAIN])
    assert model.status_ is Status.interrupted
    assert len(model.history_) == min(at - 1, SWEEPS * model.max_iter)
    assert np.isfinite(model.predict(X[TEST])).all()
    with pytest.raises(AttributeError, match="interrupted"):
        model.predict(X[TEST], return_std=True)
