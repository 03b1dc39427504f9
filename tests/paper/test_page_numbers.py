"""The sentences of docs/reproduction.md have the numbers that the Parquet files give."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quadlin.paper.studies import constants, noise, rate, rip, samples, self_interactions, skewness
from quadlin.paper.studies.panel_verdicts import summaries
from quadlin.paper.trend import power

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "reproduction" / "full"


@cache
def rows(name):
    return pd.read_parquet(RESULTS / f"{name}.parquet")


@cache
def panels():
    frames = [rows(name).assign(panel=name) for name in "abcdefgh"]
    frame = pd.concat(frames, ignore_index=True)
    return frame[frame["noise"] == 0]


@cache
def ends():
    keys = ["solver", "panel", "trial"]
    return panels().sort_values("iteration").groupby(keys, as_index=False).last()


def errors(solver):
    """The least and the largest geometric mean over the trials, of all panels without noise."""
    logs = np.log(ends()[ends()["solver"] == solver].set_index("panel")["nmse_clean"])
    means = np.exp(logs.groupby(level="panel").mean())
    return f"{means.min():.1e}", f"{means.max():.1e}"


def counts(solver, what):
    values = ends()[ends()["solver"] == solver][what]
    return int(values.min()), int(values.max())


def factors(solver):
    """The error after an iteration over the error before, in the panels (a), (c) and (d)."""
    chosen = [panels()[panels()["panel"] == name] for name in "acd"]
    rates = [summaries(frame, 1e-3)[solver].rate for frame in chosen]
    return f"{min(rates):.2f} to {max(rates):.2f}"


def sign(exponent, digits=2):
    return f"{exponent:+.{digits}f}".replace("-", "−")


@cache
def skewed(method):
    frame = rows("skewness")
    return frame[(frame["method"] == method) & (frame["a"] == 0)].sort_values("t")


def after(method, most=10**9):
    frame = skewed(method)
    return f"{frame[frame['t'] <= most].groupby('seed')['nmse'].last().median():.1e}"


def reached(method):
    below = skewed(method)[skewed(method)["nmse"] <= skewness.SOLVED]
    return f"{below.groupby('seed')['t'].min().median():.0f}"


@cache
def rate_of(law, step):
    entries = [e for e in rate.contractions(rows("rate")) if e["rows"] == "fresh"]
    entries = [e for e in entries if (e["law"], e["step"]) == (law, step)]
    return sign(power([e["n"] for e in entries], [e["delta"] for e in entries]).exponent)


def needed(method):
    frame = rows("samples")
    return (frame["n50"] / frame["dof"])[frame["method"] == method]


def deviation(part):
    fits = rip.exponents(rows("rip"))
    laws = ("gaussian", "truncated")
    return f"{np.mean([fits[part, law, 'positive']['k'].exponent for law in laws]):.2f}"


def constant(inside):
    frame = rows("dimension")
    return f"{frame[(frame['d'] >= frame['needed']) == inside]['constant'].max():.1f}"


def noise_floors():
    last = noise.ends(rows("noise"))
    most = last[(last["noise"] > 0) & (last["n"] == last["n"].max()) & (last["method"] == "plain")]
    means = (most["ratio"] / most["fair"]).groupby(most["law"]).mean()
    return f"{means.min():.2f}", f"{means.max():.2f}"


def tail():
    frame = rows("nearly_low_rank")
    return f"{(frame['risk'] / frame['level']).max():.2f}"


def tau_risk(method):
    frame = rows("tau")
    chosen = frame[(frame["part"] == f"{method} risk") & (frame["tau"] == frame["tau"].min())]
    return f"{chosen['value'].median():.3g}"


def tau_noise():
    frame = rows("tau")
    frame = frame[(frame["part"] == "diagonal") & (frame["tau"] <= 0.25)]
    return sign(np.polyfit(np.log(frame["tau"]), np.log(frame["value"]), 1)[0])


def mask_trials():
    frame = rows("masks")
    enough = frame[frame["ratio"] >= 4]
    assert (enough["recovered"] == 1).all()
    return len(enough)


def skew_range():
    skew = rows("skewness").groupby("a")["kappa"].first().abs()
    return f"{skew[0.0] - skew[0.1]:.2f}"


def psd():
    medians = rows("self_interactions").groupby(["method", "squares"])["n50"].median()
    return f"{medians['polished', 'yes'] / medians['psd', 'yes']:.2f}"


def enough(method):
    """The fewest rows over k(p + q) from which on every error of A is below 1e-6."""
    frame = rows("asymmetric")
    worst = frame[frame["method"] == method].groupby("ratio")["error"].max()
    return f"{worst.index[worst[::-1].cummax()[::-1] <= 1e-6].min():g}"


PHRASES = {
    "from {}k(p + q) rows with the guarded step and from {}k(p + q) with": lambda: (
        enough("guarded"),
        enough("plain"),
    ),
    "multiplies the error by {} per iteration and ends between {} and {} after {} to {} iterations "
    "({} to {} passes), where": lambda: (
        factors("plain"),
        *errors("plain"),
        *counts("plain", "iteration"),
        *counts("plain", "passes"),
    ),
    "gradient descent as printed stays between {} and {}": lambda: errors("gd_printed"),
    "it is at {} after 50 iterations and at {} after 1,000": lambda: (
        after("gd_printed", 50),
        after("gd_printed"),
    ),
    "is then below 1e-6 after {} iterations at a = 0, and after {} with a centred": lambda: (
        reached("gd_standardised"),
        reached("gd_centred"),
    ),
    "differ in skewness by only {}": lambda: (skew_range(),),
    "exponents {} (Gaussian) and {} (truncated features)": lambda: (
        rate_of("gaussian", "plain"),
        rate_of("truncated", "plain"),
    ),
    "does not gain from more rows ({})": lambda: (rate_of("bernoulli", "plain"),),
    "rows to exact recovery grow as k^({}) for": lambda: (
        sign(samples.exponents(rows("samples"))["gaussian", "plain", "positive"]["k"].exponent),
    ),
    "k^{} as printed, k^{} once the target": lambda: (
        deviation("operator"),
        deviation("centred"),
    ),
    "the constant is at most {}, outside it reaches {}": lambda: (constant(True), constant(False)),
    "All {} deviations fall": lambda: (rows("concentration").groupby(["part", "law"]).ngroups,),
    "only as τ^({})": lambda: (tau_noise(),),
    "δ grows as (σ₁/σ_k)^({}) and (p + 1)^({})": lambda: (
        sign(constants.exponents(rows("constants"))["ratio", "plain"].exponent),
        sign(constants.exponents(rows("constants"))["p", "plain"].exponent),
    ),
    "{} to {} times σ²·dof/n for the authors' iteration": noise_floors,
    "A nearly low-rank M costs at most {} times": lambda: (tail(),),
    "exact in all {} trials from 4kd rows on": lambda: (mask_trials(),),
    "needs rows as k^({}) and k^({}), within": lambda: tuple(
        sign(self_interactions.exponents(rows("self_interactions"))["plain", squares].exponent)
        for squares in ("no", "yes")
    ),
    "needs {} times the rows of the constrained one": lambda: (psd(),),
    "stalls between {} and {}, because": lambda: errors("literal"),
    "The guarded step multiplies the error by {} per iteration and ends at {} or below after {} to "
    "{} iterations ({} to {} passes)": lambda: (
        factors("guarded"),
        errors("guarded")[1],
        *counts("guarded", "iteration"),
        *counts("guarded", "passes"),
    ),
    "rounding, {} or below, after {} to {} passes": lambda: (
        errors("polished")[1],
        *counts("polished", "passes"),
    ),
    "They need {} and {} rows per parameter for exact recovery in the median, the authors' "
    "iteration {}": lambda: tuple(
        f"{needed(method).median():.1f}" for method in ("guarded", "polished", "plain")
    ),
    "keeps contracting as n^({})": lambda: (rate_of("bernoulli", "guarded"),),
    "is {} times σ²·dof/n, that of the guarded step {}": lambda: (
        tau_risk("plain"),
        tau_risk("guarded"),
    ),
    "needs up to {} rows per parameter (on Bernoulli features); polishing brings that to {} at "
    "most": lambda: tuple(f"{needed(method).max():.1f}" for method in ("guarded", "polished")),
}


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_sentence_of_the_page_has_the_numbers_of_the_results(phrase):
    text = " ".join((DOCS / "reproduction.md").read_text(encoding="utf-8").split())
    assert phrase.format(*PHRASES[phrase]()) in text


def test_no_number_of_the_claims_is_left_unchecked():
    """Every bullet of the page with a measured number has a phrase above."""
    text = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    section = text.split("## What the authors claim")[1].split("\n## ")[0]
    checked = [
        re.escape(" ".join(phrase.split())).replace(r"\{\}", r"\S+(?: to \S+)?")
        for phrase in PHRASES
    ]
    for part in re.split(r"\n- |\n\n", section):
        words = " ".join(part.split())
        if re.search(r"\d(?:\.\d+)?e−?-?\d|\d\.\d\d", words):
            assert any(re.search(pattern, words) for pattern in checked), words[:80]
