r"""The volume of the rank-k matrices, by which their evidence is corrected.

A model of rank k is linear on the tangent space of the rank-k matrices at its M, which contains M,
so the evidence of a linear model holds there. But the tangent space was chosen after seeing the
rows: the prior is spread over the curved set of all rank-k matrices, whose volume is c(d, k) times
that of one tangent space. Directions that the rows determine pay for that volume; for the others
the posterior is the prior, whatever the volume. Hence

.. math:: \log p(y \mid k) = \log p(y \mid \text{tangent space}) - \frac{\gamma}{p} \log c(d, k)

with γ/p the determined share of the parameters of M. Without the volume, the evidence overfits few
rows (rank 6 instead of 3 with 1.7 rows per parameter); with all of it, it underfits them.
"""

from decimal import Decimal, localcontext
from functools import lru_cache
from math import log, pi

import numpy as np
from scipy.special import gammaln, multigammaln

DIGITS = 80  # of `log_volume`, whose matrix has a condition number of 10^k or so


@lru_cache(maxsize=256)
def log_volume(d: int, k: int) -> float:
    r"""Return log c(d, k), the volume of the rank-k matrices relative to one tangent space.

    .. math:: c = (a/\pi)^{p/2} \int e^{-a \|M\|_F^2}\, dM, \quad p = dk - k(k-1)/2

    over symmetric d×d matrices M = U diag(s) Uᵀ of rank k, dM = 2^{(p-k)/2} Π_{a<b}|s_a − s_b|
    Π|s_a|^{d−k} ds dU: 1 for k = d, and 2^{(d−1)/2} for k = 1. The integral over s is a Pfaffian
    (de Bruijn). Its entries vanish unless one index is even and the other odd, so it is the
    determinant of Γ(a)Γ(b) I_½(a, b), a = (i + d − k + 1)/2 of even i < k and b of odd i, with a
    column of Γ(a) if k is odd.

    Examples
    --------
    >>> log_volume(9, 9), round(log_volume(9, 1) / log(2), 9)
    (0.0, 4.0)
    """
    if k in (0, d):
        return 0.0
    p = d * k - k * (k - 1) / 2
    a = (np.arange(k) + d - k + 1) / 2
    over_s = float(gammaln(a).sum()) + _log_determinant(_half_betas(a[0], (k + 1) // 2, k // 2))
    over_U = d * k / 2 * log(pi) - multigammaln(d / 2, k)  # signs and order do not change M
    return float(over_s + over_U + (p - k) / 2 * log(2) - p / 2 * log(pi))


def _half_betas(first: float, rows: int, columns: int) -> list[list[Decimal]]:
    """Return I_½(a + i, a + ½ + j), and a column of ones if there are more rows than columns.

    In many digits, since neighbouring columns are nearly the same. One of a and a + ½ is whole, so
    the first entry is a finite sum, and the others differ from their neighbours by one term.
    """
    with localcontext(prec=DIGITS):
        a, b = Decimal(first), Decimal(first) + Decimal("0.5")
        whole, other = (a, b) if a == int(a) else (b, a)
        term, total = Decimal(2) ** -other, Decimal(0)
        for j in range(int(whole)):
            total += term
            term *= (other + j) / (j + 1) / 2
        value, change = (1 - total, term) if whole is a else (total, term * b / a)
        table = []
        for _ in range(rows):  # change is 2^−(a+b) Γ(a + b)/(Γ(a + 1) Γ(b))
            right, step, c, row = value, change, b, []
            for _ in range(columns):
                row.append(right)
                right += step * a / c
                step *= (a + c) / c / 2
                c += 1
            table.append(row if columns == rows else [*row, Decimal(1)])
            value -= change
            change *= (a + b) / (a + 1) / 2
            a += 1
        return table


def _log_determinant(table: list[list[Decimal]]) -> float:
    """Return log |det| by elimination with pivots."""
    total = Decimal(0)
    with localcontext(prec=DIGITS):
        while table:
            pivot = max(table, key=lambda row: abs(row[0]))
            total += abs(pivot[0]).ln()
            rest = [row for row in table if row is not pivot]
            table = [
                [x - row[0] / pivot[0] * y for x, y in zip(row[1:], pivot[1:], strict=True)]
                for row in rest
            ]
    return float(total)
