"""What a panel shows, in sentences: did each solver find the optimum, and how fast?"""

from dataclasses import dataclass

import numpy as np

from quadlin.metrics import degrees_of_freedom
from quadlin.paper.laws import law_of
from quadlin.paper.methods import name_of
from quadlin.paper.study import Frame, Verdict, joined

FOUND = 1e-6  # a test NMSE below which the optimum counts as found
NEAR = 1e-3  # and one that is worth counting passes to
FLOOR = 1e-16  # rounding goes no lower
FASTER = 2.0  # times as many passes: below, two solvers count as equally fast


@dataclass(frozen=True)
class Summary:
    """What one solver did at one noise level, over the trials."""

    final: float  # geometric mean of the last NMSE against labels without noise
    rate: float  # the factor an iteration takes it down by, before it levels off
    passes: float  # mean number of passes to the goal; infinite if a trial does not get there
    iterations: float  # likewise
    seconds_per_pass: float  # median

    def reaches(self, level: float) -> bool:
        """Tell whether the solver ends below a level."""
        return self.final <= level


def summaries(frame: Frame, goal: float) -> dict[str, Summary]:
    """Sum up the curves of each solver."""
    result = {}
    for solver, part in frame.groupby("solver", sort=False):
        trials = [t.sort_values("iteration") for _, t in part.groupby("trial")]
        errors = [np.maximum(t["nmse_clean"].to_numpy(), FLOOR) for t in trials]
        reached = [np.flatnonzero(e <= goal) for e in errors]
        firsts = [
            (t["passes"].iloc[r[0]], t["iteration"].iloc[r[0]]) if len(r) else (np.inf, np.inf)
            for t, r in zip(trials, reached, strict=True)
        ]
        pace = [t["seconds"].iloc[-1] / max(1, t["passes"].iloc[-1]) for t in trials]
        result[str(solver)] = Summary(
            float(np.exp(np.mean([np.log(e[-1]) for e in errors]))),
            float(np.exp(np.mean([np.log(_rate(e)) for e in errors]))),
            float(np.mean([p for p, _ in firsts])),
            float(np.mean([i for _, i in firsts])),
            float(np.median(pace)),
        )
    return result


def final_errors(frame: Frame) -> dict[str, float]:
    """Return the geometric mean over the trials of each solver's last test NMSE."""
    last = frame.sort_values("iteration").groupby(["solver", "trial"], sort=False)["nmse_clean"]
    ends = np.log(np.maximum(last.last(), FLOOR)).groupby(level="solver", sort=False)
    return {str(key): float(np.exp(end.mean())) for key, end in ends}


def _rate(error: np.ndarray) -> float:
    """Return the mean factor per iteration, from after the first to within ten of the last."""
    first = min(1, len(error) - 1)
    near = np.flatnonzero(error <= 10 * error[-1])
    last = int(near[0]) if near[0] > first else len(error) - 1
    return float((error[last] / error[first]) ** (1 / max(1, last - first)))


def verdict(panel: str, frame: Frame) -> Verdict:
    """Judge the panel at each of its noise levels."""
    parts = [_verdict(float(noise), part) for noise, part in frame.groupby("noise")]
    holds = {v.holds for v in parts}
    law = law_of(frame["distribution"].iloc[0])
    n, q = int(frame["rows"].iloc[0]), law.mean
    notes = []
    if panel in "efgh":  # the claim names a cause, and a panel only shows how fast a solver is
        holds = {"no"} if holds == {"no"} else {"in part"}
        notes.append(
            "The claim blames the skewness. The panel measures speed and not its cause, so the "
            "claim holds at most in part; see the study of skewness."
        )
    if law.is_invertible:
        notes.append(f"The skewness of the features is {law.kappa:.2f}.".replace("-", "−"))
    elif 0 < q < 1 and n * q * q < 10:
        notes.append(f"At this size two features are both 1 in only {n * q * q:.1f} rows.")
    return Verdict(
        " ".join(v.measured for v in parts),
        holds.pop() if len(holds) == 1 else "in part",
        "\n\n".join([*(v.words for v in parts), *notes]),
    )


def _verdict(noise: float, frame: Frame) -> Verdict:
    d, k, n = (int(frame[name].iloc[0]) for name in ("d", "k", "rows"))
    power = frame["power"].mean()
    # The Cramér–Rao level is one of the error itself, and E y² differs from trial to trial.
    alike = frame.assign(nmse_clean=frame["nmse_clean"] * frame["power"] / power)
    bound = noise**2 * degrees_of_freedom(d, k) / n / power
    level, goal = max(FOUND, 3 * bound), max(NEAR, 3 * bound)
    sums = summaries(alike, goal)
    mes, others = sums.get("plain"), [s for key, s in sums.items() if key.startswith("gd_")]
    last = final_errors(frame)
    ends = joined(f"{name_of(key)} at {last[key]:.1e}" for key in sums)
    measured = f"With noise {noise:g}, " if noise else "Without noise, "
    measured += f"the test NMSE ends for {ends}."
    if mes is None or not others:
        return Verdict(measured, "in part", "Not every solver of the panel was run.")
    faster = [o.passes > FASTER * mes.passes for o in others]
    holds = "yes" if mes.reaches(level) and all(faster) else "in part" if any(faster) else "no"
    return Verdict(measured, holds, " ".join(_words(noise, level, goal, sums)))


def _words(noise: float, level: float, goal: float, sums: dict[str, Summary]) -> list[str]:
    target = (
        f"three times the Cramér–Rao level, an NMSE of {level:.1e}"
        if noise
        else f"an NMSE of {level:.0e}"
    )
    reach = [name_of(key) for key, s in sums.items() if s.reaches(level)]
    short = [f"{name_of(key)} ({s.final:.0e})" for key, s in sums.items() if not s.reaches(level)]
    sentences = [f"The optimum counts as found below {target}."]
    if reach:
        sentences.append(f"It is found by {joined(reach)}.")
    if short:
        sentences.append(f"It is not found within the iterations by {joined(short)}.")
    counts = joined(f"{name_of(key)} {_count(s.passes)}" for key, s in sums.items())
    sentences.append(f"Passes over the rows to an NMSE of {goal:.0e}: {counts}.")
    rates = [f"{name_of(k)} {s.rate:.2g}" for k, s in sums.items() if s.final < 1]
    if not noise and rates:
        sentences.append(f"An iteration multiplies the error by this factor: {joined(rates)}.")
    pace = joined(f"{name_of(key)} {1e3 * s.seconds_per_pass:,.1f}" for key, s in sums.items())
    sentences.append(f"Milliseconds per pass: {pace}.")
    printed, centred = sums.get("gd_printed"), sums.get("gd_centred")
    if printed and centred and centred.reaches(level) and not printed.reaches(level):
        sentences.append(
            "Gradient descent finds the optimum once its features are standardised and its "
            "quadratic part is centred: the mean is what stops it, not the skewness."
        )
    return sentences


def _count(passes: float) -> str:
    return f"{passes:.0f}" if np.isfinite(passes) else "never"
