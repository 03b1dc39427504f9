"""`quadlin fit`: from rows to a model in a file."""

import shlex
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import Group, Parameter, validators
from scipy.sparse import csr_array, vstack

from quadlin.cli.interrupt import Interrupted, gently
from quadlin.cli.messages import UsageError, columns, emit, note, number, spoken
from quadlin.cli.missing_values import numbering
from quadlin.cli.options import READ, SAY, WHOLE, Flag, Output, Read, Say, joined, opened, writable
from quadlin.cli.progress import waiting, watched
from quadlin.core.chunks import Chunk
from quadlin.data import Source
from quadlin.data.cached import cached
from quadlin.estimators.cross_validation import SecondOrderRegressorCV
from quadlin.estimators.parameters import alphas, check_options
from quadlin.estimators.regressor import SecondOrderRegressor
from quadlin.explain.diagnosis import listed
from quadlin.export.model_file import save

MODEL = Group("The model", sort_key=5)
RANK = 5  # where the rows cannot choose it
LISTED = 30  # names of columns in a warning
CONSTANT = "none: not defined for a constant target"


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True)
class Learn:
    """The options of the estimator."""

    rank: Annotated[int | Literal["auto"] | None, WHOLE] = None
    """Rank of M; auto (the default but for one pass): chosen by rows held out."""
    alpha: str = "0"
    """Ridge penalty; two numbers with a comma are for w and for M."""
    diagonal: Literal["auto", "free", "zero"] = "auto"
    """Squares: auto where they can be told from the feature; zero for a factorization machine."""
    loss: Literal["squared", "huber"] = "squared"
    """huber is for gross errors in y."""
    fit_linear: Annotated[bool, Parameter(name="--linear")] = True
    """Fit w, else it is zero."""
    fit_intercept: Annotated[bool, Parameter(name="--intercept")] = True
    """Fit b, else it is zero."""
    psd: Flag = False
    """Hold the low-rank part positive semi-definite."""
    whiten: Literal["auto", "full", "lowrank", "none"] = "auto"
    """How correlated features are decorrelated inside."""
    polish: bool = True
    """Go on from the moment estimates to the least-squares optimum."""
    max_iter: Annotated[int, WHOLE] = 50
    """Most steps."""
    tol: float = 1e-6
    """Stop when a step promises less than this share of the objective."""
    batch_size: Annotated[int | Literal["auto"], WHOLE] = "auto"
    """Rows of a step, with --one-pass."""
    random_state: Annotated[int, WHOLE] = 0
    """Seed: the same command gives the same model."""
    uncertainty: Flag = False
    """Find standard errors as well, for predict --std."""


LEARN = Learn()


def fit(
    data: str,
    *,
    output: Output = Path("model.safetensors"),
    read: Read = READ,
    learn: Learn = LEARN,
    one_pass: Flag = False,
    cv: Flag = False,
    engine: str = "serial",
    checkpoint: Path | None = None,
    hold: Annotated[int, WHOLE, Parameter(validator=validators.Number(gte=0))] = 1000,
    say: Say = SAY,
) -> None:
    """Fit a model to a table and save it.

    Text columns become one-hot columns. Tables that take more than --hold stay on
    disk and are read in every pass.

      quadlin fit houses.csv --target price
      quadlin fit "sales/*.parquet" --target amount --rank 3 -o sales.safetensors
      quadlin fit big.parquet --target y --checkpoint big.ckpt --engine threads
      zcat log.csv.gz | quadlin fit - --format csv --target y --rank 4

    Parameters
    ----------
    data
        Rows: a file, a folder, a quoted pattern, or - for the standard input (with --format).
    output
        The model's file. One that is there is replaced when the new one is complete.
    one_pass
        See every row once: one walk, O(rank × features) memory. Automatic for standard input.
    cv
        Choose rank and penalties by cross-validation. All rows are held in memory.
    engine
        Who adds up: serial, threads, a number of threads, or a Dask scheduler (tcp://host:8786).
    checkpoint
        A file to note every pass in: the same command goes on after a kill. Removed at the end.
    hold
        Megabytes of memory for rows, so that they are read once only; 0 reads them in every pass.
    """
    writable(output, data)
    if checkpoint is not None:
        writable(checkpoint, data, output)
    if cv and (one_pass or checkpoint is not None or engine != "serial"):
        raise UsageError("--cv goes without --one-pass, --checkpoint and --engine.")
    if one_pass and engine != "serial":
        raise UsageError("--one-pass learns from row after row: it goes without --engine.")
    source = opened(data, read, say)
    streamed = one_pass or not source.again
    estimator = _estimator(learn, source, cv, streamed, say)
    start, r2 = time.perf_counter(), None
    try:
        if cv:
            r2 = _cross_validate(estimator, source, read, say)
        elif streamed:
            with gently(), watched(source, "learning", say.still) as rows:
                estimator.partial_fit(rows, checkpoint=checkpoint)
        else:
            near = source if "://" in engine else _held(source, hold, say)
            with _engine(engine) as carrier:
                with watched(near, "looking", say.still) as rows:
                    _warn_of_numbers(rows, source, read)
                with watched(near, "fitting", say.still, again=True) as rows:
                    estimator.fit(rows, engine=carrier, checkpoint=checkpoint)
                    if learn.loss != "squared" or any(alphas(estimator.alpha)):
                        r2 = estimator.score(rows)  # one more pass: the objective is not the error
    except KeyboardInterrupt:
        raise Interrupted(_farewell(checkpoint, source.again)) from None
    if source.dropped:
        note(f"{source.dropped:,} rows with missing values were left out.", say.still)
    save(estimator, output)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    if not _varies(estimator):
        mean = number(float(estimator.intercept_))
        warnings.warn(f"The target is {mean} in every row; so is the model.", stacklevel=2)
    _report(estimator, source, output, streamed, r2, time.perf_counter() - start, say)


def _estimator(learn: Learn, source: Source, cv: bool, streamed: bool, say: Say) -> Any:
    params = {**asdict(learn), "alpha": _alpha(learn.alpha)}
    if cv:
        if not source.again:
            raise UsageError("--cv needs rows that can be walked again: save them to a file first.")
        given = [name for name in CV_LACKS if getattr(learn, name) != getattr(LEARN, name)]
        if given:
            raise UsageError(f"--cv goes without --{given[0].replace('_', '-')}.")
        return SecondOrderRegressorCV(**{k: v for k, v in params.items() if k not in CV_LACKS})
    if streamed:
        wrong = {"--rank auto": learn.rank == "auto", "--loss huber": learn.loss == "huber"}
        wrong["--uncertainty"] = learn.uncertainty
        for option, asked in wrong.items():
            if asked:
                raise UsageError(f"{option} needs several passes, so it does not go with one pass.")
    if learn.rank is None:
        chosen = not streamed and learn.loss == "squared"
        params["rank"] = "auto" if chosen else RANK
        if not chosen:
            why = "rows seen once" if streamed else "--loss huber"
            note(f"With {why} the rank is not chosen but {RANK}; --rank sets it.", say.still)
    estimator = SecondOrderRegressor(**params)
    try:
        check_options(estimator)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return estimator


CV_LACKS = ("rank", "alpha", "loss", "polish", "batch_size")  # options that --cv does not take


def _alpha(text: str) -> float | tuple[float, float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in (1, 2) or not all(0 <= value < np.inf for value in values):
        raise UsageError(f"--alpha {text} is neither a number ≥ 0 nor two with a comma.")
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


def _held(source: Source, megabytes: int, say: Say) -> Source:
    """Read the rows once, where they fit: 100,000 mixed rows of CSV take 13 s to fit, not 30."""
    if megabytes <= 0:
        return source
    with watched(source, "reading", say.still) as rows:
        near = cached(rows, megabytes * 1e6)
    return source if near is rows else near


def _warn_of_numbers(rows: Iterable[Chunk], source: Source, read: Read) -> None:
    """Warn of columns that only number the rows, unless --columns names them."""
    columns = [str(name) for name in getattr(source.reader, "columns", ())]
    if read.columns is not None or not columns:
        return
    found = numbering(rows, source)
    kept = [name for name in columns if name not in found]
    if found and kept:
        names = shlex.quote(joined(kept)) if len(kept) <= LISTED else "with all other names"
        warnings.warn(
            f"{listed(found)}: whole numbers that rise from row to row, as those do that only "
            f"name the rows. To leave them out: --columns {names}",
            stacklevel=2,
        )


def _cross_validate(estimator: Any, source: Source, read: Read, say: Say) -> float:
    """Bring all rows to memory, for they are walked by folds; return R² of them."""
    note("--cv holds all rows in memory.", say.still)
    with watched(source, "reading", say.still) as rows:
        chunks = list(rows)
    _warn_of_numbers(chunks, source, read)
    X = [chunk.X for chunk in chunks]
    weight = None
    if chunks[0].weight is not None:
        weight = np.concatenate([chunk.weight for chunk in chunks])
    y = np.concatenate([chunk.y for chunk in chunks])
    whole = csr_array(vstack(X, "csr")) if source.sparse else np.vstack(X)
    estimator.fields = [field.tolist() for field in source.fields] or "auto"
    with waiting("cross-validating", say.still):
        estimator.fit(whole, y, weight)
        r2 = float(estimator.score(whole, y, weight))
    estimator.fields = "auto"
    estimator._met(source, reset=True)
    return r2


def _farewell(checkpoint: Path | None, again: bool) -> str:
    if checkpoint is None or not checkpoint.exists():
        return "Stopped; nothing was saved. With --checkpoint FILE a fit can go on later."
    command = shlex.join(["quadlin", *sys.argv[1:]])
    rows = "" if again else " with the same rows"
    return f"Stopped; what is done so far is in {checkpoint}. To go on{rows}: {command}"


def _report(
    model: Any,
    source: Source,
    output: Path,
    streamed: bool,
    r2: float | None,  # None where the objective is the mean squared error
    seconds: float,
    say: Say,
) -> None:
    learned, history = model._fitted.current, model.history_
    varies = _varies(model)
    if not varies:
        r2 = None
    elif r2 is None:
        r2 = 1 - history[-1].loss / float(learned.target.var[0])
    content = {
        "model": str(output),
        "rows": model.n_samples_seen_,
        "dropped": source.dropped,
        "features": len(model._names()),
        "rank": model.rank_,
        "alpha": getattr(model, "alpha_", model.alpha if hasattr(model, "alpha") else None),
        "eigenvalues": model.eigenvalues_,
        "status": model.status_.name,
        "advice": spoken(model.status_.value),
        "steps": model.n_iter_,
        "passes": 1 if streamed else getattr(model, "n_passes_", history[-1].passes),
        "loss": history[-1].loss,
        "r2_last_batch" if streamed else "r2_train": r2,
        "seconds": round(seconds, 3),
    }
    passes = "1 pass" if streamed else f"{content['passes']:,} passes"
    said = [
        ["rows", f"{content['rows']:,}"],
        ["features", f"{content['features']:,}"],
        ["rank", f"{model.rank_}   eigenvalues of the low-rank part {_some(model.eigenvalues_)}"],
        ["R² (last batch)" if streamed else "R² (training)", number(r2) if varies else CONSTANT],
        ["status", f"{model.status_.name}, {passes} in {seconds:.1f} s"],
        ["model", str(output)],
    ]
    emit(content, [] if say.quiet else columns(said, ""), say.json)


def _varies(model: Any) -> bool:
    """Tell whether the target takes more than one value."""
    return bool(model._fitted.current.target.varies(np.float64)[0])


def _some(values: Any) -> str:
    shown = ", ".join(number(float(value), sign=True) for value in values[:5])
    return shown + (", …" if len(values) > 5 else "") if len(values) else "none: a linear model"
