"""`quadlin fit`: from rows to a model in a file."""

import shlex
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter, validators
from scipy.sparse import csr_array, vstack

from quadlin.cli.column_scan import row_number_columns
from quadlin.cli.options import (
    WHOLE,
    Flag,
    ModelOptions,
    OutputOptions,
    OutputPath,
    TableOptions,
    UsageError,
    join_names,
)
from quadlin.cli.printing import aligned, message_text, number, print_answer, print_note
from quadlin.cli.progress import Interrupted, deferred_interrupt, waiting, watched
from quadlin.cli.reading import check_model_output, check_output, input_columns, open_rows
from quadlin.core.chunks import Chunk
from quadlin.data import Source
from quadlin.data.cached import cached
from quadlin.estimators.columns import Columns
from quadlin.estimators.cross_validation import SecondOrderRegressorCV
from quadlin.estimators.parameters import check_options
from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.explain.diagnosis import listed
from quadlin.export.model_file import save

LISTED = 30  # names of columns in a warning
CONSTANT = "none: not defined for a constant target"
NOT_WITH_CV = (  # it chooses them, or lacks them
    "rank",
    "alpha",
    "loss",
    "polish",
    "batch_size",
    "max_memory",
)
DEFAULTS = ModelOptions()


def fit(
    data: str,
    *,
    output: OutputPath = Path("model.safetensors"),
    read: TableOptions = TableOptions(),  # noqa: B008  it is frozen
    model: ModelOptions = DEFAULTS,
    one_pass: Flag = False,
    cv: Flag = False,
    engine: str = "serial",
    checkpoint: Path | None = None,
    hold: Annotated[int, WHOLE, Parameter(validator=validators.Number(gte=0))] = 1000,
    answer: OutputOptions = OutputOptions(),  # noqa: B008
) -> None:
    """Fit a model to a table and save it.

    Text columns become one-hot columns. Tables larger than --hold stay on disk
    and are read again in every pass.

      quadlin fit houses.csv --target price
      quadlin fit "sales/*.parquet" --target amount --rank 3 -o sales.safetensors
      quadlin fit big.parquet --target y --checkpoint big.ckpt --engine threads
      zcat log.csv.gz | quadlin fit - --format csv --target y --rank 4

    Parameters
    ----------
    data
        Rows: a file, a folder, a quoted pattern, or - for the standard input (with --format).
    output
        The model file. An existing one is replaced when the new one is complete.
    one_pass
        Read every row only once, in O(rank × features) memory. Automatic for the standard input.
    cv
        Choose rank and penalties by cross-validation. All rows are kept in memory.
    engine
        Where sums are computed: serial, threads, a number of threads, or tcp://host:8786 (Dask).
    checkpoint
        A file that records every pass, from which the same command can continue after a kill.
    hold
        Megabytes of rows to keep in memory, so that they are read only once; 0 keeps none.
    """
    check_model_output(output, data)
    if checkpoint is not None:
        check_output(checkpoint, data, output)
    _check_combination(one_pass, cv, engine, checkpoint)
    source = open_rows(data, read, answer)
    streamed = one_pass or not source.again
    estimator = _estimator(model, source, cv, streamed, answer)
    start, r2 = time.perf_counter(), None
    try:
        if cv:
            r2 = _cross_validate(estimator, source, read, answer)
        elif streamed:
            with deferred_interrupt(), watched(source, "learning", answer.silent) as rows:
                estimator.partial_fit(rows, checkpoint=checkpoint)
        else:
            near = source if "://" in engine else _held(source, hold, answer)
            with _engine(engine) as carrier:
                with watched(near, "looking", answer.silent) as rows:
                    _warn_of_row_numbers(rows, source, read)
                with watched(near, "fitting", answer.silent, again=True) as rows:
                    estimator.fit(rows, engine=carrier, checkpoint=checkpoint)
                    if model.loss != "squared" or any(estimator.alpha_):
                        r2 = estimator.score(rows)  # one more pass: the objective is not the error
    except KeyboardInterrupt:
        raise Interrupted(_how_to_continue(checkpoint, source.again)) from None
    if source.dropped:
        print_note(f"{source.dropped:,} rows with missing values were left out.", answer.silent)
    save(estimator, output)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    _report(estimator, source, output, streamed, r2, time.perf_counter() - start, answer)


def _check_combination(one_pass: bool, cv: bool, engine: str, checkpoint: Path | None) -> None:
    if cv and (one_pass or checkpoint is not None or engine != "serial"):
        raise UsageError("--cv cannot be combined with --one-pass, --checkpoint or --engine.")
    if one_pass and engine != "serial":
        raise UsageError("--one-pass reads the rows in order, so it cannot use another --engine.")


def _estimator(
    model: ModelOptions, source: Source, cv: bool, streamed: bool, answer: OutputOptions
) -> Any:
    params = {**asdict(model), "alpha": _alpha(model.alpha)}
    if cv:
        if not source.again:
            raise UsageError("--cv reads the rows several times: save them to a file first.")
        given = [name for name in NOT_WITH_CV if getattr(model, name) != getattr(DEFAULTS, name)]
        if given:
            raise UsageError(f"--cv cannot be combined with --{given[0].replace('_', '-')}.")
        return SecondOrderRegressorCV(**{k: v for k, v in params.items() if k not in NOT_WITH_CV})
    if streamed:
        asked = {"--loss huber": model.loss == "huber", "--uncertainty": model.uncertainty}
        for option in [name for name, value in asked.items() if value]:
            raise UsageError(f"{option} needs several passes over the rows, but there is only one.")
    estimator = SecondOrderRegressor(**params)
    try:
        check_options(estimator)
    except ValueError as error:
        raise UsageError(error.args[0]) from None
    return estimator


def _alpha(text: str) -> float | str | tuple[float, float]:
    if text == "auto":
        return text
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in (1, 2) or not all(0 <= value < np.inf for value in values):
        raise UsageError(f"--alpha {text} must be auto, a number ≥ 0, or two separated by a comma.")
    return values[0] if len(values) == 1 else (values[0], values[1])


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


def _held(source: Source, megabytes: int, answer: OutputOptions) -> Source:
    """Read the rows once, where they fit: 100,000 mixed rows of CSV take 13 s to fit, not 30."""
    if megabytes <= 0:
        return source
    with watched(source, "reading", answer.silent) as rows:
        near = cached(rows, megabytes * 1e6)
    return source if near is rows else near


def _warn_of_row_numbers(rows: Iterable[Chunk], source: Source, read: TableOptions) -> None:
    """Warn of columns that only number the rows, unless --columns names them."""
    columns = input_columns(source)
    if read.columns is not None or not columns:
        return
    numbers = row_number_columns(rows, source)
    kept = [name for name in columns if name not in numbers]
    if numbers and kept:
        names = shlex.quote(join_names(kept)) if len(kept) <= LISTED else "with all other names"
        warnings.warn(
            f"{listed(numbers)}: whole numbers that increase from row to row, like row numbers. "
            f"To leave them out: --columns {names}",
            stacklevel=2,
        )


def _cross_validate(
    estimator: Any, source: Source, read: TableOptions, answer: OutputOptions
) -> float:
    """Read all rows into memory, to split them into folds; return R² of them."""
    print_note("--cv keeps all rows in memory.", answer.silent)
    with watched(source, "reading", answer.silent) as rows:
        chunks = list(rows)
    _warn_of_row_numbers(chunks, source, read)
    blocks = [chunk.X for chunk in chunks]
    weight = None
    if chunks[0].weight is not None:
        weight = np.concatenate([chunk.weight for chunk in chunks])
    y = np.concatenate([chunk.y for chunk in chunks])
    X = csr_array(vstack(blocks, "csr")) if source.sparse else np.vstack(blocks)
    estimator.fields = [field.tolist() for field in source.fields] or "auto"
    with waiting("cross-validating", answer.silent):
        estimator.fit(X, y, weight)
        r2 = float(estimator.score(X, y, weight))
    estimator.fields = "auto"
    columns = Columns.of_source(source)
    estimator.adopt(replace(estimator.fitted_, columns=columns))
    return r2


def _how_to_continue(checkpoint: Path | None, again: bool) -> str:
    if checkpoint is None or not checkpoint.exists():
        return "Stopped; nothing was saved. With --checkpoint FILE a fit can be continued."
    command = shlex.join(["quadlin", *sys.argv[1:]])
    rows = "" if again else " with the same rows"
    return f"Stopped; the passes so far are in {checkpoint}. To continue{rows}: {command}"


def _report(
    model: Any,
    source: Source,
    output: Path,
    streamed: bool,
    r2: float | None,  # None where the objective is the mean squared error
    seconds: float,
    answer: OutputOptions,
) -> None:
    history, target = model.history_, model.target_moments_
    varies = bool(target.varies(np.float64)[0])
    if not varies:
        r2, value = None, number(float(target.mean[0]))
        warnings.warn(f"The target is {value} in every row, and so is the model.", stacklevel=2)
    elif r2 is None:
        r2 = 1 - history[-1].loss / float(target.var[0])
    if answer.quiet and not answer.json:
        return
    passes = 1 if streamed else getattr(model, "n_passes_", history[-1].passes)
    content = {
        "model": str(output),
        "rows": model.n_samples_seen_,
        "dropped": source.dropped,
        "features": len(model.coef_),
        "rank": model.rank_,
        "alpha": model.alpha_,
        "eigenvalues": model.eigenvalues_,
        "status": model.status_.name,
        "advice": message_text(model.status_.value),
        "steps": model.n_iter_,
        "passes": passes,
        "loss": history[-1].loss,
        "r2_last_batch" if streamed else "r2_train": r2,
        "seconds": round(seconds, 3),
    }
    walks = "1 pass" if passes == 1 else f"{passes:,} passes"
    table = [
        ["rows", f"{content['rows']:,}"],
        ["features", f"{content['features']:,}"],
        ["rank", f"{model.rank_}   eigenvalues of the low-rank part {_some(model.eigenvalues_)}"],
        ["R² (last batch)" if streamed else "R² (training)", number(r2) if varies else CONSTANT],
        ["status", f"{model.status_.name}, {walks} in {seconds:.1f} s"],
        ["model", str(output)],
    ]
    print_answer(content, aligned(table, ""), answer.json)


def _some(values: Any) -> str:
    shown = ", ".join(number(float(value), sign=True) for value in values[:5])
    return shown + (", …" if len(values) > 5 else "") if len(values) else "none: a linear model"
