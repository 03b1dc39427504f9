"""Which columns look like ids or codes."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.sparse import csr_array

from quadlin.core.chunks import Chunk
from quadlin.core.rows import Rows
from quadlin.data.columns.column_roles import column_roles


def looks_like_codes(x, y, name="v"):
    X = np.asarray(x, dtype=float)[:, None]
    pairs = list(pairwise([0, len(y) // 3, len(y)]))
    dense = [Chunk(X[a:b], y[a:b], None) for a, b in pairs]
    sparse = [Chunk(csr_array(X[a:b]), y[a:b], None) for a, b in pairs]
    answers = {
        bool(column_roles(Rows.of(chunks), [name], [name]).codes) for chunks in (dense, sparse)
    }
    assert len(answers) == 1
    return answers.pop()


SHAPES = {
    "line": lambda t: t,
    "parabola": lambda t: (t - 0.3) ** 2,
    "logarithm": lambda t: np.log(0.05 + t),
    "exponential": lambda t: np.exp(3 * t),
    "step": lambda t: (t > 0.4) * 1.0,
    "angle": lambda t: np.abs(t - 0.5),
    "zero apart": lambda t: (t == 0) * 1.0,
    "nothing": lambda t: 0 * t,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("values", [4, 7, 10, 31, 100])
def test_amounts_are_not_codes(shape, values):
    # A false alarm by noise has a chance of 1e-6; shapes like these never raised one in 30 trials.
    rng = np.random.default_rng(values)
    for x in (rng.integers(0, values, 2000), np.minimum(rng.poisson(values / 4, 2000), values)):
        effect = SHAPES[shape](x / (values - 1))
        y = 3 * effect / (effect.std() or 1) + rng.normal(size=2000)
        assert not looks_like_codes(x, y)


@pytest.mark.parametrize("values", [20, 50, 500])
def test_values_in_no_order_are_codes(values):
    rng = np.random.default_rng(values)
    x = rng.permutation(10 * values)[:values][rng.integers(0, values, 5000)]
    effect = rng.normal(size=10 * values)
    assert looks_like_codes(x, effect[x] + rng.normal(size=5000))
    assert not looks_like_codes(x + 0.5, effect[x] + rng.normal(size=5000))


@pytest.mark.parametrize(
    ("name", "code"),
    [("user_id", True), ("itemId", True), ("zip", True), ("product code", True), ("ID", True),
     ("kids", False), ("paid", False), ("width", False), ("id_length", False)],
)  # fmt: skip
def test_names_of_ids_are_codes_if_their_values_come_again(name, code):
    rng = np.random.default_rng(0)
    y = rng.normal(size=300)
    assert looks_like_codes(rng.integers(0, 50, 300), y, name) == code
    assert not looks_like_codes(rng.permutation(300), y, name)


def test_what_a_user_determines_is_judged_by_users_and_not_by_their_rows():
    rng = np.random.default_rng(0)
    user = rng.integers(300, size=6000)
    age, region = rng.integers(18, 78, 300), rng.integers(0, 20, 300)
    of_user, of_region = rng.normal(size=300), 2 * rng.normal(size=20)
    columns = np.column_stack([age[user], region[user]])
    X = csr_array(np.hstack([np.eye(300)[user], columns]))
    y = of_user[user] + 0.02 * age[user] + of_region[region[user]] + rng.normal(size=6000)
    names = [*(f"user={i}" for i in range(300)), "age", "region"]
    rows = Rows.of([Chunk(X[:2000], y[:2000], None), Chunk(X[2000:], y[2000:], None)])
    assert column_roles(rows, ["age", "region"], names).codes == ("age", "region")
    roles = column_roles(rows, ["age", "region"], names, [np.arange(300)])
    assert roles.codes == ("region",)
