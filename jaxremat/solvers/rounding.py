"""Two-phase LP rounding, Algorithm 2 of the Checkmate paper, with the allowance epsilon searched.

The LP relaxation of eq. (9) with the budget (1 - epsilon) M gives fractional checkpoints S. They are rounded, and the
least recomputes for them follow. Appendix D suggests to search epsilon: small ones cost less, large ones fit. What is
rounded and does not fit is repaired by the heuristic as well until something fits or that has failed a few times, and
everything that fits is pruned. On layered random graphs, whose relaxation says little, that leaves much to be desired,
so local search goes on from the best: a fixed number of turns, after those that it takes to find what fits.

Eq. (9) is too large a program for hundreds of nodes. There the LP is that of cut generation, whose S is known at the
cuts only: it is rounded there, and what has to be computed in between follows from it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .._graph import Graph
from .._schedule import Schedule
from ._highs import Highs
from ._policy import least_recomputes
from ._profile import Profile
from ._relaxation import Relaxation, relaxation
from ._request import Request
from ._search import Search
from .cuts import peaks
from .heuristics import prune_pairs, repaired
from .local import Local
from .milp import partitioned, row_count

__all__ = ["rounding", "rounding_random"]

_ALLOWANCES = (0.0, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3)
_ROWS = 50_000  # the largest eq. (9) whose LP relaxation takes a second or so
_ROUNDS = 4  # of cuts added by the other LP
_THRESHOLD = 0.5
_REPAIRS = 3  # that may fail
_TURNS = 30  # of local search; as many again for each _N nodes until something fits
_N = 250

Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class Fractional:
    """Fractional checkpoints: `values` in any order, and the recomputes that follow from a rounding of them."""

    values: np.ndarray
    recomputes: Callable[[np.ndarray], Pairs]


def rounding(graph: Graph, request: Request) -> Schedule | None:
    """Deterministic two-phase rounding: S is what is above one half."""

    def rounded(fractional: Fractional) -> Iterator[Pairs]:
        yield fractional.recomputes(fractional.values > _THRESHOLD)

    return _search(graph, request, rounded, "rounding")


def rounding_random(graph: Graph, request: Request) -> Schedule | None:
    """Randomised two-phase rounding: `samples` times, each entry of S is 1 with the probability that its value is."""
    rng = np.random.default_rng(request.seed)

    def rounded(fractional: Fractional) -> Iterator[Pairs]:
        for _ in range(request.samples):
            yield fractional.recomputes(rng.random(len(fractional.values)) < fractional.values)

    return _search(graph, request, rounded, "rounding_random")


def _search(
    graph: Graph, request: Request, rounded: Callable[[Fractional], Iterator[Pairs]], solver: str
) -> Schedule | None:
    search = Search(graph, request)
    local = Local(graph, request.budget, request.seed)
    repairs = 0
    if graph.peak <= request.budget:
        search.offer(Schedule(graph))
        return search.result(solver)
    with Highs() as highs:
        for allowance in _ALLOWANCES:
            if search.over:
                break
            fractional = _relaxed(search, highs, allowance)
            if fractional is None:
                break
            least: tuple[int, Pairs] | None = None
            for pairs in rounded(fractional):
                if search.over:
                    break
                peak = Profile(graph, pairs).peak
                if peak <= request.budget:
                    search.offer(Schedule(graph, tuple(prune_pairs(graph, pairs, request.budget))))
                elif least is None or peak < least[0]:
                    least = (peak, pairs)
            if least is not None and search.best is None and repairs < _REPAIRS:
                repairs += 1
                local.restart(least[1], least[0] - request.budget, Schedule(graph, tuple(least[1])).cost)
                search.offer(repaired(graph, least[1], request.budget, seed=request.seed, deadline=request.deadline))
    if not search.over:
        if search.best is not None:
            local.restart(search.best.pairs, 0, search.best.cost)
        for _ in range(graph.n // _N):
            if local.value[0] > 0:
                local.run(_TURNS, request.deadline)
        local.run(_TURNS, request.deadline)
        search.offer(local.schedule())
    return search.result(solver)


def _relaxed(search: Search, highs: Highs, allowance: float) -> Fractional | None:
    """The LP relaxation at a budget of (1 - allowance) M, and its bound; None if it fails or is infeasible."""
    graph, request = search.graph, search.request
    budget = int((1.0 - allowance) * request.budget)
    if budget <= graph.floor and allowance:
        return None
    if row_count(graph) > _ROWS:
        return _relaxed_cuts(search, highs, budget, certify=allowance == 0.0)
    problem = partitioned(graph, budget)
    outcome = highs.solve(problem.mip, request.remaining, relax=True)
    if outcome.status != "optimal" or outcome.x is None:
        return None
    if allowance == 0.0:
        search.raise_bound(outcome.bound * problem.cost_unit * (1 - 1e-9))
    cells = list(problem.S)

    def recomputes(kept: np.ndarray) -> Pairs:
        S = np.zeros((graph.n, graph.n), dtype=bool)
        S[tuple(np.array(cells).T)] = kept
        return least_recomputes(graph, S)

    return Fractional(np.array(outcome.x)[list(problem.S.values())], recomputes)


def _relaxed_cuts(search: Search, highs: Highs, budget: int, *, certify: bool) -> Fractional | None:
    """The LP relaxation of the cut program, with cuts added for a few rounds where its rounding exceeds the budget."""
    graph, request = search.graph, search.request
    profile, cuts = Profile(graph), set()
    fractional: Fractional | None = None
    for _ in range(_ROUNDS):
        cuts |= {profile.keys[p] for p in peaks(profile, budget)[:3]}
        built = relaxation(graph, budget, tuple(sorted(cuts)))
        outcome = highs.solve(built.mip, request.remaining, relax=True)
        if outcome.status != "optimal" or outcome.x is None:
            break
        if certify:
            search.raise_bound(graph.total_cost + outcome.bound * built.cost_unit * (1 - 1e-9))
        fractional = _at_cuts(built, np.array(outcome.x))
        profile = Profile(graph, fractional.recomputes(fractional.values > _THRESHOLD))
        if profile.peak <= budget:
            break
    return fractional


def _at_cuts(built: Relaxation, x: np.ndarray) -> Fractional:
    variables = list(built.S.values())
    return Fractional(x[variables], lambda kept: built.completed(dict(zip(built.S, kept.tolist(), strict=True))))
