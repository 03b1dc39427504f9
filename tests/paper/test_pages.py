"""docs/reproduction.md has the tables and the exponents that the committed results give."""

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quadlin.paper.page import BEGIN, END, results_as_markdown
from quadlin.paper.studies import constants, rate, rip, samples, self_interactions
from quadlin.paper.trend import power

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "reproduction" / "full"
PAGE = (DOCS / "reproduction.md").read_text(encoding="utf-8")


@cache
def rows(name):
    return pd.read_parquet(RESULTS / f"{name}.parquet")


def sign(fit):
    return f"{fit.exponent:+.2f}".replace("-", "−")


def rate_of(law, step):
    entries = [e for e in rate.contractions(rows("rate")) if e["rows"] == "fresh"]
    entries = [e for e in entries if (e["law"], e["step"]) == (law, step)]
    return sign(power([e["n"] for e in entries], [e["delta"] for e in entries]))


def deviation(part):
    fits = rip.exponents(rows("rip"))
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
        sign(samples.exponents(rows("samples"))["gaussian", "plain", "positive"]["k"])
    ],
    "k^{} as printed, k^{} once the target": lambda: map(deviation, ("operator", "centred")),
    "δ grows as (σ₁/σ_k)^({}) and (p + 1)^({})": lambda: [
        sign(constants.exponents(rows("constants"))[name, "plain"]) for name in ("ratio", "p")
    ],
    "needs rows as k^({}) and k^({}), within": lambda: [
        sign(self_interactions.exponents(rows("self_interactions"))["plain", squares])
        for squares in ("no", "yes")
    ],
}


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_sentence_of_the_page_has_the_exponents_of_the_results(phrase):
    assert phrase.format(*PHRASES[phrase]()) in " ".join(PAGE.split())


def test_the_tables_are_written_from_the_results():
    stated = PAGE[PAGE.index(BEGIN) + len(BEGIN) : PAGE.index(END)].strip()
    assert stated == results_as_markdown(RESULTS).strip()
