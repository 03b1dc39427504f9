"""The objective: CPU seconds, passes and memory until the error on test rows is small enough."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_sets import Problem

TARGETS = (1e-2, 1e-4, 1e-6)  # of the NMSE, E(ŷ − y)²/Var y on rows that were not learned from


@dataclass(frozen=True)
class Point:
    """What had been spent when a model was reported, and how good it was."""

    seconds: float
    passes: float
    error: float


@dataclass
class Watch:
    """Scores the models that a solver reports; only the solver's own time counts."""

    problem: Problem
    budget: float  # CPU seconds
    points: list[Point] = field(default_factory=list)
    spent: float = 0.0  # on scores
    begun: float = field(default_factory=time.process_time)

    def __call__(self, predict: Callable, passes: float, elsewhere: float = 0.0) -> bool:
        """Score a model; tell whether to stop: it is good enough, or the time is up.

        `elsewhere` are CPU seconds of other processes.
        """
        now = time.process_time()
        seconds = now - self.begun - self.spent + elsewhere
        predicted = np.asarray(predict(self.problem.X_test), dtype=np.float64).ravel()
        y = self.problem.y_test.astype(np.float64)
        error = float(np.mean((predicted - y) ** 2) / np.var(y))
        self.points.append(Point(seconds, passes, error if np.isfinite(error) else np.inf))
        self.spent += time.process_time() - now
        return error <= TARGETS[-1] or seconds > self.budget


def reached(points: list[Point], target: float) -> Point | None:
    """Return when an error was reached for the first time."""
    return next((p for p in points if p.error <= target), None)


def forget_peak() -> None:
    """Reset the peak memory that the kernel measures, if it can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def memory(name: str) -> float:
    """Return the megabytes of this process: "VmRSS" now, "VmHWM" at most; NaN if unknown."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
    return float("nan")
