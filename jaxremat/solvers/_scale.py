"""Units in which mixed integer programs are well conditioned, and the way back to the units of the graph."""

import math

from .._graph import Graph
from ._mip import Outcome

__all__ = ["byte_scale", "certified", "cost_scale"]


def byte_scale(graph: Graph, budget: int, allowance: float = 0.0, *, exact: bool = False) -> tuple[float, float]:
    """The unit of memory, and the budget without the constant in it.

    Small whole numbers are exact: then half a unit more than the budget lets through nothing it should not, and keeps
    the solver's tolerance away from schedules that use the budget up. Otherwise about 1000 units make the budget.
    """
    room = (budget - graph.constant) * (1.0 - allowance)
    unit = math.gcd(*graph.memory, *graph.workspace) or 1
    whole = math.floor(room / unit)
    if whole <= 10_000:
        return float(unit), whole + (0.0 if exact else 0.5)
    return room / 1000.0, 1000.0


def cost_scale(graph: Graph) -> float:
    """The unit of cost. Small whole numbers stay as they are, which lets the solver see that the optimum is one."""
    if graph.total_cost <= 1e5 and all(cost.is_integer() for cost in graph.cost):
        return 1.0
    return graph.total_cost / 1e4


def certified(outcome: Outcome, unit: float, gap: float) -> float:
    """The lower bound on the cost. What stopped at the gap may report its objective as the bound: take that off."""
    if outcome.status not in ("optimal", "feasible", "unknown"):
        return -math.inf
    bound = outcome.bound * (1.0 - gap) if outcome.status == "optimal" else outcome.bound
    return math.ceil(bound - 1e-6) if unit == 1.0 and math.isfinite(bound) else bound * unit
