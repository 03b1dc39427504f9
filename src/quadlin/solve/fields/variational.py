"""Variational inference of a machine on fields, after some sweeps of a sampler.

The bound of the log evidence has a local optimum without products, to which inference goes from
small factors and from large ones if there are few rows per level, even where products explain most
of the target: 60,000 ratings of 5,000 users for 2,000 films whose errors are 27% smaller with
products. The bound cannot tell either, since it counts the uncertainty of levels as if they were
independent: it may be higher without products that new rows confirm. A sampler leaves this place by
itself, so inference begins with some sweeps of one and follows the bound from there.
"""

from collections.abc import Iterator

import numpy as np

from quadlin.solve.fields.field_machine import FieldMachine, Sweep

EXPLORED = 45  # sweeps of a sampler
HELD = 5  # of these, with factors of a given size: free ones shrink before they point anywhere
HELD_PRECISION = 4.0  # of these factors, in units of the target's variance


def inferred(machine: FieldMachine, max_sweeps: int, tol: float) -> Iterator[tuple[Sweep, bool]]:
    """Explore, then sweep until the bound hardly rises; also tell whether it does."""
    most = min(EXPLORED, max_sweeps // 2)
    machine.start_sampling()
    for number in range(1, most + 1):
        if number <= HELD:
            machine.hold_factors(HELD_PRECISION)
        machine.sweep()
        yield machine.line(number), False
    machine.stop_sampling()
    for line, converged in sweeps(machine, max_sweeps - most, tol):
        yield line._replace(sweep=most + line.sweep), converged


def sweeps(machine: FieldMachine, max_sweeps: int, tol: float) -> Iterator[tuple[Sweep, bool]]:
    """Sweep until the bound rises by less than `tol` per row; also tell whether it did."""
    before = -np.inf
    for number in range(1, max_sweeps + 1):
        machine.sweep()
        line = machine.line(number)
        converged = line.bound - before < tol * machine.n
        yield line, converged
        if converged:
            return
        before = line.bound
