"""Small systems of equations, one per level of a field, by the compiled kernel.

Arrays keep the levels last, (K, L) or (K, K, L), in float64. `solve/fields`
does the same in numpy, and tests compare the two.
"""

import ctypes
from collections.abc import Mapping
from ctypes import c_double, c_int64, c_void_p
from typing import NamedTuple

import numpy as np

from quadlin.core.library import instruction_level, library, point, takes

MOST_UNKNOWNS = 33  # of a level
LANES = 8


class MeetingsStructure(ctypes.Structure):
    """Two entities: `meetings` in `_passes.c`, in the same order."""

    _fields_ = [
        *((name, c_int64) for name in ("K", "p", "others", "width")),
        *((name, c_void_p) for name in ("starts", "at", "count", "target")),
        *((name, c_void_p) for name in ("mean", "cov", "signs")),
        ("intercept", c_double),
        *((name, c_void_p) for name in ("table", "G", "h", "moments", "squares")),
    ]


class EvidenceStructure(ctypes.Structure):
    """Patterns and their levels: `evidence` in `_passes.c`, in the same order."""

    _fields_ = [
        *((name, c_int64) for name in ("K", "p", "m", "L")),
        *((name, c_void_p) for name in ("G", "h", "where", "level", "x", "rest", "A", "r")),
    ]


class SystemsStructure(ctypes.Structure):
    """Equations of levels: `systems` in `_passes.c`, in the same order."""

    _fields_ = [
        *((name, c_int64) for name in ("K", "L")),
        *((name, c_void_p) for name in ("A", "r", "precision")),
        ("noise", c_double),
        *((name, c_void_p) for name in ("factor", "spread", "pull", "z", "solution", "cov")),
    ]


def takes_levels(K: int) -> bool:
    """Tell whether there is a compiled kernel for levels with K unknowns."""
    return K <= MOST_UNKNOWNS and takes(np.dtype(np.float64))


class Meetings(NamedTuple):
    """The rows that have a pattern of one entity and one of the other, by the first."""

    starts: np.ndarray  # (p + 1,), int64: where the entries of each pattern begin
    at: np.ndarray  # (entries,), int32: the pattern of the other entity
    counts: np.ndarray  # (entries,), Σ weight
    targets: np.ndarray  # (entries,), Σ weight·y


def meet(
    meetings: Meetings,
    mean: np.ndarray,
    cov: np.ndarray | None,
    signs: np.ndarray,
    intercept: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return G (K, K, p) and h (K, p) of an entity, given the moments of the other one."""
    K, p = len(mean), len(meetings.starts) - 1
    G, h = np.empty((K, K, p)), np.empty((K, p))
    arrays = {"count": meetings.counts, "target": meetings.targets, "G": G, "h": h}
    _run_meetings("run_meetings", meetings, mean, cov, signs, intercept, arrays)
    return G, h


def expected_products(
    meetings: Meetings,
    moments: np.ndarray,
    mean: np.ndarray,
    cov: np.ndarray | None,
    signs: np.ndarray,
    intercept: float,
) -> np.ndarray:
    """Return ⟨moments of a pattern, (E qqᵀ, E oq) of the other one⟩ of each entry (entries,).

    `moments` (p, K(K + 1)/2 + K) belong to upper triangles of qqᵀ, and then to oq.
    """
    squares, (p, numbers) = np.empty(len(meetings.at)), moments.shape
    padded = np.zeros((p, _width(len(mean))))
    padded[:, :numbers] = moments
    arrays = {"moments": padded, "squares": squares}
    _run_meetings("run_squares", meetings, mean, cov, signs, intercept, arrays)
    return squares


def _run_meetings(
    name: str,
    meetings: Meetings,
    mean: np.ndarray,
    cov: np.ndarray | None,
    signs: np.ndarray,
    intercept: float,
    arrays: Mapping[str, np.ndarray | None],
) -> None:
    """Run over all meetings, given the moments of the other entity."""
    (K, others), p = mean.shape, len(meetings.starts) - 1
    width = _width(K)
    given = {
        "starts": meetings.starts,
        "at": meetings.at,
        "mean": mean,
        "cov": cov,
        "signs": np.concatenate([[0.0], signs]),
        "table": np.zeros((others, width)),
    }
    structure = MeetingsStructure(K=K, p=p, others=others, width=width, intercept=intercept)
    _run(name, structure, {**given, **arrays})


def _width(K: int) -> int:
    """Return how many numbers a pattern of the other entity has, in whole vectors."""
    return -(-(K * (K + 1) // 2 + K) // LANES) * LANES


def remainder(G: np.ndarray, h: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return h − G θ (K, p) of each pattern."""
    K, p = h.shape
    r = np.empty((K, p))
    arrays = {"G": G, "h": h, "rest": theta, "r": r}
    _run("run_remainder", EvidenceStructure(K=K, p=p), arrays)
    return r


def gathered(
    G: np.ndarray,
    h: np.ndarray,
    where: np.ndarray,
    level: np.ndarray,
    x: np.ndarray,
    rest: np.ndarray,
    L: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ x²G (K, K, L) and Σ x(h − G rest) (K, L) over the patterns of each level."""
    K, m = rest.shape
    A, r = np.zeros((K, K, L)), np.zeros((K, L))
    arrays = {
        "G": G,
        "h": h,
        "where": where.astype(np.int64, copy=False),
        "level": level.astype(np.int64, copy=False),
        "x": x.astype(np.float64, copy=False),
        "rest": rest,
        "A": A,
        "r": r,
    }
    _run("run_evidence", EvidenceStructure(K=K, p=h.shape[1], m=m, L=L), arrays)
    return A, r


class LevelFactors(NamedTuple):
    """The equations of levels, factorised, and sums over the levels."""

    factor: np.ndarray  # (K, K, L), F, inverses of the Cholesky factors of noise·A + Λ
    spread: np.ndarray  # (K, K), Σ FᵀF
    pull: np.ndarray  # (K,), Σ FᵀF·noise·r


def factorised(A: np.ndarray, r: np.ndarray, noise: float, precision: np.ndarray) -> LevelFactors:
    """Return the factors of the equations of all levels."""
    K, L = r.shape
    factors = LevelFactors(np.empty((K, K, L)), np.empty((K, K)), np.empty(K))
    arrays = {
        "A": A,
        "r": r,
        "precision": precision,
        **factors._asdict(),
    }
    _run("run_factors", SystemsStructure(K=K, L=L, noise=noise), arrays)
    return factors


def solved(factor: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Return FᵀF r (K, L), the solutions of the equations of all levels."""
    return _solution(factor, "r", r)


def spread_out(factor: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return Fᵀ z (K, L) of all levels: deviations from their means, if z are normal numbers."""
    return _solution(factor, "z", z)


def covariances(factor: np.ndarray) -> np.ndarray:
    """Return FᵀF (K, K, L) of all levels."""
    cov = np.empty(factor.shape)
    structure = SystemsStructure(K=len(factor), L=factor.shape[2])
    _run("run_solutions", structure, {"factor": factor, "cov": cov})
    return cov


def _solution(factor: np.ndarray, name: str, values: np.ndarray) -> np.ndarray:
    K, L = values.shape
    solution = np.empty((K, L))
    arrays = {"factor": factor, name: values, "solution": solution}
    _run("run_solutions", SystemsStructure(K=K, L=L), arrays)
    return solution


def _run(name: str, structure: ctypes.Structure, arrays: Mapping[str, np.ndarray | None]) -> None:
    kept = {k: a if a is None else np.ascontiguousarray(a) for k, a in arrays.items()}
    point(structure, kept)
    getattr(library(), name)(ctypes.byref(structure), instruction_level())
