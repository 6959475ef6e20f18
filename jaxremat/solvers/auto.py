"""The default: an incumbent at once, then whatever improves it in the time that is left."""

from .._graph import Graph
from .._schedule import Schedule
from . import milp
from ._request import Request
from .heuristics import construct

__all__ = ["auto"]

_MILP_ROWS = 30_000  # more rows than this, and eq. (9) has not been seen to beat the heuristic within a minute


def auto(graph: Graph, request: Request) -> Schedule | None:
    """The best schedule found within the time limit, with a certified bound; None if none was found."""
    incumbent = construct(graph, request.budget, seed=request.seed, deadline=request.deadline)
    if milp.row_count(graph) > _MILP_ROWS:
        return incumbent
    return milp.improve(graph, request, incumbent)
