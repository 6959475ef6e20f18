"""Schedules: what is computed, recomputed and freed, and when; their memory; and an independent check of both.

A schedule is kept as a set of pairs (t, i), t > i: "in stage t, node i is computed again". Together with the first
computes (t, t) these are the ones of R, and any set of pairs is a valid schedule: each use reads the latest earlier
compute, and a value lives from that compute to its last use before the next one. S, Free and U (sections 4.2 to 4.4 of
the Checkmate paper) follow from the pairs. Computes happen in the order of their *key* t * n + i, which is the row-major
scan of Algorithm 1.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from types import MappingProxyType
from typing import Literal

import numpy as np

from ._graph import Graph

__all__ = ["Lifetime", "Schedule", "Statement", "lifetimes", "simulate"]


@dataclass(frozen=True)
class Statement:
    """One statement of an execution plan: compute a node, or deallocate its value. `node` is an index."""

    kind: Literal["compute", "deallocate"]
    node: int


@dataclass(frozen=True)
class Lifetime:
    """One computed value: `node` computed at key `start`, last read at key `end` (`end == start` if never read)."""

    node: int
    start: int
    end: int


def lifetimes(graph: Graph, pairs: Iterable[tuple[int, int]]) -> list[Lifetime]:
    """The values a schedule makes, one for each compute, by the key of the compute."""
    n = graph.n
    again = {t * n + k for t, i in pairs for k in (i, *graph.parts[i])}
    keys = sorted(again | {t * n + t for t in range(n)})
    current = [-1] * n  # index in `keys` of the latest compute of each node
    ends = list(keys)
    for position, key in enumerate(keys):
        node = key % n
        for i in graph.deps[node]:
            ends[current[i]] = key
        current[node] = position
    return [Lifetime(key % n, key, end) for key, end in zip(keys, ends, strict=True)]


@dataclass(frozen=True)
class Schedule:
    """A rematerialization schedule: R, S, Free, U and the execution plan, all derived from the recomputes.

    **Arguments:**

    - `graph`: the graph it computes.
    - `pairs`: the recomputes (t, i), t > i: node i is computed again in stage t, and with it what is `part_of` it.
        Sorted, repeats dropped.
    - `bound`: a certified lower bound on the cost of any schedule within the budget that was asked for, in the unit
        of `graph.cost`. Default: the cost of computing every node once.
    - `status`: `"optimal"` (proved to within the gap asked for) or `"feasible"`.
    - `solver`: name of the solver that made it.

    **Raises:** `ValueError` if a pair is out of range, recomputes a node that is not recomputable, or names a part.

    >>> g = Graph(names="abcd", cost=[1, 1, 1, 1], memory=[4, 4, 4, 4], deps=[[], [0], [1], [0, 2]])
    >>> s = Schedule(g, pairs=[(3, 0)])  # forget a, compute it again for d
    >>> g.peak, s.peak, s.overhead
    (12, 12, 1.25)
    >>> [(statement.kind, statement.node) for statement in s.statements][:4]
    [('compute', 0), ('compute', 1), ('deallocate', 0), ('compute', 2)]
    """

    graph: Graph
    pairs: tuple[tuple[int, int], ...] = ()
    bound: float = 0.0
    status: str = "feasible"
    solver: str = ""

    def __post_init__(self):
        if self.status not in ("optimal", "feasible"):
            raise ValueError(f"status: expected 'optimal' or 'feasible', got {self.status!r}")
        pairs = tuple(sorted({(int(t), int(i)) for t, i in self.pairs}))
        for t, i in pairs:
            if not 0 <= i < t < self.graph.n:
                raise ValueError(f"pairs: ({t}, {i}) is no recompute, expected 0 <= i < t < {self.graph.n}")
            if not self.graph.recomputable[i]:
                raise ValueError(f"pairs: ({t}, {i}) recomputes {self.graph.names[i]!r}, which is not recomputable")
            part = next((k for k in (t, i) if self.graph.part_of[k] is not None), None)
            if part is not None:
                raise ValueError(f"pairs: ({t}, {i}): node {part} is computed along with the node that it is part of")
        object.__setattr__(self, "pairs", pairs)
        object.__setattr__(self, "bound", max(float(self.bound), self.graph.total_cost))

    @staticmethod
    def from_matrices(graph: Graph, R: np.ndarray, S: np.ndarray, *, solver: str = "") -> "Schedule":
        """A schedule from R and S, n x n each (stages x nodes). Checkpoints that nothing reads are dropped.

        **Raises:** `ValueError` if they violate (1b), (1c) or (8a-c) of the paper, or if a node is not computed along
        with its parts.
        """
        R, S = np.asarray(R, dtype=bool), np.asarray(S, dtype=bool)
        n = graph.n
        if R.shape != (n, n) or S.shape != (n, n):
            raise ValueError(f"R, S: expected shape ({n}, {n}), got {R.shape} and {S.shape}")
        if np.triu(R, 1).any() or np.triu(S).any() or not R.diagonal().all():
            raise ValueError("R, S: expected R lower triangular with unit diagonal, S strictly lower triangular (8a-c)")
        if (S[1:] & ~(R[:-1] | S[:-1])).any():
            raise ValueError("S: a checkpoint is kept that was neither computed nor kept in the stage before (1c)")
        for j, deps in enumerate(graph.deps):
            for i in deps:
                if (R[:, j] & ~(R[:, i] | S[:, i])).any():
                    raise ValueError(f"R, S: node {j} is computed in a stage where node {i} is not available (1b)")
        for v, i in enumerate(graph.part_of):
            if i is not None and (R[v + 1 :, v] != R[v + 1 :, i]).any():
                raise ValueError(f"R: node {v} is not computed in the same stages as node {i}, which it is part of")
        again = zip(*np.nonzero(np.tril(R, -1)), strict=True)
        return Schedule(graph, tuple((t, i) for t, i in again if graph.part_of[i] is None), solver=solver)

    @cached_property
    def lifetimes(self) -> tuple[Lifetime, ...]:
        """Every value computed, in the order of the computes."""
        return tuple(lifetimes(self.graph, self.pairs))

    @cached_property
    def R(self) -> np.ndarray:
        """R[t, i]: node i is computed in stage t. Bool, n x n, lower triangular with unit diagonal."""
        R = np.eye(self.graph.n, dtype=bool)
        for t, i in self.pairs:
            R[t, [i, *self.graph.parts[i]]] = True
        return _readonly(R)

    @cached_property
    def S(self) -> np.ndarray:
        """S[t, i]: the value of node i is kept from stage t - 1 into stage t. Bool, n x n, strictly lower triangular."""
        n = self.graph.n
        S = np.zeros((n, n), dtype=bool)
        for life in self.lifetimes:
            S[life.start // n + 1 : life.end // n + 1, life.node] = True
        return _readonly(S)

    @cached_property
    def free(self) -> Mapping[tuple[int, int], tuple[int, ...]]:
        """Free, sparse: (t, k) -> the nodes i with Free[t, i, k] = 1 (eq. 5), freed once k is computed in stage t.

        i == k says that nothing reads this computation of k (section 4.8).
        """
        n = self.graph.n
        free: dict[tuple[int, int], list[int]] = {}
        for life in self.lifetimes:
            free.setdefault(divmod(life.end, n), []).append(life.node)
        return MappingProxyType({key: tuple(sorted(nodes)) for key, nodes in sorted(free.items())})

    @cached_property
    def U(self) -> np.ndarray:
        """U[t, k]: bytes in use just after node k was (or was not) computed in stage t, eq. 2 and 3; constant included,
        workspace not. Int64, n x n; zero above the diagonal, where nothing is computed.
        """
        n, memory = self.graph.n, np.array(self.graph.memory, dtype=np.int64)
        freed = np.zeros((n, n + 1), dtype=np.int64)
        for (t, k), nodes in self.free.items():
            freed[t, k + 1] = sum(self.graph.memory[i] for i in nodes)
        kept = self.graph.constant + self.S @ memory
        return _readonly(np.tril(kept[:, None] + np.cumsum(self.R * memory - freed[:, :-1], axis=1)))

    @cached_property
    def memory(self) -> tuple[int, ...]:
        """Bytes in use while each compute statement runs, constant and workspace included.

        What a node is written over is not counted next to it.
        """
        graph, n, free = self.graph, self.graph.n, self.free
        memory = []
        for life in self.lifetimes:
            t, k = divmod(life.start, n)
            over = graph.inplace[k] in free.get((t, k), ())
            memory.append(int(self.U[t, k]) + graph.scratch[k] - graph.memory[k] * over)
        return tuple(memory)

    @cached_property
    def peak(self) -> int:
        """Largest number of bytes in use at any time, constant and workspace included."""
        return max(self.memory, default=self.graph.constant)

    @cached_property
    def peak_node(self) -> int | None:
        """The node that runs when the peak is reached (the first such). None for an empty graph."""
        return self.lifetimes[self.memory.index(self.peak)].node if self.lifetimes else None

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """The execution plan of Algorithm 1. Every value is freed right after its last use, the earliest there is."""
        return tuple(self._statements())

    def _statements(self) -> Iterator[Statement]:
        n = self.graph.n
        for life in self.lifetimes:
            yield Statement("compute", life.node)
            for i in self.free.get(divmod(life.start, n), ()):
                yield Statement("deallocate", i)

    @cached_property
    def cost(self) -> float:
        """Objective (1a): the cost of all computes, in the unit of `graph.cost`."""
        return self.graph.total_cost + math.fsum(self.graph.cost[i] for _, i in self.pairs)

    @property
    def overhead(self) -> float:
        """Cost over the cost of computing every node once; 1.0 if that is zero."""
        return self.cost / self.graph.total_cost if self.graph.total_cost > 0 else 1.0

    @property
    def gap(self) -> float:
        """How far the cost may be from the optimum: (cost - bound) / cost, 0.0 if it is proved optimal."""
        return max(0.0, (self.cost - self.bound) / self.cost) if self.cost > 0 else 0.0


def simulate(graph: Graph, statements: Sequence[Statement]) -> int:
    """Runs an execution plan statement by statement and returns its peak in bytes, constant and workspace included.

    It knows nothing of R, S, Free and U, and so checks them.

    **Raises:** `ValueError` if a value is read or freed while it is not in memory, computed while it is, or apart from
    the node that it is part of, or if a node is never computed or one that is not recomputable is computed twice.

    >>> g = Graph(names="ab", cost=[1, 1], memory=[3, 4], deps=[[], [0]])
    >>> simulate(g, [Statement("compute", 0), Statement("compute", 1)])
    7
    """
    alive: set[int] = set()
    computed = [0] * graph.n
    used = peak = graph.constant
    before: int | None = None  # the node computed last
    for position, statement in enumerate(statements):
        i, where = statement.node, f"statement {position}: {statement.kind} {graph.names[statement.node]!r}"
        if statement.kind == "deallocate":
            if i not in alive:
                raise ValueError(f"{where}, which is not in memory")
            alive.remove(i)
            used -= graph.memory[i]
            continue
        dead = [graph.names[d] for d in graph.deps[i] if d not in alive]
        if dead:
            raise ValueError(f"{where} reads {dead}, which are not in memory")
        if i in alive:
            raise ValueError(f"{where}, which is still in memory")
        if computed[i] and not graph.recomputable[i]:
            raise ValueError(f"{where}, which must not be computed twice")
        if graph.part_of[i] is not None and (before is None or graph.makers[before] != graph.part_of[i]):
            raise ValueError(f"{where}, which is part of what was not computed just before")
        before = i
        computed[i] += 1
        alive.add(i)
        used += graph.memory[i]
        peak = max(peak, used + graph.scratch[i] - graph.memory[i] * _overwrites(graph, statements, position))
    missing = [graph.names[i] for i, count in enumerate(computed) if count == 0]
    if missing:
        raise ValueError(f"never computed: {missing}")
    return peak


def _overwrites(graph: Graph, statements: Sequence[Statement], position: int) -> bool:
    """Whether the node computed there may be written over a value that is freed right after."""
    over = graph.inplace[statements[position].node]
    freed = takewhile(lambda statement: statement.kind == "deallocate", islice(statements, position + 1, None))
    return over is not None and any(statement.node == over for statement in freed)


def _readonly(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
