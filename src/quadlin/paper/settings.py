"""Settings of the panels that a user may change, checked before anything runs."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quadlin.paper.laws import law_of
from quadlin.paper.methods import METHODS
from quadlin.paper.race import load_solver


class SettingError(ValueError):
    """A setting that is not valid; the message says which one, and what is."""


@dataclass(frozen=True)
class Settings:
    """What to change about the panels; None leaves a setting as the panel has it.

    Parameters
    ----------
    features, rank : int or None
        Number of features d, and rank k of the model.
    rows : int, str or None
        Training rows: a number, or a multiple of kd such as ``"30kd"``.
    noise : float or None
        Standard deviation of the noise.
    trials, iterations : int or None
        Number of trials, and most iterations of a solver.
    distribution : str or None
        ``gaussian``, ``truncated:0.1``, ``bernoulli:0.2``, ``signs``, ``uniform``, ``sparse:0.2``,
        or the file of a function ``draw(rng, n, d)``.
    solvers : tuple of path
        Files of solvers to run beside the others; see `quadlin.paper.race`.

    Examples
    --------
    >>> Settings(features=20, rank=2, rows="30kd").rows_for(20, 2)
    1200
    >>> Settings(rank=30, features=20).check()
    Traceback (most recent call last):
        ...
    quadlin.paper.settings.SettingError: The rank (30) must not exceed the number of features (20).
    """

    features: int | None = None
    rank: int | None = None
    rows: int | str | None = None
    noise: float | None = None
    trials: int | None = None
    iterations: int | None = None
    distribution: str | None = None
    solvers: tuple[str, ...] = ()

    @property
    def are_default(self) -> bool:
        """Tell whether nothing is changed."""
        return self == Settings()

    def folder(self, size: str) -> Path:
        """Return the default folder for the results of these settings."""
        if self.are_default:
            return Path("results") / size
        text = json.dumps(self.plain(), sort_keys=True)
        return Path("results") / f"{size}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def rows_for(self, d: int, k: int) -> int:
        """Return the number of training rows."""
        rows = "30kd" if self.rows is None else self.rows
        text = str(rows).strip().lower()
        try:
            number = float(text.removesuffix("kd")) * (k * d if text.endswith("kd") else 1)
        except ValueError:
            number = 0.0
        if not 2 <= number < 1e9:
            rows = "a number of rows such as 20000, or a multiple of kd such as 30kd"
            raise self._refused("rows", rows)
        return int(number)

    def _refused(self, name: str, needed: str) -> SettingError:
        return SettingError(f"`{name}` must be {needed}, not {getattr(self, name)!r}.")

    def check(self, features: int | None = None, rank: int | None = None) -> None:
        """Refuse settings that are not valid; `features` and `rank` replace those not set here."""
        for name in ("features", "rank", "trials", "iterations"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise self._refused(name, "at least 1")
        d, k = self.features or features, self.rank or rank
        if d is not None and k is not None and k > d:
            raise SettingError(f"The rank ({k}) must not exceed the number of features ({d}).")
        if self.noise is not None and not 0 <= self.noise < float("inf"):
            raise self._refused("noise", "a number ≥ 0")
        self.rows_for(d or 1, k or 1)
        try:
            if self.distribution is not None:
                law_of(self.distribution)
            names = [load_solver(path).name for path in self.solvers]
        except ValueError as error:
            raise SettingError(error.args[0]) from None
        taken = {*METHODS, *(method.name for method in METHODS.values())}
        for number, name in enumerate(names):
            if name in taken or name in names[:number]:
                raise SettingError(f"Another solver is called {name!r} already; change its NAME.")

    def plain(self) -> Mapping[str, Any]:
        """Return the changed settings as plain numbers and strings, files with their hashes."""
        changed = {name: value for name, value in self.__dict__.items() if value not in (None, ())}
        if self.solvers:
            changed["solvers"] = [f"{path} {load_solver(path).digest}" for path in self.solvers]
        return changed

    def solver_paths(self) -> str:
        """Return the absolute paths of the solvers as one string, as a task holds them."""
        return "\n".join(f"{Path(p).resolve()}\t{load_solver(p).digest}" for p in self.solvers)
