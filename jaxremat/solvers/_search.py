"""What is known so far about one question: the best schedule and the certified bound."""

import math
import time
from dataclasses import replace

from .._graph import Graph
from .._schedule import Schedule
from ._request import Request

__all__ = ["Search"]


class Search:
    """The state of a search: the incumbent, which only gets cheaper, and the bound, which only rises."""

    def __init__(self, graph: Graph, request: Request):
        self.graph, self.request = graph, request
        self.best: Schedule | None = None
        self.bound = graph.total_cost
        self._integral = all(cost.is_integer() for cost in graph.cost) and graph.total_cost < 2**50

    def offer(self, schedule: Schedule | None) -> bool:
        """Takes the schedule if it fits and is cheaper than the incumbent; says whether."""
        if schedule is None or schedule.peak > self.request.budget:
            return False
        if self.best is not None and schedule.cost >= self.best.cost:
            return False
        self.best = schedule
        if self.request.progress is not None:
            self.request.progress(self.certified(schedule, schedule.solver))
        return True

    def raise_bound(self, bound: float) -> None:
        """Takes a certified lower bound on the cost. Where all costs are whole numbers, so is the optimum."""
        if self._integral and math.isfinite(bound):
            bound = math.ceil(bound - 1e-6 * max(1.0, abs(bound) * 1e-3))
        self.bound = max(self.bound, bound)

    @property
    def gap(self) -> float:
        """(cost - bound) / cost; infinite without an incumbent."""
        if self.best is None:
            return math.inf
        return max(0.0, (self.best.cost - self.bound) / self.best.cost) if self.best.cost > 0 else 0.0

    @property
    def over(self) -> bool:
        """Whether the gap is closed, the cost is enough or cannot become so, or the time is up."""
        enough = self.request.enough
        if enough > -math.inf and (self.bound > enough or (self.best is not None and self.best.cost <= enough)):
            return True
        return self.gap <= self.request.gap or time.monotonic() >= self.request.deadline

    def certified(self, schedule: Schedule, solver: str) -> Schedule:
        """The schedule with what is known about the optimum."""
        schedule = replace(schedule, bound=min(self.bound, schedule.cost), solver=solver)
        return replace(schedule, status="optimal" if schedule.gap <= self.request.gap else "feasible")

    def result(self, solver: str) -> Schedule | None:
        """The incumbent with the bound and its status, None if there is no incumbent."""
        return None if self.best is None else self.certified(self.best, solver)
