import os
import signal

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # read once, when scipy is first imported
# Small products gain nothing from threads, and round the same on any number of cores without them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for processes that tests start

from hypothesis import settings
from threadpoolctl import threadpool_limits

# Deadlines are wall-clock times, and these machines are noisy.
settings.register_profile("ci", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("ci")

threadpool_limits(1, user_api="blas")  # for this one, whose library may be loaded already

# A shell starts jobs in the background with Ctrl-C ignored; tests raise the signal themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)
