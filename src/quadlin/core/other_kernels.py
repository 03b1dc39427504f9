"""Kernels for rows of other libraries: the module that has one offers it here.

The mathematics imports no deep-learning library, so a kernel for its arrays lives in another room.
"""

from collections.abc import Callable
from typing import Any

from quadlin.core.arrays import Array

Maker = Callable[..., Any]  # of rows and something else; None where the reference must do
_makers: dict[str, list[Maker]] = {"products": [], "moments": []}


def offer(maker: Maker, what: str = "products") -> None:
    """Let every block ask for products or moments here; offering it again changes nothing."""
    if maker not in _makers[what]:
        _makers[what].append(maker)


def withdraw(maker: Maker, what: str = "products") -> None:
    """Ask here no longer."""
    if maker in _makers[what]:
        _makers[what].remove(maker)


def offered(X: Array, beside: Any, what: str = "products") -> Any:
    """Return what the first that takes these rows makes of them; None where there is none.

    Of rows and their units the kernel of their products; of rows and their weights (or None) the
    fields of their moments.
    """
    made = (maker(X, beside) for maker in _makers[what])
    return next((result for result in made if result is not None), None)
