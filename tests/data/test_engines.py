"""Sums that are carried out by torch on a device: here the CPU stands in for the GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from problems import random_model
from quadlin.core.arrays import mapped
from quadlin.core.chunks import MemorySource
from quadlin.core.engine import Serial
from quadlin.core.model import Steps
from quadlin.core.moments import survey
from quadlin.core.rows import Rows
from quadlin.core.sums import change_sums, residual_sums
from quadlin.core.units import UnitsMaker
from quadlin.data.engines import OnDevice
from quadlin.solve.lowrank.moment_sequence import change_products
from quadlin.solve.lowrank.observations import sample_of

N, D, K = 700, 9, 2


def table(dtype, weighted):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((N, D)) + 3 * np.arange(D)).astype(dtype)
    weight = rng.integers(0, 3, N).astype(np.float64) if weighted else None
    return MemorySource(X, rng.standard_normal(N), weight)


def leaves(value):
    kept = []
    mapped(kept.append, value)
    return kept


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_pass_says_on_a_device_what_it_says_here(dtype, weighted):
    source, rng = table(dtype, weighted), np.random.default_rng(1)
    here, there = Rows.of(source), Rows(OnDevice(source, "cpu", 1))
    about = here.reduce(survey)
    units = UnitsMaker("auto", True, np.dtype(dtype), [f"x{i}" for i in range(D)], (), True)(
        about.features, about.target
    )
    model = random_model(D, K, units.free, rng)
    cast = {name: getattr(model, name).astype(dtype) for name in ("U", "s", "w", "free")}
    model = replace(model, **cast)
    H, w = (rng.standard_normal((D, 2, K)).astype(dtype), rng.standard_normal((D, 2)).astype(dtype))
    steps = Steps(model.U, H, w, np.ones(2, dtype))
    asked = [
        (survey,),
        (residual_sums, model, units),
        (change_sums, steps, units, True),
        (change_products, [model], model, units),
    ]
    # Sums of 700 terms of size 10 in another order: 700 × 10 × 6e-8 in float32.
    margin = 1e-3 if dtype == np.float32 else 1e-9
    for rows_here, rows_there in (
        (here, there),
        (here.reweighted(np.arange(N) % 3.0), there.reweighted(np.arange(N) % 3.0)),
    ):
        for fn, *params in asked:
            mine = leaves(rows_here.reduce(fn, *params))
            theirs = leaves(rows_there.reduce(fn, *params))
            for a, b in zip(mine, theirs, strict=True):
                assert not isinstance(b, torch.Tensor)
                np.testing.assert_allclose(a, b, rtol=margin, atol=margin)


def test_rows_of_any_strides_and_read_only_ones_are_copied_as_they_are():
    X = np.arange(24.0).reshape(6, 4)[::-1, ::-2]
    X.flags.writeable = False
    rows = Rows(OnDevice(MemorySource(X, np.ones(6)), "cpu", 1))
    np.testing.assert_array_equal(rows.reduce(survey).features.mean, X.mean(axis=0))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_rows", [N, None])
def test_a_sample_is_gathered_and_summed_on_the_device(n_rows, weighted):
    rows = Rows(OnDevice(table(np.float64, weighted), "cpu", 1))
    rows = rows.reweighted(np.arange(N) % 2.0) if weighted else rows
    few = sample_of(rows, 0.5, n_rows)
    fewer = sample_of(few, 0.5, n_rows, 1)
    for some in (few, fewer):
        assert isinstance(some.engine, OnDevice)
        there = some.reduce(survey)
        if n_rows is not None:
            assert "table" not in vars(some.engine.source)  # nothing was gathered here
        here = replace(some, engine=Serial(some.engine.source)).reduce(survey)
        assert there.tally == here.tally
        np.testing.assert_allclose(there.features.phi, here.features.phi)
        np.testing.assert_allclose(there.target.mean, here.target.mean)
