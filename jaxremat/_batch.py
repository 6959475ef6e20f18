"""The largest batch that trains within a budget, eq. (10) of the Checkmate paper.

The paper makes the batch size a variable of the program, which makes its memory constraints quadratic. Here the batch is
searched for: each candidate is one question to a solver, which may stop at any schedule that is cheap enough.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import TypeVar

from ._errors import BudgetError
from ._graph import Graph
from ._schedule import Schedule
from .solvers import solve

__all__ = ["LargestBatch", "largest", "largest_batch", "scaled"]

T = TypeVar("T")


@dataclass(frozen=True)
class LargestBatch:
    """The answer: the batch size, its schedule, and the smallest batch that was tried and failed (None: none failed)."""

    batch: int
    schedule: Schedule
    failed: int | None


def largest_batch(
    graph_at: Callable[[int], Graph],
    budget: int,
    *,
    extra_passes: float = 1.0,
    solver: str = "auto",
    time_limit: float = 60.0,
    gap: float = 1e-4,
    most: int = 2**20,
) -> LargestBatch:
    """The largest batch whose graph has a schedule within `budget` that costs at most so many forward passes more.

    **Arguments:**

    - `graph_at`: the graph at a batch size. Bytes must not fall as the batch grows.
    - `budget`: bytes.
    - `extra_passes`: how many times the cost of the forward nodes (`Graph.forward`) a schedule may cost above computing
        everything once. 1.0 is the right-hand side of eq. (10).
    - `solver`, `time_limit`, `gap`: as in `solve`, for each batch size tried.
    - `most`: the largest batch to try.

    **Returns:** a `LargestBatch`. If a solver finds no schedule within its time, a larger batch may exist.

    **Raises:** `BudgetError` if not even a batch of 1 fits at that cost.

    >>> item = Graph("abcd", cost=[1, 1, 1, 1], memory=[4, 4, 4, 4], deps=[[], [0], [1], [0, 2]])
    >>> largest_batch(lambda batch: scaled(item, batch, fixed=10), budget=100).batch
    7
    """
    if isinstance(most, bool) or not isinstance(most, Integral) or most < 1:
        raise ValueError(f"most: expected a whole number >= 1, got {most!r}")
    if not extra_passes >= 0:
        raise ValueError(f"extra_passes: expected a number >= 0, got {extra_passes!r}")

    def attempt(batch: int) -> Schedule | None:
        graph = graph_at(batch)
        limit = graph.total_cost + extra_passes * math.fsum(graph.cost[i] for i in graph.forward)
        try:
            schedule = solve(graph, budget, solver, time_limit, gap, enough=limit * (1 + 1e-9))
        except BudgetError:
            return None
        return schedule if schedule.cost <= limit * (1 + 1e-9) else None

    batch, schedule, failed = largest(attempt, int(most))
    if schedule is None:
        raise BudgetError(
            f"budget: no schedule of a batch of 1 was found that fits {budget} bytes and costs at most"
            f" {extra_passes:g} forward passes more than computing everything once"
        )
    return LargestBatch(batch, schedule, failed)


def largest(attempt: Callable[[int], T | None], most: int) -> tuple[int, T | None, int | None]:
    """The largest number from 1 to `most` at which `attempt` succeeds: doubling, then bisection.

    Returns that number (0 if 1 fails), what the attempt gave there, and the smallest number that failed.
    """
    good, found, bad = 0, None, None
    trial = 1
    while trial <= most and bad is None:
        result = attempt(trial)
        if result is None:
            bad = trial
        else:
            good, found = trial, result
            trial = most if trial < most < 2 * trial else 2 * trial
    while bad is not None and bad - good > 1:
        trial = (good + bad) // 2
        result = attempt(trial)
        if result is None:
            bad = trial
        else:
            good, found = trial, result
    return good, found, bad


def scaled(graph: Graph, batch: int, *, fixed: int = 0) -> Graph:
    """The graph of a batch, from that of one item: costs, bytes and workspaces scale with it, `constant` does as well.

    `fixed` are constant bytes that do not, such as parameters and their gradients.
    """
    return Graph(
        graph.names,
        [cost * batch for cost in graph.cost],
        [size * batch for size in graph.memory],
        graph.deps,
        workspace=[size * batch for size in graph.workspace],
        constant=graph.constant * batch + fixed,
        recomputable=graph.recomputable,
        backward=graph.backward,
    )
