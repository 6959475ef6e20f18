"""The strategies of earlier work and their generalisations (Table 1 and appendix B of the Checkmate paper).

Each chooses checkpoints among the forward values; S follows from these (`policy`), and R from S (`least_recomputes`).
Which nodes are forward is `Graph.forward`. The ends of the forward part count as candidates for articulation points, so
that on a path graph `ap_*` and `linearized_*` are `chen_*`.
"""

import math
from collections.abc import Iterable

import numpy as np

from .._graph import Graph
from .._schedule import Schedule
from ._policy import least_recomputes, policy
from ._request import Request
from ._revolve import revolve

__all__ = [
    "ap_greedy",
    "ap_sqrt",
    "articulation_points",
    "checkpoint_all",
    "chen_greedy",
    "chen_sqrt",
    "griewank",
    "linearized_greedy",
    "linearized_sqrt",
]

_SEGMENT_SIZES = 60  # values of b that the greedy strategies try


def checkpoint_all(graph: Graph, request: Request) -> Schedule:
    """Computes every node once and frees each value after its last use: what frameworks do by default."""
    fits = graph.peak <= request.budget
    return Schedule(graph, status="optimal" if fits else "feasible", solver="checkpoint_all")


def chen_sqrt(graph: Graph, request: Request) -> Schedule:
    """Chen et al. 2016b: a path of n nodes in about sqrt(n) segments, whose ends are checkpoints.

    **Raises:** `ValueError` if the forward part is no path.
    """
    return _sqrt(graph, _path(graph, "chen_sqrt"))


def chen_greedy(graph: Graph, request: Request) -> Schedule:
    """Chen et al. 2016b, algorithm 3: a checkpoint whenever more than b bytes have come together, b searched.

    **Raises:** `ValueError` if the forward part is no path.
    """
    return _greedy(graph, _path(graph, "chen_greedy"), request)


def ap_sqrt(graph: Graph, request: Request) -> Schedule:
    """`chen_sqrt` with the articulation points of the forward graph as candidates (appendix B.1)."""
    return _sqrt(graph, articulation_points(graph, graph.forward))


def ap_greedy(graph: Graph, request: Request) -> Schedule:
    """`chen_greedy` with the articulation points of the forward graph as candidates (appendix B.1)."""
    return _greedy(graph, articulation_points(graph, graph.forward), request)


def linearized_sqrt(graph: Graph, request: Request) -> Schedule:
    """`chen_sqrt` on the forward nodes in topological order, as if they were a path (appendix B.2)."""
    return _sqrt(graph, list(graph.forward))


def linearized_greedy(graph: Graph, request: Request) -> Schedule:
    """`chen_greedy` on the forward nodes in topological order, as if they were a path (appendix B.2)."""
    return _greedy(graph, list(graph.forward), request)


def griewank(graph: Graph, request: Request) -> Schedule:
    """Griewank & Walther 2000: revolve, which is optimal for unit-cost paths, with as many checkpoints as fit.

    Costs and bytes of a path that is no unit-cost one are not looked at when checkpoints are chosen.

    **Raises:** `ValueError` if the forward part is no path.
    """
    path = _path(graph, "griewank")
    read = {}  # of a position on the path: the first backward stage that reads its value
    for p, i in enumerate(path):
        readers = [u for u in graph.users[i] if u >= len(path)]
        if readers:
            read[p] = readers[0]
    tried = (Schedule(graph, tuple(revolve(len(path), read, slots))) for slots in range(1, max(2, len(path) + 1)))
    return _best(tried, request)


def _sqrt(graph: Graph, candidates: list[int]) -> Schedule:
    length = math.isqrt(max(0, len(candidates) - 1)) + 1  # sqrt(n), rounded up
    return _kept(graph, candidates[length - 1 : -1 : length])


def _greedy(graph: Graph, candidates: list[int], request: Request) -> Schedule:
    sizes = [graph.memory[i] for i in graph.forward]
    if not sum(sizes):
        return Schedule(graph)
    least = max(1, min(size for size in sizes if size))
    chosen = {tuple(_by_bytes(graph, candidates, b)) for b in np.geomspace(least, sum(sizes), _SEGMENT_SIZES)}
    return _best((_kept(graph, checkpoints) for checkpoints in sorted(chosen)), request)


def _by_bytes(graph: Graph, candidates: list[int], b: float) -> Iterable[int]:
    """Checkpoints at the candidates where more than b bytes have come together since the last one."""
    allowed, together = set(candidates[:-1]), 0
    for i in graph.forward:
        together += graph.memory[i]
        if together > b and i in allowed:
            yield i
            together = 0


def _kept(graph: Graph, checkpoints: Iterable[int]) -> Schedule:
    return Schedule(graph, tuple(least_recomputes(graph, policy(graph, graph.forward, checkpoints))))


def _best(schedules: Iterable[Schedule], request: Request) -> Schedule:
    """The cheapest one within the budget, or else the one with the lowest peak."""
    return min(schedules, key=lambda s: (max(0, s.peak - request.budget), s.cost))


def _path(graph: Graph, solver: str) -> list[int]:
    """The forward nodes if they form a path at the beginning of the order, each reading the one before it."""
    path = list(graph.forward)
    for p, i in enumerate(path):
        if p != i or graph.deps[i] != ((i - 1,) if i else ()) or not graph.recomputable[i]:
            other = "linearized" + solver[solver.rindex("_") :] if "_" in solver else "cuts"
            raise ValueError(
                f"solver: {solver!r} is for graphs whose forward part is a path of recomputable nodes, and"
                f" {graph.names[i]!r} does not just read the node before it; try {other!r}"
            )
    return path


def articulation_points(graph: Graph, nodes: Iterable[int]) -> list[int]:
    """The nodes without which the undirected graph on `nodes` has more components; and its first and its last node.

    Depth-first search that compares, for every node, when it was reached with the earliest that its subtree leads back to.
    """
    inside = set(nodes)
    near = {i: [j for j in (*graph.deps[i], *graph.users[i]) if j in inside] for i in inside}
    reached: dict[int, int] = {}
    back: dict[int, int] = {}
    points = {min(inside), max(inside)} if inside else set()
    for root in sorted(inside):
        if root in reached:
            continue
        reached[root] = back[root] = len(reached)
        children, stack = 0, [(root, -1, iter(near[root]))]
        while stack:
            i, parent, rest = stack[-1]
            j = next(rest, None)
            if j is None:
                stack.pop()
                if stack:
                    back[parent] = min(back[parent], back[i])
                    if parent != root and back[i] >= reached[parent]:
                        points.add(parent)
            elif j not in reached:
                children += i == root
                reached[j] = back[j] = len(reached)
                stack.append((j, i, iter(near[j])))
            elif j != parent:
                back[i] = min(back[i], reached[j])
        if children > 1:
            points.add(root)
    return sorted(points)
