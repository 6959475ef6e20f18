"""From a program and a budget to a plan whose compiled peak has been measured to fit.

The plain program is compiled first; where it fits, it is the plan. Otherwise: solve, rewrite, compile, measure. What
the measurement exceeds the budget by, the next round's budget is lower by. What never fits is told with the smallest
peak that was measured, and the same plan is found again when that is the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.extend.core as jex

from jaxremat._budget import Budget, budget_bytes
from jaxremat._cost import CostFunction, Workspace, costs
from jaxremat._errors import BudgetError
from jaxremat._graph import Graph
from jaxremat._partition import Node, dependencies, partition
from jaxremat._rewrite import rewrite
from jaxremat._schedule import Schedule, lifetimes
from jaxremat._target import Memory, Target, memory_of
from jaxremat._trace import Program, bytes_of, is_literal
from jaxremat.solvers import lowest_peak, solve

_ROUNDS = 5


@dataclass(frozen=True)
class Options:
    """How to plan; see `jaxremat.grad` for what each one means."""

    budget: Budget = "auto"
    solver: str = "auto"
    cost: str | CostFunction = "auto"
    target: str | None = None
    time_limit: float = 60.0
    gap: float = 1e-4
    progress: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Fitted:
    """A program that fits: its jaxpr, the schedule it follows, and what was measured."""

    graph: Graph
    schedule: Schedule
    jaxpr: jex.ClosedJaxpr
    compiled: Any
    memory: Memory
    plain_memory: Memory
    budget_bytes: int | None
    compiles: int


def graph_of(program: Program, nodes: tuple[Node, ...], target: Target, cost: str | CostFunction, measure: bool) -> Graph:
    """The graph of `nodes`; with `measure`, workspaces are compiled and measured, else they are left at 0."""
    results = frozenset(v for v in program.outvars if not is_literal(v))
    graph = Graph(
        names=[node.name for node in nodes],
        cost=costs(nodes, target, cost),
        memory=[sum(bytes_of(v.aval) for v in node.outputs if v not in results) for node in nodes],
        deps=dependencies(nodes),
        constant=program.argument_bytes + program.output_bytes,
        recomputable=[not node.effects for node in nodes],
    )
    if not measure:
        return graph
    workspace = Workspace(target, results | frozenset(program.invars))
    dying = _dying(graph, nodes)
    return Graph(
        graph.names,
        graph.cost,
        graph.memory,
        graph.deps,
        workspace=[workspace.bytes(node, dead) for node, dead in zip(nodes, dying, strict=True)],
        constant=graph.constant,
        recomputable=graph.recomputable,
    )


def _dying(graph: Graph, nodes: tuple[Node, ...]) -> list[frozenset[Any]]:
    """For each node, the inputs it is the last to read when nothing is recomputed."""
    last = {life.node: life.end for life in lifetimes(graph, ())}
    producer = {v: k for k, node in enumerate(nodes) for v in node.outputs}
    n = graph.n
    return [
        frozenset(v for v in node.inputs if v in producer and last[producer[v]] == k * n + k)
        for k, node in enumerate(nodes)
    ]


class _Fit:
    """One search for a plan: the program, what is known about it, and the count of compilations."""

    def __init__(self, program: Program, options: Options):
        self.program, self.options = program, options
        self.target = Target.of(options.target)
        self.say = options.progress or (lambda message: None)
        self.compiles = 0
        self.say("compiling the plain program")
        self.plain, self.plain_memory = self.compile(program.plain)
        self.budget = budget_bytes(options.budget, self.plain_memory.peak)
        self.nodes = partition(program)

    def compile(self, jaxpr: jex.ClosedJaxpr) -> tuple[Any, Memory]:
        self.compiles += 1
        compiled = self.target.compile(jex.jaxpr_as_fun(jaxpr), self.program.structs())
        return compiled, memory_of(compiled)

    def result(self, graph: Graph, schedule: Schedule, jaxpr: jex.ClosedJaxpr, compiled: Any, memory: Memory) -> Fitted:
        return Fitted(graph, schedule, jaxpr, compiled, memory, self.plain_memory, self.budget, self.compiles)

    def run(self) -> Fitted:
        if self.budget is None or self.plain_memory.peak <= self.budget:
            graph = graph_of(self.program, self.nodes, self.target, self.options.cost, measure=False)
            schedule = Schedule(graph, status="optimal", solver="plain")
            return self.result(graph, schedule, self.program.plain, self.plain, self.plain_memory)
        self.say(f"measuring the workspace of {len(self.nodes)} nodes")
        graph = graph_of(self.program, self.nodes, self.target, self.options.cost, measure=True)
        found = self.search(graph) or self.last_resort(graph)
        return found

    def attempt(self, graph: Graph, schedule: Schedule) -> Fitted:
        jaxpr = rewrite(self.program, self.nodes, schedule.statements, self.target.platform)
        compiled, memory = self.compile(jaxpr)
        self.say(f"planned {schedule.peak:,} bytes at overhead {schedule.overhead:.3f}, measured {memory.peak:,}")
        return self.result(graph, schedule, jaxpr, compiled, memory)

    def search(self, graph: Graph) -> Fitted | None:
        """Solve and measure until a plan fits, each time with a budget lower by what the last one exceeded it by."""
        assert self.budget is not None
        options, allowed = self.options, self.budget
        for _ in range(_ROUNDS):
            try:
                schedule = solve(graph, allowed, options.solver, options.time_limit, options.gap)
            except BudgetError:
                return None
            fitted = self.attempt(graph, schedule)
            if fitted.memory.peak <= self.budget:
                return fitted
            allowed = min(allowed, schedule.peak) - (fitted.memory.peak - self.budget)
        return None

    def last_resort(self, graph: Graph) -> Fitted:
        """The schedule of the lowest peak, if it fits; else the error that names the peak it reaches."""
        assert self.budget is not None
        schedule = replace(lowest_peak(graph, self.options.time_limit), solver="lowest_peak")
        lowest = self.attempt(graph, schedule)
        if lowest.memory.peak <= self.budget:
            return lowest
        reached = min(lowest.memory.peak, self.plain_memory.peak)
        node = schedule.peak_node
        operation = None if node is None else graph.names[node]
        held = self.program.argument_bytes + self.program.output_bytes
        detail = f"arguments and outputs alone take {held:,}" if held > self.budget else f"{operation} sets it"
        raise BudgetError(
            f"budget: nothing that fits {self.budget:,} bytes was found; the smallest budget that works is "
            f"{reached:,} bytes ({detail}; the plain program takes {self.plain_memory.peak:,})",
            minimum_bytes=reached,
            operation=operation,
        )


def fit(program: Program, options: Options) -> Fitted:
    """The cheapest program found whose measured peak is within the budget. Raises `BudgetError` if there is none."""
    return _Fit(program, options).run()
