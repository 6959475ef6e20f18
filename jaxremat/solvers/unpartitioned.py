"""The program without frontier-advancing stages, eq. (1) with memory, and what the LP relaxations of both forms are worth.

Eq. (1) may compute nodes for the first time in any order that the graph allows and several in one stage; it asks only
that the sinks are computed. Appendix A of the paper shows why it is so much harder.
"""

from dataclasses import replace
from typing import Literal

from .._graph import Graph
from .._schedule import Schedule
from ._highs import Highs
from ._request import Request
from ._scale import certified
from .heuristics import cheaper, construct
from .milp import Formulation, partitioned, unpartitioned

__all__ = ["computes", "integrality_gap", "milp_unpartitioned", "relaxed_cost"]

_SECONDS_PER_ROW = 1e-4  # to build it and hand it to the solver


def milp_unpartitioned(graph: Graph, request: Request) -> Schedule | None:
    """Eq. (1) with memory, by CBC from the heuristic's schedule. For small graphs: n = 10 takes seconds to minutes.

    A `Schedule` has frontier-advancing stages. A solution that computes nodes for the first time in another order than
    that of the graph is none; then the heuristic's schedule comes back, with the bound that eq. (1) proves.
    """
    incumbent = construct(graph, request.budget, seed=request.seed, deadline=request.start + request.time_limit / 4)
    rows = 2 * graph.n**2 + 3 * graph.n * sum(map(len, graph.deps))
    if rows * _SECONDS_PER_ROW > request.remaining:
        return incumbent
    problem = unpartitioned(graph, request.budget)
    start = None if incumbent is None else problem.start(incumbent)
    outcome = problem.mip.solve_cbc(request.remaining, gap=request.gap, seed=request.seed, start=start)
    best = incumbent
    if outcome.x is not None:
        found = frontier_advancing(problem, outcome.x)
        if found is not None and found.peak <= request.budget:
            best = cheaper(best, found)
    if best is None:
        return None
    # Unlike in eq. (9), a node may be left out of the program if no sink needs it; in a schedule it is not.
    bound = max(graph.total_cost, certified(outcome, problem.cost_unit, request.gap))
    best = replace(best, bound=min(bound, best.cost), solver="milp_unpartitioned")
    return replace(best, status="optimal" if best.gap <= request.gap else "feasible")


def computes(problem: Formulation, x: list[float]) -> list[int]:
    """The nodes computed, one after another."""
    return [i for (_, i), variable in sorted(problem.R.items()) if x[variable] > 0.5]


def frontier_advancing(problem: Formulation, x: list[float]) -> Schedule | None:
    """The same computes in frontier-advancing stages; None if first computes are not in the order of the graph."""
    pairs, stage = [], 0
    for i in computes(problem, x):
        if problem.graph.part_of[i] is not None:
            continue
        if i > stage:
            return None
        if i == stage:
            stage += 1 + len(problem.graph.parts[i])
        elif stage < problem.graph.n:  # what is computed again after the last first compute is of no use
            pairs.append((stage, i))
    return Schedule(problem.graph, tuple(pairs)) if stage == problem.graph.n else None


def relaxed_cost(
    graph: Graph, budget: int, form: Literal["partitioned", "unpartitioned"] = "partitioned", *, seconds: float = 60.0
) -> float | None:
    """The optimum of the LP relaxation of eq. (9) or of eq. (1), in the unit of `graph.cost`; None if out of time."""
    problem = (partitioned if form == "partitioned" else unpartitioned)(graph, budget, exact=True)
    with Highs() as highs:
        outcome = highs.solve(problem.mip, seconds, relax=True)
    return outcome.bound * problem.cost_unit if outcome.status == "optimal" else None


def integrality_gap(
    graph: Graph, budget: int, cost: float, form: Literal["partitioned", "unpartitioned"] = "partitioned"
) -> float | None:
    """Cost_int / Cost_frac of appendix A, given the optimal cost; None if the relaxation runs out of time.

    The paper's 21.56 and 1.18 are those of the unit chain of 8 layers in which a layer's gradient reads the gradient
    after it and the layer's input: 26 / 1.206 and 26 / 22 at budget 4. Where it reads the layer's output as well, the
    optimum is the 38 that others quote, and the gaps are 29.66 and 1.73.
    """
    relaxed = relaxed_cost(graph, budget, form)
    return None if relaxed is None else cost / relaxed
