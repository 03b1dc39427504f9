"""What the classifiers share: labels in, log-odds learned, for each class against the rest."""

from dataclasses import replace
from typing import Any

import numpy as np

from quadlin.core.arrays import Array, moved, to_numpy
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.messages import each_warning_once
from quadlin.core.moments import Moments, Survey, survey
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.estimators.labels.class_choice import joint_or_apart
from quadlin.estimators.labels.class_rows import ClassRows
from quadlin.estimators.labels.fitted_classes import FittedClasses
from quadlin.estimators.labels.label_stream import StreamingLabels
from quadlin.estimators.regression.fitted import Fitted
from quadlin.estimators.regression.fitting import Job
from quadlin.estimators.regression.tasks import Task
from quadlin.estimators.regression.weight_scale import in_given_weights, with_counting_weights
from quadlin.estimators.rows.columns import Columns
from quadlin.estimators.rows.labels import (
    class_names,
    class_totals,
    class_weights,
    fitted_classes,
    labels_in,
)
from quadlin.solve.choose.rarity import with_rarity
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.labels.logistic import LogisticFit
from quadlin.solve.lowrank.types import FIXED, Status


class LogisticModel(StreamingLabels):
    """What the classifiers share; subclasses name their parameters."""

    loss, solver = "logistic", "auto"  # not parameters

    @property
    def fits_jointly(self) -> bool:
        """Tell whether several classes may be fitted together."""
        return True

    def _warm_state(self, columns: Columns) -> FitState | None:
        """Return the state to start from, where there are two classes."""
        several = self.__sklearn_is_fitted__() and len(self._classes_fitted().parts) > 1
        return None if several else super()._warm_state(columns)

    def _fitted_rows(self, job: Job) -> FittedClasses:  # type: ignore[override]
        """Fit the log-odds of two classes, or of each class against all others."""
        share = 1.0
        if job.task.automatic != FIXED:
            job, share = with_counting_weights(job)
        with each_warning_once():
            fitted = self._fitted_classes(job)
        parts, joint = (
            tuple(in_given_weights(part, share) for part in each)
            for each in (fitted.parts, fitted.joint)
        )
        return replace(fitted, parts=parts, joint=joint)

    def _fitted_classes(self, job: Job) -> FittedClasses:
        task, rows, source = job.task, job.rows, job.source
        classes, values, totals = _classes_of(source, rows)
        job = replace(job, on_step=_watched(job.on_step, classes) if len(classes) == 2 else None)
        factors = class_weights(self.class_weight, classes, totals)
        if factors is None and np.array_equal(values, [0, 1]):
            return FittedClasses(classes, (self._fitted_labels(job),))
        codes = np.searchsorted(values, np.concatenate(rows.collect(_targets)))
        like = source.y if isinstance(source, MemorySource) else np.empty(0)
        weight = None if factors is None else moved(factors[codes], like)
        of_all = rows if weight is None else rows.reweighted(weight)
        if len(classes) > 2 and task.automatic.rarity:  # all classes have the same penalties
            task = with_rarity(of_all, task, of_all.reduce(survey))
            job = replace(job, task=task)
        weighted = ClassRows(task, of_all, codes, like)
        parts: list[Fitted] = []
        for label in fitted_classes(len(classes)):
            against_rest = weighted.against_rest(label)
            binary = _against_rest(source, codes == label, weight)
            try:
                parts.append(self._fitted_labels(replace(job, rows=against_rest, source=binary)))
            except KeyboardInterrupt:
                if not parts:
                    raise
                parts[-1] = parts[-1].interrupted()
            if parts[-1].status is Status.interrupted:  # the other classes have their shares
                weights = totals if factors is None else factors * totals
                shares = weights[len(parts) :] / weights.sum() if len(classes) > 2 else ()
                rest = [_constant(task, against_rest, parts[0], share) for share in shares]
                return FittedClasses(classes, (*parts, *rest)).with_passes(rows)
        fitted = FittedClasses(classes, tuple(parts))
        if len(classes) == 2 or not (
            self.fits_jointly and all(all(p.options.alpha) for p in parts)
        ):
            return fitted.with_passes(rows)
        try:
            coupling, joint = joint_or_apart(weighted, parts)
        except KeyboardInterrupt:  # the fits of each class are there
            return fitted.interrupted().with_passes(rows)
        return replace(fitted, coupling=coupling, joint=joint).with_passes(rows)

    def _fitted_labels(self, job: Job) -> Fitted:
        """Fit the log-odds of labels 0 and 1; subclasses override it for special rows."""
        return job.fitted()


def _classes_of(
    source: MemorySource | Source, rows: Rows
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the classes, the targets that stand for them, and the weight of each."""
    names = class_names(source)
    values = labels_in(rows) if names is None else np.arange(len(names))
    boolean = isinstance(source, Source) and source.boolean_target
    classes = values.astype(bool if boolean else np.int64) if names is None else names
    totals = class_totals(rows, values)
    if np.count_nonzero(totals) < 2:
        label = classes.tolist()[int(np.argmax(totals))]
        raise ValueError(
            f"All rows belong to one class, {label!r}, or the others have weight 0. A classifier "
            "needs rows of at least two classes. If only positive examples were recorded, such as "
            "clicks, sample negative ones at random."
        )
    return classes, values, totals


def _against_rest(
    source: MemorySource | Source, inside: np.ndarray, weight: Array | None
) -> MemorySource | Source:
    """Return rows in memory with the target 1 inside a class and 0 outside, weighted."""
    if not isinstance(source, MemorySource):
        return source
    given = source.weight
    both = weight if given is None or weight is None else weight * given
    target = moved(inside.astype(np.float64), source.y)
    return MemorySource(source.X, target, given if weight is None else both)


def _constant(task: Task, rows: Rows, other: Fitted, share: float) -> Fitted:
    """Return the log-odds of a class that a fit did not come to: those of its share of the rows."""
    state = other.state
    values, weights = np.array([[0.0], [1.0]]), state.target.weight * np.array([1 - share, share])
    target = Moments.of(*(moved(a, state.target.mean) for a in (values, weights)))
    surveyed = Survey(state.features, target, other.learned.tally)
    options = replace(task.options, rank=0, alpha=other.options.alpha)
    units = task.make_units(surveyed.features, surveyed.target)
    fit = LogisticFit(rows, units, task.make_units, surveyed, task.seed)
    state = fit.constant(options, Status.interrupted)
    return Fitted.of(task, state, options, surveyed.tally)


def _watched(on_step: Any, classes: np.ndarray) -> Any:
    """Return a hook whose attributes are those of a classifier."""
    if on_step is None:
        return None

    def hook(attributes: Any) -> bool:
        return bool(on_step(lambda: {**attributes(), "classes_": classes}))

    return hook


def _targets(chunk: Chunk) -> np.ndarray:
    return to_numpy(chunk.y)
