"""What columns are to each other: ids, properties of them, ratings."""

import numpy as np
import pandas as pd
import pytest

from quadlin.core.chunks import Chunk
from quadlin.core.rows import Rows
from quadlin.data.columns.column_roles import column_roles, field_names, ratings_advice
from quadlin.data.columns.encoder import TableEncoder


def ratings(n=6000, seed=0):
    """Ratings of 300 users, with an age and a sex, and 100 films, with a year and a code."""
    rng = np.random.default_rng(seed)
    user, film = rng.integers(300, size=n), rng.integers(100, size=n)
    age, year = rng.integers(18, 78, 300), rng.integers(1960, 2024, 100)
    y = 3.5 + 0.5 * rng.normal(size=300)[user] + 0.5 * rng.normal(size=100)[film]
    table = pd.DataFrame({"user": 7 * user, "film": film + 1000, "age": age[user]})
    table["sex"] = np.where(age % 2, "f", "m")[user]
    table["year"], table["code"] = year[film], [f"tt{f:03d}" for f in film]
    table["when"] = 1_700_000_000 + np.sort(rng.integers(10**7, size=n))
    table["rating"] = np.round(2 * (y + 0.7 * rng.normal(size=n)).clip(1, 5)) / 2
    return table


def roles_of(table, target="rating", declared=()):
    X, y = table.drop(columns=target), table[target].to_numpy(dtype=float)
    encoder = TableEncoder.learn(X, declared)
    if encoder is None:
        names, values = list(X.columns), X.to_numpy(dtype=float)
        return column_roles(Rows.of([Chunk(values, y, None)]), names, names, (), [])
    values, _ = encoder.encode(X)
    numbers = [name for name in encoder.input_names if name not in encoder.text]
    half = len(y) // 2
    rows = Rows.of([Chunk(values[:half], y[:half], None), Chunk(values[half:], y[half:], None)])
    return column_roles(rows, numbers, encoder.names, encoder.fields, field_names(encoder))


def test_ids_are_told_from_their_properties_copies_and_times():
    roles = roles_of(ratings())
    assert roles.codes == ("user", "film")  # neither the age of a user nor the year of a film
    assert roles.ids == ("user", "film")
    assert roles.copies == ("code",)
    assert roles.times == ("when",)
    plain = roles_of(ratings()[["user", "film", "age", "year", "rating"]])
    assert (plain.codes, plain.ids, plain.copies) == (("user", "film"), ("user", "film"), ())


@pytest.mark.parametrize("declared", [("user", "film"), ("user",)])
def test_ratings_of_declared_ids_are_ratings(declared):
    roles = roles_of(ratings()[["user", "film", "age", "sex", "rating"]], declared=declared)
    assert roles.ids == ("user", "film")
    assert roles.codes == tuple(name for name in ("user", "film") if name not in declared)


def test_names_alone_do_not_make_ratings():
    table = ratings().rename(columns={"user": "u", "film": "f"})
    assert roles_of(table).ids == ("u", "f")
    rng = np.random.default_rng(1)
    amounts = table.assign(rating=table.rating + 0.01 * rng.normal(size=len(table)))
    assert roles_of(amounts).ids == ()  # many values
    panel = pd.DataFrame({"shop": rng.integers(30, size=6000), "item": rng.integers(25, size=6000)})
    panel["sold"] = rng.poisson(np.exp(rng.normal(size=30)[panel["shop"]]))
    assert roles_of(panel, "sold").ids == ()  # each pair comes eight times
    wide = table.join(pd.DataFrame(rng.normal(size=(6000, 8)), columns=list("abcdeghi")))
    assert roles_of(wide).ids == ()  # eight measurements of each row


def test_a_code_that_a_user_determines_stays_a_code():
    rng = np.random.default_rng(0)
    table = ratings()
    job = rng.integers(0, 12, 300)[table.user // 7]
    table["job"] = job
    table["rating"] += np.round(2 * rng.normal(size=12)[job])
    roles = roles_of(table)
    assert roles.codes == ("user", "film", "job")
    assert roles.ids == ("user", "film")


def test_advice_speaks_python_and_names_positions_of_arrays():
    roles = roles_of(ratings())
    text = str(ratings_advice(roles, "FactorizationMachineRegressor"))
    assert "pairs of user and film" in text
    assert "categorical_features=['user', 'film'] without 'when', 'code'." in text
    assert "categorical_features=[0, 1]" in ratings_advice(roles, "Machine", [0, 1])
