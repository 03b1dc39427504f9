"""The same fit on the CPU with numpy and on a GPU with torch, and the ratio of their times.

Run: SCIPY_ARRAY_API=1 python benchmarks/gpu.py [--rows 200000] [--features 1000] [--rank 10]
"""

import argparse
import time

import numpy as np
import sklearn
import torch

from quadlin import SecondOrderRegressor


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--features", type=int, default=1000)
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    o = parser.parse_args()
    rng = np.random.default_rng(0)
    d, k = o.features, o.rank
    Q = np.linalg.qr(rng.standard_normal((d, k)))[0].astype(np.float32)
    w = (rng.standard_normal(d) / np.sqrt(d)).astype(np.float32)
    X = rng.standard_normal((o.rows, d), dtype=np.float32)
    y = 1 + X @ w + ((X @ Q) ** 2) @ np.where(np.arange(k) % 2, -1, 1).astype(np.float32)
    seconds, predictions = {}, {}
    for name in ("torch on " + o.device, "numpy"):
        for polish in (False, True):
            model = SecondOrderRegressor(
                rank=k, polish=polish, max_iter=12, random_state=0, alpha=0.0
            )
            with sklearn.config_context(array_api_dispatch=True):
                if name == "numpy":
                    rows, target = X, y
                else:
                    rows = torch.asarray(X, device=o.device)
                    target = torch.asarray(y, device=o.device)
                    model.fit(rows[:5000, :], target[:5000])  # warm up
                start = time.perf_counter()
                model.fit(rows, target)
                seconds[name, polish] = time.perf_counter() - start
                predictions[name, polish] = np.asarray(
                    model.predict(rows[:1000, :]).cpu()
                    if name != "numpy"
                    else model.predict(X[:1000])
                )
            passes = model.history_[-1].passes
            error = np.mean((predictions[name, polish] - y[:1000]) ** 2) / np.var(y)
            print(
                f"{name:<14} polish={polish!s:<5} {seconds[name, polish]:7.2f} s  "
                f"{passes:3d} passes  NMSE {error:.0e}  {model.status_.name}",
                flush=True,
            )
    for polish in (False, True):
        ratio = seconds["numpy", polish] / seconds["torch on " + o.device, polish]
        print(f"polish={polish}: torch on {o.device} is {ratio:.1f} times as fast as numpy")


if __name__ == "__main__":
    main()
