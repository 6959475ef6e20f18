"""The default: an incumbent at once, then cut generation and local search side by side until the gap closes.

HiGHS works in a process of its own, so each round runs both: the next program of the cut generation there, a number of
turns of local search here. Where a program turns out too hard, rounds of window search come before the next
try. Rounds are measured by counts of nodes and steps and not by the clock, so the result depends on the seed alone where
the time limit does not bind, nor the quarter of it that one program may take.

It stops at the gap, at the time limit, or when no progress is plausible: the local search has gone on without a
better schedule for as many turns as it took to find the best one (and some hundreds more), and the last two programs
have raised the bound by less than a tenth of what is left of the gap.
"""

from .._graph import Graph
from .._schedule import Schedule
from ._highs import Highs
from ._request import Request
from ._search import Search
from .cuts import CutGeneration
from .heuristics import construct, fallback
from .local import Local
from .windows import Windows

__all__ = ["auto"]

_LONG = 20  # turns of local search while a program is being solved that was too hard before, ...
_N = 500  # ... the first time, at that many nodes; in proportion more at fewer
_NODES = 200  # of the solver's tree; twice as many at each further try
_WINDOWS = 20  # rounds of window search between two such tries
_SHARE = 16  # by how much it may be extended where it finds more than the solver
_SLICE = 0.25  # of the time limit, that one program may take
_PATIENCE = 40  # turns of local search without a better schedule that are granted at least


def auto(graph: Graph, request: Request) -> Schedule | None:
    """The best schedule found, with a certified bound; None if none was found."""
    if graph.peak <= request.budget:
        return construct(graph, request.budget)
    search = Search(graph, request)
    with Highs() as highs:
        search.offer(construct(graph, request.budget, seed=request.seed, deadline=request.deadline, lowest=False))
        if not search.over:
            _rounds(search, highs)
    return search.result("auto")


def _rounds(search: Search, highs: Highs) -> None:
    graph, request = search.graph, search.request
    generation = CutGeneration(search, highs)
    local = Local(graph, request.budget, request.seed)
    windows = Windows(search, highs)
    tries, rest = 0, 0  # programs of cut generation that were too hard; rounds until the next try
    share = 1  # of local search beside the solver: the more, the better it does in comparison
    spent = spent_at_best = 0.0  # on local search, in all and when the best schedule was found
    value, bounds = local.value, [search.bound]
    while not search.over:
        whole = not generation.stuck and (rest == 0 or search.best is None)
        effort = share
        if search.best is None:
            effort = _LONG
        elif tries:  # small graphs have fast turns and programs that are hard all the same
            effort = (_LONG << min(tries - 1, 3) if whole else 2 * share) * max(1, _N // max(1, graph.n))
        window = not whole and search.best is not None
        if whole:
            generation.submit(_NODES << tries, seconds=_SLICE * request.time_limit)
        elif window:
            windows.submit(generation.cuts)
        local.restart(*_start(search, generation))
        local.run(effort, request.deadline)
        spent += effort
        by_local = search.offer(local.schedule())
        found = search.best
        if search.best is None and spent == _LONG:  # annealing gets lower than descents do nearly always
            search.offer(fallback(graph, request.budget, seed=request.seed, deadline=request.deadline))
        if whole:
            solved = generation.collect()
            bounds.append(search.bound)
            tries, rest = (tries, 0) if solved else (tries + 1, _WINDOWS)
        elif window:
            windows.collect()
            rest = max(0, rest - 1)
        if search.best is not found:
            share = max(1, share // 2)
        elif by_local:
            share = min(2 * share, _SHARE)
        if _notably_less(local.value, value, request.gap):
            value, spent_at_best = local.value, spent
        stalled = generation.stuck or _stalled(bounds, value[1])
        if stalled and spent > 2 * spent_at_best + _PATIENCE:
            break


def _start(search: Search, generation: CutGeneration) -> tuple[list[tuple[int, int]], int, float]:
    """Recomputes to search around, by how many bytes they exceed the budget, and what they cost."""
    if search.best is not None:
        return list(search.best.pairs), 0, search.best.cost
    found = Schedule(search.graph, tuple(generation.pairs))
    return generation.pairs, found.peak - search.request.budget, found.cost


def _notably_less(new: tuple[int, float], old: tuple[int, float], gap: float) -> bool:
    return new[0] < old[0] or (new[0] == old[0] and new[1] < old[1] * (1 - gap))


def _stalled(bounds: list[float], cost: float) -> bool:
    """Whether the last two programs have raised the bound by less than a tenth of what is left of the gap."""
    return len(bounds) > 2 and bounds[-1] - bounds[-3] <= 0.1 * (cost - bounds[-1])
