"""From a program and a budget to a plan whose compiled peak has been measured to fit.

The plain program is compiled first; where it fits, it is the plan. Otherwise: solve, rewrite, compile, measure. What
the measurement exceeds the budget by, the next round's budget is lower by, and what it leaves unused, higher. What
never fits is told with the smallest peak that was measured, and the same plan is found again when that is the budget.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax.extend.core as jex

from jaxremat._budget import Budget, budget_bytes
from jaxremat._buffers import buffers_of, in_use
from jaxremat._cost import CostFunction, Costs, costs
from jaxremat._errors import BudgetError, PlanMismatchError
from jaxremat._graph import Graph
from jaxremat._kernels import Kernels, describe, kernels, nodes_at
from jaxremat._loops import Choices, rungs
from jaxremat._merge import fewer_stages
from jaxremat._pairs import Pair, pairs
from jaxremat._plan import Plan
from jaxremat._rewrite import rewrite
from jaxremat._scans import chosen
from jaxremat._schedule import Schedule
from jaxremat._target import Compiled, Target
from jaxremat._trace import Program
from jaxremat.solvers import lowest_peak, solve

_ROUNDS = 6
_LAST_RESORT = 10.0  # seconds at least for the schedule of the lowest peak, however little time a solver was given
_JUMPS = 4  # from one variant of the loops to another by what their stacks take, before bisection
_LAST = 4  # variants of the loops, to find the one of the lowest peak among
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
        program = chosen(program, pairs(program), plan.loops)
        nodes = nodes_at(program, plan.ends)
        if tuple(node.name for node in nodes) != plan.graph.names:
            raise PlanMismatchError("plan: it has other nodes than this version makes of the program; plan again")
        jaxpr = rewrite(program, nodes, plan.schedule.statements, target.platform)
    compiled = target.compile(jex.jaxpr_as_fun(jaxpr), program.structs(), program.donated)
    return Fitted(replace(plan, rewritten=jaxpr, measured_peak_bytes=compiled.memory.peak), compiled)


class _Fit:
    """One search for a plan: what is known about the plain program, and the count of compilations."""

    def __init__(self, program: Program, options: Options):
        self.program, self.options = program, options
        self.target = Target.of(options.target)
        self.say = options.progress or (lambda message: None)
        self.compiles = 0
        self.say("compiling the plain program")
        self.plain = self.compile(program.plain)
        self.budget = budget_bytes(options.budget, self.plain.memory.peak, self.target.memory)
        self.limit = self.plain.memory.peak if self.budget is None else self.budget

    @property
    def constant(self) -> int:
        """Bytes of arguments and results, which are held whatever the schedule."""
        plain = self.plain.memory
        return plain.arguments + plain.outputs - plain.aliased

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        return pairs(self.program)

    @cached_property
    def plain_variant(self) -> _Variant:
        return _Variant(self)

    def compile(self, jaxpr: jex.ClosedJaxpr) -> Compiled:
        self.compiles += 1
        return self.target.compile(jex.jaxpr_as_fun(jaxpr), self.program.structs(), self.program.donated)

    def fitted(
        self,
        schedule: Schedule,
        jaxpr: jex.ClosedJaxpr,
        compiled: Compiled,
        predicted: int,
        variant: _Variant,
    ) -> Fitted:
        loops, price = variant.loops, variant.price
        plain_cost = math.fsum(self.plain_variant.price.each) if loops else schedule.graph.total_cost
        plan = Plan(
            schedule.graph,
            schedule,
            budget_bytes=self.budget,
            plain_peak_bytes=self.plain.memory.peak,
            predicted_peak_bytes=predicted,
            measured_peak_bytes=compiled.memory.peak,
            target=self.target.name,
            fingerprint=self.program.fingerprint,
            plain_cost=plain_cost,
            cost_source=price.source,
            ends=variant.kernels.ends,
            notes=variant.notes,
            compiles=self.compiles,
            loops=loops,
            rewritten=jaxpr,
        )
        return Fitted(plan, compiled)

    def run(self) -> Fitted:
        peak = self.plain.memory.peak
        if peak <= self.limit:
            variant = _Variant(self, timing=False)
            schedule = Schedule(variant.graph_of(measure=False), status="optimal", solver="plain")
            return self.fitted(schedule, self.program.plain, self.plain, peak, variant)
        self.say("reading what the program materialises, and measuring it")
        found = rungs(self.pairs, self.target, self.options.cost, self.options.progress)
        variants = [_Variant(self, loops) for loops in found]
        start = self.cheapest(variants)
        found = next((f for variant in variants[start:] if (f := variant.search())), None)
        found = found or self.roomiest(variants).last_resort()
        return Fitted(replace(found.plan, compiles=self.compiles), found.compiled)

    def cheapest(self, variants: Sequence[_Variant]) -> int:
        """Which of ever dearer variants to start with: the cheapest one by what its schedule is predicted to cost.

        That is one that fits without further recomputes, or one before it that the solver makes fit for less.
        """
        best = self.first_that_fits(variants)
        while best > 0 and variants[best - 1].cost <= variants[best].cost < math.inf:
            best -= 1
        return best

    def roomiest(self, variants: Sequence[_Variant]) -> _Variant:
        """The variant of the last few that leaves the most room: the smallest stacks may cost more than they save."""
        return min(variants[-_LAST:], key=lambda variant: variant.all_kept)

    def first_that_fits(self, variants: Sequence[_Variant]) -> int:
        """The cheapest variant that is predicted to fit without further recomputes, or the last one.

        What all stacks take says how far to go at once from a variant whose prediction is known.
        """
        good, bad, at = len(variants) - 1, -1, 0
        for step in range(len(variants)):
            if at >= good:
                break
            variant = variants[at]
            excess = variant.all_kept - self.limit
            good, bad = (at, bad) if excess <= 0 else (good, at)
            stacks = variant.stacks - excess
            ahead = bisect_left(variants, -stacks, key=lambda v: -v.stacks) if step < _JUMPS else (bad + good) // 2
            at = max(bad + 1, min(ahead, good - 1))
        return good


class _Variant:
    """The program with its loops run in one way, written when it is first asked for."""

    def __init__(self, fit: _Fit, loops: Choices = (), timing: bool = True):
        self.fit, self.loops, self.timing = fit, loops, timing
        self.options, self.target, self.limit, self.say = fit.options, fit.target, fit.limit, fit.say

    @cached_property
    def program(self) -> Program:
        return chosen(self.fit.program, self.fit.pairs, self.loops)

    @property
    def stacks(self) -> int:
        """Bytes that its loops keep."""
        return sum(choice.bytes for choice in self.loops)

    @cached_property
    def kernels(self) -> Kernels:
        return kernels(self.program, self.target)

    @cached_property
    def graph(self) -> Graph:
        return self.graph_of(measure=self.target.chip is None)

    @cached_property
    def price(self) -> Costs:
        """What its nodes cost; without `timing`, nothing is run to know it."""
        timed = self.timing or self.options.cost not in ("auto", "profile")
        found, cost = self.kernels, self.options.cost if timed else "xla"
        return costs(found.nodes, self.target, cost, found.seconds, self.options.progress)

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be done as it was meant to be."""
        notes = []
        if self.kernels.fallback:
            notes.append(f"nodes follow rules, as the compiled program could not be read: {self.kernels.fallback}")
        if names := self.price.estimated:
            some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            notes.append(f"{len(names)} of {len(self.kernels.nodes)} nodes cannot be timed alone, estimated: {some}")
        return tuple(notes)

    def graph_of(self, *, measure: bool) -> Graph:
        price, constant = self.price, self.fit.constant
        return Graph(**describe(self.program, self.kernels, self.target, price, measure=measure, constant=constant))

    @property
    def cost(self) -> float:
        """Of the schedule for the budget; infinite where none is found."""
        return math.inf if self.at_limit is None else self.at_limit.cost

    @cached_property
    def at_limit(self) -> Schedule | None:
        """The schedule for the budget."""
        return self.solve(self.limit)

    @cached_property
    def all_kept(self) -> int:
        """Bytes that it is expected to take without further recomputes."""
        return self.predicted(Schedule(self.graph))

    def predicted(self, schedule: Schedule) -> int:
        """Bytes that the program of a schedule is expected to take."""
        buffers = buffers_of(schedule, self.kernels, self.program.results)
        return self.fit.constant + in_use(buffers, self.target.platform)

    def solve(self, allowed: int) -> Schedule | None:
        """The cheapest schedule found that is predicted to take at most `allowed` bytes."""
        options = self.options
        try:
            schedule = solve(self.graph, allowed, options.solver, options.time_limit, options.gap)
        except BudgetError:
            return None
        return schedule if self.target.platform == "cpu" else fewer_stages(schedule, allowed)

    def attempt(self, schedule: Schedule) -> Fitted:
        jaxpr = rewrite(self.program, self.kernels.nodes, schedule.statements, self.target.platform)
        compiled, predicted = self.fit.compile(jaxpr), self.predicted(schedule)
        fitted = self.fit.fitted(schedule, jaxpr, compiled, predicted, self)
        self.say(f"planned {predicted:,} bytes at overhead {fitted.plan.overhead:.3f}, measured {fitted.peak:,}")
        return fitted

    def search(self) -> Fitted | None:
        """Solve and measure for a budget that follows the measurements, and keep the cheapest plan that fits."""
        best = None
        allowed, too_much = self.limit, max(self.limit, self.fit.plain.memory.peak) + 1
        tried: set[tuple[tuple[int, int], ...]] = set()
        for _ in range(_ROUNDS):
            schedule = self.at_limit if allowed == self.limit else self.solve(allowed)
            if schedule is None or schedule.pairs in tried:
                break
            tried.add(schedule.pairs)
            fitted = self.attempt(schedule)
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

    def last_resort(self) -> Fitted:
        """The schedule of the lowest peak, if it fits; else the error that names the peak it reaches."""
        seconds, graph = max(_LAST_RESORT, self.options.time_limit), self.graph
        schedule = replace(lowest_peak(graph, seconds), solver="lowest_peak")
        lowest = self.attempt(schedule)
        if lowest.peak <= self.limit:
            return lowest
        plain = self.fit.plain.memory.peak
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
