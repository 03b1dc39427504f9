"""The model that inference on fields ends with, and the penalties that its precisions come to."""

from dataclasses import replace

import numpy as np

from quadlin.core.model import Model, with_rank
from quadlin.core.units import Units
from quadlin.solve.fields.field_machine import FieldMachine

AUTO_RANK = 8  # components at the start of rank="auto"; those that the rows do not need vanish
NEGLIGIBLE = 0.01  # standard deviations of y that a component adds to the predictions
NOISELESS = 0.01  # standard deviations of y: with so little noise least squares needs no penalty
SMALLEST = 1e-12  # of a prior variance, where a component vanishes
SWEEPS = 8  # that count as one of the `max_iter` steps; Gauss–Newton takes some twelve passes
BOUND_TOL = 10.0  # times `tol`: the rise of the bound per row and sweep that is too little to go on


def kept(model: Model, units: Units, chooses_rank: bool, size: float = 1.0) -> Model:
    """Return a model in the dtype of the units, without negligible components if it may choose.

    `size` is the standard deviation of what was fitted, in these units.
    """
    if chooses_rank:
        model = with_rank(model, int(np.sum(np.abs(model.s) > NEGLIGIBLE * size)))
    dtype = units.scale.dtype
    arrays = {name: getattr(model, name).astype(dtype) for name in ("U", "s", "w")}
    return replace(model, free=units.free, **arrays)


def penalties(machine: FieldMachine) -> tuple[float, float]:
    """Return the penalties of w and M that the precisions of the two largest fields come to.

    A ridge weighs the coefficient of a one-hot column by its standard deviation, 1/√levels.
    """
    noise = 1 / float(machine.noise.mean)
    keys = [entity.members[-1] for entity in machine.rows.entities[:2]]
    precisions = [machine.precisions[key.group].mean for key in keys]
    roots = [len(key.columns) ** 0.5 for key in keys]
    on_w = sum(root * precision[0] for root, precision in zip(roots, precisions, strict=True)) / 2
    products = float(np.sum(1 / (precisions[0][1:] * precisions[1][1:])))
    on_M = roots[0] * roots[1] / max(products, SMALLEST)
    return noise * float(on_w), noise * on_M
