import os

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # read once, when scipy is first imported

from hypothesis import settings

# Deadlines are wall-clock times, and these machines are noisy.
settings.register_profile("ci", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("ci")
