"""The data-flow graph that schedules are made for: nodes, dependencies, bytes, workspace and cost."""

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import jax.extend.core as jex

from ._cost import CostFunction, check_cost, costs
from ._kernels import describe, kernels
from ._target import Target
from ._trace import flatten

__all__ = ["Graph"]

_MOST_BYTES = 2**62  # what the solvers count in 64 bits


@dataclass(frozen=True, init=False)
class Graph:
    """A computation graph G = (V, E) in topological order, as in section 4.1 of the Checkmate paper.

    The order of the nodes is the order in which they are first computed: stage t of a schedule computes node t for the
    first time (frontier-advancing stages, section 4.6).

    **Arguments:**

    - `names`: one name a node, for error messages and plots. Need not be unique.
    - `cost`: C_i, the cost of computing node i once, in any unit (>= 0).
    - `memory`: M_i, bytes of everything node i leaves in memory (>= 0).
    - `deps`: Deps[k], for each node the indices (< k) of the nodes whose values it reads. Duplicates are collapsed.
    - `workspace`: bytes that are needed only while node i runs. Default: none.
    - `constant`: bytes held all the time, such as arguments and outputs (the constant overhead of eq. 2). Default: 0.
    - `recomputable`: False for nodes that must be computed exactly once, such as effects. Default: all True.
    - `inplace`: for each node the dependency of as many bytes that its value may be written over if nothing reads that
        any more, or None. Default: none.
    - `part_of`: for further values of a node that leaves several: its index, or None. They are nodes that directly
        follow it, cost nothing and read just that node; whenever it is computed, so are they. Default: none.
    - `backward`: True for the nodes of the backward pass. Only strategies that tell the two passes apart look at it.
        Default: unknown, see `forward`.

    **Raises:** `ValueError` naming the argument that is malformed.

    >>> g = Graph(names="abc", cost=[1, 1, 1], memory=[4, 4, 4], deps=[[], [0], [0, 1]])
    >>> g.floor, g.peak, g.users
    (12, 12, ((1, 2), (2,), ()))
    """

    names: tuple[str, ...]
    cost: tuple[float, ...]
    memory: tuple[int, ...]
    deps: tuple[tuple[int, ...], ...]
    workspace: tuple[int, ...]
    constant: int
    recomputable: tuple[bool, ...]
    inplace: tuple[int | None, ...]
    part_of: tuple[int | None, ...]
    backward: tuple[bool, ...] | None

    def __init__(
        self,
        names: Iterable[str],
        cost: Iterable[float],
        memory: Iterable[int],
        deps: Iterable[Iterable[int]],
        *,
        workspace: Iterable[int] | None = None,
        constant: int = 0,
        recomputable: Iterable[bool] | None = None,
        inplace: Iterable[int | None] | None = None,
        part_of: Iterable[int | None] | None = None,
        backward: Iterable[bool] | None = None,
    ):
        try:
            names = tuple(str(name) for name in names)
        except TypeError:
            raise ValueError(f"names: expected one name a node, got {names!r}") from None
        n = len(names)
        fields = {
            "names": names,
            "cost": _per_node("cost", cost, n, _cost),
            "memory": _per_node("memory", memory, n, _bytes),
            "deps": _per_node("deps", deps, n, _deps),
            "workspace": _per_node("workspace", [0] * n if workspace is None else workspace, n, _bytes),
            "constant": _bytes("constant", 0, constant),
            "recomputable": _per_node("recomputable", [True] * n if recomputable is None else recomputable, n, _flag),
            "inplace": _per_node("inplace", [None] * n if inplace is None else inplace, n, _node),
            "part_of": _per_node("part_of", [None] * n if part_of is None else part_of, n, _node),
            "backward": None if backward is None else _per_node("backward", backward, n, _flag),
        }
        total = sum(fields["memory"]) + sum(fields["workspace"]) + fields["constant"]
        if total > _MOST_BYTES:
            raise ValueError(f"memory: the nodes take {total:.3g} bytes together, expected at most {_MOST_BYTES:.3g}")
        for field, value in fields.items():
            object.__setattr__(self, field, value)
        self._check_inplace()
        self._check_parts()

    def _check_inplace(self) -> None:
        for k, i in enumerate(self.inplace):
            if i is not None and (i not in self.deps[k] or self.memory[i] != self.memory[k]):
                raise ValueError(
                    f"inplace: node {k} has {i!r}, expected a dependency of {self.memory[k]} bytes, or None"
                )

    def _check_parts(self) -> None:
        for k, i in enumerate(self.part_of):
            if i is None:
                continue
            if i not in (k - 1, self.part_of[k - 1]) or self.part_of[i] is not None or self.deps[k] != (i,):
                raise ValueError(
                    f"part_of: node {k} has {i!r}, expected the node that it directly follows and just reads"
                )
            if self.cost[k] or self.workspace[k] or self.recomputable[k] != self.recomputable[i]:
                raise ValueError(f"part_of: node {k} is part of {i}: expected no cost or workspace of its own")
            if self.inplace[k] is not None:
                raise ValueError(f"inplace: node {k} is part of {i}, which is what it may not be written over")

    @property
    def n(self) -> int:
        """Number of nodes, |V|."""
        return len(self.names)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """Users[i]: for each node the indices of the nodes that read it, ascending."""
        users: list[list[int]] = [[] for _ in self.names]
        for k, deps in enumerate(self.deps):
            for i in deps:
                users[i].append(k)
        return tuple(map(tuple, users))

    @cached_property
    def forward(self) -> tuple[int, ...]:
        """The nodes of the forward pass, ascending: those not marked as `backward`.

        Without marks, a guess: the forward pass ends where the most values are alive that are read later, as in a
        training step, whose backward pass reads in reverse what the forward pass leaves.
        """
        if self.backward is not None:
            return tuple(k for k, backward in enumerate(self.backward) if not backward)
        alive, most, end = 0, 0, self.n
        dies = [0] * self.n
        for k, users in enumerate(self.users):
            alive += bool(users)
            if users:
                dies[users[-1]] += 1
            alive -= dies[k]
            if alive > most:
                most, end = alive, k + 1
        return tuple(range(end))

    @cached_property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """For each node the further values that it leaves, see `part_of`."""
        parts: list[list[int]] = [[] for _ in self.names]
        for k, i in enumerate(self.part_of):
            if i is not None:
                parts[i].append(k)
        return tuple(map(tuple, parts))

    @cached_property
    def makers(self) -> tuple[int, ...]:
        """For each value the node that is run to make it: itself, unless it is `part_of` one."""
        return tuple(k if i is None else i for k, i in enumerate(self.part_of))

    @cached_property
    def scratch(self) -> tuple[int, ...]:
        """Bytes beside its value and its dependencies that a node needs while it runs: workspace and its parts."""
        memory = self.memory
        return tuple(own + sum(memory[i] for i in self.parts[k]) for k, own in enumerate(self.workspace))

    @cached_property
    def total_cost(self) -> float:
        """Cost of computing every node once: no schedule costs less."""
        return math.fsum(self.cost)

    @cached_property
    def footprint(self) -> tuple[int, ...]:
        """Bytes without which node k cannot run: constant + its values, its workspace and its dependencies' values."""
        memory, scratch, inplace = self.memory, self.scratch, self.inplace
        return tuple(
            self.constant + memory[k] * (inplace[k] is None) + scratch[k] + sum(memory[i] for i in self.deps[k])
            for k in range(self.n)
        )

    @cached_property
    def floor(self) -> int:
        """Bytes below which no schedule exists: the largest footprint of a node."""
        return max(self.footprint, default=self.constant)

    @cached_property
    def peak(self) -> int:
        """Peak bytes when every node is computed once and every value is freed after its last use."""
        dies: list[list[int]] = [[] for _ in self.names]
        for i, users in enumerate(self.users):
            dies[users[-1] if users else i].append(i)
        live = peak = self.constant
        for k, scratch in enumerate(self.scratch):
            live += self.memory[k]
            peak = max(peak, live + scratch - self.memory[k] * (self.inplace[k] in dies[k]))
            live -= sum(self.memory[i] for i in dies[k])
        return peak

    def budget_at(self, fraction: float) -> int:
        """The budget in bytes at a fraction f of the way from floor to peak: floor + f * (peak - floor)."""
        return self.floor + int(fraction * (self.peak - self.floor))

    def scaled(self, batch: int, *, fixed: int = 0) -> "Graph":
        """The graph of a batch, where this one is that of one item: costs, bytes and workspaces times `batch`.

        So is `constant`; `fixed` are constant bytes that do not grow, such as parameters and their gradients.
        """
        return Graph(
            self.names,
            [cost * batch for cost in self.cost],
            [size * batch for size in self.memory],
            self.deps,
            workspace=[size * batch for size in self.workspace],
            constant=self.constant * batch + fixed,
            recomputable=self.recomputable,
            inplace=self.inplace,
            part_of=self.part_of,
            backward=self.backward,
        )

    @staticmethod
    def from_jaxpr(
        jaxpr: jex.ClosedJaxpr,
        *,
        target: str | Target | None = None,
        cost: str | CostFunction = "auto",
        measure: bool = True,
    ) -> "Graph":
        """The graph of a traced function: one node for each kernel that materialises something.

        `target` and `cost` as in `jaxremat.grad`; `constant` is the bytes of arguments and results. With `measure`, the
        workspace of each distinct node is compiled and measured, which takes some 50 ms each; else it counts as none, and
        `"auto"` costs are those of `"xla"`.

        >>> import jax, jax.numpy as jnp
        >>> f = jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2))
        >>> g = Graph.from_jaxpr(jax.make_jaxpr(f)(jnp.ones((64, 64)), jnp.ones((512, 64))), measure=False)
        >>> g.deps, g.memory, g.constant
        (((), (0,)), (131072, 0), 163840)
        """
        check_cost(cost)
        program = flatten(jaxpr)
        chosen = Target.of(target)
        found = kernels(program, chosen)
        chosen_cost = "xla" if cost == "auto" and not measure else cost
        price = costs(found.nodes, chosen, chosen_cost, found.seconds)
        return Graph(**describe(program, found, chosen, price, measure=measure))

    @staticmethod
    def from_node_link(data: Mapping[str, Any]) -> "Graph":
        """Reads the node-link form that networkx writes (`networkx.node_link_data`).

        Each node has an `id` (or else its `name` is that), a cost (`cost_cpu` or `duration`) and bytes (`cost_ram` or
        `out_cost`); each link has its ends as `source`, `target` or as `"0"`, `"1"`. A node may be marked `backward`.
        Nodes are sorted topologically, ties going to the earlier entry, so an order that is already topological is
        kept. Repeated links are collapsed.

        **Raises:** `ValueError` if a key is missing, a link has an unknown end, or the graph has a cycle.

        >>> g = Graph.from_node_link({
        ...     "nodes": [{"id": 7, "cost_cpu": 2, "cost_ram": 10}, {"id": 3, "cost_cpu": 1, "cost_ram": 5}],
        ...     "links": [{"source": 3, "target": 7}]})
        >>> g.names, g.deps
        (('3', '7'), ((), (0,)))
        """
        nodes = list(_first_of(data, "data", ("nodes",)))
        index = {_first_of(node, "node", ("id", "name")): position for position, node in enumerate(nodes)}
        if len(index) != len(nodes):
            raise ValueError("data: two nodes have the same id")
        deps: list[set[int]] = [set() for _ in nodes]
        for link in _first_of(data, "data", ("links", "edges")):
            source, target = _first_of(link, "link", ("source", "0")), _first_of(link, "link", ("target", "1"))
            if source not in index or target not in index:
                raise ValueError(f"data: the link from {source!r} to {target!r} has an end that is not a node")
            deps[index[target]].add(index[source])
        order = _topological_order(deps)
        rank = {node: k for k, node in enumerate(order)}
        return Graph(
            names=[str(nodes[v].get("name", nodes[v].get("id"))) for v in order],
            cost=[_first_of(nodes[v], "node", ("cost_cpu", "duration")) for v in order],
            memory=[_first_of(nodes[v], "node", ("cost_ram", "out_cost")) for v in order],
            deps=[sorted(rank[i] for i in deps[v]) for v in order],
            backward=[nodes[v]["backward"] for v in order] if all("backward" in node for node in nodes) else None,
        )


def _topological_order(deps: list[set[int]]) -> list[int]:
    """Kahn's algorithm with a heap: among the nodes that are ready, the one listed first comes first."""
    users: list[list[int]] = [[] for _ in deps]
    for k, reads in enumerate(deps):
        for i in reads:
            users[i].append(k)
    missing = [len(reads) for reads in deps]
    ready = [k for k, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for k in users[i]:
            missing[k] -= 1
            if missing[k] == 0:
                heapq.heappush(ready, k)
    if len(order) != len(deps):
        raise ValueError("data: the links form a cycle")
    return order


def _first_of(record: Mapping[str, Any], what: str, keys: tuple[str, ...]) -> Any:
    for key in keys:
        if key in record:
            return record[key]
    raise ValueError(f"data: a {what} lacks {' or '.join(map(repr, keys))}")


def _per_node(argument: str, values: Iterable[Any], n: int, convert: Any) -> tuple[Any, ...]:
    try:
        values = tuple(values)
    except TypeError:
        raise ValueError(f"{argument}: expected one entry for each of the {n} names, got {values!r}") from None
    if len(values) != n:
        raise ValueError(f"{argument}: expected one entry for each of the {n} names, got {len(values)}")
    return tuple(convert(argument, k, value) for k, value in enumerate(values))


def _flag(argument: str, k: int, value: Any) -> bool:
    if value not in (True, False):
        raise ValueError(f"{argument}: node {k} has {value!r}, expected True or False")
    return bool(value)


def _node(argument: str, k: int, value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < k):
        raise ValueError(f"{argument}: node {k} has {value!r}, expected the index of a node before it, or None")
    return None if value is None else int(value)


def _cost(argument: str, k: int, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{argument}: node {k} has {value!r}, expected a finite number >= 0")
    return float(value)


def _bytes(argument: str, k: int, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value).is_integer() or value < 0:
        where = argument if argument == "constant" else f"{argument}: node {k}"
        raise ValueError(f"{where} has {value!r}, expected a whole number of bytes >= 0")
    return int(value)  # type: ignore[call-overload]


def _deps(argument: str, k: int, value: Iterable[Any]) -> tuple[int, ...]:
    try:
        deps = set(value)
    except TypeError:
        raise ValueError(f"{argument}: node {k} has {value!r}, expected a list of the nodes it reads") from None
    for i in deps:
        if isinstance(i, bool) or not isinstance(i, Integral) or not 0 <= int(i) < k:
            raise ValueError(f"{argument}: node {k} depends on {i!r}, expected an index below {k}")
    return tuple(sorted(int(i) for i in deps))
