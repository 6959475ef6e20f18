"""A schedule becomes a program: each computed node a call or a run of equations, recomputes tied to what needs them.

On CPU every node is a call that XLA does not inline, and consecutive calls are tied by a barrier where no value already
links them, so the compiled program runs in the order of the schedule. On other platforms the equations stand free, so
that XLA may fuse them, and only where a run of recomputation begins a barrier ties its inputs to the values before it:
the run can then start no earlier.

A value that the schedule deallocates is not read again, so it is dead in the rewritten jaxpr from its last reader on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex

from jaxremat._barrier import barrier, stage_call
from jaxremat._partition import Node
from jaxremat._schedule import Statement
from jaxremat._stage import node_function, separate_function
from jaxremat._trace import Program, bytes_of, is_literal


def rewrite(program: Program, nodes: Sequence[Node], statements: Sequence[Statement], platform: str) -> jex.ClosedJaxpr:
    """The jaxpr that computes `program` in the order of `statements`, for a platform ("cpu", "tpu", "cuda", ...)."""
    kept = [_keep_results(node, program.results) for node in nodes]
    emitter = _CallEmitter if platform == "cpu" else _InlineEmitter

    def run(*values: Any) -> list[Any]:
        env = dict(zip(program.invars, values, strict=True))
        emit = emitter([node_function(node, platform) for node in nodes], kept, env)
        for again, part in _parts(statements):
            if again:
                emit.begin_recomputing([s.node for s in part if s.kind == "compute"])
            for statement in part:
                (emit.compute if statement.kind == "compute" else emit.deallocate)(statement.node)
        return [a.val if is_literal(a) else env[a] for a in program.outvars]

    run.__name__ = run.__qualname__ = "rematerialized"
    return jax.make_jaxpr(run)(*program.structs())


def _parts(statements: Sequence[Statement]) -> list[tuple[bool, list[Statement]]]:
    """The statements in runs: of recomputation (True), and of first computes (False)."""
    parts: list[tuple[bool, list[Statement]]] = [(False, [])]
    computed: set[int] = set()
    for statement in statements:
        if statement.kind == "compute":
            again = statement.node in computed
            if again != parts[-1][0]:
                parts.append((again, []))
            computed.add(statement.node)
        parts[-1][1].append(statement)
    return parts


@dataclass(frozen=True)
class _Kept(Node):
    """A node and those of its outputs that the program returns, which are never deallocated."""

    results: frozenset[Any] = frozenset()


def _keep_results(node: Node, results: frozenset[Any]) -> _Kept:
    kept = frozenset(v for v in node.outputs if v in results)
    return _Kept(node.name, node.eqns, node.inputs, node.outputs, node.effects, kept)


@dataclass
class _Emitter(ABC):
    functions: list[Callable[..., list[Any]]]
    nodes: Sequence[_Kept]
    env: dict[Any, Any]

    @abstractmethod
    def begin_recomputing(self, run: Sequence[int]) -> None:
        """Called before the nodes of `run` are computed again, one after another."""

    @abstractmethod
    def compute(self, k: int) -> None:
        """Compute node `k`, for the first time or again."""

    def deallocate(self, k: int) -> None:
        for v in self.nodes[k].outputs:
            if v not in self.nodes[k].results:
                del self.env[v]

    def store(self, k: int, values: Sequence[Any]) -> None:
        self.env.update(zip(self.nodes[k].outputs, values, strict=True))

    def tie(self, variables: Sequence[Any]) -> None:
        """Pass the values of `variables` through one barrier."""
        self.env.update(zip(variables, barrier(*(self.env[v] for v in variables)), strict=True))


@dataclass
class _CallEmitter(_Emitter):
    """One call a computed node, in a total order."""

    jitted: dict[int, Callable[..., list[Any]]] = field(default_factory=dict)
    last: int | None = None

    def begin_recomputing(self, run: Sequence[int]) -> None:
        """Nothing: a call is neither merged with another one nor moved."""

    def compute(self, k: int) -> None:
        node = self.nodes[k]
        self._follow_last(node)
        inputs = [self.env[v] for v in node.inputs]
        if node.effects:
            outputs = self.functions[k](*inputs)
        else:
            fun = self.jitted.setdefault(k, jax.jit(self.functions[k]))
            outputs = stage_call(fun, *inputs)
        self.store(k, outputs)
        self.last = k

    def _follow_last(self, node: _Kept) -> None:
        """Tie the smallest input of `node` to the smallest result of the node before, where no value does."""
        if self.last is None:
            return
        before = [v for v in self.nodes[self.last].outputs if v in self.env]
        if not before or not node.inputs or set(before) & set(node.inputs):
            return
        size = lambda v: bytes_of(v.aval)
        self.tie([min(node.inputs, key=size), min(before, key=size)])


@dataclass
class _InlineEmitter(_Emitter):
    """Free equations, and one barrier where each run of recomputation begins.

    What the run reads passes through it, so that it is not merged with the first computation, and so does what was
    computed since the barrier before, which therefore has to be there first: the run can start no earlier, and nothing
    from before it is put off. Backward nodes and recomputes have scalar constants of their own.
    """

    recent: dict[Any, None] = field(default_factory=dict)
    computed: set[int] = field(default_factory=set)

    def begin_recomputing(self, run: Sequence[int]) -> None:
        made: set[Any] = set()
        read: dict[Any, None] = {}
        for k in run:
            read |= {v: None for v in self.nodes[k].inputs if v not in made}
            made.update(self.nodes[k].outputs)
        self.tie([v for v in read | self.recent if v in self.env])
        self.recent = {}

    def compute(self, k: int) -> None:
        node = self.nodes[k]
        separate = node.transposed or k in self.computed
        fun = separate_function(node) if separate else self.functions[k]
        self.store(k, fun(*(self.env[v] for v in node.inputs)))
        self.recent |= dict.fromkeys(node.outputs)
        self.computed.add(k)
