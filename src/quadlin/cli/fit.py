"""`quadlin fit`: from rows to a model in a file."""

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter, validators
from scipy.sparse import csr_array, vstack

from quadlin.cli.columns import warn_of_columns
from quadlin.cli.estimator import DEFAULTS, MachineOptions, check_combination, make_estimator
from quadlin.cli.fit_report import ZERO_OR_ONE, is_zero_or_one, report_classes, report_fit
from quadlin.cli.options import (
    STANDARD,
    WHOLE,
    Flag,
    ModelOptions,
    OutputOptions,
    OutputPath,
    TableOptions,
    UsageError,
    lists_in,
    names_in,
)
from quadlin.cli.outputs import check_model_output, check_output
from quadlin.cli.printing import print_note
from quadlin.cli.progress import Interrupted, deferred_interrupt, on_interrupt, waiting, watched
from quadlin.cli.reading import held, open_rows
from quadlin.core.rows import Rows
from quadlin.data import Source
from quadlin.data.sources.means import emptied
from quadlin.estimators.rows.columns import Columns
from quadlin.estimators.rows.input_errors import check_row_count
from quadlin.explain.diagnosis import listed
from quadlin.files.model_file import save


def fit(
    data: str,
    *,
    output: OutputPath = Path("model.safetensors"),
    read: TableOptions = TableOptions(),
    model: ModelOptions = DEFAULTS,
    machine: MachineOptions = MachineOptions(),
    one_pass: Flag = False,
    cv: Flag = False,
    classify: Annotated[bool | None, Parameter(negative="--no-classify")] = None,
    engine: str = "serial",
    checkpoint: Path | None = None,
    hold: Annotated[int, WHOLE, Parameter(validator=validators.Number(gte=0))] = 1000,
    answer: OutputOptions = OutputOptions(),
) -> None:
    """Fit a model to a table and save it.

    Text columns become one-hot columns. If the target is text, or True and False,
    the model is a classifier and predicts probabilities. Tables larger than --hold
    stay on disk and are read again in every pass.

      quadlin fit houses.csv --target price
      quadlin fit "sales/*.parquet" --target amount --rank 3 -o sales.safetensors
      quadlin fit big.parquet --target y --checkpoint big.ckpt --engine threads
      quadlin fit sales.csv --target amount --categorical store,item --exclude id
      quadlin fit ratings.csv --target rating --fm --categorical user,item
      quadlin fit houses.csv --target price --rank 0 --pairs "area:age,area:city"
      zcat log.csv.gz | quadlin fit - --format csv --target y --rank 4

    Parameters
    ----------
    data
        Rows: a file, a folder, a quoted pattern, or - for the standard input (with --format).
    output
        The model file. An existing one is replaced when the new one is complete.
    one_pass
        Read every row once, in O(rank × features) memory. Automatic for -, if once is enough.
    cv
        Choose rank and penalties by cross-validation. All rows are kept in memory.
    classify
        Predict probabilities of classes. Automatic for a target of text, or of True and False.
    engine
        Where sums are computed: serial, threads, a number of threads, or tcp://host:8786 (Dask).
    checkpoint
        A file that records every pass, so that the same command can resume after being killed.
    hold
        Megabytes of rows to keep in memory instead of reading them again; 0 keeps none.
    """
    check_model_output(output, data)
    if checkpoint is not None:
        check_output(checkpoint, data, output)
    check_combination(one_pass, cv, engine, checkpoint, machine)
    labels = {None: "auto", True: "learn", False: None}[classify]
    source = open_rows(data, read, answer, classes=labels)
    if checkpoint is not None and data == STANDARD and source.again:
        raise UsageError(
            "The fit reads the rows of the standard input more than once, and --checkpoint cannot "
            "recognise them when they are read again. Save them to a file first."
        )
    streamed, unasked = one_pass or not source.again, classify is None
    if classify is None:
        classify = _is_classified(source, answer)
    estimator = make_estimator(model, machine, source, cv, streamed, classify)
    start, r2 = time.perf_counter(), None
    try:
        if cv:
            r2 = _cross_validate(estimator, source, read, answer)
        elif streamed:
            _learn(estimator, source, classify, checkpoint, answer)
        else:
            near = source if "://" in engine else held(source, hold * 1e6, answer)
            with _engine(engine) as carrier:
                with watched(near, "looking", answer.silent) as rows:
                    warn_of_columns(rows, source, read, machine.fm)
                with watched(near, "fitting", answer.silent, again=True) as rows:
                    estimator.fit(rows, engine=carrier, checkpoint=checkpoint)
                    if not classify and (model.loss != "squared" or any(estimator.alpha_)):
                        r2 = estimator.score(rows)  # one more pass: the objective is not the error
                        estimator.adopt(replace(estimator.fitted_, train_score=r2))
    except KeyboardInterrupt:
        _remember(estimator, read)
        left = _what_is_left(estimator, output, checkpoint, source.again, cv)
        raise Interrupted(left) from None
    _remember(estimator, read)
    if source.dropped:
        gap = "a missing target" if read.missing == "mean" else "missing values"
        print_note(f"{source.dropped:,} rows with {gap} were left out.", answer.silent)
    save(estimator, output)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    seconds = time.perf_counter() - start
    with on_interrupt(f"Stopped; the model is in {output}."):
        if classify:
            report_classes(estimator, source, output, streamed, seconds, answer)
        else:
            report_fit(estimator, source, output, streamed, r2, seconds, answer)
            if unasked and is_zero_or_one(estimator.target_moments_):
                print_note(ZERO_OR_ONE, answer.silent)


def _is_classified(source: Source, answer: OutputOptions) -> bool:
    """Tell whether the target holds classes although nobody said so, and note it."""
    if source.labels is not None:
        classes = f"{len(source.labels)} classes ({listed(source.labels)})"
        print_note(f"The target {source.target!r} is text: classifying {classes}.", answer.silent)
    elif source.boolean_target:
        text = (
            f"The target {source.target!r} is True or False: classifying. To fit 0 and 1 as "
            "numbers, use --no-classify."
        )
        print_note(text, answer.silent)
    return source.labels is not None or source.boolean_target


@contextmanager
def _engine(text: str) -> Iterator[Any]:
    """Yield what `fit` takes as its engine; a cluster's client is closed afterwards."""
    if text in ("serial", "threads"):
        yield text
    elif text.isdigit() and int(text) > 0:
        yield int(text)
    elif "://" in text:
        try:
            from distributed import Client
        except ImportError:
            raise ImportError('A cluster needs Dask: pip install "quadlin[dask]".') from None
        try:
            client = Client(text, timeout="10s")
        except (OSError, TimeoutError):
            raise ConnectionError(f"There is no Dask scheduler at {text}.") from None
        with client:
            yield client
    else:
        raise UsageError(f"--engine {text} is not serial, threads, a number or tcp://host:port.")


def _remember(estimator: Any, read: TableOptions) -> None:
    """Let the model treat rows of Python as this command treats those of its file."""
    if read.missing == "mean":
        estimator.missing = "mean"
    if read.categorical:
        estimator.categorical_features = names_in(read.categorical)
    if read.multi_hot:
        estimator.multi_hot = lists_in(read)


def _cross_validate(
    estimator: Any, source: Source, read: TableOptions, answer: OutputOptions
) -> float:
    """Read all rows into memory, to split them into folds; return R² of them."""
    print_note("--cv keeps all rows in memory.", answer.silent)
    with watched(source, "reading", answer.silent) as rows:
        chunks = list(Rows.of(rows).walk())
    warn_of_columns(chunks, source, read)
    blocks = [chunk.X for chunk in chunks]
    weight = None
    if chunks[0].weight is not None:
        weight = np.concatenate([chunk.weight for chunk in chunks])
    y = np.concatenate([chunk.y for chunk in chunks])
    X = csr_array(vstack(blocks, "csr")) if source.sparse else np.vstack(blocks)
    if source.fill is not None:  # so that the fit knows which values are missing, see solve/fits
        X, estimator.missing = emptied(X, source.fill, source.names), "mean"
    estimator.fields = [field.tolist() for field in source.fields] or "auto"
    try:
        with waiting("cross-validating", answer.silent):
            estimator.fit(X, y, weight)
            r2 = float(estimator.score(X, y, weight))
    finally:  # Ctrl-C may leave a model too
        estimator.fields = "auto"
        if hasattr(estimator, "fitted_"):
            columns = Columns.of_source(source)
            estimator.adopt(replace(estimator.fitted_, columns=columns))
    return r2


def _learn(
    estimator: Any, source: Source, classify: bool, checkpoint: Path | None, answer: OutputOptions
) -> None:
    """Learn from rows that are read once; classes are the labels of a text, or 0 and 1."""
    options: dict[str, Any] = {"checkpoint": checkpoint}
    if classify:
        if checkpoint is not None:
            raise UsageError("Classes learned in one pass cannot be combined with --checkpoint.")
        numbers = [False, True] if source.boolean_target else [0, 1]
        options = {"classes": numbers if source.labels is None else list(source.labels)}
    with deferred_interrupt(), watched(source, "learning", answer.silent) as rows:
        estimator.partial_fit(rows, **options)
    check_row_count(estimator.n_samples_seen_)


def _what_is_left(
    estimator: Any, output: Path, checkpoint: Path | None, again: bool, cv: bool
) -> str:
    """Keep what was learned before Ctrl-C, and say where it is."""
    if checkpoint is not None and checkpoint.exists():
        command = shlex.join(["quadlin", *sys.argv[1:]])
        rows = "" if again else " with the same rows"
        return f"Stopped; the passes so far are in {checkpoint}. To continue{rows}: {command}"
    kept = "nothing was saved"
    if hasattr(estimator, "fitted_"):
        save(estimator, output)
        what = "best model of the search so far" if cv else "model of the last finished step"
        kept = f"the {what} is in {output}"
    more = "" if cv else " With --checkpoint FILE a fit can be continued."
    return f"Stopped; {kept}.{more}"
