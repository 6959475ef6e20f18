"""The optimal schedule by the mixed integer linear program of the Checkmate paper, eq. (9), solved with CBC.

Stages are frontier-advancing: R is lower triangular with unit diagonal, S strictly lower triangular, so the variables
above are not made at all. Free[t, k, k] is left out, as in section 4.8. Beyond the paper there is the workspace W that
a node needs while it runs, and nodes that must not be recomputed.
"""

from dataclasses import dataclass, replace

from .._graph import Graph
from .._schedule import Schedule
from ._mip import Mip
from ._request import Infeasible, Request
from ._scale import byte_scale, certified, cost_scale
from .heuristics import construct

__all__ = ["Formulation", "improve", "milp", "partitioned", "row_count", "unpartitioned"]

_SECONDS_PER_ROW = 5e-5  # to build it and hand it to the solver


@dataclass(frozen=True)
class Formulation:
    """Eq. (9) or eq. (1) for a graph and a budget: the program, and where its variables are.

    - `R[t, i]` (i <= t), `S[t, i]` (i < t), `U[t, k]` (k <= t), `Free[t, i, k]` (i in Deps[k], k <= t): indices. The
        restrictions in brackets are those of eq. (9); in eq. (1) every stage has every node, and the first keeps none.
    - `cost_unit`, `byte_unit`: what 1.0 in the objective and in U stands for.
    """

    graph: Graph
    mip: Mip
    R: dict[tuple[int, int], int]
    S: dict[tuple[int, int], int]
    U: dict[tuple[int, int], int]
    Free: dict[tuple[int, int, int], int]
    cost_unit: float
    byte_unit: float

    def start(self, schedule: Schedule) -> dict[int, float]:
        """The schedule as a point of the program."""
        n, point = self.graph.n, {}
        # A part that nothing reads need not be computed along, and then is not there until the stage ends.
        parts = (life for life in schedule.lifetimes if self.graph.part_of[life.node] is not None)
        unread = {divmod(life.start, n) for life in parts if life.start == life.end}
        for (t, i), x in self.R.items():
            point[x] = float(schedule.R[t, i] and (t == i or (t, i) not in unread))
        for (t, i), x in self.S.items():
            point[x] = float(schedule.S[t, i])
        for (t, k), x in self.U.items():
            absent = self.graph.memory[k] if t != k and (t, k) in unread else 0
            point[x] = (int(schedule.U[t, k]) - self.graph.constant - absent) / self.byte_unit
        for x in self.Free.values():
            point[x] = 0.0
        for life in schedule.lifetimes:
            t, k = divmod(life.end, n)
            if life.node != k:
                point[self.Free[t, life.node, k]] = 1.0
        return point

    def schedule(self, x: list[float]) -> Schedule:
        """The schedule that a point of the program stands for. Its S keeps only what is read."""
        again = ((t, i) for (t, i), variable in self.R.items() if t > i and x[variable] > 0.5)
        return Schedule(self.graph, tuple((t, i) for t, i in again if self.graph.part_of[i] is None))


def milp(graph: Graph, request: Request) -> Schedule | None:
    """Eq. (9), from the heuristic's schedule as incumbent, which is also what comes back if the solver fails."""
    heuristic_deadline = request.start + request.time_limit / 4
    incumbent = construct(graph, request.budget, seed=request.seed, deadline=heuristic_deadline)
    return improve(graph, request, incumbent)


def improve(graph: Graph, request: Request, incumbent: Schedule | None) -> Schedule | None:
    """The incumbent or a cheaper schedule, with the bound that eq. (9) proves.

    **Raises:** `Infeasible` if there is proved to be no schedule.
    """
    if incumbent is not None and incumbent.gap <= request.gap:
        return replace(incumbent, status="optimal")
    if row_count(graph) * _SECONDS_PER_ROW > request.remaining:
        return incumbent
    best, bound = incumbent, graph.total_cost
    # Rounded to integers, what the solver calls feasible may be a few bytes over: then leave it less.
    for allowance in (0.0, 1e-5):
        problem = partitioned(graph, request.budget, allowance)
        start = None if best is None or best.peak > (1 - allowance) * request.budget else problem.start(best)
        outcome = problem.mip.solve_cbc(request.remaining, gap=request.gap, seed=request.seed, start=start)
        if allowance == 0.0:
            if outcome.status == "infeasible" and incumbent is None:
                raise Infeasible
            bound = max(bound, certified(outcome, problem.cost_unit, request.gap))
        if outcome.x is None:
            break
        found = problem.schedule(outcome.x)
        if found.peak <= request.budget:
            best = found if best is None or found.cost < best.cost else best
            break
    if best is None:
        return None
    best = replace(best, bound=min(bound, best.cost), solver="milp")
    return replace(best, status="optimal" if best.gap <= request.gap else "feasible")


def row_count(graph: Graph) -> int:
    """About how many constraints eq. (9) has, without building it."""
    return graph.n * graph.n + 3 * graph.n * sum(map(len, graph.deps)) // 2


def partitioned(graph: Graph, budget: int, allowance: float = 0.0, *, exact: bool = False) -> Formulation:
    """Builds eq. (9). `allowance` is a fraction of the budget left unused; `exact`: no slack for tolerances."""
    return _build(graph, *byte_scale(graph, budget, allowance, exact=exact), frontier=True)


def unpartitioned(graph: Graph, budget: int, allowance: float = 0.0, *, exact: bool = False) -> Formulation:
    """Builds eq. (1) with the memory of section 4.4: (1d) and (1e) for each sink, in place of (8a-c)."""
    return _build(graph, *byte_scale(graph, budget, allowance, exact=exact), frontier=False)


def _build(graph: Graph, byte_unit: float, limit: float, *, frontier: bool) -> Formulation:
    n, mip = graph.n, Mip()
    cost_unit = cost_scale(graph)
    M = [memory / byte_unit for memory in graph.memory]
    R, S, U, Free = {}, {}, {}, {}
    for t in range(n):
        for i in range(t + 1 if frontier else n):
            R[t, i] = mip.binary(cost=graph.cost[i] / cost_unit)
            U[t, i] = mip.variable(0.0, limit + (0.0 if graph.inplace[i] is None else M[i]))
            if i < t or (t > 0 and not frontier):  # (8b), (1d)
                S[t, i] = mip.binary()
            if i < t and frontier and (not graph.recomputable[i] or graph.part_of[t] is not None):
                mip.fix(R[t, i], 0.0)
            for d in graph.deps[i]:
                Free[t, d, i] = mip.binary()
        if frontier:
            mip.fix(R[t, t], 1.0)  # (8a)
    for i, users in enumerate(graph.users):
        every = {R[t, i]: 1.0 for t in range(n) if (t, i) in R}
        if not frontier and not users:
            mip.row(every, ">", 1.0)  # (1e)
        if not frontier and not graph.recomputable[i]:
            mip.row(every, "=", 1.0)
    problem = Formulation(graph, mip, R, S, U, Free, cost_unit, byte_unit)
    _add_correctness(problem)
    _add_memory(problem, M, limit)
    _add_free(problem)
    return problem


def _add_correctness(problem: Formulation) -> None:
    """(1b) and (1c): what is computed has its dependencies, what is kept was there."""
    R, S, mip = problem.R, problem.S, problem.mip
    for t, j in R:
        for i in problem.graph.deps[j]:
            apart = problem.graph.part_of[j] is None or t == j  # a part may be first computed in its own, empty stage
            kept = {S[t, i]: -1.0} if (t, i) in S and apart else {}
            mip.row({R[t, j]: 1.0, R[t, i]: -1.0} | kept, "<", 0.0)
    for (t, i), kept in S.items():
        before = {S[t - 1, i]: -1.0} if (t - 1, i) in S else {}
        mip.row({kept: 1.0, R[t - 1, i]: -1.0} | before, "<", 0.0)


def _add_memory(problem: Formulation, M: list[float], limit: float) -> None:
    """(2), (3) and (4) without Free[t, k, k].

    U <= budget while a node runs, with its scratch and less what it is written over.
    """
    graph, R, S, U, Free, mip = problem.graph, problem.R, problem.S, problem.U, problem.Free, problem.mip
    for (t, k), used in U.items():
        if k == 0:
            before = {S[t, i]: -M[i] for i in range(graph.n) if M[i] and (t, i) in S}
        else:
            freed = {Free[t, i, k - 1]: M[i] for i in graph.deps[k - 1] if M[i]}
            before = {U[t, k - 1]: -1.0} | freed
        mip.row({used: 1.0, R[t, k]: -M[k]} | before, "=", 0.0)
        over = graph.inplace[k]
        if graph.scratch[k] or over is not None:
            saved = {} if over is None else {Free[t, over, k]: -M[k]}
            mip.row({used: 1.0, R[t, k]: graph.scratch[k] / problem.byte_unit} | saved, "<", limit)


def _add_free(problem: Formulation) -> None:
    """(7b) and (7c): Free[t, i, k] = 1 exactly if nothing speaks against freeing i once k is computed in stage t."""
    R, S, mip = problem.R, problem.S, problem.mip
    for (t, i, k), free in problem.Free.items():
        # num_hazards = (1 - R[t, k]) + S[t + 1, i] + sum over the later users j of i of R[t, j]
        hazards = {R[t, k]: -1.0}
        if t + 1 < problem.graph.n:
            hazards[S[t + 1, i]] = 1.0
        hazards |= {R[t, j]: 1.0 for j in problem.graph.users[i] if j > k and (t, j) in R}
        most = float(len(hazards))
        mip.row({free: 1.0} | hazards, ">", 0.0)
        mip.row({free: most} | hazards, "<", most - 1.0)
