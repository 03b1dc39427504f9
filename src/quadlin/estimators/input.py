"""How rows come to an estimator: checked, encoded, and compared with those it knows."""

from collections.abc import Callable, Iterator
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_array, check_X_y
from sklearn.utils.validation import validate_data

from quadlin.core.arrays import Array, canonical, is_numpy, moved, namespace, unflagged
from quadlin.core.chunks import Chunk, MemorySource
from quadlin.core.engine import reduce
from quadlin.core.messages import Message, Option, Phrase, warn
from quadlin.core.survey import Tally
from quadlin.data import Source, is_dask, open_source
from quadlin.data.columns import check_frame
from quadlin.data.encoder import TableEncoder
from quadlin.data.fields import check_one_hot, fields_among, given_fields
from quadlin.estimators.fitted import Fitted
from quadlin.estimators.parameters import checked_weight, float_types
from quadlin.explain.diagnosis import listed
from quadlin.stream.stream import Stream

HEAVIEST = {32: 1e18, 64: 1e60}  # a mean weight whose sums, and their squares, are still numbers


class Incoming(Fitted):
    """The rows that an estimator is given, whatever form they have."""

    fields: Any

    def _opened(
        self, X: Any, y: Any, weight: Any, reset: bool, least: int = 1
    ) -> MemorySource | Source:
        """Return rows that were checked, in memory or wherever they are."""
        if isinstance(X, str | PathLike):
            raise TypeError(
                f"fit takes rows, not the name of a file: use quadlin.open_source({str(X)!r}, "
                "target=...)."
            )
        if not (isinstance(X, Source) or is_dask(X)):
            chunk = self._checked(X, y, weight, reset, least)
            return MemorySource(chunk.X, chunk.y, chunk.weight)
        return self._met(self._source(X, y, weight, reset), reset)

    def _source(self, X: Any, y: Any, weight: Any, reset: bool) -> Source:
        if isinstance(X, Source):
            for values, role in ((y, "target"), (weight, "weight")):
                if values is not None:
                    raise ValueError(
                        f"A Source brings its own {role}s: open_source(..., {role}=...)."
                    )
            return X
        known = None if reset else self._encoder
        return open_source(X, target=y, weight=weight, encoder=known)

    def _met(self, source: Source, reset: bool, target: bool = True) -> Source:
        """Learn the names of a source's features, or compare them with those known."""
        if target and not source.has_target:
            raise ValueError(
                Message("The source has no target. Open it with {target}.", target=Option("target"))
            )
        encoder, names = source.encoder, source.names
        columns = names if encoder is None else encoder.input_names
        unnamed = all(name == f"x{j}" for j, name in enumerate(columns))
        if reset:
            self._encoder, self.n_features_in_, self._fill = encoder, len(columns), source.fill
            self.__dict__.pop("feature_names_in_", None)
            if not unnamed:
                self.feature_names_in_ = np.asarray(columns, dtype=object)
        elif self._fill is not None and source.fill not in (None, self._fill):
            raise ValueError(
                "Missing values of the source are filled otherwise than those of the fit. Open it "
                "with fill=model.fill_."
            )
        elif encoder != self._encoder:
            raise ValueError(
                "The text columns of the source are encoded otherwise than those of the fit. Open "
                "it with encoder=model.encoder_."
            )
        elif len(names) != len(self._names()):
            raise ValueError(
                f"The source has {len(names)} features, but the model was fitted to "
                f"{len(self._names())}."
            )
        elif not unnamed and list(names) != self._names():
            gone = [name for name in self._names() if name not in names]
            raise ValueError(
                "The features of the source are not those of the fit, or in another order"
                + (f": {listed(gone)} is missing." if gone else ".")
            )
        return source

    def _blocks(self, X: Any) -> Iterator[Array]:
        """Yield rows to predict, a block at a time."""
        if isinstance(X, Source) or is_dask(X):
            source = self._met(self._source(X, None, None, reset=False), reset=False, target=False)
            for chunk in source:
                yield self._at_home(chunk.X, "predict")
            if source.unseen:
                warn_unseen(source.unseen)
            return
        check_frame(X)
        if self._encoder is not None:
            X = check_array(self._encoded(X, reset=False), accept_sparse="csr", estimator=self)
        else:
            X = validate_data(self, X, accept_sparse="csr", dtype=float_types(X), reset=False)
            X = canonical(X) if issparse(X) else X
        for chunk in MemorySource(self._at_home(X, "predict")):
            yield chunk.X

    def _checked(self, X: Any, y: Any, weight: Any, reset: bool, least: int = 1) -> Chunk:
        check_frame(X)
        if reset:
            self._encoder, self._fill = TableEncoder.learn(X), None
        checks = {
            "accept_sparse": "csr",
            "dtype": float_types(X),
            "y_numeric": True,
            "ensure_min_samples": least,
        }
        if self._encoder is not None:
            X, y = check_X_y(self._encoded(X, reset, learns=True), y, **checks)
        else:
            X, y = validate_data(self, X, y, reset=reset, **checks)
            X = canonical(X) if issparse(X) else X
        if not reset:
            X = self._at_home(X, "partial_fit")
        y = moved(y, X)
        chunk = Chunk(X, y, checked_weight(weight, y))
        check_weights(Tally.of(chunk), X.dtype)
        return chunk

    def _encoded(self, frame: Any, reset: bool, learns: bool = False) -> Array:
        """Turn the text columns of a frame into one-hot fields."""
        assert self._encoder is not None
        if not hasattr(frame, "columns"):
            raise ValueError(
                "The model was fitted to a frame with text columns; give it a frame with the "
                f"columns {listed(self._encoder.input_names)}."
            )
        validate_data(self, frame, skip_check_array=True, reset=reset)
        X, unseen = self._encoder.encode(frame)
        if unseen:
            warn_unseen(unseen, learns)
        return X

    def _known_fields(
        self, source: MemorySource | Source, streamed: bool = False
    ) -> tuple[np.ndarray, ...]:
        """Return the positions of the features of each field."""
        if self._encoder is not None:
            if self.fields not in ("auto", None):
                raise ValueError("Text columns make fields of their own: leave fields as it is.")
            return self._encoder.fields
        if isinstance(self.fields, str):
            if isinstance(source, Source) and len(source.fields):
                return source.fields
            # The first rows of a stream prove nothing.
            found = not streamed and (isinstance(source, Source) or is_numpy(source.X))
            return fields_among(partial(_summed, source), source.width) if found else ()
        names = self._names()
        given = given_fields(self.fields, names)
        if source.again:
            check_one_hot(partial(_summed, source), given, names)
        return given

    @unflagged
    def _at_home(self, X: Array, method: str, stream: Stream | None = None) -> Array:
        """Bring rows to the dtype of the model, and refuse those that live elsewhere."""
        stream = self._fitted if stream is None else stream
        own, dtype = stream.example, stream.make_units.dtype
        xp, here = namespace(X), "cpu" if issparse(X) else X.device
        if own is not None and (xp, here) != (namespace(own), own.device):
            raise ValueError(
                f"Inputs passed to {type(self).__name__}.{method}() must use the same namespace "
                f"and the same device as those passed to fit(): {namespace(own).__name__} on "
                f"{own.device}, but they are {xp.__name__} on {here}."
            )
        return X.astype(dtype, copy=False) if issparse(X) else xp.astype(X, dtype, copy=False)


def _summed(source: MemorySource | Source, fn: Callable[..., Any], *params: Any) -> Any:
    return reduce(fn, source, *params)


def check_weights(tally: Tally, dtype: Any) -> None:
    """Refuse weights so large or so small that sums of that dtype would be lost."""
    mean = tally.weight / max(1, tally.counting)
    most = HEAVIEST[32 if "32" in str(dtype) else 64]
    if tally.counting and not 1 / most <= mean <= most:
        raise ValueError(
            f"The weights are {mean:.0e} on average, too {'large' if mean > 1 else 'small'} to sum "
            "with. Divide them all by one number, and alpha by the same."
        )


def warn_unseen(unseen: dict[str, int], learns: bool = False) -> None:
    """Warn of levels that were not there when the encoder was made; while it `learns`, say how."""
    counts = ", ".join(f"{count} in {name!r}" for name, count in unseen.items())
    text = f"Levels that were absent from the rows of fit are treated as none of its own: {counts}."
    advice = Phrase(
        " To learn them from a stream, name all of them when it begins: partial_fit("
        "open_source(frame, target=..., levels={column: [...]})), and open what follows with "
        "encoder=model.encoder_."
    )
    warn(Message("{text}{advice}", text=text, advice=advice if learns else ""))
