"""What the first rows of a table show: codes of missing values, dates, numbers of rows, leaks."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from quadlin.cli.options import join_names
from quadlin.core.chunks import Chunk
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.data.columns.column_roles import are_times
from quadlin.explain.diagnosis import listed

LOOKED_AT = 20_000  # rows
MOST_COLUMNS = 1000
CODES = (-9, -99, -999, -9999, -99999, 99, 999, 9999, 99999)  # of missing values
LEAK = 0.99  # R² of one column and its square, by which it is rather a form of the target
ENOUGH = 30  # rows, with which distinct whole numbers of a short range are no accident
DENSE = 1.5  # times as many whole numbers as rows: a short range
UNRELATED = 3.0  # standard errors of a correlation with the target


@dataclass(frozen=True)
class FirstRows:
    """The columns of numbers in the first rows, and the target if it is numeric."""

    names: tuple[str, ...]
    X: np.ndarray  # (n, d)
    y: np.ndarray | None
    whole: bool  # whether these are all rows
    target: str = "the target"

    @classmethod
    def of(cls, rows: Iterable[Chunk], source: Source) -> "FirstRows":
        """Read the first rows."""
        places = number_columns(source)
        names, blocks, targets, count, whole = tuple(places)[:MOST_COLUMNS], [], [], 0, True
        for chunk in Rows.of(rows).walk():
            if count >= LOOKED_AT:
                whole = False
                break
            X = chunk.X[:, [places[name] for name in names]]
            blocks.append(np.asarray(X.toarray() if issparse(X) else X, dtype=np.float64))
            targets.append(np.asarray(chunk.y, dtype=np.float64))
            count += len(blocks[-1])
        X = np.vstack(blocks) if blocks else np.empty((0, len(names)))
        labelled = source.labels is not None or not blocks
        y = None if labelled else np.concatenate(targets)
        return cls(names, X, y, whole, source.target or cls.target)

    @property
    def _columns(self) -> dict[str, np.ndarray]:
        """Return the columns of numbers, and the target if it is one."""
        return dict(zip(self.names, self.X.T, strict=True)) | (
            {} if self.y is None else {self.target: self.y}
        )

    def codes(self) -> dict[str, int]:
        """Return columns in which a number such as -999 stands apart from all others."""
        codes = {name: _code_apart(x) for name, x in self._columns.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def marks(self) -> list[int]:
        """Return the codes that no other column has as a value, so that they can be declared."""
        codes = self.codes()
        return [
            code
            for code in sorted(set(codes.values()))
            if not any(code in x for name, x in self._columns.items() if codes.get(name) != code)
        ]

    def dates(self) -> list[str]:
        """Return columns of dates that are written as numbers, such as 20230131."""
        return [name for name, x in zip(self.names, self.X.T, strict=True) if are_dates(x)]

    def row_numbers(self) -> list[str]:
        """Return columns of a different whole number per row that say nothing of the target."""
        n = len(self.X)
        if n < ENOUGH or not self.whole or self.y is None:
            return []
        names = []
        for name, x in zip(self.names, self.X.T, strict=True):
            short = np.ptp(x) < DENSE * n and np.array_equal(x, np.floor(x))
            if (
                short
                and len(np.unique(x)) == n
                and abs(_correlation(x, self.y)) * n**0.5 < UNRELATED
            ):
                names.append(name)
        return names

    def leaks(self) -> dict[str, float]:
        """Return columns that tell the target by themselves, each with its R²."""
        y = self.y
        if y is None or len(y) < ENOUGH or len(np.unique(y)) <= 2 or len(self.names) < 2:
            return {}
        shares = {}
        for name, x in zip(self.names, self.X.T, strict=True):
            sd = float(np.std(x))
            if sd > 0 and abs(_correlation(x, y)) > 0.5:
                z = (x - x.mean()) / sd
                A = np.column_stack([np.ones(len(z)), z, z * z])
                rest = y - A @ np.linalg.lstsq(A, y, rcond=None)[0]
                shares[name] = 1 - float(rest @ rest) / float(np.var(y) * len(y))
        return {name: share for name, share in shares.items() if share > LEAK}

    def code_remarks(self, csv: bool, but: Iterable[str] = ()) -> list[str]:
        """Return what there is to say about codes of missing values, in words."""
        codes = {name: code for name, code in self.codes().items() if name not in but}
        marks, lines = self.marks() if csv else [], []
        for code in sorted(set(codes.values())):
            names = listed([name for name in codes if codes[name] == code])
            declare = f"declare it with --na={code}" if code in marks else "leave such cells empty"
            text = f"{names}: {code} lies far from all other values, like a code for missing "
            lines.append(f"{text}values. If it is one, {declare}, and give --missing mean or drop.")
        return lines

    @np.errstate(over="ignore", invalid="ignore")  # numbers too large to square are refused later
    def remarks(self, csv: bool, but: Iterable[str] = ()) -> list[str]:
        """Return what there is to say about columns, `but` some, in words."""
        told = set(but)
        lines = self.code_remarks(csv, told)
        times = [
            name
            for name, x in zip(self.names, self.X.T, strict=True)
            if name not in told and are_times(x)
        ]
        if times:
            text = f"{listed(times)}: whole numbers like seconds or milliseconds since 1970, in "
            text += "which the model sees no hour, weekday or season. Turn them into such numbers, "
            lines.append(f"{text}or into days since a start, or {_out(times)}")
        told |= {*times}
        dates = [name for name in self.dates() if name not in told]
        if dates:
            text = f"{listed(dates)}: dates written as numbers, such as 20230131, whose differences"
            lines.append(
                f"{text} are not days. Turn them into days since a start, or {_out(dates)}"
            )
        numbers = [name for name in self.row_numbers() if name not in {*told, *dates}]
        if numbers:
            text = f"{listed(numbers)}: a different whole number in each row, unrelated to the "
            lines.append(f"{text}target, like row numbers. To ignore them, {_out(numbers)}")
        for name, share in self.leaks().items():
            if name not in told:
                text = f"{name} alone explains {share:.1%} of the variance of the target. If it is "
                lines.append(f"{text}derived from the target or known only later, {_out([name])}")
        return lines


def number_columns(source: Source) -> dict[str, int]:
    """Return the positions of the numeric columns among the features."""
    numbers = {str(name) for name in source.reader.numbers}
    return {name: j for j, name in enumerate(source.names) if name in numbers}


def are_dates(x: np.ndarray) -> bool:
    """Tell whether numbers are dates such as 20230131.

    Examples
    --------
    >>> are_dates(np.array([20230131.0, 20240229])), are_dates(np.array([20231301.0]))
    (True, False)
    """
    if not len(x) or not np.all((x >= 18000101) & (x <= 21001231) & (x == np.floor(x))):
        return False
    month, day = x // 100 % 100, x % 100
    return bool(np.all((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)))


def _out(names: list[str]) -> str:
    return f"use --exclude {shlex.quote(join_names(names))}"


def _code_apart(x: np.ndarray) -> int | None:
    """Return a code that is farther from all other values than they are from each other."""
    for code in CODES:
        there = x == code
        others = x[~there & np.isfinite(x)]
        if there.sum() < 2 or len(others) < ENOUGH or not np.ptp(others):
            continue
        gap = max(others.min() - code, code - others.max())
        if gap > np.ptp(others):
            return code
    return None


def _correlation(x: Any, y: Any) -> float:
    if not (np.std(x) > 0 and np.std(y) > 0):
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])
