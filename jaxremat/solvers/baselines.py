"""The strategies of earlier work (Table 1 of the Checkmate paper)."""

from .._graph import Graph
from .._schedule import Schedule
from ._request import Request

__all__ = ["checkpoint_all"]


def checkpoint_all(graph: Graph, request: Request) -> Schedule:
    """Computes every node once and frees each value after its last use: what frameworks do by default."""
    fits = graph.peak <= request.budget
    return Schedule(graph, status="optimal" if fits else "feasible", solver="checkpoint_all")
