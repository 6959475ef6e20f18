"""From a program and a budget to a plan whose compiled peak has been measured to fit.

The plain program is compiled first; where it fits, it is the plan. Otherwise: solve, rewrite, compile, measure. What
the measurement exceeds the budget by, the next round's budget is lower by, and what it leaves unused, higher. What
never fits is told with the smallest peak that was measured, and the same plan is found again when that is the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import jax.extend.core as jex

from jaxremat._budget import Budget, budget_bytes
from jaxremat._buffers import buffers_of, in_use
from jaxremat._cost import CostFunction
from jaxremat._errors import BudgetError, PlanMismatchError
from jaxremat._graph import Graph
from jaxremat._kernels import Kernels, describe, kernels
from jaxremat._merge import fewer_stages
from jaxremat._plan import Plan
from jaxremat._rewrite import rewrite
from jaxremat._schedule import Schedule
from jaxremat._target import Compiled, Target
from jaxremat._trace import Program
from jaxremat.solvers import lowest_peak, solve

_ROUNDS = 6
_LAST_RESORT = 10.0  # seconds at least for the schedule of the lowest peak, however little time a solver was given
_SLACK = 0.02  # of the budget left unused, above which a dearer plan than need be is suspected


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
    """A plan and the compiled program that follows it."""

    plan: Plan
    compiled: Compiled

    @property
    def peak(self) -> int:
        """Measured, in bytes."""
        assert self.plan.measured_peak_bytes is not None
        return self.plan.measured_peak_bytes


def fit(program: Program, options: Options) -> Fitted:
    """The cheapest program found whose measured peak is within the budget. Raises `BudgetError` if there is none."""
    return _Fit(program, options).run()


def follow(program: Program, plan: Plan) -> Fitted:
    """The program that a plan made before stands for. Raises `PlanMismatchError` if it was made for another one."""
    plan.check(program)
    target = Target.of(plan.target)
    if plan.plain:
        jaxpr = program.plain
    else:
        nodes = kernels(program, target).nodes
        if tuple(node.name for node in nodes) != plan.graph.names:
            raise PlanMismatchError(
                "plan: this compiler makes other kernels of the program than the plan is for; plan again"
            )
        jaxpr = rewrite(program, nodes, plan.schedule.statements, target.platform)
    compiled = target.compile(jex.jaxpr_as_fun(jaxpr), program.structs(), program.donated)
    return Fitted(replace(plan, rewritten=jaxpr, measured_peak_bytes=compiled.memory.peak), compiled)


class _Fit:
    """One search for a plan: the program, what is known about it, and the count of compilations."""

    def __init__(self, program: Program, options: Options):
        self.program, self.options = program, options
        self.target = Target.of(options.target)
        self.say = options.progress or (lambda message: None)
        self.compiles = 0
        self.say("compiling the plain program")
        self.plain = self.compile(program.plain)
        self.budget = budget_bytes(options.budget, self.plain.memory.peak, self.target.memory)
        self.limit = self.plain.memory.peak if self.budget is None else self.budget

    @cached_property
    def kernels(self) -> Kernels:
        return kernels(self.program, self.target)

    @property
    def constant(self) -> int:
        """Bytes of arguments and results, which are held whatever the schedule."""
        plain = self.plain.memory
        return plain.arguments + plain.outputs - plain.aliased

    def graph(self, measure: bool) -> Graph:
        cost = self.options.cost
        described = describe(self.program, self.kernels, self.target, cost, measure=measure, constant=self.constant)
        return Graph(**described)

    def predicted(self, schedule: Schedule) -> int:
        """Bytes that the program of a schedule is expected to take."""
        if not self.kernels.read:
            return schedule.peak
        buffers = buffers_of(schedule, self.kernels, self.program.results)
        return self.constant + in_use(buffers, self.target.platform)

    def solve(self, graph: Graph, allowed: int) -> Schedule:
        """The cheapest schedule found that is predicted to take at most `allowed` bytes. Raises `BudgetError`."""
        options = self.options
        schedule = solve(graph, allowed, options.solver, options.time_limit, options.gap)
        return schedule if self.target.platform == "cpu" else fewer_stages(schedule, allowed)

    def compile(self, jaxpr: jex.ClosedJaxpr) -> Compiled:
        self.compiles += 1
        return self.target.compile(jex.jaxpr_as_fun(jaxpr), self.program.structs(), self.program.donated)

    def fitted(self, schedule: Schedule, jaxpr: jex.ClosedJaxpr, compiled: Compiled) -> Fitted:
        plain = self.plain.memory.peak
        plan = Plan(
            schedule.graph,
            schedule,
            budget_bytes=self.budget,
            plain_peak_bytes=plain,
            predicted_peak_bytes=plain if compiled is self.plain else self.predicted(schedule),
            measured_peak_bytes=compiled.memory.peak,
            target=self.target.name,
            fingerprint=self.program.fingerprint,
            compiles=self.compiles,
            rewritten=jaxpr,
        )
        return Fitted(plan, compiled)

    def run(self) -> Fitted:
        if self.plain.memory.peak <= self.limit:
            schedule = Schedule(self.graph(measure=False), status="optimal", solver="plain")
            return self.fitted(schedule, self.program.plain, self.plain)
        self.say("reading what the program materialises, and measuring it")
        graph = self.graph(measure=self.target.chip is None)
        found = self.search(graph) or self.last_resort(graph)
        return Fitted(replace(found.plan, compiles=self.compiles), found.compiled)

    def attempt(self, graph: Graph, schedule: Schedule) -> Fitted:
        jaxpr = rewrite(self.program, self.kernels.nodes, schedule.statements, self.target.platform)
        compiled = self.compile(jaxpr)
        self.say(
            f"planned {schedule.peak:,} bytes at overhead {schedule.overhead:.3f}, measured {compiled.memory.peak:,}"
        )
        return self.fitted(schedule, jaxpr, compiled)

    def search(self, graph: Graph) -> Fitted | None:
        """Solve and measure for a budget that follows the measurements, and keep the cheapest plan that fits."""
        best = None
        allowed, too_much = self.limit, max(self.limit, self.plain.memory.peak) + 1
        tried: set[tuple[tuple[int, int], ...]] = set()
        for _ in range(_ROUNDS):
            try:
                schedule = self.solve(graph, allowed)
            except BudgetError:
                break
            if schedule.pairs in tried:
                break
            tried.add(schedule.pairs)
            fitted = self.attempt(graph, schedule)
            slack = self.limit - fitted.peak
            if slack >= 0:
                best = min(best or fitted, fitted, key=lambda found: found.plan.overhead)
                if not schedule.pairs or slack < _SLACK * self.limit:
                    break
                allowed = min(max(allowed, fitted.plan.predicted_peak_bytes) + slack, (allowed + too_much) // 2)
            elif best is not None:
                break
            else:
                too_much = min(allowed, fitted.plan.predicted_peak_bytes)
                allowed = too_much + slack
        return best

    def last_resort(self, graph: Graph) -> Fitted:
        """The schedule of the lowest peak, if it fits; else the error that names the peak it reaches."""
        seconds = max(_LAST_RESORT, self.options.time_limit)
        schedule = replace(lowest_peak(graph, seconds), solver="lowest_peak")
        lowest = self.attempt(graph, schedule)
        if lowest.peak <= self.limit:
            return lowest
        plain = self.plain.memory.peak
        reached = min(lowest.peak, plain)
        operation = None if schedule.peak_node is None else graph.names[schedule.peak_node]
        held = self.program.argument_bytes + self.program.output_bytes
        detail = f"arguments and outputs alone take {held:,}" if held > self.limit else f"{operation} sets it"
        raise BudgetError(
            f"budget: nothing that fits {self.limit:,} bytes was found; the smallest budget found to work is "
            f"{reached:,} bytes ({detail}; the plain program takes {plain:,})",
            minimum_bytes=reached,
            operation=operation,
        )
