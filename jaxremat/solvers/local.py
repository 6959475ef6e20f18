"""Local search: what is tried on schedules without a solver, by whichever of two searches is the better at it.

Where nothing fits yet, simulated annealing, which may pass through what exceeds the budget, gets far below what greedy
descents reach. Where something does, neighbourhood search improves on it faster, except where recomputes are so many
that annealing from where it is does: that gets a turn for every two of the other.
"""

from collections.abc import Iterable

from .._graph import Graph
from .._schedule import Schedule
from .annealing import Annealing
from .neighbourhood import Neighbourhood

__all__ = ["Local"]

_STEPS = (10, 1000)  # of neighbourhood search and of annealing in a turn: about as long


class Local:
    """Both searches, each going on from the best of either.

    - `value`: by how many bytes the peak of the best state exceeds the budget, and what it costs.
    """

    def __init__(self, graph: Graph, budget: int, seed: int):
        self._neighbourhood = Neighbourhood(graph, budget, seed)
        self._annealing = Annealing(graph, budget, seed)
        self._turn = 0

    @property
    def value(self) -> tuple[int, float]:
        return min(self._neighbourhood.value, self._annealing.value)

    def schedule(self) -> Schedule | None:
        """The best schedule, None if none fits the budget."""
        found = [found for search in (self._neighbourhood, self._annealing) if (found := search.schedule())]
        return min(found, key=lambda schedule: schedule.cost, default=None)

    def restart(self, pairs: Iterable[tuple[int, int]], excess: int, cost: float) -> None:
        """Goes on from these pairs, if they are better than the ones at hand."""
        pairs = list(pairs)
        self._neighbourhood.restart(pairs, excess, cost)
        self._annealing.restart(pairs, excess, cost)

    def run(self, turns: int, deadline: float) -> None:
        """So many turns, unless the time is up before."""
        for _ in range(turns):
            self._turn += 1
            if self.value[0] > 0 or self._turn % 3 == 0:
                self._annealing.run(_STEPS[1], deadline)
                self._share(self._annealing, self._neighbourhood)
            else:
                self._neighbourhood.run(_STEPS[0], deadline)
                self._share(self._neighbourhood, self._annealing)

    @staticmethod
    def _share(source: Neighbourhood | Annealing, other: Neighbourhood | Annealing) -> None:
        if source.value < other.value:
            other.restart(source.pairs, *source.value)
