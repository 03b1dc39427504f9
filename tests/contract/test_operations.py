"""In a service: threads, processes, joblib, numbers of threads, and a disk that is full."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from sklearn.model_selection import cross_val_score

from quadlin import SecondOrderClassifier, SecondOrderRegressor
from quadlin.datasets import make_second_order


def data_of(seed, n=600):
    return make_second_order(n, 8, rank=2, noise=0.5, random_state=seed)


def predict(seed):
    data = data_of(seed)
    return SecondOrderRegressor(rank=2, alpha=1.0, pairs=None).fit(data.X, data.y).predict(data.X)


def test_sixteen_threads_at_once_get_the_answers_of_one():
    data = data_of(0)
    model = SecondOrderRegressor(rank=2, alpha=1.0).fit(data.X, data.y)
    labels = SecondOrderClassifier(rank=1, alpha=1.0).fit(data.X, data.y > 0)
    parts = [data.X[i::16] for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        for answer in (model.predict, labels.predict_proba):
            for part, got in zip(parts, pool.map(answer, parts), strict=True):
                np.testing.assert_array_equal(got, answer(part))


def test_fits_in_sixteen_threads_do_not_disturb_each_other():
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(predict, range(16)))
    for seed, answer in enumerate(answers):
        np.testing.assert_array_equal(answer, predict(seed))


@pytest.mark.slow  # a spawned process imports everything again
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("method", sorted(set(multiprocessing.get_all_start_methods())))
def test_processes_fit_after_a_fit_in_their_parent(method):
    alone = [predict(seed) for seed in range(2)]
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        for got, expected in zip(pool.map(predict, range(2), timeout=120), alone, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.slow
def test_cross_validation_by_joblib_gives_the_scores_of_one_process():
    data = data_of(0)
    model = SecondOrderRegressor(rank=2, alpha=1.0)
    one, two = (cross_val_score(model, data.X, data.y, n_jobs=jobs, cv=3) for jobs in (1, 2))
    np.testing.assert_allclose(one, two, rtol=1e-12)


THREADS = """
import numpy as np, sys
from quadlin import SecondOrderRegressor
from quadlin.datasets import make_second_order
data = make_second_order(20_000, 30, rank=2, noise=1.0, random_state=0)
model = SecondOrderRegressor(rank=2, pairs=None).fit(data.X, data.y)
sys.stdout.buffer.write(model.predict(data.X[:100]).tobytes())
"""


@pytest.mark.slow
def test_the_number_of_threads_does_not_change_a_fit():
    answers = []
    for count in "1", "4":
        env = os.environ | {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
        done = subprocess.run([sys.executable, "-c", THREADS], env=env, capture_output=True)
        answers.append(np.frombuffer(done.stdout))
    # Sums over chunks in another order round otherwise.
    np.testing.assert_allclose(*answers, rtol=1e-9, atol=1e-9)


FULL = """
import resource, signal, sys
import numpy as np
import quadlin
X = np.random.default_rng(0).standard_normal((50, 3))
model = quadlin.SecondOrderRegressor(rank=1, alpha=1.0).fit(X, X[:, 0])
quadlin.save(model, sys.argv[1])
before = open(sys.argv[1], "rb").read()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    quadlin.save(model, sys.argv[1])
except OSError:
    assert open(sys.argv[1], "rb").read() == before
    print("raised")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of file sizes are those of POSIX")
def test_a_full_disk_raises_an_error_and_leaves_the_older_file_whole(tmp_path):
    command = [sys.executable, "-c", FULL, str(tmp_path / "model.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "raised", done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
