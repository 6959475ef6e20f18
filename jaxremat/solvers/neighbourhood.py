"""Neighbourhood search: take a few recomputes out of the best schedule, repair what that breaks, prune, compare.

Without a schedule that fits, the same is done to one that does not, to lower its peak.
"""

import math
import time
from collections.abc import Iterable

import numpy as np

from .._graph import Graph
from .._schedule import Schedule
from .heuristics import lower_peak, prune_pairs, random_style

__all__ = ["Neighbourhood"]

Pairs = list[tuple[int, int]]


class Neighbourhood:
    """A search around one schedule, which it replaces by whatever is no worse."""

    def __init__(self, graph: Graph, budget: int, seed: int):
        self.graph, self.budget = graph, budget
        self.rng = np.random.default_rng((seed, 1))
        self.pairs: Pairs = []
        self.value = (max(0, graph.peak - budget), graph.total_cost)  # bytes over the budget, cost

    def schedule(self) -> Schedule | None:
        """The schedule arrived at, None if it exceeds the budget."""
        return Schedule(self.graph, tuple(self.pairs), solver="neighbourhood") if self.value[0] <= 0 else None

    def restart(self, pairs: Iterable[tuple[int, int]], excess: int, cost: float) -> None:
        """Goes on from these pairs, if they are better than the ones at hand."""
        if (excess, cost) < self.value:
            self.pairs, self.value = sorted(pairs), (excess, cost)

    def step(self, deadline: float) -> bool:
        """Tries one neighbour; says whether it is better."""
        graph, budget = self.graph, self.budget
        kept = self._destroyed()
        descent = lower_peak(graph, budget, random_style(self.rng), self.rng, deadline, kept)
        if descent.peak > budget and self.value[0] <= 0:
            return False
        pairs = prune_pairs(graph, descent.pairs, max(budget, descent.peak), deadline)
        value = (max(0, descent.peak - budget), graph.total_cost + math.fsum(graph.cost[i] for _, i in pairs))
        better = value < self.value
        if value <= self.value:
            self.pairs, self.value = pairs, value
        return better

    def run(self, steps: int, deadline: float) -> int:
        """At most that many steps; returns how many improved on what was there."""
        improved = 0
        for _ in range(steps):
            if time.monotonic() >= deadline:
                break
            improved += self.step(deadline)
        return improved

    def _destroyed(self) -> Pairs:
        """All pairs but a few: any, or neighbours by stage, by node or by both."""
        rng, pairs = self.rng, self.pairs
        count = len(pairs)
        if not count:
            return []
        size = min(count, int(rng.geometric(1 / max(2.0, min(12.0, count * 0.2)))))
        t, i = pairs[int(rng.integers(count))]
        kind = int(rng.integers(4))
        if kind == 0:
            dropped = set(rng.choice(count, size, replace=False).tolist())
        else:
            stage, node = ((1, 0), (0, 1), (1, 1))[kind - 1]
            distance = [stage * abs(s - t) + node * abs(j - i) for s, j in pairs]
            dropped = set(np.argsort(distance, kind="stable")[:size].tolist())
        return [pair for position, pair in enumerate(pairs) if position not in dropped]
