r"""Sweeps over columns that go on in the plane of the sweep and the step before it.

At :math:`x + ta + ub`, x where a sweep ended, a its step and b the step before, the objective is a
polynomial :math:`\zeta^\top G \zeta` in :math:`\zeta = (1, t, u, t^2, tu, u^2)`. Its minimum is
what conjugate gradients would take, with the sweep as their preconditioner.
"""

from typing import NamedTuple

import numpy as np

from quadlin.core.compiled_columns import ColumnTable
from quadlin.core.library import aligned_zeros

TERMS = 6  # 1, t, u, t², tu, u²
OF_PRODUCTS = np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])  # those that v, a and b have in common
STEPS = 50  # of Newton's method at most
HALVINGS = 30  # of one of them
FRESH = 32  # steps after which products and errors are computed anew
LOST = 16.0  # times the sum of squares of V after it was made orthogonal: products lost digits
SHARED = 2.0  # times the least sum of squares of V: factors that have more are made orthogonal


class Plane(NamedTuple):
    """The objective at x + ta + ub, and the mean of the errors there."""

    G: np.ndarray  # (6, 6)
    means: np.ndarray  # (6,)

    def at(self, t: float, u: float) -> float:
        """Return the objective.

        Examples
        --------
        >>> import numpy as np
        >>> plane = Plane(np.diag([1.0, 2.0, 0.0, 0.0, 0.0, 0.0]), np.zeros(6))
        >>> plane.at(0.0, 5.0), plane.at(2.0, 0.0)
        (1.0, 9.0)
        """
        z = _terms(t, u)
        return float(z @ self.G @ z)

    def lowest(self, eps: float = 0.0) -> tuple[float, float]:
        """Return (t, u) of the minimum that Newton's method finds from where the sweep ended.

        A step that changes errors by no more than their rounding `eps` has no direction to go in.
        """
        place, value = np.zeros(2), self.at(0.0, 0.0)
        moves = np.diagonal(self.G)[1:3] > eps**2 * self.G[0, 0]
        for _ in range(STEPS):
            t, u = place
            z, slopes = _terms(t, u), np.array([[0, 1, 0, 2 * t, u, 0], [0, 0, 1, 0, t, 2 * u]])
            pull = self.G @ z
            g, H = 2 * slopes @ pull, 2 * slopes @ self.G @ slopes.T
            H += 2 * np.array([[2 * pull[3], pull[4]], [pull[4], 2 * pull[5]]])
            g, H = g * moves, H * np.outer(moves, moves)
            values, vectors = np.linalg.eigh(H)
            size = np.maximum(np.abs(values), 1e-12 * np.abs(values).max())
            if not size.min() > 0:
                break
            step = -vectors @ ((vectors.T @ g) / size)
            for _ in range(HALVINGS):
                reached = self.at(*(place + step))
                if reached < value:
                    break
                step = step / 2
            else:
                break
            place, gain, value = place + step, value - reached, reached
            if gain <= 1e-9 * value:
                break
        return float(place[0]), float(place[1])


def balance(A: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return T and signs with which factors V T are orthogonal and M stays; None where not needed.

    A = VᵀΠV. Factors of opposite signs that point the same way cancel: what they share can grow
    without any effect on M = V diag(s) Vᵀ, and takes digits from products and errors.

    Examples
    --------
    >>> import numpy as np
    >>> V, s = np.array([[3.0, 2.9], [2.9, 3.0]]), np.array([1.0, -1.0])
    >>> T, signs = balance(V.T @ V, s)
    >>> abs(V @ T).round(2), bool(np.allclose((V @ T * signs) @ (V @ T).T, (V * s) @ V.T))
    (array([[0.  , 0.77],
           [0.77, 0.  ]]), True)
    """
    size = np.sqrt(np.diagonal(A))
    some = np.flatnonzero(size > 0)
    scaled = (A / np.where(size > 0, size, 1.0) / np.where(size > 0, size, 1.0)[:, None])[some][
        :, some
    ]
    try:
        R = np.linalg.cholesky(scaled).T * size[some]
    except np.linalg.LinAlgError:
        return None
    values, vectors = np.linalg.eigh((R * signs[some]) @ R.T)
    if np.trace(A) <= SHARED * np.abs(values).sum() or not np.abs(values).min() > 0:
        return None
    T, turned = np.eye(len(A)), signs.copy()
    T[np.ix_(some, some)] = np.linalg.solve(R, vectors * np.sqrt(np.abs(values)))
    turned[some] = np.sign(values)
    return T, turned


def _terms(t: float, u: float) -> np.ndarray:
    return np.array([1.0, t, u, t * t, t * u, u * u])


class TrailingTable(ColumnTable):
    """Rows by columns whose sweeps remember the step before."""

    def remember(self) -> None:
        """Evaluate the model, and begin here: there is no step before."""
        (n, _), (d, width) = self.state.shape, self.factors.shape
        dtype = self.factors.dtype
        self.age, self.walks, self.intercept_step = 0, 0, 0.0
        self.past = aligned_zeros((n, 2 * width + 8), dtype)
        self.past_factors = aligned_zeros((d, 2 * width), dtype)
        self.past_factors[:, :width] = self.factors
        self.past_linear = np.zeros((d, 2), dtype)
        self.past_linear[:, 0] = self.linear
        self.errors_plane, self.levels_plane = (aligned_zeros((8, 8), np.float64) for _ in range(2))
        self.products_plane = aligned_zeros((TERMS, width, width), np.float64)
        self.past_centre = aligned_zeros((2, width), np.float64)
        self._refresh()

    def step(self) -> float:
        """Sweep, go to the minimum of the plane of this step and the last, and return it."""
        self.age += 1
        A = self.gram * np.outer(self.signs, self.signs)
        turn = balance(A, self.signs)
        if turn is not None:
            self._turn(A, *turn)
        if self.age % FRESH == 0 or np.trace(A) > LOST * np.trace(self.gram):
            self._refresh()
        self.run("run_sweep")
        self.walks += 1
        plane = self.plane()
        t, u = plane.lowest(float(np.finfo(self.factors.dtype).eps))
        self.move(plane, t, u)
        return plane.at(t, u)

    def _refresh(self) -> None:
        """Compute products and errors anew: what sweeps and steps add to them has its rounding."""
        self.evaluate()
        self.walks += 1
        self.run("run_marking")
        self.run("run_survey")
        self.past_centre[0] = self.centre

    def _turn(self, A: np.ndarray, T: np.ndarray, signs: np.ndarray) -> None:
        """Replace V by V T and the signs by others that belong to the same matrix; A = VᵀΠV."""
        self.rotation = aligned_zeros(T.shape, np.float64)
        self.rotation[:] = T
        self.run("run_rotation")
        self.signs[:] = signs
        self.gram[:] = np.outer(signs, signs) * (T.T @ A @ T)
        self.centre[:], self.pull[:] = self.centre @ T, self.pull @ T
        self.past_centre[:] = self.past_centre @ T

    def plane(self) -> Plane:
        """Return the objective in the plane of the last sweep and the step before it."""
        self.run("run_plane")
        errors = self.errors_plane[:TERMS, :TERMS]
        sums, weight = self.errors_plane[6, :TERMS], self.errors_plane[6, 6]
        first, second = self.alpha
        G = errors - np.outer(sums, sums) / weight + first * self.levels_plane[:TERMS, :TERMS]
        s, A = self.signs, self.products_plane
        for i, j in ((0, 1), (0, 2), (1, 2)):
            both = OF_PRODUCTS[i, j]
            A[both] += A[both].T
        signed = A * s  # A s
        G += 2 * second * np.einsum("iab,jba->ij", signed, signed)
        return Plane(G, sums / weight)

    def move(self, plane: Plane, t: float, u: float) -> None:
        """Go to x + ta + ub, and to the best intercept there; the next sweep needs no survey."""
        terms = _terms(t, u)
        shift = float(terms @ plane.means)
        before, step = self.past_centre
        self.centre += t * (self.centre - before) + u * step
        self.past_centre[:] = self.centre, self.centre - before
        self.gram[:] = np.outer(self.signs, self.signs) * np.tensordot(
            terms, self.products_plane, 1
        )
        self.run("run_move", along=t, along_before=u, shift=shift)
        self.intercept_step = u * self.intercept_step - shift  # errors that b moved had one as well
        self.intercept += self.intercept_step
