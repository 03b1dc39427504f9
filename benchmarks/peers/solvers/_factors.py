"""A second order model on factors in PyTorch, for the optimisers that follow its gradient.

``told`` uses what nobody knows beforehand, the signs of the eigenvalues of M: M = U diag(±1) Uᵀ.
Otherwise M = UVᵀ, which has twice the factors.
"""

import numpy as np
import torch


class Rows:
    """Standardised dense rows, or the places of the ones of one-hot rows."""

    def __init__(self, X, like=None):
        if not isinstance(X, np.ndarray):
            per_row = X.nnz // X.shape[0]
            self.codes = torch.from_numpy(X.indices.reshape(-1, per_row).astype(np.int64))
            self.Z = None
            return
        self.mean, self.sd = (X.mean(0), X.std(0)) if like is None else (like.mean, like.sd)
        self.codes, self.Z = None, torch.from_numpy((X - self.mean) / self.sd)

    def batch(self, part):
        some = object.__new__(Rows)
        some.codes = None if self.codes is None else self.codes[part]
        some.Z = None if self.Z is None else self.Z[part]
        return some

    def times(self, Q):
        if self.codes is None:
            return self.Z @ Q
        return Q[self.codes].sum(dim=1)

    def squares_times(self, Q):
        if self.codes is None:
            return (self.Z * self.Z) @ Q
        return Q[self.codes].sum(dim=1)


class Factors:
    """f(z) = b + zᵀw + zᵀMz, with the diagonal of M or without."""

    def __init__(self, problem, told, start, seed):
        torch.manual_seed(seed)
        d, k = problem.X.shape[1], problem.rank
        self.k, self.told, self.has_diagonal = k, told, problem.has_diagonal
        self.signs = torch.from_numpy(problem.signs.astype(np.float32))
        self.b = torch.zeros(1, requires_grad=True)
        self.w = torch.zeros(d, requires_grad=True)
        self.U = (start * torch.randn(d, k if told else 2 * k)).requires_grad_()
        self.centre, self.size = float(problem.y.mean()), float(problem.y.std())

    @property
    def parameters(self):
        return [self.b, self.w, self.U]

    def __call__(self, rows):
        products = rows.times(torch.cat([self.U, self.w[:, None]], dim=1))
        k, linear = self.k, products[:, -1]
        if self.told:
            quadratic = products[:, :k] ** 2 @ self.signs
            diagonal = self.U**2 @ self.signs
        else:
            quadratic = (products[:, :k] * products[:, k : 2 * k]).sum(dim=1)
            diagonal = (self.U[:, :k] * self.U[:, k:]).sum(dim=1)
        f = self.b + linear + quadratic
        return f if self.has_diagonal else f - rows.squares_times(diagonal[:, None])[:, 0]

    def predictor(self, rows):
        def predict(X):
            with torch.no_grad():
                return self.centre + self.size * self(Rows(X, rows)).numpy()

        return predict

    def targets(self, y):
        return torch.from_numpy(((y - self.centre) / self.size).astype(np.float32))
