"""Equations of levels: the compiled kernel and numpy say the same, and so do all instructions."""

import ctypes

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from field_problems import table
from quadlin.core import compiled_levels, library
from quadlin.solve.fields import level_systems
from quadlin.solve.fields.field_machine import FieldMachine
from quadlin.solve.fields.field_rows import field_rows
from quadlin.solve.fields.label_machine import LabelMachine

needs_kernel = pytest.mark.skipif(library.library() is None, reason="there is no compiled kernel")


def swept(kind, rank, sampled, labels=False):
    """Return all numbers of a machine after three sweeps."""
    X, y, fields, weight = table(kind)
    rows = field_rows(csr_matrix(X), y > 0 if labels else y, fields, weight)
    signs = np.where(np.arange(rank) % 2, -1.0, 1.0)
    if labels:
        machine = LabelMachine(rows, signs, np.random.default_rng(0))
    else:
        machine = FieldMachine(rows, signs, np.random.default_rng(0), sampled)
    for _ in range(3):
        machine.sweep()
    parts = [level for levels in machine.levels for level in levels]
    arrays = [machine.b, machine.error, machine.noise.mean, machine.centre, machine.means]
    arrays += [part.mean for part in parts] + [p.cov for p in parts if p.cov is not None]
    return np.concatenate([np.ravel(array) for array in arrays])


# Biases alone, sums of one and of several vectors per pattern, the largest rank, one beyond it.
@needs_kernel
@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize(
    ("kind", "rank"),
    [
        ("two", 0),
        ("two", 1),
        ("two", 8),
        ("two", 32),
        ("two", 33),
        ("side", 2),
        ("near", 3),
        ("more", 3),
    ],
)
def test_sweeps_of_the_compiled_kernel_are_those_of_numpy(monkeypatch, kind, rank, sampled):
    compare(monkeypatch, kind, rank, sampled)


@needs_kernel
@pytest.mark.parametrize("kind", ["two", "side"])
@pytest.mark.parametrize("rank", [0, 1, 8, 32])
def test_sweeps_of_labels_of_the_compiled_kernel_are_those_of_numpy(monkeypatch, kind, rank):
    compare(monkeypatch, kind, rank, sampled=False, labels=True)


def compare(monkeypatch, kind, rank, sampled, labels=False):
    numbers = [swept(kind, rank, sampled, labels)]
    for level in range(library.instruction_level() + 1):
        monkeypatch.setattr(compiled_levels, "instruction_level", lambda level=level: level)
        numbers.append(swept(kind, rank, sampled, labels))
    monkeypatch.setenv("QUADLIN_KERNEL", "numpy")
    assert not compiled_levels.takes_levels(rank + 1)
    reference = swept(kind, rank, sampled, labels)
    for each in numbers:
        np.testing.assert_allclose(each, reference, rtol=1e-7, atol=1e-9 * np.abs(reference).max())


@needs_kernel
@pytest.mark.parametrize("L", [1, 7, 8, 19])
def test_equations_of_any_number_of_levels_are_solved_alike(monkeypatch, L):
    rng = np.random.default_rng(L)
    B, r, z = rng.standard_normal((L, 6, 4)), *rng.standard_normal((2, 4, L))
    A, precision = np.einsum("lia,lib->abl", B, B), np.array([0.5, 1.0, 2.0, 4.0])

    def numbers():
        factors = level_systems.factorised(A, r, 1.5, precision)
        return [
            *factors,
            level_systems.solved(factors.factor, r),
            level_systems.spread_out(factors.factor, z),
            level_systems.covariances(factors.factor),
            level_systems.remainder(A, r, z),
        ]

    fast = numbers()
    monkeypatch.setenv("QUADLIN_KERNEL", "numpy")
    for one, other in zip(fast, numbers(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@needs_kernel
def test_the_structures_are_those_of_the_source():
    loaded = library.library()
    for name in ("Meetings", "Evidence", "Systems"):
        structure = getattr(compiled_levels, f"{name}Structure")
        assert ctypes.sizeof(structure) == getattr(loaded, f"{name.lower()}_size")()
