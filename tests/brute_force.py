"""Cost and peak of every schedule of a small graph, worked out without the library's own schedules."""

import numpy as np

from jaxremat._graph import Graph


def every_schedule(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Costs and peaks (constant and workspace included) of all schedules with frontier-advancing stages.

    A schedule is a subset of the recomputes (t, i), i < t. All subsets go through one backward walk over the computes
    that tracks which values are needed later.
    """
    n, M = graph.n, np.array(graph.memory)
    whole = [i for i in range(n) if graph.part_of[i] is None]
    pairs = [(t, i) for t in whole for i in whole if i < t and graph.recomputable[i]]
    count = 2 ** len(pairs)
    chosen = {pair: (np.arange(count) >> bit & 1).astype(bool) for bit, pair in enumerate(pairs)}
    parts = {i: [v for v in range(n) if graph.part_of[v] == i] for i in whole}
    cost = sum((graph.cost[i] * made for (_, i), made in chosen.items()), np.full(count, sum(graph.cost)))
    needed = np.zeros((n, count), dtype=bool)
    peak = np.full(count, graph.constant)
    for t, k in sorted({*pairs, *((t, t) for t in whole)}, reverse=True):
        made = chosen.get((t, k), np.ones(count, dtype=bool))
        held = needed.copy()
        held[[k, *parts[k], *graph.deps[k]]] = True
        over = graph.inplace[k]
        saved = 0 if over is None else np.where(needed[over], 0, M[k])
        peak = np.maximum(peak, np.where(made, graph.constant + graph.workspace[k] + M @ held - saved, 0))
        needed[[k, *parts[k]]] &= ~made
        for i in graph.deps[k]:
            needed[i] |= made
    return cost, peak
