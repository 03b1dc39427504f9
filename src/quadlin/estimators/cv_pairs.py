"""Cross-validation with pairs: every fold is searched by itself, without the rows that judge."""

from typing import Any

import numpy as np
from scipy.stats import rankdata

from quadlin.estimators.cv_scores import TIE, CVScores
from quadlin.solve.pairs import MOST_PAIRS


def are_better(paired: CVScores, without: CVScores) -> bool:
    """Tell whether rows held out are predicted better with pairs; a perfect model has none."""
    before = without.best()
    if without.perfect(before):
        return False
    score = without.mean(before)
    return paired.mean(paired.best()) > score + TIE * abs(score)


def both_results(without: CVScores, paired: CVScores) -> dict[str, Any]:
    """Return the scores without pairs and with them, as `GridSearchCV` would."""
    first, second = without.results(), paired.results()
    counts = [0] * len(without.scores) + [MOST_PAIRS] * len(paired.scores)
    mean = np.concatenate([first["mean_test_score"], second["mean_test_score"]])
    params = first["params"] + second["params"]
    joined = {
        name: np.concatenate([first[name], second[name]]) for name in first if name != "params"
    }
    joined["rank_test_score"] = rankdata(-mean, method="min").astype(int)
    params = [{**point, "pairs": count} for point, count in zip(params, counts, strict=True)]
    return {"params": params, **joined, "param_pairs": np.asarray(counts)}
