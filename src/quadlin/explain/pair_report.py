"""The report of a search for pairs: the pairs, their standard errors, and the path to them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quadlin.core.messages import printable
from quadlin.explain.tables import frame_of, p_value

VARIANCE, DEVIANCE = "R²", "D²"
SHOWN = 20  # pairs of a printed table
SHOWN_EXCHANGES = 3


class Pair(NamedTuple):
    """Two features whose product is in the model; the same feature twice is its square."""

    first: str
    second: str
    coefficient: float  # of x_i·x_j in y, in the user's units
    std_error: float  # robust (HC3)
    t: float  # coefficient / std_error
    p: float  # two-sided, of Student's distribution
    share: float  # of the variance of y: by how much R² falls without the pair
    order: int  # of entry, from 1; products of whole text columns enter together


class Exchange(NamedTuple):
    """Two pairs, either of which could replace the other."""

    taken: tuple[str, str]
    other: tuple[str, str]
    cost: float  # by how much the criterion is larger with the other pair


class PathStep(NamedTuple):
    """The model with the first few pairs."""

    n_steps: int  # how many pairs, or blocks of pairs, are in it
    criterion: float  # extended BIC, less that of the linear model; smaller is better
    r2: float  # on the rows of the search


class PairBlock(NamedTuple):
    """The products of two columns that entered in one step, tested as a whole."""

    first: str  # the column, or the feature
    second: str
    n_products: int
    F: float  # Wald: how much larger than by chance, for noise that is equal in all rows
    p: float
    order: int  # of entry, from 1

    def __str__(self) -> str:
        words = f"{self.first} × {self.second}, {self.n_products} products together"
        p = p_value(self.p)
        p = p if p.startswith("<") else f"= {p}"
        return printable(f"{self.order:>3} {words}: F = {self.F:.1f}, p {p}")


@dataclass(frozen=True)
class PairReport:
    """The pairs that :func:`quadlin.find_pairs` has found; printing it shows a table.

    Attributes
    ----------
    pairs : list of Pair
        In the order of entry: `first`, `second`, `coefficient`, `std_error`, `t`, `p`, `share`,
        `order`.
    exchangeable : list of Exchange
        Pairs that could replace each other: the criterion differs by less than 6.
    path : list of PathStep
        The criterion and R² with the first 0, 1, … pairs.
    low_rank : bool
        Whether the residual beside the pairs still shows a quadratic part of low rank.
    n_rows, n_features, n_candidates : int
        The rows of the search, the features (text columns by their levels), and the products that
        were candidates.
    at_limit : bool
        Whether the search ended because `max_pairs` was reached.
    test_on : None or "half"
        Which rows the standard errors come from.
    measure : "R²" or "D²"
        What `share` and the `r2` of the path refer to: the variance of y, or for labels the
        deviance (D² = 1 − deviance/deviance of the constant).
    validated : list of float or None
        With `cv`: R² of rows left out, with the first 0, 1, … of the pairs found on the others.
    stability : list of float or None
        With `stability`: the share of resamples of the rows in which each pair was chosen again.
    n_rows_fitted : int or None
        For a stream: the rows behind coefficients and tests, while `n_rows` were searched.
    blocks : list of PairBlock
        Products of whole text columns that entered together: `first`, `second`, `n_products`, `F`,
        `p`, `order`. F is a Wald test of all their coefficients that assumes equal noise in all
        rows.
    rank : int
        Of the low-rank part of the model beside the pairs, which has products of all features.
    """

    pairs: list[Pair]
    exchangeable: list[Exchange]
    path: list[PathStep]
    low_rank: bool
    n_rows: int
    n_features: int
    n_candidates: int
    at_limit: bool
    test_on: str | None
    measure: str = VARIANCE
    validated: list[float] | None = None
    stability: list[float] | None = None
    n_rows_fitted: int | None = None
    blocks: list[PairBlock] = field(default_factory=list)
    rank: int = 0

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)

    def __getitem__(self, place: int) -> Pair:
        return self.pairs[place]

    def to_frame(self) -> Any:
        """Return the pairs as a pandas frame, or as a dict of columns without pandas."""
        columns = {name: [getattr(p, name) for p in self.pairs] for name in Pair._fields}
        if self.stability is not None:
            columns["stability"] = self.stability
        return frame_of(columns)

    def __str__(self) -> str:
        return "\n".join([self._headline(), *self._table(), *self._notes()])

    def _headline(self) -> str:
        count = len(self.pairs)
        what = "No pair" if not count else "1 pair" if count == 1 else f"{count} pairs"
        steps = len(self.path) - 1
        if steps < count:  # whole text columns entered
            what += f" in {steps} step" + "s" * (steps > 1)
        return (
            f"{what} among {self.n_candidates:,} products of {self.n_features:,} features, "
            f"{self.n_rows:,} rows"
        )

    def _table(self) -> list[str]:
        if not self.pairs:
            return []
        shown = self.pairs[:SHOWN]
        names = [printable(f"{p.first} × {p.second}") for p in shown]
        width = max(len("pair"), *map(len, names))
        head = f"{'':>3} {'pair':{width}} {'coefficient':>11} {'std error':>10} {'t':>7}"
        stable = [] if self.stability is None else [f" {s:>9.0%}" for s in self.stability]
        lines = [f"{head} {'p':>8} share" + " stability" * bool(stable)]
        for number, (name, p) in enumerate(zip(names, shown, strict=True)):
            lines.append(
                f"{p.order:>3} {name:{width}} {p.coefficient:>+11.4g} {p.std_error:>10.2g} "
                f"{p.t:>7.1f} {p_value(p.p):>8} {p.share:>5.1%}{stable[number] if stable else ''}"
            )
        if len(self.pairs) > SHOWN:
            lines.append(f"    and {len(self.pairs) - SHOWN} more")
        lines += map(str, self.blocks)
        return lines

    def _notes(self) -> list[str]:
        def compared(values: Sequence[float]) -> str:
            with_pairs = f", {values[-1]:.3f} with them" if self.pairs else ""
            return f"{self.measure} {values[0]:.3f} without pairs{with_pairs}"

        notes = [compared([step.r2 for step in self.path])]
        if self.validated is not None:
            notes.append(f"On rows left out: {compared(self.validated)}")
        if self.n_rows_fitted is not None:
            notes.append(
                f"In this stream the search used the first {self.n_rows:,} rows; "
                f"coefficients and tests use {self.n_rows_fitted:,}."
            )
        if self.test_on == "half":
            notes.append(
                "Coefficients and tests come from the half of the rows that was not searched."
            )
        for taken, other, _ in self.exchangeable[:SHOWN_EXCHANGES]:
            words = f"{' × '.join(other)} would do about as well as {' × '.join(taken)}."
            notes.append(printable(words))
        if len(self.exchangeable) > SHOWN_EXCHANGES:
            notes.append(
                f"{len(self.exchangeable) - SHOWN_EXCHANGES} more pairs could be replaced."
            )
        if self.at_limit:
            steps = len(self.path) - 1
            limit = "one pair" if steps == 1 else f"{steps} pairs"
            notes.append(f"The search ended at its limit of {limit}.")
        if self.rank:
            beside = "Beside them, the" if self.pairs else "The"
            notes.append(
                f"{beside} model has products of all features, of rank {self.rank}: "
                "interactions_ lists them."
            )
        if self.low_rank:
            notes.append(
                "Beside these pairs, many features still interact weakly. SecondOrderRegressor "
                "learns such a quadratic part of low rank."
            )
        return notes
