"""Window search: the cut relaxation again, with the incumbent's recomputes fixed outside a window of blocks.

What is free is small enough to be solved in a moment where the whole is not, and finds changes of many recomputes at
once, which the neighbourhood search does not.
"""

import numpy as np

from .._schedule import Schedule
from ._highs import Highs
from ._profile import Profile
from ._relaxation import Relaxation, relaxation
from ._search import Search
from .cuts import peaks
from .heuristics import pruned, repaired

__all__ = ["Windows"]

_FREE = (150, 400)  # recompute variables in a window: at first, and at most
_NODES = 60


class Windows:
    """Rounds of window search around the incumbent of a search, which they improve."""

    def __init__(self, search: Search, highs: Highs):
        self.search, self.highs = search, highs
        self.rng = np.random.default_rng((search.request.seed, 2))
        self.free = _FREE[0]
        self._cuts: set[int] = set()
        self._built: Relaxation | None = None

    def submit(self, cuts: set[int]) -> None:
        """Starts the solver on a window; `cuts` are those of the cut generation, to which this adds its own."""
        search = self.search
        assert search.best is not None
        built = relaxation(search.graph, search.request.budget, tuple(sorted(cuts | self._cuts)))
        current = _values(built, search.best)
        for variable, value in self._outside(built, current).items():
            built.mip.fix(variable, value)
        most = sum(built.mip.cost[variable] * value for variable, value in current.items())
        terms = {variable: built.mip.cost[variable] for variable in current if built.mip.cost[variable]}
        built.mip.row(terms, "<", most * (1 - 1e-4))
        self._built = built
        self.highs.submit(built.mip, search.request.remaining, gap=0.01, nodes=_NODES)

    def collect(self) -> None:
        """Waits for the solver and learns from its answer."""
        search, built = self.search, self._built
        assert built is not None
        graph, request = search.graph, search.request
        outcome = self.highs.outcome()
        if outcome.x is None:
            self.free = min(_FREE[1], int(1.1 * self.free)) if outcome.status == "infeasible" else self.free // 2 + 1
            return
        pairs = built.pairs(outcome.x)
        profile = Profile(graph, pairs)
        if profile.peak <= request.budget:
            search.offer(pruned(graph, pairs, request.budget))
            return
        search.offer(repaired(graph, pairs, request.budget, seed=request.seed, deadline=request.deadline))
        self._cuts.update(profile.keys[p] for p in peaks(profile, request.budget))

    def _outside(self, built: Relaxation, current: dict[int, float]) -> dict[int, float]:
        """The variables outside a window, with their current values."""
        blocks = len(built.cuts)
        sizes = [0] * blocks
        for j, _ in built.Y:
            sizes[j] += 1
        first = last = int(self.rng.integers(blocks))
        size = sizes[first]
        while size < self.free and (first > 0 or last < blocks - 1):
            left = first > 0 and (last == blocks - 1 or self.rng.random() < 0.5)
            first, last = (first - 1, last) if left else (first, last + 1)
            size += sizes[first if left else last]
        inside = {built.Y[j, i] for j, i in built.Y if first <= j <= last}
        inside |= {variable for j, variable in built.A.items() if first <= j <= last + 1}
        return {variable: value for variable, value in current.items() if variable not in inside}


def _values(built: Relaxation, schedule: Schedule) -> dict[int, float]:
    """Y and A for a schedule: the program's other variables follow from them."""
    n, cuts = built.graph.n, built.cuts
    values = dict.fromkeys([*built.Y.values(), *built.A.values()], 0.0)
    keys = np.array([t * n + i for t, i in schedule.pairs], dtype=np.int64)
    for key, j in zip(keys.tolist(), (np.searchsorted(cuts, keys, "right") - 1).tolist(), strict=True):
        if j < 0:
            continue
        variable = built.A.get(j) if cuts[j] == key else built.Y.get((j, key % n))
        if variable is not None:
            values[variable] = 1.0
    return values
