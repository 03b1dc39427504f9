"""What a table says about how to fit it: findings in words, and the options they lead to."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from quadlin.cli.messages import amount, number
from quadlin.cli.missing_values import NUMBERED, Gaps
from quadlin.cli.options import joined
from quadlin.core.arrays import to_numpy
from quadlin.core.engine import reduce
from quadlin.core.moments import mip_report
from quadlin.core.standardise import UnitsMaker
from quadlin.core.survey import Survey, survey
from quadlin.core.units import Units
from quadlin.data import Source
from quadlin.data.fields import field_numbers
from quadlin.explain.diagnosis import COLLINEAR, listed
from quadlin.metrics import degrees_of_freedom
from quadlin.solve.whitening import (
    ENERGY_EXCESS,
    ENERGY_RATIO,
    FULL_LIMIT,
    correlation_energy,
    covariance,
)

FEW_FEATURES = 1000  # up to which all correlations are looked at
CORRELATED = 0.95  # a pair of features worth naming
HEAVY = 20.0  # kurtosis, 3 for a normal distribution, above which a few rows decide
RANKS = range(1, 11)
PLENTY, ENOUGH = 10, 4  # rows a parameter: with noise, and with little of it
IN_MEMORY = 10**8  # bytes of rows up to which cross-validation is advised
SCARCE = 0.05  # of the rows: fewer incomplete ones are dropped rather than filled
RARE = 5  # rows of a level
PROGRAM = 450e6  # bytes; measured by benchmarks/big_csv.py
HELD = 1e9  # bytes of rows that `fit` holds by default


class Finding(NamedTuple):
    """One line of the report."""

    kind: str  # "good", "note" or "warning"
    topic: str
    text: str


@dataclass(frozen=True)
class Look:
    """What the complete rows tell."""

    survey: Survey
    energy: tuple[float, float]  # of the correlations, and of independent features
    condition: float | None  # of the correlation matrix, where it was formed
    pairs: list[tuple[str, str, float]]  # that are nearly the same

    @classmethod
    def at(cls, source: Source) -> "Look":
        """Take two walks over the rows, a third where features are few."""
        known = survey(source)
        make = UnitsMaker("auto", True, source.dtype, list(source.names), source.fields)
        units = make(known.features, known.target)
        energy = correlation_energy(source, units, np.random.default_rng(0))
        condition: float | None = None
        pairs: list[tuple[str, str, float]] = []
        if source.width <= FEW_FEATURES:
            condition, pairs = _correlations(source, units)
        return cls(known, energy, condition, pairs)

    @property
    def correlated(self) -> bool:
        """Tell whether `whiten="auto"` would decorrelate."""
        energy, independent = self.energy
        return energy >= ENERGY_RATIO * independent and energy - independent >= ENERGY_EXCESS

    def heavy(self, source: Source) -> list[str]:
        """Return the features in which a few rows decide."""
        phi, tau = to_numpy(self.survey.features.phi), to_numpy(self.survey.features.tau)
        free = np.ones(len(phi), dtype=bool)
        for field in source.fields:
            free[field] = False
        return [
            source.names[j]
            for j in np.flatnonzero((phi > HEAVY) & (tau > 1e-6 * phi) & free).tolist()
        ]

    def numbers(self, source: Source) -> dict[str, Any]:
        """Return what the findings are made of."""
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


def findings(source: Source, gaps: Gaps, look: Look | None, useless: list[str]) -> list[Finding]:
    """Return all there is to say, in order."""
    found = [_missing(gaps), *_columns(useless)]
    if look is None:
        return [*found, Finding("warning", "rows", "none is complete, so nothing else is known.")]
    found += [*_target(look), *_features(source, look), *_levels(source, look)]
    found += [_correlation(look), *_tails(source, look), *_rows(source, look)]
    return [*found, _memory(source, look)]


def recommended(
    source: Source, gaps: Gaps, look: Look | None, useless: list[str]
) -> dict[str, str]:
    """Return the options of `fit` that suit the table; an empty value is a flag."""
    options: dict[str, str] = {}
    reader: Any = source.reader
    if useless:
        options["columns"] = joined(str(name) for name in reader.columns)
    gone = [name for name in gaps.missing if name not in useless]
    if gone:
        labelled = not {"target", "weight", str(getattr(reader, "target", None))} & set(gone)
        few = gaps.complete >= (1 - SCARCE) * gaps.rows
        options["missing"] = "drop" if few or not labelled else "mean"
    if look is None:
        return options
    n, d = look.survey.tally.counting, source.width
    if look.survey.target.phi[0] > HEAVY:
        most = [k for k in RANKS if n >= PLENTY * degrees_of_freedom(d, k)]
        return options | {"loss": "huber", "rank": str(min(most[-1] if most else 1, 5))}
    if n < PLENTY * degrees_of_freedom(d, 1):
        if source.dtype.itemsize * n * d <= IN_MEMORY:
            return options | {"cv": ""}
        return options | {"rank": "1", "alpha": "1"}
    return options | {"rank": "auto"}


def _correlations(
    source: Source, units: Units
) -> tuple[float | None, list[tuple[str, str, float]]]:
    """Return the condition number and the pairs of features that are nearly the same."""
    total = reduce(covariance, source, units, None)
    R = to_numpy(total.action).astype(np.float64) / total.weight
    varies = np.flatnonzero(np.diag(R) > 0)
    if len(varies) < 2:
        return None, []
    R = R[np.ix_(varies, varies)]
    R /= np.sqrt(np.outer(np.diag(R), np.diag(R)))
    field = field_numbers(source.fields, source.width)[varies]
    apart = (field[:, None] != field) | (field < 0)  # levels of one column are no news
    values = np.linalg.eigvalsh(R)
    values = values[values > COLLINEAR]  # one-hot groups always depend on each other
    pairs = [
        (source.names[varies[i]], source.names[varies[j]], float(R[i, j]))
        for i, j in zip(*np.nonzero(np.triu(apart & (np.abs(R) > CORRELATED), 1)), strict=True)
    ]
    pairs.sort(key=lambda pair: -abs(pair[2]))
    return float(values[-1] / values[0]), pairs[:20]


def useless_columns(source: Source, gaps: Gaps) -> list[str]:
    """Return columns that name or number the rows, or hold nothing."""
    found = [name for name, count in gaps.missing.items() if count == gaps.rows]
    found += list(gaps.rising) if gaps.rows >= NUMBERED else []
    encoder = source.encoder
    if encoder is not None:
        for name, known in zip(encoder.input_names, encoder.levels, strict=True):
            if known is not None and 2 * len(known) > gaps.complete > 0:
                found.append(name)
    inputs = [str(name) for name in getattr(source.reader, "columns", ())]
    return [name for name in inputs if name in found] if set(inputs) - set(found) else []


def _missing(gaps: Gaps) -> Finding:
    if not gaps.missing:
        return Finding("good", "missing", "no value is missing.")
    worst = sorted(gaps.missing.items(), key=lambda item: -item[1])
    said = listed([f"{name} {count:,}" for name, count in worst])
    return Finding(
        "warning",
        "missing",
        f"{gaps.rows - gaps.complete:,} of {gaps.rows:,} rows miss a value ({said}). All else is "
        "judged by the complete rows.",
    )


def _target(look: Look) -> list[Finding]:
    target = look.survey.target
    if not bool(target.varies(np.float64)[0]):
        text = f"is {number(float(target.mean[0]))} in every row: there is nothing to learn."
        return [Finding("warning", "target", text)]
    if bool(target.two_valued[0]):
        text = "takes two values; the model fits them by squares, as numbers."
        return [Finding("note", "target", text)]
    phi = float(target.phi[0])
    if phi > HEAVY:
        text = f"has heavy tails (kurtosis {number(phi)}): --loss huber, or its logarithm."
        return [Finding("warning", "target", text)]
    return [Finding("good", "target", f"kurtosis {number(phi)}.")]


def _columns(useless: list[str]) -> list[Finding]:
    if not useless:
        return []
    text = (
        f"{listed(useless)}: only names or numbers of the rows, or nothing at all. Left out here."
    )
    return [Finding("warning", "columns", text)]


def _features(source: Source, look: Look) -> list[Finding]:
    report = mip_report(look.survey.features, source.names)
    says = {
        "constant": ("warning", "constant: they say nothing"),
        "two-valued": ("note", "two-valued: no squares of their own"),
        "nearly two-valued": ("note", "nearly two-valued: squares hard to tell from them"),
    }
    lines = []
    for kind, (mark, meaning) in says.items():
        names = [name for name, k in zip(report.names, report.kind, strict=True) if k == kind]
        if names:
            lines.append(Finding(mark, "features", f"{len(names)} {meaning} ({listed(names)})."))
    return lines or [Finding("good", "features", "all vary and have squares of their own.")]


def _levels(source: Source, look: Look) -> list[Finding]:
    if not len(source.fields):
        return []
    levels = np.concatenate(source.fields)
    seen = to_numpy(look.survey.features.mean)[levels] * look.survey.features.weight
    rare = [source.names[j] for j in levels[seen < RARE + 0.5]]
    if not rare:
        return [Finding("good", "levels", f"all {len(levels)} are seen in more than {RARE} rows.")]
    text = f"{len(rare)} of {len(levels)} are seen in at most {RARE} rows ({listed(rare)})."
    return [Finding("warning", "levels", f"{text} Merge them, or shrink them: --alpha 1.")]


def _correlation(look: Look) -> Finding:
    energy, independent = look.energy
    text = f"energy {number(energy)}, {number(independent)} for independent features"
    if look.condition is not None:
        text += f"; condition number {look.condition:.1e}"
    if look.pairs:
        first, second, r = look.pairs[0]
        return Finding("warning", "correlation", f"{text}; {first} and {second} have r = {r:.3f}.")
    if look.correlated:
        return Finding("note", "correlation", f"{text}: fit will decorrelate.")
    return Finding("good", "correlation", f"{text}.")


def _tails(source: Source, look: Look) -> list[Finding]:
    heavy = look.heavy(source)
    if not heavy:
        return []
    text = f"{len(heavy)} with kurtosis above {HEAVY:.0f} ({listed(heavy)}): try their logarithms."
    return [Finding("warning", "tails", text)]


def _rows(source: Source, look: Look) -> list[Finding]:
    n, d = look.survey.tally.counting, source.width
    ratios = {k: n / degrees_of_freedom(d, k) for k in RANKS if k <= max(d, 1)}
    shown = ", ".join(f"{k} {number(r)}" for k, r in ratios.items() if k in (1, 2, 5, 10))
    most = [k for k, ratio in ratios.items() if ratio >= PLENTY]
    text = f"{n:,}; for each parameter, at rank {shown}."
    if most:
        return [Finding("good", "rows", f"{text} Enough up to rank {most[-1]}.")]
    if ratios and max(ratios.values()) >= ENOUGH:
        return [Finding("note", "rows", f"{text} Few where there is noise: --alpha or --cv.")]
    return [Finding("warning", "rows", f"{text} Too few: --cv, or fewer columns.")]


def _memory(source: Source, look: Look) -> Finding:
    d, k, size = source.width, 16, source.dtype.itemsize  # auto tries ranks up to 16
    square = 3 * d * d if look.correlated and d <= FULL_LIMIT else 50 * d
    chunk = 4 * source.chunk_rows * max(1, len(getattr(source.reader, "columns", source.names)))
    work = 8 * (3 * (k + 8) * d + square) + size * chunk
    inputs = len(getattr(source.reader, "columns", source.names))
    rows = look.survey.tally.rows * inputs * (size + 4 * source.sparse)
    told = f"and {amount(rows)} of rows" if rows <= HELD else "rows are read in every pass"
    text = f"about {amount(PROGRAM + work + (rows <= HELD) * rows)} for the fit: "
    text += f"{amount(PROGRAM)} the program and its reader, {amount(work)} work, {told}."
    return Finding("good", "memory", text)
