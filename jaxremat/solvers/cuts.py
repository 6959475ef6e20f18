"""Cut generation: solve a relaxation that limits the memory at a few events, then at those where that was too few.

Each solution of the cut relaxation (see `_relaxation.py`) bounds the cost from below and is a schedule, perhaps one
that exceeds the budget between the cuts. If it does not, it is optimal. If it does, the heuristic repairs it, which
bounds the cost from above, and the events where it does so most become cuts. Real networks take a handful of rounds.

HiGHS solves these programs. CBC was tried on the same ones: as fast at a few hundred variables, 3 to 5 times slower at
a few thousand (`bench/solvers.py --engines` shows it).
"""

import math

import numpy as np

from .._graph import Graph
from .._schedule import Schedule
from ._highs import Highs
from ._profile import Profile
from ._relaxation import Relaxation, relaxation
from ._request import Infeasible, Request
from ._search import Search
from .heuristics import construct, pruned, repaired

__all__ = ["CutGeneration", "cuts", "peaks"]

_CLOSER = 0.2  # each program is solved to this fraction of the gap that is left, until that is the gap asked for
_PEAKS = 3  # cuts added at a time


def cuts(graph: Graph, request: Request) -> Schedule | None:
    """Cut generation until the gap is closed or the time is up."""
    search = Search(graph, request)
    if graph.peak <= request.budget:
        return construct(graph, request.budget)
    with Highs() as highs:
        search.offer(
            construct(graph, request.budget, seed=request.seed, deadline=request.start + request.time_limit / 4)
        )
        generation = CutGeneration(search, highs)
        while not search.over and not generation.stuck:
            generation.submit()
            generation.collect()
    return search.result("cuts")


class CutGeneration:
    """The rounds of cut generation, which improve the incumbent and the bound of a search.

    - `stuck`: no further round is of use: the solver has failed, or its tolerances hide what exceeds the budget.
    - `cuts`: the keys of the cuts so far.
    - `pairs`: the recomputes of the last solution.
    """

    def __init__(self, search: Search, highs: Highs):
        self.search, self.highs = search, highs
        self.stuck = False
        self.pairs: list[tuple[int, int]] = []
        self.cuts: set[int] = set()
        self._gap = 1.0
        self._built: Relaxation | None = None
        # The first cut is where the keep-everything schedule peaks: better in measurement than the best by LP bounds.
        self._add_cuts(Profile(search.graph))

    def submit(self, nodes: int | None = None, seconds: float = math.inf) -> None:
        """Starts the solver on the cuts there are, for at most so many nodes of its tree and so many seconds."""
        search = self.search
        self._built = relaxation(search.graph, search.request.budget, tuple(sorted(self.cuts)))
        self._gap = 0.2
        if search.best is not None:
            # The gap is relative to the cost of everything, the solver's to that of the recomputes.
            gap = max(0.5 * search.request.gap, _CLOSER * search.gap)
            again = search.best.cost - search.graph.total_cost
            self._gap = min(0.5, gap * search.best.cost / again) if again > 0 else 0.0
        seconds = min(seconds, search.request.remaining)
        self.highs.submit(self._built.mip, seconds, gap=self._gap, nodes=nodes)

    def collect(self) -> bool:
        """Waits for the solver and learns from its answer; says whether the solver came to an end with it.

        **Raises:** `Infeasible` if there is proved to be no schedule.
        """
        search, built = self.search, self._built
        assert built is not None
        graph, request = search.graph, search.request
        outcome = self.highs.outcome()
        if outcome.status == "infeasible" and search.best is None:
            raise Infeasible
        if outcome.status in ("failed", "infeasible"):
            self.stuck = True
            return False
        if math.isfinite(outcome.bound):
            search.raise_bound(graph.total_cost + outcome.bound * built.cost_unit * (1 - 1e-9))
        if outcome.x is None:
            return False
        self.pairs = built.pairs(outcome.x)
        profile = Profile(graph, self.pairs)
        if profile.peak <= request.budget:
            search.offer(pruned(graph, self.pairs, request.budget))
            # What fits is optimal for these cuts to within the solver's gap, and can be no further from the bound.
            self.stuck = outcome.status == "optimal" and self._gap * 0.5 <= request.gap and not search.over
            return outcome.status == "optimal"
        search.offer(repaired(graph, self.pairs, request.budget, seed=request.seed, deadline=request.deadline))
        self.stuck = not self._add_cuts(profile)
        return outcome.status == "optimal"

    def _add_cuts(self, profile: Profile) -> bool:
        """Adds the highest peaks over the budget to the cuts, or what is next to them; says whether any was new."""
        budget = self.search.request.budget
        tops = peaks(profile, budget)
        before = len(self.cuts)
        self.cuts.update(profile.keys[p] for p in tops[:_PEAKS])
        if len(self.cuts) == before:
            self.cuts.update(profile.keys[q] for p in tops for q in (p - 1, p + 1) if 0 <= q < len(profile.keys))
        if len(self.cuts) == before:
            self.cuts.update(key for key, memory in zip(profile.keys, profile.memory, strict=True) if memory > budget)
        return len(self.cuts) > before


def peaks(profile: Profile, budget: int) -> list[int]:
    """The positions of the highest memory in each stretch over the budget, the highest first."""
    memory = profile.memory
    over = np.flatnonzero(memory > budget)
    stretches = np.split(over, np.flatnonzero(np.diff(over) > 1) + 1) if len(over) else []
    tops = [int(stretch[memory[stretch].argmax()]) for stretch in stretches]
    return sorted(tops, key=lambda p: (-memory[p], p))
