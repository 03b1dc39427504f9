"""Findings about a table, in words."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from quadlin.cli.columns import ColumnScan, SuspectColumns, codes_text
from quadlin.cli.printing import byte_count, message_text, number
from quadlin.cli.reading import input_columns
from quadlin.core.arrays import to_numpy
from quadlin.core.moments import Survey, survey
from quadlin.core.rows import Rows
from quadlin.core.units import Units, UnitsMaker
from quadlin.data import Source
from quadlin.data.columns.column_roles import ratings_advice
from quadlin.data.columns.fields import field_numbers
from quadlin.explain.diagnosis import COLLINEAR, listed
from quadlin.explain.mip import mip_report
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.lowrank.whitening import (
    ENERGY_EXCESS,
    ENERGY_RATIO,
    FULL_LIMIT,
    correlation_energy,
    covariance,
)

FEW_FEATURES = 1000  # up to which all correlations are computed
CORRELATED = 0.95  # a pair of features worth naming
HEAVY = 20.0  # kurtosis, 3 for a normal distribution, above which a few rows decide
RANKS = range(1, 11)
PLENTY, ENOUGH = 10, 4  # rows per parameter: with noise, and with little of it
RARE = 5  # rows of a level
PROGRAM = 450e6  # bytes; measured by `benchmarks/scale.py csv`
SHRUNK = "fit chooses penalties that suit them."
HELD = 1e9  # bytes of rows that `fit` holds by default


class Finding(NamedTuple):
    """One line of the report."""

    kind: str  # "good", "note" or "warning"
    topic: str
    text: str


@dataclass(frozen=True)
class TableSummary:
    """Statistics of the complete rows."""

    survey: Survey
    energy: tuple[float, float]  # of the correlations, and of independent features
    condition: float | None  # of the correlation matrix, where it was formed
    pairs: list[tuple[str, str, float]]  # that are nearly the same

    @classmethod
    def of(cls, source: Source) -> "TableSummary":
        """Take two passes over the rows, and a third where features are few."""
        rows = Rows.of(source)
        surveyed = rows.reduce(survey)
        make = UnitsMaker("auto", True, source.dtype, list(source.names), source.fields)
        units = make(surveyed.features, surveyed.target)
        energy = correlation_energy(rows, units, np.random.default_rng(0))
        condition: float | None = None
        pairs: list[tuple[str, str, float]] = []
        if source.width <= FEW_FEATURES:
            condition, pairs = _correlations(source, units)
        return cls(surveyed, energy, condition, pairs)

    @property
    def correlated(self) -> bool:
        """Tell whether `whiten="auto"` would decorrelate."""
        energy, independent = self.energy
        return energy >= ENERGY_RATIO * independent and energy - independent >= ENERGY_EXCESS

    def heavy(self, source: Source) -> list[str]:
        """Return the features in which a few rows dominate."""
        phi, tau = to_numpy(self.survey.features.phi), to_numpy(self.survey.features.tau)
        free = np.ones(len(phi), dtype=bool)
        for field in source.fields:
            free[field] = False
        return [
            source.names[j]
            for j in np.flatnonzero((phi > HEAVY) & (tau > 1e-6 * phi) & free).tolist()
        ]

    def numbers(self, source: Source) -> dict[str, Any]:
        """Return the numbers behind the findings."""
        report = mip_report(self.survey.features, source.names)
        kinds = {kind: report.kind.count(kind) for kind in dict.fromkeys(report.kind)}
        target = self.survey.target
        return {
            "kinds_of_features": kinds,
            "correlation_energy": self.energy[0],
            "correlation_energy_independent": self.energy[1],
            "condition_number": self.condition,
            "correlated_pairs": [{"first": a, "second": b, "r": r} for a, b, r in self.pairs],
            "heavy_tails": self.heavy(source),
            "target": {
                "mean": float(target.mean[0]),
                "sd": float(target.var[0]) ** 0.5,
                "kurtosis": float(target.phi[0]),
            },
            "parameters_of_rank": {k: degrees_of_freedom(source.width, k) for k in RANKS},
        }


def findings(
    source: Source, scan: ColumnScan, summary: TableSummary | None, columns: SuspectColumns
) -> list[Finding]:
    """Return all findings, in order."""
    lines = [_missing(scan, columns.useless), *_columns(columns)]
    if summary is None:
        text = "no row is complete, so nothing else is known."
        return [*lines, Finding("warning", "rows", text)]
    lines += [*_target(source, summary), *_features(source, summary), *_levels(source, summary)]
    lines += _spellings(source)
    lines += [_correlation(summary), *_tails(source, summary), *_rows(source, summary)]
    return [*lines, _memory(source, summary)]


def _correlations(
    source: Source, units: Units
) -> tuple[float | None, list[tuple[str, str, float]]]:
    """Return the condition number and the pairs of features that are nearly the same."""
    total = Rows.of(source).reduce(covariance, units)
    R = to_numpy(total.action).astype(np.float64) / total.weight
    varies = np.flatnonzero(np.diag(R) > 0)
    if len(varies) < 2:
        return None, []
    R = R[np.ix_(varies, varies)]
    R /= np.sqrt(np.outer(np.diag(R), np.diag(R)))
    field = field_numbers(source.fields, source.width)[varies]
    apart = (field[:, None] != field) | (field < 0)  # levels of one column always correlate
    values = np.linalg.eigvalsh(R)
    values = values[values > COLLINEAR]  # one-hot groups always depend on each other
    pairs = [
        (source.names[varies[i]], source.names[varies[j]], float(R[i, j]))
        for i, j in zip(*np.nonzero(np.triu(apart & (np.abs(R) > CORRELATED), 1)), strict=True)
    ]
    pairs.sort(key=lambda pair: -abs(pair[2]))
    return float(values[-1] / values[0]), pairs[:20]


def _missing(scan: ColumnScan, useless: list[str]) -> Finding:
    missing = {name: count for name, count in scan.missing.items() if name not in useless}
    if not missing:
        return Finding("good", "missing", "no value is missing.")
    worst = sorted(missing.items(), key=lambda item: -item[1])
    counts = listed([f"{name} {count:,}" for name, count in worst])
    return Finding(
        "warning",
        "missing",
        f"{scan.rows - scan.complete:,} of {scan.rows:,} rows have a missing value ({counts}). The "
        "other findings are about the complete rows.",
    )


def _target(source: Source, summary: TableSummary) -> list[Finding]:
    target = summary.survey.target
    if source.labels is not None and len(source.labels) > 1:
        classes = f"{len(source.labels)} classes ({listed(source.labels)})"
        text = f"has {classes}, so fit trains a classifier."
        return [Finding("note", "target", text)]
    if source.boolean_target and bool(target.has_two_values[0]):
        return [Finding("note", "target", "is True or False, so fit trains a classifier.")]
    if not bool(target.varies(np.float64)[0]):
        text = f"is {number(float(target.mean[0]))} in every row: there is nothing to learn."
        return [Finding("warning", "target", text)]
    if bool(target.has_two_values[0]):
        text = (
            "takes two values, which the model fits as numbers, by least squares. For "
            "probabilities, use --classify."
        )
        return [Finding("note", "target", text)]
    phi = float(target.phi[0])
    if phi > HEAVY:
        text = f"has heavy tails (kurtosis {number(phi)}): use --loss huber, or its logarithm."
        return [Finding("warning", "target", text)]
    return [Finding("good", "target", f"kurtosis {number(phi)}.")]


def _columns(columns: SuspectColumns) -> list[Finding]:
    lines = []
    if columns.useless:
        text = "identifiers or numbers of the rows, or empty. They are ignored here."
        text = f"{listed(columns.useless)}: {text}"
        lines.append(Finding("warning", "columns", text))
    if columns.roles.ids:
        lines.append(Finding("warning", "columns", message_text(ratings_advice(columns.roles, ""))))
    elif columns.codes:
        lines.append(Finding("warning", "columns", codes_text(columns.codes)))
    return lines


def _features(source: Source, summary: TableSummary) -> list[Finding]:
    report = mip_report(summary.survey.features, source.names)
    meanings = {
        "constant": ("warning", "constant, without information"),
        "two-valued": ("note", "two-valued, so their squares are not modelled"),
        "nearly two-valued": ("note", "nearly two-valued, with squares that are hard to estimate"),
    }
    lines = []
    for kind, (mark, meaning) in meanings.items():
        names = [name for name, k in zip(report.names, report.kind, strict=True) if k == kind]
        if names:
            lines.append(Finding(mark, "features", f"{len(names)} {meaning} ({listed(names)})."))
    return lines or [
        Finding("good", "features", "all vary, and their squares differ from linear terms.")
    ]


def _levels(source: Source, summary: TableSummary) -> list[Finding]:
    if not len(source.fields):
        return []
    levels = np.concatenate(source.fields)
    features = summary.survey.features
    counts = to_numpy(features.mean)[levels] * features.weight
    rare = [source.names[j] for j in levels[counts < RARE + 0.5]]
    if not rare:
        return [Finding("good", "levels", f"all {len(levels)} occur in more than {RARE} rows.")]
    text = f"{len(rare)} of {len(levels)} occur in at most {RARE} rows ({listed(rare)})."
    return [Finding("note", "levels", f"{text} fit shrinks them by a penalty.")]


def _spellings(source: Source) -> list[Finding]:
    """Name levels that differ only in case or spaces, which are different ones to the model."""
    columns: dict[str, Iterable[str] | None] = {"": source.labels}
    if source.encoder is not None:
        columns |= dict(zip(source.encoder.input_names, source.encoder.levels, strict=True))
    lines = []
    for name, labels in columns.items():
        groups: dict[str, list[str]] = {}
        for label in labels or ():
            groups.setdefault(" ".join(label.casefold().split()), []).append(label)
        if alike := [group for group in groups.values() if len(group) > 1]:
            shown = "; ".join(" and ".join(map(repr, group)) for group in alike[:3])
            more = f"; and {len(alike) - 3} more" if alike[3:] else ""
            topic, kind = ("levels", "levels") if name else ("target", "classes")
            where = f"{name}: " if name else ""
            text = f"{where}{shown}{more} differ only in case or spaces, and count as different "
            text += f"{kind}. If they mean the same, write them the same way."
            lines.append(Finding("warning", topic, text))
    return lines


def _correlation(summary: TableSummary) -> Finding:
    energy, independent = summary.energy
    text = f"energy {number(energy)}, {number(independent)} for independent features"
    if summary.condition is not None:
        text += f"; condition number {summary.condition:.1e}"
    if summary.pairs:
        first, second, r = summary.pairs[0]
        return Finding("warning", "correlation", f"{text}; {first} and {second} have r = {r:.3f}.")
    if summary.correlated:
        return Finding("note", "correlation", f"{text}; fit will decorrelate them.")
    return Finding("good", "correlation", f"{text}.")


def _tails(source: Source, summary: TableSummary) -> list[Finding]:
    heavy = summary.heavy(source)
    if not heavy:
        return []
    text = f"{len(heavy)} with kurtosis above {HEAVY:.0f} ({listed(heavy)}): try their logarithms."
    return [Finding("warning", "tails", text)]


def _rows(source: Source, summary: TableSummary) -> list[Finding]:
    n, d = summary.survey.tally.counting, source.width
    if n < 2:
        return [Finding("warning", "rows", f"{n}, but a fit needs at least 2.")]
    ratios = {k: n / degrees_of_freedom(d, k) for k in RANKS if k <= max(d, 1)}
    shown = ", ".join(f"{number(r)} at rank {k}" for k, r in ratios.items() if k in (1, 2, 5, 10))
    ranks = [k for k, ratio in ratios.items() if ratio >= PLENTY]
    text = f"{n:,}, or per parameter {shown}."
    if ranks:
        return [Finding("good", "rows", f"{text} Enough up to rank {ranks[-1]}.")]
    if ratios and max(ratios.values()) >= ENOUGH:
        return [Finding("note", "rows", f"{text} Few for noisy data: {SHRUNK}")]
    return [Finding("note", "rows", f"{text} Too few without a penalty: {SHRUNK}")]


def _memory(source: Source, summary: TableSummary) -> Finding:
    d, k, size = source.width, 16, source.dtype.itemsize  # auto tries ranks up to 16
    square = 3 * d * d if summary.correlated and d <= FULL_LIMIT else 50 * d
    inputs = len(input_columns(source) or source.names)
    chunk = 4 * source.chunk_rows * max(1, inputs)
    work = 8 * (3 * (k + 8) * d + square) + size * chunk
    rows = summary.survey.tally.rows * inputs * (size + 4 * source.sparse)
    held = f"and {byte_count(rows)} for the rows"
    if rows > HELD:
        held, rows = "while the rows are read again in every pass", 0
    text = f"about {byte_count(PROGRAM + work + rows)} to fit: {byte_count(PROGRAM)} for the "
    text += f"program and its reader, {byte_count(work)} for the work, {held}."
    return Finding("good", "memory", text)
