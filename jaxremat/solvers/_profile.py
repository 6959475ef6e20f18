"""The mutable working set of the heuristics: a schedule under construction and its memory at every compute.

Computes are ordered by their key t * n + i (see `_schedule.py`). Adding or removing one changes only the lifetimes of
the node and of its dependencies, so either takes microseconds at a thousand nodes.
"""

from bisect import bisect_left, bisect_right, insort

import numpy as np

from .._graph import Graph
from .._schedule import lifetimes

__all__ = ["Profile"]


class Profile:
    """Compute keys and use keys of every node, and the bytes in use while each compute runs.

    - `keys`: sorted keys of all computes.
    - `computes[i]`, `uses[i]`: sorted keys at which node i is computed, and read.
    - `memory[:len(keys)]`: bytes in use at each key, constant and workspace included.
    - `cost`, `bytes`, `evictable`: what it costs to make, M, and whether it makes sense to evict, for every value.
    - `gaps()`: the stretches in which a value is kept and not touched, which is where it could be evicted.
    """

    def __init__(self, graph: Graph, pairs=()):
        n = graph.n
        self.graph = graph
        self._n, self._over = n, graph.inplace if any(i is not None for i in graph.inplace) else None
        self.cost = np.array([graph.cost[i] for i in graph.makers])
        self.bytes = np.array(graph.memory, dtype=np.int64)
        self.evictable = np.array(graph.recomputable, dtype=bool) & (self.bytes > 0)
        self.keys: list[int] = []
        self.computes: list[list[int]] = [[] for _ in range(n)]
        self.uses: list[list[int]] = [[] for _ in range(n)]
        lives = lifetimes(graph, pairs)
        for life in lives:
            self.keys.append(life.start)
            self.computes[life.node].append(life.start)
            for i in graph.deps[life.node]:
                self.uses[i].append(life.start)
        position = {key: p for p, key in enumerate(self.keys)}
        change = np.zeros(len(self.keys) + 1, dtype=np.int64)
        for life in lives:
            change[position[life.start]] += graph.memory[life.node]
            change[position[life.end] + (not self._overwritten(life.node, life.end))] -= graph.memory[life.node]
        scratch = np.array([graph.scratch[key % n] for key in self.keys], dtype=np.int64)
        self._buffer = np.zeros(2 * len(self.keys) + 64, dtype=np.int64)
        self._buffer[: len(self.keys)] = graph.constant + np.cumsum(change[:-1]) + scratch
        self._gaps = _Gaps(graph)
        self._stale = set(range(n))  # nodes whose gaps have changed since `gaps` was called

    def gaps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Node, start and end of every gap: two keys between which a value is kept (start < end) and not touched.

        Rows without meaning (start == end) are in between.
        """
        for i in self._stale:
            self._gaps.update(i, self.computes[i], self.uses[i])
        self._stale.clear()
        return self._gaps.node, self._gaps.start, self._gaps.end

    @property
    def memory(self) -> np.ndarray:
        return self._buffer[: len(self.keys)]

    @property
    def peak(self) -> int:
        return int(self.memory.max()) if self.keys else self.graph.constant

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The recomputes (t, i), without those of parts."""
        n, part_of = self.graph.n, self.graph.part_of
        again = (divmod(key, n) for key in self.keys)
        return [(t, i) for t, i in again if t != i and part_of[i] is None]

    def life(self, i: int, key: int) -> tuple[int, int, int | None]:
        """The value of node i that a reader at `key` would read: when it was computed, and the uses around `key`.

        Returns the key of its compute, its last use before `key` (or else its compute) and its first use at or after
        `key` (None if it has none before node i is computed again).
        """
        computes, uses = self.computes[i], self.uses[i]
        q = bisect_left(computes, key)
        start = computes[q - 1]
        r = bisect_left(uses, key)
        before = uses[r - 1] if r and uses[r - 1] > start else start
        after = uses[r] if r < len(uses) and (q == len(computes) or uses[r] < computes[q]) else None
        return start, before, after

    def add(self, t: int, i: int) -> None:
        """Computes node i again in stage t, where it is not computed yet (t > i), and its parts."""
        for k in (i, *self.graph.parts[i]):
            self._add(t, k)

    def remove(self, t: int, i: int) -> None:
        """Undoes `add`: the readers of this compute read the one before."""
        for k in (*reversed(self.graph.parts[i]), i):
            self._remove(t, k)

    def _add(self, t: int, i: int) -> None:
        graph = self.graph
        key = t * graph.n + i
        self._stale.update((i, *graph.deps[i]))
        _, before, after = self.life(i, key)
        self._insert(key, after is not None)
        insort(self.computes[i], key)
        if after is not None:
            self._count(i, -1, self.position_after(i, before), bisect_left(self.keys, key))
        for d in graph.deps[i]:
            _, end, later = self.life(d, key)
            if later is None:
                self._count(d, 1, self.position_after(d, end), self.position_after(d, key))
            insort(self.uses[d], key)

    def _remove(self, t: int, i: int) -> None:
        graph = self.graph
        key = t * graph.n + i
        self._stale.update((i, *graph.deps[i]))
        for d in graph.deps[i]:
            uses = self.uses[d]
            del uses[bisect_left(uses, key)]
            _, end, later = self.life(d, key)
            if later is None:
                self._count(d, -1, self.position_after(d, end), self.position_after(d, key))
        computes = self.computes[i]
        del computes[bisect_left(computes, key)]
        _, before, after = self.life(i, key)
        if after is not None:
            self._count(i, 1, self.position_after(i, before), bisect_left(self.keys, key))
        p = bisect_left(self.keys, key)
        self._buffer[p : len(self.keys) - 1] = self._buffer[p + 1 : len(self.keys)]
        del self.keys[p]

    def position_after(self, i: int, end: int) -> int:
        """The first position at which a value of node i is not counted any more that is last read at key `end`."""
        return bisect_left(self.keys, end) if self._overwritten(i, end) else bisect_right(self.keys, end)

    def _overwritten(self, i: int, end: int) -> bool:
        return self._over is not None and self._over[end % self._n] == i

    def _insert(self, key: int, alive: bool) -> None:
        """Makes room for a compute at `key`, with the bytes of what lives across it and its own."""
        keys, graph, n = self.keys, self.graph, self.graph.n
        p = bisect_left(keys, key)
        if len(keys) + 1 >= len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.zeros_like(self._buffer)])
        # What the next compute finds in memory lives across this key: nothing starts or ends in between.
        node, over = keys[p] % n, graph.inplace[keys[p] % n]
        across = int(self._buffer[p]) - graph.memory[node] - graph.scratch[node]
        if over is not None and self.life(over, keys[p] + 1)[2] is None:
            across += graph.memory[over]
        self._buffer[p + 1 : len(keys) + 1] = self._buffer[p : len(keys)]
        # If an earlier value of the same node lives on, its bytes across the key become this compute's own.
        self._buffer[p] = across + graph.scratch[key % n] + (0 if alive else graph.memory[key % n])
        keys.insert(p, key)

    def _count(self, i: int, times: int, first: int, last: int) -> None:
        """Adds so many times the bytes of a value of node i at the positions from `first` up to `last`."""
        self._buffer[first:last] += times * self.graph.memory[i]


class _Gaps:
    """The gaps of all nodes in three arrays, each node's in a block of its own that moves when it outgrows it."""

    def __init__(self, graph: Graph):
        self._room = [len(users) + 1 for users in graph.users]
        self._place = [0] * graph.n
        position = 0
        for i, room in enumerate(self._room):
            self._place[i] = position
            position += room
        self.node = np.zeros(position, dtype=np.int64)
        self.start = np.zeros(position, dtype=np.int64)
        self.end = np.zeros(position, dtype=np.int64)

    def update(self, i: int, computes: list[int], uses: list[int]) -> None:
        if len(uses) > self._room[i]:
            self._move(i, 2 * len(uses))
        starts = []
        for q, compute in enumerate(computes):
            first = bisect_right(uses, compute)
            last = bisect_left(uses, computes[q + 1], first) if q + 1 < len(computes) else len(uses)
            if first < last:
                starts += [compute, *uses[first : last - 1]]
        first, last = self._place[i], self._place[i] + self._room[i]
        self.start[first:last] = self.end[first:last] = 0
        self.node[first:last] = i
        self.start[first : first + len(uses)] = starts
        self.end[first : first + len(uses)] = uses

    def _move(self, i: int, room: int) -> None:
        first, last = self._place[i], self._place[i] + self._room[i]
        self.start[first:last] = self.end[first:last] = 0
        self._place[i], self._room[i] = len(self.node), room
        for name in ("node", "start", "end"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(room, dtype=np.int64)]))
