"""What a bug report needs: versions, the kernel that computes, threads and extras."""

import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec

from threadpoolctl import threadpool_info

from quadlin.core.library import instruction_level, takes
from quadlin.core.version import __version__

INSTRUCTIONS = ("plain", "AVX2", "AVX-512")


def show_versions() -> None:
    """Print the versions of quadlin and its dependencies, and which kernel computes.

    Examples
    --------
    >>> import quadlin
    >>> quadlin.show_versions()  # doctest: +ELLIPSIS
    quadlin: ...
    kernel: ...
    python: ...
    """
    for name, value in collect_versions().items():
        print(f"{name}: {value}")


def collect_versions() -> dict[str, str]:
    """Return what `show_versions` prints, by name."""
    import numpy as np

    compiled = takes(np.dtype(np.float64))
    pools = [
        f"{pool['internal_api']} {pool['version']}, threads {pool['num_threads']}"
        for pool in threadpool_info()
    ]
    found = {
        "quadlin": __version__,
        "kernel": f"compiled, {INSTRUCTIONS[instruction_level()]}" if compiled else "numpy",
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "cores": str(os.cpu_count()),
        "BLAS and OpenMP": "; ".join(pools) or "none found",
    }
    return found | {name: _version(name) for name in _dependencies()} | {"GPU": _gpu()}


def _dependencies() -> list[str]:
    """Return the names of the packages that the core and the extras need, in their order."""
    try:
        needed = [line.replace("'", '"') for line in requires("quadlin") or []]
        extras = metadata("quadlin").get_all("Provides-Extra")
    except PackageNotFoundError:
        return []
    users = {extra for extra in extras or [] if extra not in ("dev", "docs", "bench")}
    names = [line for line in needed if ";" not in line or line[:-1].split('"')[-1] in users]
    plain = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in names]
    return [name for name in dict.fromkeys(plain) if name != "quadlin"]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _gpu() -> str:
    """Return the name of the GPU that torch sees."""
    if find_spec("torch") is None:
        return "none (torch is not installed)"
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
