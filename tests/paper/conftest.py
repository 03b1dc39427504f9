from functools import cache

import matplotlib
import pandas as pd
import pytest

from quadlin.paper.runner import reproduce

matplotlib.use("Agg")


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The folder of a run of every study at the tiny size."""
    folder = tmp_path_factory.mktemp("whole")
    reproduce("tiny", None, folder, progress=False, say=lambda line: None)
    return folder


@pytest.fixture(scope="session")
def frame(whole):
    """Return the rows of a study by its name."""
    return cache(lambda name: pd.read_parquet(whole / f"{name}.parquet"))
