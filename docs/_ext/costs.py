"""CPU seconds of default fits, as the guide prints them: `OMP_NUM_THREADS=1 python costs.py`."""

import time

from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order

for n, d in ((300, 10), (1000, 20), (10_000, 20), (3000, 50), (30_000, 100), (100_000, 100)):
    data = make_second_order(n, d, rank=2, noise=1.0, random_state=0)
    start = time.process_time()
    SecondOrderRegressor(random_state=0).fit(data.X, data.y)
    print(f"| {n:,} × {d} | {time.process_time() - start:.2f} |", flush=True)
