"""A stream of rows of one-hot fields, such as ratings by users of items.

Least squares has no penalty in a stream, and one for all levels would not fit those with few rows.
Here each batch is learned by the posterior of all rows so far (`solve/fields/running_machine`),
which shrinks each level by what its own rows say. A level may come at any time: until then it is
the mean of its field.
"""

from copy import copy
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.messages import warn
from quadlin.core.moments import Moments, moments_of
from quadlin.core.rows import Rows
from quadlin.core.units import UnitsMaker
from quadlin.solve.choose.rank_climb import too_wide
from quadlin.solve.fields.field_predict import field_model
from quadlin.solve.fields.running_levels import RunningLevels
from quadlin.solve.fields.running_machine import LevelPlan, learned
from quadlin.solve.fields.variational import AUTO_RANK, BOUND_TOL, SWEEPS, kept
from quadlin.solve.fits.fit_state import FitState
from quadlin.solve.lowrank.driver import loss_unit
from quadlin.solve.lowrank.types import Options, Problem, Record, Status
from quadlin.solve.lowrank.whitening import Identity
from quadlin.stream.batch import lengthened
from quadlin.stream.row_sample import Buffer
from quadlin.stream.stream import FIRST_ROWS, Stream
from quadlin.stream.verdict import shortened

START = 1000  # rows, after which it is first asked whether a first batch is long enough
BY_LEAST_SQUARES = (
    "partial_fit learns these rows by least squares, because some column does not depend on a "
    "user, an item or another category alone, or because there is no noise. If levels have few "
    "rows, leave such columns out."
)


class FieldStream(Stream):
    """A stream that learns the levels of fields by their posterior.

    The rows of a batch are kept until it is complete: `per_parameter` for each of the (k + 1)·d
    parameters of the d columns that have occurred, or `batch_size` if that is zero; at most
    `most_rows`. A first batch whose rows have no such posterior is left to least
    squares, as are all later ones.

    Memory: O(k²d), and the rows of one batch.
    """

    per_parameter: int
    most_rows: int
    levels: RunningLevels | None  # after the last complete batch
    plain: Stream | None  # that goes on instead
    told: bool = False  # whether it was said that there is no posterior

    @classmethod
    def of(
        cls,
        stream: Stream,
        per_parameter: int,
        most_rows: int,
        levels: RunningLevels | None = None,
    ) -> "FieldStream":
        """Return one with the options of a stream by least squares."""
        new = cls.__new__(cls)
        vars(new).update(vars(stream))
        new.per_parameter, new.most_rows = per_parameter, most_rows
        new.levels, new.plain, new.sample, new.start = levels, None, None, None
        new.goal = START if per_parameter else new.batch_size
        if levels is not None and stream.state is not None:
            new.state = new._with_model(levels, stream.state)
        return new

    def fed(self, chunk: Chunk) -> Stream:
        """Return a stream that has received these rows, and learned from complete batches."""
        stream = super().fed(replace(chunk, X=csr_array(chunk.X)))
        assert isinstance(stream, FieldStream)
        return stream if stream.plain is None else stream.plain

    def grown(self, make_units: UnitsMaker, places: np.ndarray) -> "FieldStream":
        """Return a stream with more columns, where the old ones have these places."""
        stream, d = copy(self), len(make_units.names)
        stream.make_units, stream._current, stream.waiting = make_units, None, copy(self.waiting)
        if self.waiting.rows:
            stream.waiting.X = [_moved_rows(self.waiting.source().X, places, d)]
        if self.levels is not None and self.state is not None:
            stream.levels = self.levels.moved(places)
            features = _moved_moments(self.state.features, places, d)
            stream.state = stream._with_model(stream.levels, replace(self.state, features=features))
        return stream

    def _with_model(self, levels: RunningLevels, state: FitState) -> FitState:
        """Return a state with the model of levels."""
        new = self._model_state(levels, state.features, state.target)
        return replace(new, history=state.history)

    @property
    def chosen(self) -> Options:
        """Return the options of `current`: rank and penalties are those of its posterior."""
        _ = self.current  # whose model has been chosen once it is known
        return self._chosen

    @property
    def plan(self) -> LevelPlan:
        """Return how batches are learned."""
        options, logistic = self.options, self.options.loss == "logistic"
        loose = self.levels is None and not logistic and too_wide(int(self._occurs().sum()))
        sweeps, tol = SWEEPS * options.max_iter, BOUND_TOL * options.tol
        return LevelPlan(self._most_rank, logistic, loose, self.seed, sweeps, tol)

    @property
    def _most_rank(self) -> int:
        return AUTO_RANK if self.automatic.rank else self.options.rank

    @property
    def _gathered(self) -> int:
        return self.waiting.rows

    def _take(self, chunk: Chunk) -> None:
        self._current = None
        if self.plain is not None:
            self.plain = self.plain.fed(chunk)
            return
        self.waiting.append(chunk, self.goal)
        rows = self.waiting.rows
        if rows < self.goal:
            return
        wanted = self._wanted()
        if self.state is None and rows < wanted:
            self.goal = min(2 * rows, wanted)
            return
        source = self.waiting.source()
        levels = learned(self.levels, source, self.make_units.fields, self.plan)
        if levels is None:
            self.plain, self.waiting = self._by_least_squares(), Buffer()
            return
        self.state = self._current = self._state(levels, source)
        self.levels, self.waiting = levels, Buffer()
        self.goal = self._wanted() if self.per_parameter else self.batch_size

    def _wanted(self) -> int:
        """Return how many rows a batch should have, by the columns that have occurred."""
        per, parameters = self.per_parameter, (self._most_rank + 1) * int(self._occurs().sum())
        wanted = max(START if per else self.batch_size, (per or FIRST_ROWS) * parameters)
        return max(2, min(wanted, self.most_rows))

    def _occurs(self) -> np.ndarray:
        """Tell which columns have occurred (d,)."""
        occurs = np.zeros(len(self.make_units.names), dtype=bool)
        for X in self.waiting.X or ():
            occurs[X.indices] = True
        if self.levels is not None:
            occurs[self.levels.places] = True
        return occurs

    def _by_least_squares(self) -> Stream:
        """Return a stream without posterior that has received the rows of the first batch.

        There is no warning about an incomplete batch of levels alone: in few rows, each item may
        have one user only, and more rows will tell them apart.
        """
        levels_alone = len(np.concatenate(self.make_units.fields)) == len(self.make_units.names)
        if not self.told and (self.waiting.rows >= self.goal or not levels_alone):
            warn(BY_LEAST_SQUARES)
            self.told = True
        source, maker = self.waiting.source(), self.make_units
        args = (self.options, self.batch_size, self.first_limit, maker, self.seed)
        plain = Stream(*args, automatic=self.automatic, strict=self.strict, pairs=self.pairs)
        return plain.fed(Chunk(source.X, source.y, source.weight))

    def _learn_pending(self) -> FitState:
        """Return the state with the rows that are waiting."""
        if not self.waiting.rows:
            assert self.state is not None
            return self.state
        source = self.waiting.source()
        levels = learned(self.levels, source, self.make_units.fields, self.plan)
        if levels is None:
            plain = self._by_least_squares()
            state, self._chosen = plain.current, plain.chosen
            return state
        return self._state(levels, source)

    def _shown(self, state: FitState) -> FitState:
        return state

    def _state(self, levels: RunningLevels, source: MemorySource) -> FitState:
        """Return the state after a batch, whose rows are still there."""
        rows = Rows.of(source)
        features, target = moments_of(rows)
        if self.state is not None:
            features, target = self.state.features + features, self.state.target + target
        state = self._model_state(levels, features, target)
        loss = levels.error
        if self.options.loss != "squared":
            problem = Problem(rows, state.units, self.options, np.random.default_rng(0))
            sums = problem.sums(state.model, squares=False)
            loss = sums.loss / sums.weight * loss_unit(problem.options.loss, problem.units)
        history: tuple[Record, ...] = ()
        if self.state is None:
            unit = loss_unit(self.options.loss, state.units)
            history = (Record(0, 1, state.units.target.power * unit), Record(1, 1, loss))
        else:
            last = self.state.history[-1]
            history = lengthened(self.state.history, Record(last.step + 1, last.passes, loss))
        return replace(state, history=history)

    def _model_state(self, levels: RunningLevels, features: Moments, target: Moments) -> FitState:
        """Return the model of levels, without a history."""
        make_units = self.make_units
        units, exact = (
            replace(make_units, dtype=dtype)(features, target)
            for dtype in (make_units.dtype, np.dtype(np.float64))
        )
        fields = make_units.fields
        b, table = levels.coefficients(fields)
        layout = levels.layout(fields)
        model = field_model(b, table, layout, levels.signs, exact, levels.places)
        size = levels.target_scale / units.target.scale
        model = kept(model, units, self.automatic.rank, size)
        if self.options.loss == "squared" and not float(target.var[0]) > 0:
            model = shortened(model, 0.0, 0.0)  # what is left of the start of inference
        self._chosen = replace(self.options, rank=len(model.s), alpha=levels.penalties)
        return FitState(model, units, features, target, (), Status.converged, Identity())


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
