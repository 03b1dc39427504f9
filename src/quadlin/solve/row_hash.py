"""Random-looking numbers of rows that depend on the position of the row alone."""

import numpy as np

ODD = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio


def row_hash(numbers: np.ndarray, salt: int = 0) -> np.ndarray:
    """Return 64 random-looking bits for each row number, others for another `salt`.

    No generator and no seed: the same rows get the same bits on any number of threads or machines.

    Examples
    --------
    >>> bits = row_hash(np.arange(10_000))
    >>> bool(abs(np.mean(bits < 2**63) - 0.5) < 0.02)
    True
    """
    bits = np.asarray(numbers, dtype=np.uint64) * ODD + np.uint64(salt + 1)
    for shift in (32, 29, 32):
        bits = (bits ^ (bits >> np.uint64(shift))) * ODD
    hashed: np.ndarray = bits ^ (bits >> np.uint64(32))
    return hashed
