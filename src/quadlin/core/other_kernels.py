"""Kernels for rows of other libraries: the module that has one offers it here.

The mathematics imports no deep-learning library, so a kernel for its arrays lives in another room.
"""

from collections.abc import Callable

from quadlin.core.arrays import Array
from quadlin.core.compiled import Kernel
from quadlin.core.units import Units

Maker = Callable[[Array, Units], Kernel | None]  # None where the reference must do
_makers: list[Maker] = []


def offer(maker: Maker) -> None:
    """Let every block ask for a kernel here; offering it again changes nothing."""
    if maker not in _makers:
        _makers.append(maker)


def withdraw(maker: Maker) -> None:
    """Ask here no longer."""
    if maker in _makers:
        _makers.remove(maker)


def offered(X: Array, units: Units) -> Kernel | None:
    """Return the first kernel that takes these rows; None where there is none."""
    return next((kernel for maker in _makers if (kernel := maker(X, units)) is not None), None)
