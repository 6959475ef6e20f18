"""Solvers: from a graph and a budget in bytes to a schedule.

Each solver is a function of a `Graph` and a `Request` that returns a `Schedule`, or None if it found none. `solve`
checks the question before and the answer after, so that solvers need do neither.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real

from .._errors import BudgetError
from .._graph import Graph
from .._schedule import Schedule, simulate
from . import heuristics
from ._request import Infeasible, Request
from .auto import auto
from .baselines import (
    ap_greedy,
    ap_sqrt,
    checkpoint_all,
    chen_greedy,
    chen_sqrt,
    griewank,
    linearized_greedy,
    linearized_sqrt,
)
from .cuts import cuts
from .milp import milp
from .rounding import rounding, rounding_random
from .unpartitioned import milp_unpartitioned

__all__ = ["SOLVERS", "lowest_peak", "solve"]

Solver = Callable[[Graph, Request], Schedule | None]

SOLVERS: dict[str, Solver] = {
    "auto": auto,
    "milp": milp,
    "milp_unpartitioned": milp_unpartitioned,
    "rounding": rounding,
    "rounding_random": rounding_random,
    "cuts": cuts,
    "checkpoint_all": checkpoint_all,
    "chen_sqrt": chen_sqrt,
    "chen_greedy": chen_greedy,
    "ap_sqrt": ap_sqrt,
    "ap_greedy": ap_greedy,
    "linearized_sqrt": linearized_sqrt,
    "linearized_greedy": linearized_greedy,
    "griewank": griewank,
}


def solve(
    graph: Graph,
    budget: float | None,
    solver: str = "auto",
    time_limit: float = 60.0,
    gap: float = 1e-4,
    *,
    seed: int = 0,
    samples: int = 100,
    enough: float = -math.inf,
    progress: Callable[[Schedule], None] | None = None,
) -> Schedule:
    """Finds a cheap schedule of computes, recomputes and frees that never holds more than `budget` bytes.

    **Arguments:**

    - `graph`: what is to be computed.
    - `budget`: bytes, `graph.constant` included. None: no limit.
    - `solver`: a name in `SOLVERS`. `"auto"` combines the others and is the one to use.
    - `time_limit`: seconds. When they are over, the best schedule so far is returned.
    - `gap`: relative gap, (cost - bound) / cost, at which a schedule counts as optimal.
    - `seed`: the result depends on it alone as long as the time limit does not bind.
    - `samples`: how many roundings `"rounding_random"` tries of each relaxation.
    - `enough`: a cost that is good enough: `"auto"`, `"cuts"` and the roundings stop at a schedule that costs no more,
        and when there is proved to be none.
    - `progress`: called with each better schedule as soon as it is found, by the solvers that find several.

    **Returns:** a `Schedule`; its `status` says whether it is proved optimal, its `bound` what no schedule can beat.

    **Raises:** `BudgetError` if no schedule fits or none was found (its `proved` tells which); `ValueError` naming the
    argument that is malformed.

    >>> chain = Graph("abcd", cost=[1, 1, 1, 1], memory=[4, 4, 4, 4], deps=[[], [0], [1], [0, 2]])
    >>> solve(chain, budget=12).overhead
    1.0
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph: expected a jaxremat.Graph, got {graph!r}")
    if isinstance(enough, bool) or not isinstance(enough, Real) or math.isnan(enough):
        raise ValueError(f"enough: expected a number, got {enough!r}")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress: expected a function of a schedule, got {progress!r}")
    request = Request(
        _checked_budget(budget, graph),
        _checked("time_limit", time_limit, math.inf),
        _checked("gap", gap, 1.0),
        _checked_seed(seed),
        int(_checked("samples", samples, 10**9)),
        enough,
        progress,
    )
    if solver not in SOLVERS:
        raise ValueError(f"solver: no solver is called {solver!r}; the known ones are {', '.join(map(repr, SOLVERS))}")
    if request.budget < graph.floor:
        raise _no_schedule(graph, request, None, proved=True)
    try:
        schedule = SOLVERS[solver](graph, request)
    except Infeasible:
        raise _no_schedule(graph, request, None, proved=True) from None
    if schedule is None or schedule.peak > request.budget:
        raise _no_schedule(graph, request, schedule, proved=False)
    peak = simulate(graph, schedule.statements)
    if peak != schedule.peak:
        raise RuntimeError(f"internal error: the plan of solver {solver!r} peaks at {peak} bytes, not {schedule.peak}")
    return replace(schedule, solver=schedule.solver or solver)


def lowest_peak(graph: Graph, time_limit: float = 60.0, *, seed: int = 0) -> Schedule:
    """The schedule with the smallest peak that the heuristic reaches, at whatever cost.

    `solve` finds a schedule at any budget from that peak upwards. A smaller peak may exist, but none below
    `graph.floor`.

    >>> chain = Graph("abcd", cost=[1, 1, 1, 1], memory=[4, 4, 4, 4], deps=[[], [0], [1], [0, 2]])
    >>> lowest_peak(chain).peak
    12
    """
    request = Request(0, _checked("time_limit", time_limit, math.inf), 0.0, _checked_seed(seed))
    return heuristics.lowest_peak(graph, seed=request.seed, deadline=request.deadline)


def _no_schedule(graph: Graph, request: Request, found: Schedule | None, *, proved: bool) -> BudgetError:
    """The error that says what would work instead, and why this does not."""
    if found is None:
        found = heuristics.lowest_peak(graph, seed=request.seed, deadline=request.deadline + 1.0)
    if request.budget < graph.floor and graph.n:
        operation = graph.names[graph.footprint.index(graph.floor)]
        message = (
            f"budget: {request.budget} bytes are below the floor of {graph.floor} that {operation!r} needs with its"
            f" inputs, its workspace and the constant bytes; the smallest peak reached is {found.peak} bytes."
        )
    else:
        operation = None if found.peak_node is None else graph.names[found.peak_node]
        verdict = "no schedule fits, which is proved" if proved else "found no schedule, which proves nothing"
        message = (
            f"budget: {verdict}, into {request.budget} bytes; the smallest peak reached is {found.peak} bytes, set by"
            f" {operation!r}."
        )
    return BudgetError(message, minimum_bytes=found.peak, operation=operation, proved=proved)


def _checked_budget(budget: float | None, graph: Graph) -> int:
    no_limit = sum(graph.memory) + max(graph.workspace, default=0) + graph.constant
    if budget is None:
        return no_limit
    value = _checked("budget", budget, math.inf)
    return no_limit if value == math.inf else math.floor(value)


def _checked(argument: str, value: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value) or not 0 <= value <= most:
        upper = "" if most == math.inf else f" and <= {most:g}"
        raise ValueError(f"{argument}: expected a number >= 0{upper}, got {value!r}")
    return value if isinstance(value, Integral) else float(value)


def _checked_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise TypeError(f"seed: expected a whole number, got {seed!r}")
    return int(seed)
