"""The memory that a stream needs, with and without a first batch of rows."""

from quadlin.core.chunks import BLOCK_ELEMENTS
from quadlin.solve.composite.composer import PairRequest
from quadlin.solve.lowrank.types import Options

NUMBERS = 40  # per entry of U, at most, in a stream that keeps no rows, including its work space
WIDEST = 2000  # features, up to which correlations are a d×d matrix
MOST_PARAMETERS = 1500  # of the p×p matrices that choose rank and penalties
BYTES = 8


def strict_bytes(d: int, rank: int) -> int:
    """Return the memory of a stream that keeps no rows, without the rows of one call."""
    return BYTES * NUMBERS * max(rank, 4) * d


def pair_numbers(d: int, rank: int, most: int) -> int:
    """Return how many numbers a search for pairs and the regression after it hold."""
    columns = 2 + d + d * rank + most
    return 8 * d * d + 4 * columns * columns


def rows_within(
    limit: int | str, options: Options, d: int, chooses: bool, more_numbers: int = 0
) -> int:
    """Return how many rows of a first batch can be kept and fitted within a limit of bytes.

    Sparse rows count as dense ones. The fit takes a block of rows and its products, three d×d
    matrices for correlations, four p×p matrices if rank or penalties are chosen, and the numbers
    that a search for pairs holds.
    """
    if isinstance(limit, str):
        return 0
    work = work_bytes(options, d, chooses, more_numbers)
    return max(0, int(limit) - work) // (BYTES * (d + 2))


def work_bytes(options: Options, d: int, chooses: bool, more_numbers: int = 0) -> int:
    """Return the memory of a first fit without its rows."""
    work = strict_bytes(d, options.rank) + 3 * BYTES * BLOCK_ELEMENTS + BYTES * more_numbers
    if options.solver == "auto" and d <= WIDEST:
        work += 3 * BYTES * d * d
    if chooses:
        work += 4 * BYTES * min(MOST_PARAMETERS, (options.rank + 1) * d) ** 2
    return work


def refuse_with_strict(options: Options) -> None:
    """Raise an error for options that need a first batch of rows if no rows are kept."""
    if any(options.alpha):
        raise ValueError(
            "`alpha` needs a first batch of rows in memory, but `max_memory` keeps none. Raise "
            "`max_memory`, or leave `alpha` out."
        )


def refuse_pairs_with_strict(pairs: PairRequest) -> None:
    """Raise an error for pairs that the user asked for if there is no room for their matrix."""
    if pairs.asked:
        raise ValueError(
            "`pairs` needs more memory than `max_memory` allows: a first batch of "
            "rows, and the matrix of a regression. Raise `max_memory`, or leave "
            "`pairs` out."
        )
