"""PyTorch's L-BFGS on the factors, all rows at a time, from a small random start."""

from itertools import product

import torch

from solvers._factors import Factors, Rows

TITLE = "L-BFGS on factors"
SETTINGS = [
    {"told": told, "start": start, "history": history}
    for told, history, start in product((True, False), (10, 30), (0.03, 0.1))
]
VARIANTS = {True: "L-BFGS, told the signs", False: "L-BFGS on UVᵀ"}
ITERATIONS = 4  # between reports


def title(setting):
    return VARIANTS[setting["told"]]


def skip(problem):
    return ""


def run(problem, report, folder, told, start, history):
    torch.set_num_threads(1)
    rows = Rows(problem.X)
    factors = Factors(problem, told, start, 0)
    y, passes = factors.targets(problem.y), 0
    optimiser = torch.optim.LBFGS(
        factors.parameters,
        max_iter=ITERATIONS,
        history_size=history,
        line_search_fn="strong_wolfe",
        tolerance_grad=0,
        tolerance_change=0,
    )

    def closure():
        nonlocal passes
        passes += 1
        optimiser.zero_grad()
        loss = ((factors(rows) - y) ** 2).mean()
        loss.backward()
        return loss

    while not report(factors.predictor(rows), passes):
        before = passes
        optimiser.step(closure)
        if passes - before < 2:  # it has given up
            report(factors.predictor(rows), passes)
            return
