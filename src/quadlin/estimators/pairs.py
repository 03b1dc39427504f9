"""Pairs beside the low-rank part: what was asked for, and the fit that goes on to look for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse

from quadlin.core.arrays import moved
from quadlin.core.chunks import MemorySource
from quadlin.core.messages import Message, Option
from quadlin.core.model import in_units
from quadlin.core.rows import Rows
from quadlin.core.standardise import UnitsMaker
from quadlin.core.survey import Survey, survey
from quadlin.core.units import Units
from quadlin.data import Source
from quadlin.data.names import position_of
from quadlin.estimators.parameters import is_auto
from quadlin.explain.pair_report import PairReport, empty_report, report_of
from quadlin.solve.choice import Automatic, fit_choosing
from quadlin.solve.distinct import distinct_rows
from quadlin.solve.fit_state import FitState
from quadlin.solve.levels import settled
from quadlin.solve.pair_joint import Joint
from quadlin.solve.pair_model import Beside, Composer, Composite, Request
from quadlin.solve.pair_part import Parts, whole
from quadlin.solve.pair_uncertainty import pair_uncertainty
from quadlin.solve.pairs import HIERARCHIES, MOST_FEATURES
from quadlin.solve.robust import fit_robustly
from quadlin.solve.types import Options, Record, Status
from quadlin.solve.uncertainty import Uncertainty
from quadlin.stream.stream import FIXED

if TYPE_CHECKING:
    from quadlin.estimators.fitting import Task

AUTO_FEATURES = 1000  # up to which pairs are looked for by default
FEWEST_ROWS = 12  # that a search makes sense for


def is_asked_for(pairs: Any) -> bool:
    """Tell whether pairs are wanted in any case, or only where the rows show some."""
    return not (pairs is None or is_auto(pairs))


def check_pairs(estimator: Any) -> None:
    """Refuse pairs that make no sense, saying what would."""
    pairs, hierarchy = estimator.pairs, estimator.hierarchy
    if hierarchy not in (None, *HIERARCHIES):
        allowed = ", ".join(map(repr, (None, *HIERARCHIES)))
        raise ValueError(
            Message(
                "{option} is not one of {allowed}.",
                option=Option("hierarchy", hierarchy),
                allowed=allowed,
            )
        )
    if not is_asked_for(pairs):
        return
    whole_number = isinstance(pairs, Integral) and not isinstance(pairs, bool) and int(pairs) >= 0
    if not (whole_number or _is_list_of_pairs(pairs)):
        raise ValueError(
            Message(
                '{option} must be "auto", None, a whole number ≥ 0, or a list of pairs of '
                "features, by position or name.",
                option=Option("pairs", pairs),
            )
        )
    wrong = {
        Option("psd", True): estimator.psd,
        Option("fit_linear", False): not estimator.fit_linear,
        Option("fit_intercept", False): not estimator.fit_intercept,
        Option("polish", False): not estimator.polish,
    }
    for option, conflicts in wrong.items():
        if conflicts:
            raise ValueError(
                Message(
                    "{pairs} cannot be combined with {option}: pairs are searched by least squares "
                    "beside b and w. Leave one of them out.",
                    pairs=Option("pairs"),
                    option=option,
                )
            )


def _is_list_of_pairs(pairs: Any) -> bool:
    if isinstance(pairs, str) or not isinstance(pairs, Sequence | np.ndarray):
        return False
    return all(not isinstance(p, str) and np.shape(p) == (2,) for p in pairs)


def is_sparse(source: MemorySource | Source) -> bool:
    """Tell whether rows are sparse."""
    return bool(source.sparse if isinstance(source, Source) else issparse(source.X))


def request_of(estimator: Any, names: Sequence[str], sparse: bool) -> Request | None:
    """Return which pairs an estimator wants of these features; None if none.

    By default they are looked for where the rank is chosen as well, since a rank that is given is
    the rank of M.
    """
    pairs, hierarchy, d = estimator.pairs, estimator.hierarchy, len(names)
    if not is_asked_for(pairs):
        plain = estimator.fit_linear and estimator.fit_intercept and estimator.polish
        looks = is_auto(pairs) and is_auto(estimator.rank) and plain and not estimator.psd
        looks = looks and 2 <= d <= AUTO_FEATURES
        return Request(hierarchy=hierarchy, asked=False) if looks else None
    if isinstance(pairs, Integral):
        if d > MOST_FEATURES and not sparse:
            raise ValueError(
                f"There are {d:,} features. The search looks at all products of at most "
                f"{MOST_FEATURES:,} features, and in sparse rows at those that occur. Select "
                "features, give a sparse matrix, or list the pairs."
            )
        return Request(int(pairs), hierarchy=hierarchy) if pairs else None
    positions = [sorted(position_of(names, feature) for feature in pair) for pair in pairs]
    given = tuple(dict.fromkeys((first, second) for first, second in positions))
    return Request(given=given) if given else None


def refuse_in_stream(estimator: Any) -> None:
    """Refuse to look for pairs in rows that are seen once."""
    if is_asked_for(estimator.pairs):
        raise ValueError(
            Message(
                "{pairs} needs rows that can be read several times, and a stream sees them once. "
                "Use `fit` on rows in memory or in a file, or leave the option out.",
                pairs=Option("pairs", estimator.pairs),
            )
        )


def refuse_uninformative(request: Request, state: FitState, maker: UnitsMaker) -> None:
    """Refuse given pairs whose products say nothing that the linear part does not say."""
    names, free, scale = maker.names, state.units.free, state.units.scale
    field = {int(j): number for number, members in enumerate(maker.fields) for j in members}
    for i, j in request.given or ():
        constant = [n for n in (i, j) if not float(scale[n])]
        if constant:
            raise ValueError(f"The feature {names[constant[0]]!r} of a pair is constant.")
        if i == j and not float(free[i]):
            raise ValueError(
                f"The square of {names[i]!r} is not modelled: it takes two values, or "
                "diagonal leaves it out."
            )
        if i != j and i in field and field[i] == field.get(j):
            raise ValueError(
                f"The product of {names[i]!r} and {names[j]!r} is always zero: they are levels of "
                "the same field."
            )


@dataclass(frozen=True)
class Outcome:
    """A fit with pairs, or without where none are worth it."""

    state: FitState
    options: Options
    rows: Rows  # with the weights that the fit ended with
    report: PairReport | None = None  # None if none were looked for
    joint: Joint | None = None  # the regression with the pairs
    share: float = 1.0  # of the weights of rows in that regression

    def law(self, fields: Sequence[np.ndarray]) -> Uncertainty | None:
        """Return how sure the fit with pairs is; None where that is not known from its matrix."""
        return None if self.joint is None else pair_uncertainty(self.joint, fields, self.share)


class PairStage:
    """The search for pairs in some rows, before a rank is tried and beside a fit.

    Parameters
    ----------
    task : Task
        What is to be learned.
    request : Request
        Which pairs are wanted.
    rows : Rows
        The rows, with the weights of a fit by Huber's loss.
    surveyed : Survey
        Of these rows.
    units : Units
        Of the models.
    """

    def __init__(
        self, task: "Task", request: Request, rows: Rows, surveyed: Survey, units: Units
    ) -> None:
        self.task, self.request, self.rows, self.units = task, request, rows, units
        self.tally, self.weight = surveyed.tally, surveyed.features.weight
        self.looked = False

    @property
    def possible(self) -> bool:
        """Tell whether there is anything to search."""
        return bool(self.units.target.power) and self.tally.counting >= FEWEST_ROWS

    @cached_property
    def composer(self) -> Composer:
        """Return what searches; as for the evidence, each different row counts once on average."""
        task, tally = self.task, self.tally
        n_rows = distinct_rows(self.rows, self.units, tally.counting)
        share, counted = n_rows / self.weight, self.rows
        if share != 1:
            counted = counted.reweighted(moved(np.full(tally.rows, share), self.units.scale))
        return Composer(
            counted,
            self.units,
            task.options,
            n_rows,
            task.seed,
            self.request,
            task.make_units.fields,
            task.automatic.rank,
            not task.automatic.alpha,
            task.automatic.alpha,
            self._refit,
        )

    def alone(self, linear: FitState, options: Options) -> Outcome | None:
        """Return pairs beside a linear model if they leave nothing of low rank, else None."""
        composite = self.composer.alone(self._beside(linear, options))
        self.looked = True
        return None if composite is None else self._outcome(composite, linear, options)

    def beside(self, state: FitState, options: Options) -> Outcome:
        """Return a fit with pairs beside it, or as it was."""
        composer, composite = self.composer, None
        if not (self.looked and composer.clean and not state.model.s.shape[0]):
            composite = composer.composed(self._beside(state, options))
        if composite is not None:
            return self._outcome(composite, state, options)
        r2 = 1 - composer.start_loss / (composer.n_rows * self.units.target.power)
        names, counting = self.task.make_units.names, self.tally.counting
        report = empty_report(len(names), composer.candidates, counting, r2)
        return Outcome(state, options, self.rows, report)

    def _beside(self, state: FitState, options: Options) -> Beside:
        share = self.composer.n_rows / self.weight
        first, second = options.alpha
        return Beside(state.model, (first * share, second * share))

    def _refit(self, rest: Rows, rank: int | None) -> Beside:
        """Fit what pairs leave, of a rank or of the best one."""
        task = self.task
        chooses = Automatic(rank is None and task.automatic.rank, task.automatic.alpha)
        given = task.options if rank is None else replace(task.options, rank=rank)
        beside, chosen = fit_choosing(rest, given, task.make_units, task.seed, chooses)
        if beside.status is Status.interrupted:
            raise KeyboardInterrupt
        return Beside(in_units(beside.model, beside.units, self.units), chosen.alpha)

    def _outcome(self, composite: Composite, state: FitState, options: Options) -> Outcome:
        """Return the state with L + S for M."""
        joint, fields = composite.joint, self.task.make_units.fields
        model = settled(whole(joint.model, joint.terms), self.units, fields)
        low_rank = settled(joint.model, self.units, fields)
        loss = joint.fit.loss / joint.search.weight * self.units.target.scale**2
        record = Record(state.history[-1].step + 1, self.rows.walks, loss)
        state = replace(
            state,
            model=model,
            history=(*state.history, record),
            status=Status.converged,
            parts=Parts(low_rank.U, low_rank.s, joint.terms),
        )
        share = self.composer.n_rows / self.weight
        alpha = (composite.alpha[0] / share, composite.alpha[1] / share)
        options = replace(options, rank=int(model.s.shape[0]), alpha=alpha)
        names, counting = self.task.make_units.names, self.tally.counting
        report = report_of(names, joint.search, joint.fit, counting, low_rank=False)
        return Outcome(state, options, self.rows, report, joint, share)


def pairs_first(task: "Task", rows: Rows, surveyed: Survey) -> tuple[PairStage, Outcome | None]:
    """Look for pairs beside a linear model, before any rank is tried."""
    assert task.pairs is not None
    units = task.make_units(surveyed.features, surveyed.target)
    stage = PairStage(task, task.pairs, rows, surveyed, units)
    searches = task.automatic.rank and task.pairs.given is None and not task.robust
    if not (searches and stage.possible and len(task.make_units.names) <= MOST_FEATURES):
        return stage, None
    options, chooses = replace(task.options, rank=0), Automatic(False, task.automatic.alpha)
    linear, options = fit_choosing(
        rows, options, task.make_units, task.seed, chooses, surveyed=surveyed
    )
    if linear.status is Status.interrupted:
        return stage, Outcome(linear, options, rows)
    try:
        return stage, stage.alone(linear, options)
    except KeyboardInterrupt:
        return stage, Outcome(replace(linear, status=Status.interrupted), options, rows)


def pairs_beside(stage: PairStage, outcome: Outcome, rows: Rows, surveyed: Survey) -> Outcome:
    """Look for pairs beside a fit; return it with them, or as it was."""
    state, options, task, request = outcome.state, outcome.options, stage.task, stage.request
    ended = state.status in (Status.interrupted, Status.stopped, Status.diverged)
    if ended or not stage.possible:
        return outcome
    refuse_uninformative(request, state, task.make_units)
    try:
        if not task.robust:
            return stage.beside(state, options)
        weighted = outcome.rows
        stage = PairStage(task, request, weighted, survey(weighted), state.units)
        beside = stage.beside(state, options)
        return beside if beside.state.parts is None else _robust(task, beside, rows, surveyed)
    except KeyboardInterrupt:  # the model without pairs is there
        return replace(outcome, state=replace(state, status=Status.interrupted))


def _robust(task: "Task", start: Outcome, rows: Rows, surveyed: Survey) -> Outcome:
    """Keep the pairs that were chosen, and fit them and the rest by Huber's loss."""
    state, parts = start.state, start.state.parts
    assert parts is not None
    given = tuple(zip(parts.terms.i.tolist(), parts.terms.j.tolist(), strict=True))
    options = replace(start.options, rank=int(parts.s.shape[0]))
    fixed = replace(task, automatic=FIXED, options=options)
    base, last = replace(state, model=state.low_rank, parts=None), [start]

    def least_squares(view: Rows, _: FitState | None) -> FitState:
        stage = PairStage(fixed, Request(given=given), view, survey(view), state.units)
        last[0] = stage.beside(base, options)
        return last[0].state

    state, weighted = fit_robustly(rows, least_squares, state)
    state = replace(state, features=surveyed.features, target=surveyed.target)
    first, second = start.report, last[0].report
    assert first is not None
    assert second is not None
    order = {(p.first, p.second): p.order for p in first.pairs}  # the way there was the search's
    pairs = [p._replace(order=order[p.first, p.second]) for p in second.pairs]
    return replace(last[0], state=state, rows=weighted, report=replace(first, pairs=pairs))
