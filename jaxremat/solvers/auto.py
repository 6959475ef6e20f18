"""The default: an incumbent at once, then whatever improves it in the time that is left."""

from .._graph import Graph
from .._schedule import Schedule
from ._request import Request
from .heuristics import construct

__all__ = ["auto"]


def auto(graph: Graph, request: Request) -> Schedule | None:
    """The best schedule found within the time limit, with a certified bound; None if none was found."""
    return construct(graph, request.budget, seed=request.seed, deadline=request.deadline)
