"""Rows of any number of fields, numbers and lists, as groups of columns that are swept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from quadlin.core.model import Model, in_units
from quadlin.core.moments import Moments
from quadlin.core.sweeps import Columns
from quadlin.core.units import Target, Units
from quadlin.solve.fields.field_predict import Layout
from quadlin.solve.fields.field_table import standard, standardised
from quadlin.solve.fields.gibbs import Draws
from quadlin.solve.fields.swept_machine import LOG_ODDS, Machine

BYTES = 2**28  # most memory that the kept draws may take


@dataclass(frozen=True)
class Contexts:
    """Rows by columns in groups: a field each, a number each, and all other columns together."""

    columns: Columns
    fields: tuple[np.ndarray, ...]
    mean: np.ndarray  # (d,), subtracted from the columns
    scale: np.ndarray  # (d,), by which they were multiplied
    shift: float  # of the target
    unit: float  # its standard deviation; 1 for labels
    y: np.ndarray
    weight: np.ndarray | None

    @classmethod
    def of(
        cls, source: Any, fields: Sequence[np.ndarray], features: Moments, labels: bool
    ) -> "Contexts":
        """Return rows in memory; targets are standardised unless they are labels."""
        X = csr_matrix(source.X, dtype=np.float64)
        mean, scale = standard(X, features)
        others = np.setdiff1d(np.arange(X.shape[1]), np.concatenate(fields))
        is_number = 2 * X.getnnz(axis=0)[others] > X.shape[0]
        lists = others[~is_number]  # which share a scale, so that rare columns are no larger
        squares = np.asarray(X[:, lists].multiply(X[:, lists]).sum()) / max(1, X[:, lists].nnz)
        scale[lists] = 1 / np.sqrt(squares) if squares > 0 else 1.0
        groups = [*fields, *others[is_number][:, None], lists]
        y = np.asarray(source.y, dtype=np.float64)
        weight = None if source.weight is None else np.asarray(source.weight, dtype=np.float64)
        shift = unit = 0.0
        if not labels:
            shift = float(np.average(y, weights=weight))
            unit = float(np.sqrt(np.average((y - shift) ** 2, weights=weight)))
        columns = Columns.of(standardised(X, mean, scale), [g for g in groups if len(g)])
        known = tuple(np.asarray(field) for field in fields)
        y = (y - shift) / (unit or 1.0)
        return cls(columns, known, mean, scale, shift, unit or 1.0, y, weight)

    def coefficients(self, machine: Machine) -> tuple[float, np.ndarray, np.ndarray]:
        """Return b, (w, v) of each feature (d, K), and of a level of each field never seen."""
        table = np.zeros_like(machine.point.table)
        table[self.columns.places] = machine.point.table
        return machine.priors.intercept, table, machine.priors.mean[: len(self.fields)]

    def model(self, machine: Machine, units: Units) -> Model:
        r"""Return the model in standardised units, with all levels measured from those never seen.

        With m the sum over fields of their means, v' = v − mean and one level of each field g,

        .. math:: \tfrac12 \Big(\sum v\Big)^2 - \tfrac12 \sum v^2 = \tfrac12 \Big(\sum v'\Big)^2
                  - \tfrac12 \sum v'^2 + \sum_j v'_j (m - m_j)
                  + \tfrac12 m^2 - \tfrac12 \sum_g m_g^2,

        where :math:`m_j` is the mean of the column's own field, zero beside the fields.
        """
        b, table, means = self.coefficients(machine)
        signs, own = machine.signs, np.zeros_like(table)
        for field, mean in zip(self.fields, means, strict=True):
            own[field] = mean
        columns, total = table - own, means.sum(axis=0)
        w = columns[:, 0] + columns[:, 1:] @ (signs * total[1:])
        w -= np.sum(signs * columns[:, 1:] * own[:, 1:], axis=1)
        b += float(total[0] + signs @ (total[1:] ** 2 - np.sum(means[:, 1:] ** 2, axis=0)) / 2)
        target = Target(self.shift, self.unit, 0.0, 1.0)
        if machine.labels:
            size = LOG_ODDS / np.sqrt(1 + float(np.mean(machine.point.variance())))
            target = Target(0.0, float(size), 0.0, 1.0)
        zeros, ones = np.zeros(len(w)), np.ones(len(w))
        own_units = Units(self.mean, self.scale, zeros, ones, zeros, target, ones, zeros)
        return in_units(Model(columns[:, 1:], signs / 2, w, b, zeros), own_units, units)

    def penalties(self, machine: Machine) -> tuple[float, float]:
        """Return the penalties of w and M that are equivalent to the two largest groups' priors."""
        priors, sizes = machine.priors, np.diff(self.columns.bounds)
        first, second = np.argsort(-sizes, kind="stable")[:2]
        roots = np.sqrt(sizes[[first, second]])
        on_w = float(roots @ priors.precision[[first, second], 0]) / 2
        products = np.sum(1 / (priors.precision[first, 1:] * priors.precision[second, 1:]))
        on_M = float(roots.prod() / products) if products > 0 else 0.0
        return on_w / priors.noise, on_M / priors.noise

    def draw(self, machine: Machine, draws: int) -> tuple[Draws, list[float]]:
        """Continue as a sampler; also return the squared error of each sweep."""
        K, d = machine.point.table.shape[1], len(self.mean)
        size = 4 * (d + len(self.fields)) * K
        stride = -(-draws // max(1, min(draws, BYTES // size)))
        kept, errors = [], []
        for number in range(draws):
            machine.sweep()
            errors.append(machine.error)
            if number % stride == stride - 1:
                kept.append((*self._raw(machine), self.unit / np.sqrt(machine.priors.noise)))
        intercepts, tables, noises = zip(*kept, strict=True)
        others = np.setdiff1d(np.arange(d), np.concatenate(self.fields))
        layout = Layout(self.fields, (*self.fields, *others[:, None]))
        both = np.array(tables, dtype=np.float32)
        at = (np.array(intercepts), both, both, machine.signs, np.array(noises), layout)
        return Draws(*at, (), machine.labels), errors

    def _raw(self, machine: Machine) -> tuple[float, np.ndarray]:
        """Return b and the table (d + fields, K) for the user's columns and target."""
        b, table, means = self.coefficients(machine)
        signs, slopes = machine.signs, table[:, 0].copy()
        total = self.mean * self.scale @ table[:, 1:]
        # (x − μ)∘σ in place of x: products with the means of numbers join w and b.
        at = (self.mean * self.scale)[:, None] * table[:, 1:]
        table[:, 0] -= table[:, 1:] @ (signs * total) - np.sum(signs * table[:, 1:] * at, axis=1)
        means = means.copy()
        means[:, 0] -= means[:, 1:] @ (signs * total)
        b += float(signs @ (total**2 - np.sum(at**2, axis=0))) / 2
        b -= float((self.mean * self.scale) @ slopes)
        table *= self.scale[:, None]
        unit, shift = (LOG_ODDS, 0.0) if machine.labels else (self.unit, self.shift)
        all_rows = np.concatenate([table, means])
        all_rows[:, 0] *= unit
        all_rows[:, 1:] *= np.sqrt(unit)
        return shift + unit * b, all_rows
