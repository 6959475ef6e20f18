"""The largest batch that trains within a budget, eq. (10) of the Checkmate paper.

The paper makes the batch size a variable of the program, which makes its memory constraints quadratic. Here the batch is
searched for: each candidate is a graph to schedule, or a function to plan, compile and measure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, TypeVar

from jaxremat._api import checked_options
from jaxremat._budget import Budget, budget_bytes
from jaxremat._cost import CostFunction
from jaxremat._errors import BudgetError
from jaxremat._fit import Options, fit
from jaxremat._graph import Graph
from jaxremat._plan import Plan
from jaxremat._schedule import Schedule
from jaxremat._signature import Call, trace
from jaxremat.solvers import solve

T = TypeVar("T")


class LargestBatch(int):
    """A batch size, an int, and how it was found.

    - `schedule`: its schedule. `plan`: its plan; None for a plain graph.
    - `failed`: the smallest batch that was tried and failed; None if none failed.
    """

    schedule: Schedule
    plan: Plan | None
    failed: int | None

    def __new__(cls, batch: int, schedule: Schedule, plan: Plan | None, failed: int | None) -> LargestBatch:
        self = super().__new__(cls, batch)
        self.schedule, self.plan, self.failed = schedule, plan, failed
        return self


def max_batch_size(
    make_args: Callable[[int], Any],
    fun: Callable[..., Any] | None = None,
    *,
    budget: Budget,
    extra_passes: float = 1.0,
    most: int = 2**20,
    solver: str = "auto",
    cost: str | CostFunction = "auto",
    target: str | None = None,
    time_limit: float = 60.0,
    gap: float = 1e-4,
    progress: bool | Callable[[str], None] = False,
) -> LargestBatch:
    """The largest batch whose plan fits the budget and costs at most so many forward passes more, eq. (10) of Checkmate.

    **Arguments:**

    - `make_args`: from a batch size to the tuple of arguments of `fun`, arrays or `jax.ShapeDtypeStruct`s. Without
        `fun`, to a `Graph`, for example `graph.scaled`. Memory must not fall as the batch grows.
    - `fun`: what is to run: a function as for `jaxremat.remat`, such as `jax.value_and_grad(loss)` or a training step,
        or what `jaxremat.grad`, `value_and_grad` or `remat` returned, whose own keywords are then not looked at.
    - `budget`: bytes, as an int, a string such as `"12GiB"`, or `"auto"` for what the device has free.
    - `extra_passes`: how many times the cost of the forward pass (`Graph.forward`) a plan may cost above computing
        everything once. 1.0 is the right-hand side of eq. (10).
    - `most`: the largest batch to try.
    - `solver`, `cost`, `target`, `time_limit`, `gap`, `progress`: as in `jaxremat.grad`, for each batch size tried.

    **Returns:** the batch size, a `LargestBatch`: an int with `.plan` and `.schedule`. Where a solver finds nothing
    within its time, a larger batch may exist.

    **Raises:** `BudgetError` if not even a batch of 1 fits at that cost; `TypeError` or `ValueError` naming an argument
    that is wrong. What `make_args` and `fun` raise passes through.

    >>> item = Graph("abcd", cost=[1, 1, 1, 1], memory=[4, 4, 4, 4], deps=[[], [0], [1], [0, 2]])
    >>> max_batch_size(lambda batch: item.scaled(batch, fixed=10), budget=100)
    7
    """
    for name, value in (("make_args", make_args), ("fun", fun)):
        if not callable(value) and (name, value) != ("fun", None):
            raise TypeError(f"{name}: expected a function, got {value!r}")
    if isinstance(most, bool) or not isinstance(most, Integral) or most < 1:
        raise ValueError(f"most: expected a whole number >= 1, got {most!r}")
    if isinstance(extra_passes, bool) or not isinstance(extra_passes, Real) or not extra_passes >= 0:
        raise ValueError(f"extra_passes: expected a number >= 0, got {extra_passes!r}")
    options = checked_options(budget, solver, cost, target, time_limit, gap, progress)
    options = replace(options, budget=_fixed_bytes(budget))
    trial = partial(_scheduled, make_args) if fun is None else partial(_planned, make_args, fun)

    def attempt(batch: int) -> Plan | Schedule | None:
        if options.progress:
            options.progress(f"trying a batch of {batch}")
        try:
            return trial(batch, options, float(extra_passes))
        except BudgetError:
            return None

    batch, found, failed = largest(attempt, int(most))
    if found is None:
        raise BudgetError(
            f"budget: no schedule of a batch of 1 was found that fits {options.budget:,} bytes and costs at most"
            f" {extra_passes:g} forward passes more than computing everything once"
        )
    plan = found if isinstance(found, Plan) else None
    return LargestBatch(batch, found.schedule if isinstance(found, Plan) else found, plan, failed)


def _fixed_bytes(budget: Budget) -> int:
    """The budget in bytes, which must not depend on the plain program: that one grows with the batch."""
    relative = isinstance(budget, str) and budget.strip().endswith("%")
    relative = relative or (isinstance(budget, Real) and not isinstance(budget, Integral))
    allowed = None if relative else budget_bytes(budget, plain_peak=0)
    if allowed is None:
        raise ValueError(f"budget: expected bytes, an int or a string such as '12GiB', or 'auto'; got {budget!r}")
    return allowed


def _affordable(graph: Graph, once: float, extra_passes: float) -> float:
    """What a schedule of `graph` may cost: everything `once`, and the forward pass `extra_passes` times more."""
    return (once + extra_passes * math.fsum(graph.cost[i] for i in graph.forward)) * (1 + 1e-9)


def _scheduled(graph_at: Callable[[int], Any], batch: int, options: Options, extra_passes: float) -> Schedule | None:
    """A schedule of the graph of a batch, if one is cheap enough."""
    graph = graph_at(batch)
    if not isinstance(graph, Graph):
        raise TypeError(f"make_args: without `fun`, expected it to return a jaxremat.Graph, got {graph!r}")
    limit = _affordable(graph, graph.total_cost, extra_passes)
    assert isinstance(options.budget, int)
    schedule = solve(graph, options.budget, options.solver, options.time_limit, options.gap, enough=limit)
    return schedule if schedule.cost <= limit else None


def _planned(
    make_args: Callable[[int], Any], fun: Callable[..., Any], batch: int, options: Options, extra_passes: float
) -> Plan | None:
    """A plan of the function on a batch, if one is cheap enough."""
    args = make_args(batch)
    if not isinstance(args, tuple | list):
        raise TypeError(f"make_args: expected it to return a tuple of the arguments of `fun`, got {args!r}")
    traced = trace(getattr(fun, "unbudgeted", fun), Call.of(args, {}, ()))
    plan = fit(traced.program, options).plan
    return plan if plan.schedule.cost <= _affordable(plan.graph, plan.plain_cost, extra_passes) else None


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
