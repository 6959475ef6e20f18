"""The cut relaxation: memory is limited at a few chosen events only, and what happens in between is summed up.

Events have keys, t * n + i for "node i is computed in stage t". The chosen ones, the *cuts*, are c_0 < c_1 < ...; block
j is what lies strictly between c_j and c_{j+1} (or the end). Variables, all 0-1:

- S[j, i]: the value of node i is in memory at cut j (it is kept across it, or read or computed there);
- Y[j, i]: node i is computed again in block j, counted once however often it is;
- A[j]: node i is computed at cut j, for cuts (t, i) with t > i. At the cuts (t, t) it always is.

A node computes its parts along with its own value, so there are S for these but no Y and A, and cuts are at the node.

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
        return self._pairs(lambda j, i: self.graph.makers[i] in again[j], at_cut)

    def completed(self, kept: Mapping[tuple[int, int], bool]) -> list[tuple[int, int]]:
        """The recomputes that follow from S alone: what is read or kept next and not there is computed again."""
        return self._pairs(lambda j, i: not kept.get((j, i), False), set())

    def _pairs(self, again: Callable[[int, int], bool], at_cut: set[int]) -> list[tuple[int, int]]:
        pairs: list[tuple[int, int]] = []
        n, makers = self.graph.n, self.graph.makers
        needed: set[int] = set()  # the values that must be in memory at the next cut
        for j in reversed(range(len(self.cuts))):
            t, k = divmod(self.cuts[j], n)
            end, read = self._end(j), set(needed)
            stage, last = divmod(end, n)
            if end < n * n and (last == stage or j + 1 in at_cut):
                read.difference_update((last, *self.graph.parts[last]))
                read.update(self.graph.deps[last])
            else:
                last = -1
            placed = self._placed(j, last, needed, again)
            pairs += [(t, i) for i, t in placed.items()]
            for u in [*placed, *range(self.cuts[j] // (n + 1) + 1, -(-end // (n + 1)))]:
                read.update(self.graph.deps[u])
            needed = {i for i in read if makers[i] not in placed and makers[i] * (n + 1) <= self.cuts[j]}
            if j in at_cut:
                pairs.append((t, k))
        return pairs

    def _placed(self, j: int, last: int, needed: set[int], again: Callable[[int, int], bool]) -> dict[int, int]:
        """For the nodes computed again in block j, in which stage. `last` is computed at the next cut, -1 for none."""
        graph, n = self.graph, self.graph.n
        start, end = self.cuts[j], self._end(j)
        stage, k = divmod(end, n)
        placed: dict[int, int] = {}
        for i in self._blocks[j]:
            values = [v for v in (i, *graph.parts[i]) if (j, v) in self.S and again(j, v)]
            readers = [
                placed.get(u, u if start < u * n + u < end else stage)
                for u in readers_of(graph, *values)
                if u in placed or start < u * n + u < end or u == last
            ]
            if readers:
                t = min(readers)
            elif not needed.isdisjoint(values):
                t = stage if i < k else graph.makers[stage - 1]
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


def readers_of(graph: Graph, *values: int) -> list[int]:
    """The nodes that read one of the values, ascending. Parts, which are computed along with what they read, are none."""
    return sorted({u for i in values for u in graph.users[i] if graph.part_of[u] is None})


def furthest_users(graph: Graph) -> list[int]:
    """For each node the last first compute that needs it, directly or not; the node itself if none does."""
    furthest = list(range(graph.n))
    for k in reversed(range(graph.n)):
        for i in graph.deps[k]:
            furthest[i] = max(furthest[i], furthest[k])
    return furthest


def relaxation(graph: Graph, budget: int, cuts: tuple[int, ...]) -> Relaxation:
    """Builds the program. `cuts` are keys; those of parts stand for the node that they are part of."""
    n, mip, makers = graph.n, Mip(), graph.makers
    cuts = tuple(
        sorted({makers[t] * n + makers[k] if t == k else t * n + makers[k] for t, k in (divmod(c, n) for c in cuts)})
    )
    byte_unit, limit = byte_scale(graph, budget)
    cost_unit = cost_scale(graph)
    furthest = furthest_users(graph)
    S, Y, A = {}, {}, {}
    for j, cut in enumerate(cuts):
        t, k = divmod(cut, n)
        for i in _computed(graph, cut):
            # Values without bytes are always there.
            if graph.memory[i] and makers[i] * (n + 1) <= cut <= furthest[i] * (n + 1):
                S[j, i] = mip.binary()
        for i in sorted({makers[i] for i in _computed(graph, cut) if (j, i) in S and graph.recomputable[i]}):
            if _stages(graph, i, cut, cuts[j + 1] if j + 1 < len(cuts) else n * n, furthest[i]):
                Y[j, i] = mip.binary(cost=graph.cost[i] / cost_unit)
        if k < t and graph.recomputable[k] and furthest[k] >= t:
            A[j] = mip.binary(cost=graph.cost[k] / cost_unit)
    built = Relaxation(graph, cuts, mip, S, Y, A, cost_unit)
    for j in range(len(cuts)):
        _add_cut(built, j, byte_unit, limit)
        _add_block(built, j)
    return built


def _computed(graph: Graph, cut: int) -> range:
    """The values that there are at the cut."""
    t = cut // graph.n
    return range(t + 1 + len(graph.parts[t]))


def _stages(graph: Graph, i: int, start: int, end: int, furthest: int) -> bool:
    """Whether there is a stage in which node i can be computed again strictly between two cuts, and is of use."""
    n, makers = graph.n, graph.makers
    t, k = divmod(start, n)
    first = max(t if i > k else t + 1, i + 1)
    last = min(furthest, end // n if i < end % n else end // n - 1)
    while first <= last and makers[first] != first:  # nothing is computed again in the stage of a part
        first += 1
    return first <= last


def _add_cut(built: Relaxation, j: int, byte_unit: float, limit: float) -> None:
    """The memory at cut j, what is computed and read there, and where it comes from."""
    graph, mip, S, A = built.graph, built.mip, built.S, built.A
    t, k = divmod(built.cuts[j], graph.n)
    kept = [i for i in _computed(graph, built.cuts[j]) if (j, i) in S]
    used = {S[j, i]: graph.memory[i] / byte_unit for i in kept}
    over, values = graph.inplace[k], (k, *graph.parts[k])
    held = [S[j, i] for i in (*graph.deps[k], *values) if (j, i) in S and i != over]
    if k == t:
        limit -= graph.workspace[k] / byte_unit
        for variable in held:
            mip.fix_lower(variable, 1.0)
    elif j in A:
        used[A[j]] = (graph.workspace[k] + sum(graph.memory[i] for i in values[1:] if (j, i) not in S)) / byte_unit
        for variable in held:
            mip.row({A[j]: 1.0, variable: -1.0}, "<", 0.0)
    mip.row(used, "<", limit)
    if over is not None and (k == t or j in A):
        # What is written over need not be there behind the cut, but it was before.
        sources = _sources(built, j, over)
        if sources is not None and k == t:
            mip.row(dict.fromkeys(sources, 1.0), ">", 1.0)
        elif sources is not None:
            mip.row({A[j]: 1.0} | dict.fromkeys(sources, -1.0), "<", 0.0)
    for i in kept:
        # Carry: it was in memory at the cut before, or computed since.
        sources = _sources(built, j, i)
        if sources is not None:
            here = {A[j]: -1.0} if graph.makers[i] == k and j in A else {}
            mip.row({S[j, i]: 1.0} | dict.fromkeys(sources, -1.0) | here, "<", 0.0)


def _sources(built: Relaxation, j: int, i: int) -> list[int] | None:
    """The variables one of which is 1 if value i is there just before cut j; None if nothing is known of that."""
    maker = built.graph.makers[i]
    if not j or maker * (built.graph.n + 1) > built.cuts[j - 1] or not built.graph.memory[i]:
        return None
    return [variables[j - 1, v] for variables, v in ((built.S, i), (built.Y, maker)) if (j - 1, v) in variables]


def _add_block(built: Relaxation, j: int) -> None:
    """What is computed in block j, for the first time or again, has what it reads."""
    graph, n, mip, S, Y = built.graph, built.graph.n, built.mip, built.S, built.Y
    start = built.cuts[j]
    end = built.cuts[j + 1] if j + 1 < len(built.cuts) else n * n
    t, k = divmod(start, n)
    for i in _computed(graph, start):
        if (j, i) not in S:
            continue
        users, maker = readers_of(graph, i), graph.makers[i]
        first = bisect_left(users, start // (n + 1) + 1)  # the first user whose first compute is beyond the cut
        if first < len(users) and users[first] * (n + 1) < end:
            # In stage t, what comes no later than the cut cannot be computed again.
            again = None if users[first] == t and maker <= k else Y.get((j, maker))
            mip.row({S[j, i]: 1.0} | ({} if again is None else {again: 1.0}), ">", 1.0)
        for u in users:
            if (j, u) in Y:
                again = {Y[j, maker]: -1.0} if (j, maker) in Y else {}
                mip.row({Y[j, u]: 1.0, S[j, i]: -1.0} | again, "<", 0.0)
