"""Cost and peak of every schedule of a small graph, worked out without the library's own schedules."""

import numpy as np

from jaxremat._graph import Graph


def every_schedule(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Costs and peaks (constant and workspace included) of all schedules with frontier-advancing stages.

    A schedule is a subset of the recomputes (t, i), i < t. All subsets go through one backward walk over the computes
    that tracks which values are needed later.
    """
    n, M = graph.n, np.array(graph.memory)
    pairs = [(t, i) for t in range(n) for i in range(t) if graph.recomputable[i]]
    count = 2 ** len(pairs)
    chosen = {pair: (np.arange(count) >> bit & 1).astype(bool) for bit, pair in enumerate(pairs)}
    cost = sum((graph.cost[i] * made for (_, i), made in chosen.items()), np.full(count, sum(graph.cost)))
    needed = np.zeros((n, count), dtype=bool)
    peak = np.full(count, graph.constant)
    for t, k in sorted({*pairs, *((t, t) for t in range(n))}, reverse=True):
        made = chosen.get((t, k), np.ones(count, dtype=bool))
        held = needed.copy()
        held[[k, *graph.deps[k]]] = True
        peak = np.maximum(peak, np.where(made, graph.constant + graph.workspace[k] + M @ held, 0))
        needed[k] &= ~made
        for i in graph.deps[k]:
            needed[i] |= made
    return cost, peak
