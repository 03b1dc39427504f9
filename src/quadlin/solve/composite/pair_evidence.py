"""The log evidence of what is fitted beside pairs, at its best penalties."""

from collections.abc import Callable
from math import log

import numpy as np

from quadlin.core.model import Model, degrees_of_freedom
from quadlin.solve.choose.automatic import RankSearch
from quadlin.solve.choose.candidates import BEGIN
from quadlin.solve.choose.penalty_search import maximised
from quadlin.solve.composite.pair_composite import Beside
from quadlin.solve.lowrank.exact import EXACT_COLUMNS
from quadlin.solve.lowrank.tangent_gram import tangent_gram
from quadlin.solve.lowrank.types import Problem
from quadlin.solve.pairs.pair_choice import SMALLEST


def evidence_beside(search: RankSearch, beside: Beside, ridge: Callable[[], Model]) -> float:
    """Return the log evidence of a rank, fitted to the rows of a search.

    With more parameters than a matrix holds, it is that of ridge regression and the Bayes factor
    of what the rank explains more; `ridge` fits the ridge regression.
    """
    rows, units, options, d, k = search.rows, search.units, search.options, search.d, beside.rank
    if not k:
        return search.ridge().evidence
    dof, weight = degrees_of_freedom(d, k, **options.parts), search.weight
    if dof > EXACT_COLUMNS and k < d:
        problem = Problem(rows, units, options, np.random.default_rng(search.seed))
        before, after = (problem.sums(m, squares=False).loss for m in (ridge(), beside.model))
        more = evidence_of_rank(before, after, weight - d - 1, dof - d - 1)
        return search.ridge().evidence + more
    if k == d:
        candidate = search.candidate(k)
    else:
        tangent = tangent_gram(rows, units, options, beside.model.U)
        gram = tangent.centred(weight)
        begin = np.log(np.maximum(beside.alpha, 1e-9 * weight) / gram.weight).tolist()
        starts = [begin, [begin[0], log(BEGIN)], [begin[0], log(BEGIN / 50)]]
        candidate = search.noted(k, maximised(gram, starts), beside.model, tangent)
    assert candidate is not None
    return candidate.merit


def evidence_of_rank(before: float, after: float, rows: float, dof: float) -> float:
    r"""Return the log of the Bayes factor of `dof` parameters, their prior variance the likeliest.

    .. math:: \max_g\; \tfrac{N - q}{2} \log(1 + g)
              - \tfrac{N}{2} \log(1 + g \tfrac{\mathrm{RSS}_1}{\mathrm{RSS}_0})

    It grows as ½(N log(RSS₀/RSS₁) − q(1 + log F)), F the gain per parameter in units of the noise.
    """
    if dof >= rows - 1 or before <= 0:
        return 0.0
    left = min(max(after / before, SMALLEST), 1.0)
    F = (1 - left) / dof / (left / (rows - dof))
    g = max(F - 1, 0.0)
    return ((rows - dof) * log(1 + g) - rows * log(1 + g * left)) / 2
