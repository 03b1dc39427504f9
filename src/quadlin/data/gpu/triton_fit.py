"""The passes that a fit consists of, on a GPU with two reads of the rows and one round trip.

The solver is on the host. What a pass asks is packed there into one buffer and sent; three kernels
follow each other without the host; then all sums come back at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton

from quadlin.core.arrays import Array
from quadlin.core.chunks import Chunk
from quadlin.core.sums import (
    Asked,
    Sums,
    change_sums,
    changes_asked,
    residual_sums,
    residuals_asked,
)
from quadlin.core.units import Units
from quadlin.data.gpu import triton_pass
from quadlin.data.gpu.triton_kernel import (
    NARROWEST,
    WIDEST,
    Runs,
    forward_tile,
    layout,
    padded_width,
)

HEAD = 4  # places of float32 that two numbers of float64 take
RECORDED = 7  # passes of a kind before it is recorded, which takes as long as seven replays save
TOTAL_RUNS, TOTAL_COLUMNS = 16, 64  # of a tile of the sums of runs


@dataclass(frozen=True)
class GridPlan:
    """What the kernels are told: one buffer, and where in it everything is.

    The residuals themselves are the column after the products that they are multiplied by.
    """

    packed: np.ndarray  # coefficients, both factors, squares that are left out
    d: int
    first: int  # columns of the first factor, with those of zeros
    second: int  # the same of the second one, 0 without it
    paired: bool  # whether columns of both are multiplied
    left_out: bool
    answers: int  # products by which residuals are multiplied
    target: bool  # whether targets are subtracted
    squares: bool  # whether anybody needs P2

    @property
    def kind(self) -> tuple[int | bool, ...]:
        """Return what tells passes of different memory apart."""
        flags = (self.paired, self.left_out, self.target, self.squares)
        return (self.first, self.second, self.answers, *flags)

    @property
    def width(self) -> int:
        """Return the columns of the answer, with those of zeros."""
        return self.first if self.paired or not self.second else self.second


def planned(fn: Callable[..., Any], params: tuple[Any, ...]) -> tuple[GridPlan, Units] | None:
    """Return the plan for a pass with numpy's parameters; None where it is not one of these."""
    if fn is residual_sums:
        defaults: tuple[Any, ...] = (None, True, "squared")
        model, units, Q, squares, loss = (*params, *defaults[len(params) - 2 :])
        if loss != "squared":
            return None
        asked, target = residuals_asked(model, Q), True
    elif fn is change_sums and len(params) == 3 and params[0].H.shape[1] == 1:
        steps, units, squares = params
        asked, target = changes_asked(steps, units), False
    else:
        return None
    plan = _plan(asked, target, squares) if units.scale.dtype == np.float32 else None
    return None if plan is None else (plan, units)


def _plan(asked: Asked, target: bool, squares: bool) -> GridPlan | None:
    response, Y = asked.response, asked.columns
    d, k = Y.shape[0], response.factor.shape[0]
    paired, by_first = response.right > 0, response.action.start == 0
    answers = response.action.stop - response.action.start
    first = padded_width(k + 1)
    second = 0
    if paired:
        second = first
    elif not by_first:
        second = padded_width(answers + 1)
    if max(first, second) > WIDEST or (paired and not by_first):
        return None
    left_out = response.assembly.left_out
    packed = np.zeros((4 + d) * first + d * second + (0 if left_out is None else d), np.float32)
    coefficients = packed[: 4 * first].reshape(4, first)
    coefficients[1 if paired else 0, :k] = response.factor
    coefficients[2, k], coefficients[3, 0] = 1.0, response.assembly.constant[0]
    stop = (4 + d) * first
    if paired:
        both = packed[4 * first : stop + d * second].reshape(first, 2, d)
        both[: k + 1, 0] = Y[:, : k + 1].T
        both[:k, 1] = Y[:, response.right : response.right + k].T
    else:
        packed[4 * first : stop].reshape(first, d)[: k + 1] = Y[:, : k + 1].T
    if second and not paired:
        other = packed[stop : stop + d * second].reshape(second, d)
        other[:answers] = Y[:, response.action].T
    if left_out is not None:
        packed[stop + d * second :] = left_out[:, 0]
    has_squares = left_out is not None
    return GridPlan(packed, d, first, second, paired, has_squares, answers, target, squares)


class PreparedPass:
    """A pass of one kind over rows that stay where they are, in memory that stays where it is.

    What follows each other without the host is recorded as a CUDA graph once it is known to come
    again and again, and then started as a whole: that saves 0.15 ms, and recording takes 1.2.
    """

    def __init__(self, plan: GridPlan, chunk: Chunk, y: Array, units: Array) -> None:
        X, cuda = chunk.X, chunk.X.is_cuda
        (n, d), self.plan, self.X, self.y, self.units = X.shape, plan, X, y, units
        self.weight = None if chunk.weight is None else chunk.weight.to(torch.float32).contiguous()

        def buffer(*shape: int) -> Array:
            return torch.empty(shape, dtype=torch.float32, device=X.device)

        factors = 2 if plan.second and not plan.paired else 1
        self.tile = forward_tile(plan.first + plan.second, factors)
        self.asked = torch.empty(plan.packed.shape, dtype=torch.float32, pin_memory=cuda)
        self.sent = buffer(*plan.packed.shape)
        self.answer = buffer(plan.width, n)
        self.programs = triton.cdiv(n, self.tile.rows)
        self.residuals = buffer(2, self.programs)
        self.runs = Runs(X, plan.width, plan.squares)
        self.size = (plan.width + plan.squares) * d
        self.result = buffer(HEAD + self.size)  # Σωr² and Σωr in float64, then all sums
        self.brought = torch.empty(self.result.shape, dtype=torch.float32, pin_memory=cuda)
        self.graph: Any = None
        self.uses = 0

    def __call__(self, packed: np.ndarray) -> np.ndarray:
        """Return Σωr², Σωr and all sums, in one array of float64."""
        np.copyto(self.asked.numpy(), packed)
        self.sent.copy_(self.asked, non_blocking=True)
        if self.X.is_cuda and self.uses == RECORDED and self.graph is None:
            self.graph = self._recorded()
        if self.graph is None:
            self._launch()
        else:
            self.graph.replay()
        self.uses += 1
        self.brought.copy_(self.result, non_blocking=True)
        if self.X.is_cuda:
            torch.cuda.current_stream(self.X.device).synchronize()
        brought = self.brought.numpy()
        return np.concatenate([brought[:HEAD].view(np.float64), brought[HEAD:]])

    def _recorded(self) -> Any:
        graph, device = torch.cuda.CUDAGraph(), self.X.device
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            self._launch()
            graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)
        return graph

    def _launch(self) -> None:
        plan, X, sent = self.plan, self.X, self.sent
        *size, vector = layout(X)
        first, second = 4 * plan.first, (4 + plan.d) * plan.first
        left_out = second + plan.d * plan.second
        weighted = self.weight is not None
        triton_pass.respond[(self.programs,)](
            X, self.units, sent[first:], sent[second:] if plan.second else sent,
            sent[left_out:] if plan.left_out else sent, sent, self.y,
            self.weight if weighted else self.y, self.answer, self.residuals,
            *size, 1.0, plan.answers, vector, plan.second > 0, plan.paired, plan.left_out,
            plan.target, weighted, plan.first, plan.second or NARROWEST, **self.tile.how,
        )  # fmt: skip
        self.runs.launch(self.units, self.answer, plan.answers)
        head, body = self.result[:HEAD].view(torch.float64), self.result[HEAD:]
        triton_pass.total[(1 + triton.cdiv(self.size, TOTAL_COLUMNS),)](
            self.runs.out, self.residuals, body, head,
            self.runs.out.shape[0], self.size, self.programs, TOTAL_RUNS, TOTAL_COLUMNS,
        )  # fmt: skip


def unpacked(plan: GridPlan, total: np.ndarray, weight: float) -> Sums:
    """Return the sums that a pass has brought."""
    loss, p0 = total[:2]
    sums = total[2:].astype(np.float32).reshape(-1, plan.d)
    p1 = sums[plan.answers][:, None]
    p2 = sums[plan.width][:, None] if plan.squares else np.zeros_like(p1)
    action = np.ascontiguousarray(sums[: plan.answers].T)[:, None, :]
    return Sums(weight, float(loss), np.array([p0]), p1, p2, action)
