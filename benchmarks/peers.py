"""quadlin and its peers: CPU time and passes until a given error, in one run.

    OMP_NUM_THREADS=1 python benchmarks/peers.py [--scale .2] [--problems ...] [--solvers ...]

Problems have no noise, so every error is due to the solver. A solver is a function that reports its
models, which are scored while the clock is stopped; it is timed in CPU seconds of one thread and in
a process of its own, after a warm-up on a few rows. quadlin runs first, knows the rank and is not
tuned. Peers get every setting of their grid; the fastest to reach 1e-6 (otherwise the most exact)
is shown, and the cost of finding it is not counted. A setting ends when it is exact, when it is
slower than the best one of its solver, or after `--patience` times the time of quadlin. "Told the
signs" uses what nobody knows beforehand, the signs of the eigenvalues of M.
"""

import argparse
import multiprocessing
import os
import time
import warnings
from itertools import product
from typing import NamedTuple

# CPU seconds of threads that wait for each other say nothing.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np
import torch
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from quadlin import FactorizationMachineRegressor, SecondOrderRegressor

TARGETS = (1e-2, 1e-4, 1e-6)  # of the NMSE, E(ŷ − y)²/Var y on new rows
TEST, WARM_UP, LEAST_BUDGET = 5000, 1000, 2.0  # rows, rows, CPU seconds


class Problem(NamedTuple):
    """Rows y = b + xᵀw + xᵀMx without noise, and others for testing."""

    X: np.ndarray  # (n, d), float32
    y: np.ndarray  # (n,), float32
    X_test: np.ndarray
    y_test: np.ndarray
    signs: np.ndarray  # (k,), of the components of M
    diagonal: bool  # whether M has one; factorization machines cannot


def dense(scale, signed, bernoulli=None):
    """Draw 30 kd rows of d = 1000·scale features, k = 10, M = Q diag(±1) Qᵀ."""
    rng, d, k = np.random.default_rng(0), max(20, round(1000 * scale)), 10
    n = 30 * k * d
    Q = np.linalg.qr(rng.standard_normal((d, k)))[0].astype(np.float32)
    w = (rng.standard_normal(d) / np.sqrt(d)).astype(np.float32)
    signs = (np.where(np.arange(k) % 2, -1, 1) if signed else np.ones(k)).astype(np.float32)
    X = rng.standard_normal((n + TEST, d), dtype=np.float32)
    if bernoulli:
        X = (rng.random(X.shape, dtype=np.float32) < bernoulli).astype(np.float32)
    y = 1 + X @ w + (X @ Q) ** 2 @ signs
    if not signed:  # a factorization machine, without a diagonal
        y -= X**2 @ (Q**2 @ signs)
    return Problem(X[:n], y[:n], X[n:], y[n:], signs, signed)


PROBLEMS = {
    "signed M": lambda scale: dense(scale, True),
    "positive M, no diagonal": lambda scale: dense(scale, False),
    "Bernoulli(.1)": lambda scale: dense(scale, False, 0.1),
}


class Watch:
    """Scores the models that a solver reports; only the solver's own time counts."""

    def __init__(self, problem, budget):
        self.problem, self.budget, self.points, self.spent = problem, budget, [], 0.0
        self.begun = time.process_time()

    def __call__(self, predict, passes):
        """Score a model; tell whether to stop: it is good enough, or the time is up."""
        now, y = time.process_time(), self.problem.y_test.astype(np.float64)
        seconds = now - self.begun - self.spent
        predicted = np.asarray(predict(self.problem.X_test), dtype=np.float64).ravel()
        error = float(np.mean((predicted - y) ** 2) / np.var(y))
        self.points.append((error if np.isfinite(error) else np.inf, seconds, passes))
        self.spent += time.process_time() - now
        return error <= TARGETS[-1] or seconds > self.budget


# Solvers: functions of a problem, a report and the options of a setting.


def quadlin(problem, report):
    class Reporting:
        """A callback of scikit-learn that reports the model of every step."""

        def setup(self, estimator, context): ...
        def teardown(self, estimator, context): ...
        def on_fit_task_begin(self, estimator, context): ...

        def on_fit_task_end(self, estimator, context, *, fitted_estimator):
            return report(fitted_estimator.predict, fitted_estimator.history_[-1].passes)

    kind = SecondOrderRegressor if problem.diagonal else FactorizationMachineRegressor
    model = kind(len(problem.signs), alpha=0.0, pairs=None, random_state=0)
    warnings.simplefilter("ignore")  # stopped on purpose
    model.set_callbacks(Reporting()).fit(problem.X, problem.y)


class Factors:
    """b + zᵀw + zᵀMz in PyTorch: M = U diag(±1) Uᵀ if told the signs, otherwise UVᵀ."""

    def __init__(self, problem, told, start):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        d, self.k, self.told = problem.X.shape[1], len(problem.signs), told
        self.problem, self.signs = problem, torch.from_numpy(problem.signs)
        self.b, self.w = torch.zeros(1, requires_grad=True), torch.zeros(d, requires_grad=True)
        self.U = (start * torch.randn(d, self.k * (1 if told else 2))).requires_grad_()
        self.parameters = [self.b, self.w, self.U]
        self.centre, self.size = float(problem.y.mean()), float(problem.y.std())
        self.y = torch.from_numpy(((problem.y - self.centre) / self.size).astype(np.float32))
        self.rows = self.of(problem.X)

    def of(self, X):
        return torch.from_numpy((X - self.problem.X.mean(0)) / self.problem.X.std(0))

    def loss(self, part=slice(None)):
        return ((self(self.rows[part]) - self.y[part]) ** 2).mean()

    def __call__(self, rows):
        products = rows @ torch.cat([self.U, self.w[:, None]], dim=1)
        left, right = products[:, : self.k], products[:, self.k : -1]
        U, V = self.U[:, : self.k], self.U[:, self.k :]
        if self.told:
            right, V = left * self.signs, U * self.signs
        f = self.b + products[:, -1] + (left * right).sum(dim=1)
        return f if self.problem.diagonal else f - (rows * rows) @ (U * V).sum(dim=1)

    def predict(self, X):
        with torch.no_grad():
            return self.centre + self.size * self(self.of(X)).numpy()


def lbfgs(problem, report, told, start, history):
    factors, passes, before = Factors(problem, told, start), 0, -2
    options = {"tolerance_grad": 0, "tolerance_change": 0, "line_search_fn": "strong_wolfe"}
    optimiser = torch.optim.LBFGS(factors.parameters, max_iter=4, history_size=history, **options)

    def closure():
        nonlocal passes
        passes += 1
        optimiser.zero_grad()
        loss = factors.loss()
        loss.backward()
        return loss

    while not report(factors.predict, passes) and passes - before > 1:  # it has not given up
        before = passes
        optimiser.step(closure)


def adam(problem, report, told, lr, batch):
    """Adam in batches, its step size following a cosine to zero."""
    factors, n, epochs = Factors(problem, told, 0.1), problem.X.shape[0], 8 if told else 16
    optimiser = torch.optim.Adam(factors.parameters, lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * (n // batch))
    for epoch in range(epochs):
        for part in torch.randperm(n)[: n - n % batch].split(batch):
            optimiser.zero_grad()
            factors.loss(part).backward()
            optimiser.step()
            schedule.step()
        if report(factors.predict, epoch + 1):
            return


def ridge(problem, report):
    (n, d), most = problem.X.shape, 2e9  # bytes of all products
    if 2 * n * d * (d + 3) > most:
        raise MemoryError(f"{d * (d + 3) // 2:,} products of {n:,} rows")
    products = PolynomialFeatures(2, include_bias=False, interaction_only=not problem.diagonal)
    report(make_pipeline(products, Ridge(1e-3)).fit(problem.X, problem.y).predict, 1)


def grid(**options):
    return [dict(zip(options, values, strict=True)) for values in product(*options.values())]


STEPS = grid(batch=(300, 100), lr=(0.03, 0.1, 0.01))
STARTS = grid(history=(10, 30), start=(0.03, 0.1))
SOLVERS = {  # name: function, settings
    "quadlin": (quadlin, [{}]),
    "L-BFGS, told the signs": (lbfgs, [{"told": True} | setting for setting in STARTS]),
    "L-BFGS on UVᵀ": (lbfgs, [{"told": False} | setting for setting in STARTS]),
    "Adam, told the signs": (adam, [{"told": True} | setting for setting in STEPS]),
    "Adam on UVᵀ": (adam, [{"told": False} | setting for setting in STEPS]),
    "products + Ridge": (ridge, [{}]),
}


def timed(problem, run, setting, budget, pipe):
    """Run a solver with a setting, and send its points: in a new process."""
    try:
        head = problem._replace(X=problem.X[:WARM_UP], y=problem.y[:WARM_UP])
        run(head, lambda *_: True, **setting)
        watch = Watch(problem, budget)
        run(problem, watch, **setting)
        pipe.send(watch.points)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


def measured(*arguments):
    """Return the points of one setting, or why there are none."""
    context = multiprocessing.get_context("fork")  # which shares the rows
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=timed, args=(*arguments, sender))
    process.start()
    sender.close()
    result = receiver.recv()
    process.join()
    return result


def reached(points, target):
    return next((point for point in points if point[0] <= target), None)


def best_setting(problem, name, budget):
    """Return the best setting of a solver and its points, or why there is none."""
    (run, settings), best = SOLVERS[name], None
    for setting in settings:
        points = measured(problem, run, setting, budget)
        if isinstance(points, str):
            return points
        exact = reached(points, TARGETS[-1])
        key = (0, exact[1]) if exact else (1, min(point[0] for point in points))
        if best is None or key < best[0]:
            best, budget = (key, setting, points), exact[1] if exact else budget
    return best[1:]


def compare(problem_name, o):
    """Print the table of one problem."""
    problem, mine, budget = PROBLEMS[problem_name](o.scale), np.nan, 600.0
    n, d = problem.X.shape
    print(f"\n{problem_name}: {n:,} × {d:,}, k = {len(problem.signs)}\n")
    errors = " | ".join(f"to {target:.0e}" for target in TARGETS)
    print(f"| solver | setting | CPU s / passes {errors} | least NMSE | time / quadlin's |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in (name for name in SOLVERS if name in ("quadlin", *o.solvers)):
        if "UVᵀ" in name and not problem.diagonal:
            continue  # positive signs are what a factorization machine assumes
        best = best_setting(problem, name, budget)
        if isinstance(best, str):
            print(f"| {name} | skipped: {best} | | | | | |", flush=True)
            continue
        setting, points = best
        at = [reached(points, target) for target in TARGETS]
        if name == "quadlin" and at[-1]:
            mine, budget = at[-1][1], max(LEAST_BUDGET, o.patience * at[-1][1])
        cells = " | ".join(f"{p[1]:.2f} / {p[2]:g}" if p else "–" for p in at)
        ratio = f"{at[-1][1] / mine:.1f}" if at[-1] else f"> {points[-1][1] / mine:.1f}"
        how = ", ".join(f"{key} {value}" for key, value in setting.items() if key != "told")
        least = min(point[0] for point in points)
        print(f"| {name} | {how} | {cells} | {least:.0e} | {ratio} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.2, help="1 is the paper's 1,000 features")
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS), choices=list(SOLVERS))
    parser.add_argument("--patience", type=float, default=20.0, help="times the time of quadlin")
    o = parser.parse_args()
    for problem_name in o.problems:
        compare(problem_name, o)


if __name__ == "__main__":
    main()
