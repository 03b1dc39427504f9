"""A stream of rows of one-hot fields, such as ratings by users of items.

Least squares has no penalty in a stream, and one for all levels would not fit those with few rows.
Here rows are learned by sweeps over the columns (`solve/fields`), with the posterior of earlier
rows as the prior of new ones. A level may come at any time: until then it is the mean of its field.
"""

from copy import copy
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.sparse import csr_array

from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.moments import Moments, moments_of
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.fields.machine import Learned, Posterior
from quadlin.solve.fields.sweeps import fit_of, learn, learn_further, rank_of
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.driver import loss_unit
from quadlin.solve.lowrank.types import Plan, Problem, Record
from quadlin.stream.batch import as_constant, lengthened
from quadlin.stream.stream import BYTES, Stream, Waiting

BATCH = 2**11  # rows that are learned together after the first ones
DIGITS = 3  # binary ones of how many first rows are learned together: 4, 5, 6, 7, 8, 10, 12, …
MATRICES = 8  # (k + 1)×(k + 1) matrices per level that inference holds at a time, at most


def rows_in_memory(plan: Plan, entries: int, max_memory: int | str, limit: int) -> int:
    """Return how many rows there is room for, with their totals and covariances in sweeps.

    A given `max_memory` takes the place of the limit in bytes, and includes the levels.
    """
    K, d = rank_of(plan) + 1, len(plan.make_units.names)
    if not isinstance(max_memory, str):
        limit = max(0, max_memory - MATRICES * BYTES * K**2 * d)
    return limit // (2 * K * (K + 1) + BYTES * (2 * K + 4 * entries + 8))


@dataclass(eq=False, repr=False)
class FieldStream(Stream):
    """A stream that learns the levels of fields by their posterior.

    The first `most_rows` rows are kept, and all of them are learned again whenever their number has
    grown by some 20%; other rows are learned in batches, in time proportional to their number. What
    is learned depends on the rows alone, not on how they are divided into calls.

    Memory: O(k²d), and the rows that are kept, or those of two models.
    """

    most_rows: int = BATCH
    posterior: Posterior | None = None  # of all complete batches
    counted: int = 0  # of the rows that are kept, those that the posterior includes

    @classmethod
    def of(
        cls,
        stream: Stream,
        most_rows: int = BATCH,
        posterior: Posterior | None = None,
        counted: int = 0,
    ) -> "FieldStream":
        """Return one with the options of a stream by least squares."""
        given = {each.name: getattr(stream, each.name) for each in fields(Stream) if each.init}
        given |= {"strict": False, "most_rows": most_rows}
        return cls(**given, posterior=posterior, counted=counted)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._learned: Learned | None = None  # with the rows that are waiting
        self.goal = self.most_rows if self.state is None else self._later_goal()

    def _later_goal(self) -> int:
        """Return for how many rows a state is made: this costs as much as the levels."""
        return max(BATCH, len(self.make_units.names) // BATCH * BATCH)

    def fed(self, chunk: Chunk) -> Stream:
        """Return a stream that has received these rows, and learned from complete batches."""
        return super().fed(replace(chunk, X=csr_array(chunk.X)))

    def grown(self, make_units: UnitsMaker, places: np.ndarray) -> "FieldStream":
        """Return a stream with more columns, where the old ones have these places."""
        stream, d = copy(self), len(make_units.names)
        stream.make_units, stream.latest, stream._learned = make_units, None, None
        if self.waiting.rows:
            old = self.waiting.source()
            moved = Chunk(_moved_rows(old.X, places, d), old.y, old.weight)
            stream.waiting = Waiting().joined(moved)
        if self.posterior is not None:
            stream.posterior = self.posterior.moved(places, make_units.fields, d)
        if self.state is not None and stream.posterior is not None:
            features = _moved_moments(self.state.features, places, d)
            state = stream._model_state(stream.posterior.learned, features, self.state.target)
            stream.state = replace(state, history=self.state.history)
        return stream

    @property
    def _gathered(self) -> int:
        return self.waiting.rows

    @property
    def _plan(self) -> Plan:
        return Plan(self.options, self.make_units, self.seed, self.automatic)

    def _take(self, chunk: Chunk) -> None:
        self.latest = self._learned = None
        self.waiting = self.waiting.joined(chunk)
        if self.waiting.rows < self.goal:
            return
        if self.state is None:
            self._learn_together(self.waiting.source())
        self.state = self.latest = self._learn_pending()
        self.waiting, self.counted, self.goal = Waiting(), 0, self._later_goal()
        self._learned = None

    def _learn_together(self, source: MemorySource) -> None:
        self.posterior, self.counted = learn(source, self._plan), len(source.y)

    def catch_up(self) -> None:
        """Learn from the rows that are waiting, and keep the posterior of whole batches.

        The model is made where it is needed: that takes time proportional to the levels.
        """
        rows = self.waiting.rows
        if not rows or self._learned is not None:
            return
        source = self.waiting.source()
        step = 1 << max(0, rows.bit_length() - DIGITS)
        together = rows // step * step
        if self.state is None and together > self.counted:
            self._learn_together(_between(source, 0, together))
        posterior, counted = self.posterior, self.counted
        assert posterior is not None
        if rows - counted >= BATCH:  # batches change these arrays, which others may have
            prior, pull = posterior.prior.copy(), posterior.pull.copy()
            posterior = posterior._replace(prior=prior, pull=pull)
        learned = posterior.learned
        for start in range(counted, rows, BATCH):
            batch = _between(source, start, start + BATCH)
            machine = learn_further(posterior, batch, self.options.tol)
            if len(batch.y) == BATCH:
                posterior, counted = machine.posterior(posterior.share), start + BATCH
            learned = machine.learned()
        self.posterior, self.counted, self._learned = posterior, counted, learned

    def _learn_pending(self) -> FitState:
        """Return the state with the rows that are waiting."""
        self.catch_up()
        if self._learned is not None:
            return self._state(self._learned, self.waiting.source())
        assert self.state is not None
        return self.state

    def whole(self) -> "FieldStream":
        """Return a stream that has learned its first rows together, if there are no others."""
        if self.state is not None or not self.waiting.rows:
            return self
        stream = copy(self)
        stream.latest = stream._learned = None
        stream._learn_together(self.waiting.source())
        return stream

    def _shown(self, state: FitState) -> FitState:
        return state

    def _state(self, learned: Learned, source: MemorySource) -> FitState:
        """Return the state after some rows, which are still there."""
        rows = Rows.of(source)
        features, target = moments_of(rows)
        if self.state is not None:
            features, target = self.state.features + features, self.state.target + target
        state = self._model_state(learned, features, target)
        problem = Problem(rows, state.units, self.options, np.random.default_rng(0))
        sums = problem.sums(state.model, squares=False)
        unit = loss_unit(self.options.loss, state.units)
        loss = sums.loss / sums.weight * unit
        history: tuple[Record, ...]
        if self.state is None:
            history = (Record(0, 1, state.units.target.power * unit), Record(1, 1, loss))
        else:
            last = self.state.history[-1]
            history = lengthened(self.state.history, Record(last.step + 1, last.passes, loss))
        return replace(state, history=history)

    def _model_state(self, learned: Learned, features: Moments, target: Moments) -> FitState:
        """Return the model of what was learned, without a history."""
        assert self.posterior is not None
        moments, share = (features, target), self.posterior.share
        state, self.latest_options = fit_of(learned, self._plan, moments, share)
        if self.options.loss == "squared" and not float(target.var[0]) > 0:
            # What is left of the start of inference is no model.
            state = replace(state, model=as_constant(state.model, 0.0))
        return state


def _between(source: MemorySource, start: int, stop: int) -> MemorySource:
    X, y, weight = source.X, source.y, np.asarray(source.weight)
    return MemorySource(X[start:stop], y[start:stop], weight[start:stop])


def _moved_rows(X: csr_array, places: np.ndarray, d: int) -> csr_array:
    moved = csr_array((X.data, places[X.indices], X.indptr), shape=(X.shape[0], d))
    moved.sort_indices()
    return moved


def _moved_moments(moments: Moments, places: np.ndarray, d: int) -> Moments:
    """Return the moments of rows in which all other columns are zero."""
    arrays = {}
    for name, rest in {"mean": 0, "var": 0, "kappa": 0, "phi": 1, "low": 0, "high": 0}.items():
        arrays[name] = np.full(d, float(rest))
        arrays[name][places] = getattr(moments, name)
    return Moments(moments.weight, **arrays)
