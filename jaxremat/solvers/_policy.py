"""From what is kept to what is computed: the least R for a given S, by a traversal of the graph (section 5.2)."""

import heapq
from collections.abc import Iterable, Mapping

import numpy as np

from .._graph import Graph

__all__ = ["least_recomputes", "policy"]


def least_recomputes(graph: Graph, S: np.ndarray) -> list[tuple[int, int]]:
    """The fewest recomputes with which the checkpoints S (n x n, stages x nodes) can be kept and every node computed.

    Algorithm 2 once S is rounded: first what is kept into the next stage without having been there is computed, (1c);
    then, in reverse topological order, what a compute of the stage reads and is not there, (1b).
    """
    n, recomputable = graph.n, graph.recomputable
    S = np.tril(np.asarray(S, dtype=bool), -1)
    for i in range(n):
        if not recomputable[i]:
            S[i + 1 :, i] = True
    for v, i in enumerate(graph.part_of):
        if i is not None:  # nothing is computed again in the stage of a part
            S[i + 1 : v + 1, i] = True
            S[v + 1 : v + 2] &= S[v] | (np.arange(n) == v)
    pairs: list[tuple[int, int]] = []
    for t in range(n):
        kept = S[t]
        wanted = set(np.flatnonzero(S[t + 1] & ~kept).tolist()) if t + 1 < n else set()
        wanted.add(t)
        queue = [-i for i in wanted]
        heapq.heapify(queue)
        while queue:
            i = -heapq.heappop(queue)
            if graph.part_of[i] is not None and i != t:  # it comes with the node that it is part of
                if graph.makers[i] not in wanted:
                    wanted.add(graph.makers[i])
                    heapq.heappush(queue, -graph.makers[i])
                continue
            if i != t:
                pairs.append((t, i))
            for d in graph.deps[i]:
                if not kept[d] and d not in wanted:
                    wanted.add(d)
                    heapq.heappush(queue, -d)
    return pairs


def policy(graph: Graph, forward: Iterable[int], checkpoints: Iterable[int]) -> np.ndarray:
    """S of a checkpointing strategy: which forward values are kept, and which are recomputed segment by segment.

    Checkpoints and whatever is not a forward value are kept as long as they are read. The other forward values are kept
    for the forward pass only, except behind the last checkpoint. The first stage of the backward pass that reads one of
    a segment recomputes the segment, and keeps what later stages of the backward pass read.
    """
    n, forward, kept = graph.n, sorted(forward), set(checkpoints)
    S = np.tril(np.ones((n, n), dtype=bool), -1)
    inside = set(forward)
    last = max(kept, default=-1)
    segment: Mapping[int, int] = _segments(forward, kept)
    start: dict[int, int] = {}  # of a segment: the first backward stage that reads one of its dropped values
    dropped = [i for i in forward if i < last and i not in kept and graph.recomputable[i]]
    for i in dropped:
        readers = [u for u in graph.users[i] if u not in inside]
        if readers:
            start[segment[i]] = min(readers[0], start.get(segment[i], n))
    for i in dropped:
        readers = [u for u in graph.users[i] if u in inside]
        end = max([i, *readers])
        again = start.get(segment[i], n)
        if end < again:
            S[end + 1 : again + 1, i] = False
    return S


def _segments(forward: list[int], checkpoints: set[int]) -> dict[int, int]:
    segment, number = {}, 0
    for i in forward:
        segment[i] = number
        number += i in checkpoints
    return segment
