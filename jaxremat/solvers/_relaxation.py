"""The cut relaxation: memory is limited at a few chosen events only, and what happens in between is summed up.

Events have keys, t * n + i for "node i is computed in stage t". The chosen ones, the *cuts*, are c_0 < c_1 < ...; block
j is what lies strictly between c_j and c_{j+1} (or the end). Variables, all 0-1:

- S[j, i]: the value of node i is in memory at cut j (it is kept across it, or read or computed there);
- Y[j, i]: node i is computed again in block j, counted once however often it is;
- A[j]: node i is computed at cut j, for cuts (t, i) with t > i. At the cuts (t, t) it always is.

Every schedule within the budget gives a point of this program that costs no more than it does, whatever the cuts are.
So its optimum, and any lower bound on that, bounds the cost of every schedule from below. Nothing binds before the
first cut, so there are no variables there.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from .._graph import Graph
from ._mip import Mip
from ._scale import byte_scale, cost_scale

__all__ = ["Relaxation", "furthest_users", "relaxation"]


@dataclass(frozen=True)
class Relaxation:
    """The program for a graph, a budget and a set of cuts, and where its variables are.

    Its objective counts the recomputes only, in units of `cost_unit`.
    """

    graph: Graph
    cuts: tuple[int, ...]
    mip: Mip
    S: dict[tuple[int, int], int]
    Y: dict[tuple[int, int], int]
    A: dict[int, int]
    cost_unit: float

    def pairs(self, x) -> list[tuple[int, int]]:
        """The recomputes that a point stands for: each Y where its value is first read in the block."""
        again = [{i for i in block if x[self.Y[j, i]] > 0.5} for j, block in enumerate(self._blocks)]
        at_cut = {j for j, variable in self.A.items() if x[variable] > 0.5}
        return self._pairs(lambda j, i: i in again[j], at_cut)

    def completed(self, kept: Mapping[tuple[int, int], bool]) -> list[tuple[int, int]]:
        """The recomputes that follow from S alone: what is read or kept next and not there is computed again."""
        return self._pairs(lambda j, i: not kept.get((j, i), False), set())

    def _pairs(self, again: Callable[[int, int], bool], at_cut: set[int]) -> list[tuple[int, int]]:
        pairs: list[tuple[int, int]] = []
        n = self.graph.n
        needed: set[int] = set()  # the nodes whose values must be in memory at the next cut
        for j in reversed(range(len(self.cuts))):
            t, k = divmod(self.cuts[j], n)
            end, read = self._end(j), set(needed)
            stage, last = divmod(end, n)
            if end < n * n and (last == stage or j + 1 in at_cut):
                read.discard(last)
                read.update(self.graph.deps[last])
            else:
                last = -1
            placed = self._placed(j, last, needed, again)
            pairs += [(t, i) for i, t in placed.items()]
            for u in [*placed, *range(self.cuts[j] // (n + 1) + 1, -(-end // (n + 1)))]:
                read.update(self.graph.deps[u])
            needed = {i for i in read if i not in placed and i * n + i <= self.cuts[j]}
            if j in at_cut:
                pairs.append((t, k))
        return pairs

    def _placed(self, j: int, last: int, needed: set[int], again: Callable[[int, int], bool]) -> dict[int, int]:
        """For the nodes computed again in block j, in which stage. `last` is computed at the next cut, -1 for none."""
        users, n = self.graph.users, self.graph.n
        start, end = self.cuts[j], self._end(j)
        stage, k = divmod(end, n)
        placed: dict[int, int] = {}
        for i in self._blocks[j]:
            if not again(j, i):
                continue
            readers = [
                placed.get(u, u if start < u * n + u < end else stage)
                for u in users[i]
                if u in placed or start < u * n + u < end or u == last
            ]
            if readers:
                t = min(readers)
            elif i in needed:
                t = stage if i < k else stage - 1
            else:
                continue
            if t > i and start < t * n + i < end:
                placed[i] = t
        return placed

    def _end(self, j: int) -> int:
        return self.cuts[j + 1] if j + 1 < len(self.cuts) else self.graph.n**2

    @cached_property
    def _blocks(self) -> list[list[int]]:
        """For each block the nodes that can be computed again in it, descending."""
        blocks: list[list[int]] = [[] for _ in self.cuts]
        for j, i in self.Y:
            blocks[j].append(i)
        return [sorted(block, reverse=True) for block in blocks]


def furthest_users(graph: Graph) -> list[int]:
    """For each node the last first compute that needs it, directly or not; the node itself if none does."""
    furthest = list(range(graph.n))
    for k in reversed(range(graph.n)):
        for i in graph.deps[k]:
            furthest[i] = max(furthest[i], furthest[k])
    return furthest


def relaxation(graph: Graph, budget: int, cuts: tuple[int, ...]) -> Relaxation:
    """Builds the program. `cuts` are keys, ascending."""
    n, mip = graph.n, Mip()
    byte_unit, limit = byte_scale(graph, budget)
    cost_unit = cost_scale(graph)
    furthest = furthest_users(graph)
    S, Y, A = {}, {}, {}
    for j, cut in enumerate(cuts):
        t, k = divmod(cut, n)
        end = cuts[j + 1] if j + 1 < len(cuts) else n * n
        for i in range(t + 1):
            # Values without bytes are always there.
            if graph.memory[i] == 0 or i * n + i > cut or furthest[i] * n + furthest[i] < cut:
                continue
            S[j, i] = mip.binary()
            first = t if i > k else t + 1  # the first stage in which i can be computed again in the block
            last = min(furthest[i], end // n if i < end % n else end // n - 1)
            if graph.recomputable[i] and max(first, i + 1) <= last:
                Y[j, i] = mip.binary(cost=graph.cost[i] / cost_unit)
        if k < t and graph.recomputable[k] and furthest[k] >= t:
            A[j] = mip.binary(cost=graph.cost[k] / cost_unit)
    built = Relaxation(graph, cuts, mip, S, Y, A, cost_unit)
    for j in range(len(cuts)):
        _add_cut(built, j, byte_unit, limit)
        _add_block(built, j)
    return built


def _add_cut(built: Relaxation, j: int, byte_unit: float, limit: float) -> None:
    """The memory at cut j, what is computed and read there, and where it comes from."""
    graph, mip, S, Y, A = built.graph, built.mip, built.S, built.Y, built.A
    t, k = divmod(built.cuts[j], graph.n)
    kept = [i for i in range(t + 1) if (j, i) in S]
    used = {S[j, i]: graph.memory[i] / byte_unit for i in kept}
    workspace = graph.workspace[k] / byte_unit
    if k == t:
        limit -= workspace
        for i in (*graph.deps[k], k):
            if (j, i) in S:
                mip.fix_lower(S[j, i], 1.0)
    elif j in A:
        used[A[j]] = workspace
        for i in (*graph.deps[k], k):
            if (j, i) in S:
                mip.row({A[j]: 1.0, S[j, i]: -1.0}, "<", 0.0)
    mip.row(used, "<", limit)
    for i in kept:
        # Carry: it was in memory at the cut before, or computed since.
        if j and i * graph.n + i <= built.cuts[j - 1]:
            sources = [S.get((j - 1, i)), Y.get((j - 1, i)), A.get(j) if i == k else None]
            mip.row({S[j, i]: 1.0} | {source: -1.0 for source in sources if source is not None}, "<", 0.0)


def _add_block(built: Relaxation, j: int) -> None:
    """What is computed in block j, for the first time or again, has what it reads."""
    graph, n, mip, S, Y = built.graph, built.graph.n, built.mip, built.S, built.Y
    start = built.cuts[j]
    end = built.cuts[j + 1] if j + 1 < len(built.cuts) else n * n
    t, k = divmod(start, n)
    for i in range(t + 1):
        if (j, i) not in S:
            continue
        users = graph.users[i]
        first = bisect_left(users, start // (n + 1) + 1)  # the first user whose first compute is beyond the cut
        if first < len(users) and users[first] * (n + 1) < end:
            # In stage t, what comes no later than the cut cannot be computed again.
            again = None if users[first] == t and i <= k else Y.get((j, i))
            mip.row({S[j, i]: 1.0} | ({} if again is None else {again: 1.0}), ">", 1.0)
        for u in users:
            if (j, u) in Y:
                again = {Y[j, i]: -1.0} if (j, i) in Y else {}
                mip.row({Y[j, u]: 1.0, S[j, i]: -1.0} | again, "<", 0.0)
