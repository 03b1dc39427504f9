"""PyTorch's Adam on the factors, in batches, its step size following a cosine to zero."""

from itertools import product

import torch

from solvers._factors import Factors, Rows

TITLE = "Adam on factors"
SETTINGS = [
    {"told": told, "lr": lr, "batch": batch, "epochs": epochs}
    for (told, epochs), batch, lr in product(
        ((True, 8), (False, 16)), (300, 100), (0.03, 0.1, 0.01)
    )
]
VARIANTS = {True: "Adam, told the signs", False: "Adam on UVᵀ"}
START = 0.1


def title(setting):
    return VARIANTS[setting["told"]]


def skip(problem):
    return ""


def run(problem, report, folder, told, lr, batch, epochs):
    torch.set_num_threads(1)
    rows, n = Rows(problem.X), problem.X.shape[0]
    factors = Factors(problem, told, START, 0)
    y = factors.targets(problem.y)
    optimiser = torch.optim.Adam(factors.parameters, lr=lr)
    steps = n // batch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * steps)
    for epoch in range(epochs):
        order = torch.randperm(n)
        for step in range(steps):
            part = order[step * batch : (step + 1) * batch]
            optimiser.zero_grad()
            ((factors(rows.batch(part)) - y[part]) ** 2).mean().backward()
            optimiser.step()
            schedule.step()
        if report(factors.predictor(rows), epoch + 1):
            return
