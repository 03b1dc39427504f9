"""docs/reproduction.md has the tables and the exponents that the committed results give."""

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quadlin.paper.laws import coefficients
from quadlin.paper.report import BEGIN, END, results_as_markdown
from quadlin.paper.studies import rates, recovery, studies
from quadlin.paper.study import power

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "reproduction" / "full"
PAGE = (DOCS / "reproduction.md").read_text(encoding="utf-8")


@cache
def rows(name):
    return pd.read_parquet(RESULTS / f"{name}.parquet")


def sign(fit):
    return f"{fit.exponent:+.2f}".replace("-", "−")


def rate_of(law, step):
    entries = [e for e in rates.contractions(rows("rate")) if e["rows"] == "fresh"]
    entries = [e for e in entries if (e["law"], e["step"]) == (law, step)]
    return sign(power([e["n"] for e in entries], [e["delta"] for e in entries]))


def deviation(part):
    fits = rates.rip_exponents(rows("rip"))
    laws = ("gaussian", "truncated")
    return f"{np.mean([fits[part, law, 'positive']['k'].exponent for law in laws]):.2f}"


PHRASES = {
    "exponents {} (Gaussian) and {} (truncated features)": lambda: (
        rate_of("gaussian", "plain"),
        rate_of("truncated", "plain"),
    ),
    "does not gain from more rows ({})": lambda: [rate_of("bernoulli", "plain")],
    "keeps contracting as n^({})": lambda: [rate_of("bernoulli", "guarded")],
    "rows to exact recovery grow as k^({}) for": lambda: [
        sign(recovery.samples_exponents(rows("samples"))["gaussian", "plain"]["k"])
    ],
    "k^{} as printed, k^{} once the target": lambda: map(deviation, ("operator", "centred")),
    "δ grows as (σ₁/σ_k)^({}) and (p + 1)^({})": lambda: [
        sign(rates.constants_exponents(rows("constants"))[name, "plain"]) for name in ("ratio", "p")
    ],
    "needs rows as k^({}) and k^({}), within": lambda: [
        sign(recovery.self_exponents(rows("self_interactions"))["plain", squares])
        for squares in ("no", "yes")
    ],
}


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_sentence_of_the_page_has_the_exponents_of_the_results(phrase):
    assert phrase.format(*PHRASES[phrase]()) in " ".join(PAGE.split())


def test_the_tables_are_written_from_the_results():
    stated = PAGE[PAGE.index(BEGIN) + len(BEGIN) : PAGE.index(END)].strip()
    assert stated == results_as_markdown(RESULTS).strip()


@pytest.mark.parametrize("name", ["transition", "masks", "dimension", "nearly_low_rank"])
def test_a_cell_of_a_study_gives_its_committed_rows_again(name):
    study, stored = studies()[name], rows(name)
    task = study.tasks("full")[len(study.tasks("full")) // 3]
    cell = stored[np.logical_and.reduce([stored[key] == value for key, value in task.items()])]
    for (_, row), again in zip(cell.iterrows(), study.run(task, "cpu"), strict=True):
        for column, value in again.items():
            if isinstance(value, float):
                assert np.isclose(value, row[column], rtol=0.02, atol=1e-8), column
            else:
                assert value == row[column], column


def test_one_over_tau_is_not_general():
    """With values ±1 and, rarely, 0 the error of G·√n grows faster than 1/τ (Lemma 7)."""
    errors, taus, n, rng = [], (0.2, 0.1, 0.05), 20_000, np.random.default_rng(0)
    for tau in taus:
        share = tau / (1 + tau)  # of zeros, for φ − 1 = τ
        signs = np.where(rng.random((n, 200)) < 0.5, -1.0, 1.0)
        z = np.where(rng.random((n, 200)) < share, 0.0, signs) / (1 - share) ** 0.5
        z = (z - z.mean(0)) / z.std(0)
        G = coefficients((z**3).mean(0), (z**4).mean(0))[0]
        errors.append(np.abs(G[1] - (1 - 2 / tau)).max())
    assert power(taus, errors).exponent < -1.3
