"""How a stream that keeps no row comes to its first model: from stage to stage, batch by batch.

Correlations come first: a probe, then block power iteration on new rows. The model of them,
Σ ≈ H⁻¹ (I + P diag(g²) Pᵀ) H⁻¹, takes O(rd) numbers. Strong correlations are of this kind, or
nearly; what it leaves slows the steps down, and the mean of a walk makes up for that.

Labels are numbers until there is a first model, and log-odds from then on. About the constant that
fits them best, log-odds are to first order a least-squares fit of the labels, so the stages before
the first model are those of any target. What they leave is refined by a walk (`walk`), which needs
to know the curvature of the loss only roughly.
"""

from dataclasses import replace
from math import sqrt

import numpy as np

from quadlin.core.arrays import Array, lead, namespace, orthonormal
from quadlin.core.chunks import Chunk
from quadlin.core.model import Model
from quadlin.core.moments import Moments
from quadlin.core.units import Units, UnitsMaker
from quadlin.solve.fit_state import FitState
from quadlin.solve.logistic import Linearised
from quadlin.solve.moment_estimates import OVERSAMPLING
from quadlin.solve.types import Options, Record, loss_unit, usual_curvature
from quadlin.solve.whitening import (
    Identity,
    Whitener,
    covariance,
    low_rank_whitener,
    off_diagonal_energy,
    probes,
)
from quadlin.stream.anneal import anneal_step, first_annealing
from quadlin.stream.batch import Pending
from quadlin.stream.start import (
    POWER_ROWS,
    Stage,
    Start,
    constant_state,
    constant_state_of,
    contracts,
    first_block,
    power_step,
)
from quadlin.stream.walk import WALK_ROWS


def as_numbers(options: Options, make_units: UnitsMaker) -> tuple[Options, UnitsMaker]:
    """Return the options and units of the stages before the first model."""
    if options.loss == "squared":
        return options, make_units
    return replace(options, loss="squared"), Linearised(**vars(make_units))


def as_log_odds(state: FitState, options: Options, make_units: UnitsMaker) -> FitState:
    """Return the state of log-odds that a fit of labels as numbers is, to first order."""
    units = make_units(state.features, state.target)
    root = sqrt(usual_curvature(options.loss, units))

    def scaled(model: Model) -> Model:
        c = units.target.centre + model.c / root
        return replace(model, s=model.s / root, w=model.w / root, c=c)

    before = None if state.before is None else scaled(state.before)
    last, constant = state.history[-1], constant_loss(options, units)
    history = (Record(0, 1, constant), Record(last.step, last.passes, constant))[: last.step + 1]
    model = scaled(state.model)
    return replace(state, model=model, units=units, history=history, before=before)


def constant_loss(options: Options, units: Units) -> float:
    """Return the log-loss of the best constant."""
    return units.target.power * loss_unit(options.loss, units)


RATIO, EXCESS = 2.0, 0.05  # of ‖Σ − I‖²/d, above which a walk is better than a mean of steps
ROUNDS = 3  # batches of the power iteration, beside the one that tells whether it is needed


def first_probe(units: Units, rank: int, seed: int) -> Start:
    """Return the stage that tells whether features are correlated."""
    width = min(units.scale.shape[0], rank + OVERSAMPLING)
    Q = probes(units, width, np.random.default_rng([seed, width]))
    return Start(Stage.correlations, batches=ROUNDS, Q=Q)


def correlation_step(
    start: Start, units: Units, features: Moments, in_any_case: bool
) -> tuple[Start, Whitener | None]:
    """Take one step of the power iteration for Σ; return the whitener once it is there.

    That is at once, and none, where features are not correlated, unless it is wanted in any case.

    `features` are the moments of the batch. Its own variances go with its own covariances: what
    these leave of them is small where correlations are strong, and earlier ones would hide it.
    """
    Q, total = start.Q, start.spread
    assert Q is not None
    assert total is not None
    xp = namespace(Q)
    centre = xp.astype((features.mean - units.mean) * units.scale - units.rest, Q.dtype)
    variances = xp.astype(units.scale**2 * features.var, Q.dtype)
    centred = total.action / total.weight - centre[:, None] * (centre @ Q)
    if start.batches == ROUNDS and not in_any_case:
        probed = replace(total, action=total.weight * centred)
        energy, independent = off_diagonal_energy(probed, variances, Q)
        if energy < RATIO * independent or energy - independent < EXCESS:
            return start, Identity()
    if start.batches == 0:
        values, vectors = lead(Q.T @ centred, Q.shape[1], psd=True)
        return start, low_rank_whitener(Q @ vectors, values, variances, 0 * variances)
    block = _spanning(centred)
    return replace(start, batches=start.batches - 1, Q=block, spread=None), None


def _spanning(image: Array) -> Array:
    """Return an orthonormal basis of the image."""
    xp = namespace(image)
    size = xp.max(xp.abs(image))
    return orthonormal(image / xp.where(size > 0, size, 1.0))


LONGEST = 8  # times its first length has a batch of the power iteration, once some of M is seen
GROWTH = 0.25  # of the batches of a walk of log-odds, with the root of the rows per parameter
PROBE_ROWS = 10  # per parameter, of a batch that tells of correlations


class Beginning:
    """The stages before the steps of a stream have a mean; `Stream` explains the attributes."""

    options: Options
    batch_size: int
    make_units: UnitsMaker
    seed: int
    start: Start | None
    since: float
    state: FitState | None
    goal: int
    pending: Pending | None
    proven: bool

    @property
    def _early(self) -> tuple[Options, UnitsMaker]:
        """Return the options and units of these stages, in which labels are numbers."""
        return as_numbers(self.options, self.make_units)

    @property
    def _dof(self) -> int:
        raise NotImplementedError

    @property
    def _gathered(self) -> int:
        raise NotImplementedError

    def _with_sums_of(self, chunk: Chunk) -> Pending:
        raise NotImplementedError

    def _step(self, pending: Pending) -> FitState:
        raise NotImplementedError

    def _begin(self, start: Start, chunk: Chunk) -> None:
        """Learn from rows without keeping any, until there is a model that steps can refine."""
        if start.stage is Stage.moments:
            self.state = constant_state(self.state, chunk, *self._early)
            self.start = replace(start, rows=start.rows + chunk.X.shape[0])
            if self._gathered >= self.goal:
                self._probe()
            return
        assert self.state is not None
        self.pending = self._with_sums_of(chunk)
        if start.stage is Stage.correlations:
            spread = covariance(chunk, self.state.units, start.Q)
            spread = spread if start.spread is None else start.spread + spread
            self.start = start = replace(start, spread=spread)
        if self.pending.rows < self.goal:
            return
        if start.stage is Stage.correlations:
            self._whiten(start, self.pending)
        elif start.stage is Stage.power:
            args = (self.state, self.pending, start, *self._early)
            self.state, self.start = power_step(*args)
            if self.start.stage is Stage.power and self.start.batches == 0:
                self._lengthen(self.start)
            if self.start.stage is Stage.contraction:
                self.since = self.state.features.weight
                if self.options.loss != "squared" or not isinstance(self.state.white, Identity):
                    self._anneal()
        elif start.stage is Stage.annealing:
            args = (self.state, self.pending, start, *self._early)
            self.state, self.start = anneal_step(*args)
            if self.start.batches == 0:
                self._walk()
        else:
            goes_on = start.batches == 0 or contracts(self.state, self.pending)
            if goes_on:  # a step of full length
                self.since = self.state.features.weight
                self.start = replace(start, batches=start.batches + 1)
            else:  # a mean from here on, which the last step of full length is the first part of
                self.start, self.goal, self.proven = None, self.batch_size, True
            self.state = self._step(self.pending)
        self.pending = None

    def _probe(self) -> None:
        """Look for correlations first, where they may be whitened."""
        assert self.state is not None
        units, options = self.state.units, self.options
        if options.whiten == "none" or len(self.make_units.names) == 1:
            self._find_block()
            return
        self.start = first_probe(units, options.rank, self.seed)
        self.goal = PROBE_ROWS * self._dof

    def _whiten(self, start: Start, pending: Pending) -> None:
        """Learn of correlations from a batch; go on to M once they are known."""
        assert self.state is not None
        units = self.state.units
        features = self.state.features + pending.features
        target = self.state.target + pending.target
        always = self.options.whiten == "lowrank"
        self.start, white = correlation_step(start, units, pending.features, always)
        latest = self.state.white if white is None else white
        self.state = constant_state_of(features, target, *self._early, latest)
        if white is not None:
            self._find_block()

    def _find_block(self) -> None:
        """Begin with the power iteration for M."""
        assert self.state is not None
        self.start = first_block(self.state, self.options, self.seed)
        if self.start.stage is Stage.contraction and self.options.loss != "squared":
            self._walk()
            return
        self.goal = max(self.batch_size, POWER_ROWS * self._dof)

    def _anneal(self) -> None:
        """Go on with steps of constant length at a higher rank."""
        assert self.state is not None
        self.state = replace(self.state, before=None)
        self.start, self.goal = first_annealing(self.state), WALK_ROWS * self._dof

    def _walk(self) -> None:
        """Go on with steps of constant length, whose models have a mean."""
        assert self.state is not None
        if self.options.loss != "squared":
            self.state = as_log_odds(self.state, self.options, self.make_units)
        self.state = replace(self.state, walker=self.state.model, before=None)
        self.start, self.since = None, self.state.features.weight
        self.goal = WALK_ROWS * self._dof

    def _walk_on(self) -> None:
        """Go on with a walk of log-odds, from the optimum of a first batch or the last step.

        Of another loss than squared errors the mean of a walk is off by what one step is off,
        squared. So batches grow as the root of the number of rows, and that does as the error.
        """
        assert self.state is not None
        if self.state.walker is None:
            self.state = replace(self.state, walker=self.state.model)
        rows = self.state.features.weight - self.since
        self.goal = int(self._dof * max(WALK_ROWS, GROWTH * (rows / self._dof) ** 0.5))

    def _lengthen(self, start: Start) -> None:
        """Go on with batches of twice the length, as noise hides some of M in shorter ones.

        What eight times the length does not show may not be there: the rank may be too high. But
        without any of M there is nothing to refine.
        """
        assert self.state is not None
        if not start.some or self.goal < LONGEST * max(self.batch_size, POWER_ROWS * self._dof):
            self.goal, self.start = 2 * self.goal, replace(start, batches=1)
        else:
            self.start = Start(Stage.contraction)
