"""Schedules without a solver: lower the peak, eviction by eviction, until the budget holds; then prune.

Start from keeping everything. While the peak exceeds the budget, take the compute where it does so most, and among the
values that live across it unread pick one to evict: it is freed after its last use before and computed again in the
stage of its next use. Dependencies that are dead by then are kept longer where that fits and recomputed too where not.
The pick is the least cost per byte-of-excess relieved, along the whole gap. What turns out superfluous is pruned.
"""

import math
import random
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from .._graph import Graph
from .._schedule import Schedule
from ._profile import Profile

__all__ = ["construct", "lower_peak", "lowest_peak", "prune"]


@dataclass(frozen=True)
class Eviction:
    """Recompute `nodes` (ascending) in stage `stage`, which relieves the peak at `score` cost per byte of excess."""

    score: float
    stage: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Style:
    """What makes one run of the heuristic differ from another.

    - `exponent`: weight of the relief against the cost in the score.
    - `noise`: width of the random factor on each score (log-normal).
    - `keep`: fraction of an eviction's relief that dependencies kept longer for it must leave.
    - `price`: cost added to each recompute, as a fraction of the mean cost, so that free ones are not limitless.
    """

    exponent: float = 1.0
    noise: float = 0.0
    keep: float = 0.0
    price: float = 1e-3


@dataclass(frozen=True)
class Descent:
    """Where a run of `lower_peak` ended: the recomputes in the order made, and the smallest peak on the way."""

    pairs: tuple[tuple[int, int], ...]
    peak: int
    fits: bool


def lower_peak(graph: Graph, budget: int, style: Style, rng: random.Random, deadline: float = math.inf) -> Descent:
    """One greedy descent from the keep-everything schedule towards `budget` bytes."""
    profile = Profile(graph)
    made: list[tuple[int, int]] = []
    best_peak, best_length = profile.peak, 0
    price = style.price * graph.total_cost / max(1, graph.n) or 1.0
    while best_peak > budget and time.monotonic() < deadline:
        eviction = _cheapest_eviction(profile, budget, price, style, rng)
        if eviction is None:
            break
        for i in eviction.nodes:
            profile.add(eviction.stage, i)
            made.append((eviction.stage, i))
        peak = profile.peak
        if peak < best_peak:
            best_peak, best_length = peak, len(made)
    return Descent(tuple(made[:best_length]), best_peak, best_peak <= budget)


def _cheapest_eviction(
    profile: Profile, budget: int, price: float, style: Style, rng: random.Random
) -> Eviction | None:
    graph, n, memory = profile.graph, profile.graph.n, profile.memory
    worst = int(memory.argmax())
    key = profile.keys[worst]
    excess = np.maximum(memory - budget, 0)
    best: Eviction | None = None
    for i in range(min(n, key // n + 1)):
        size = graph.memory[i]
        if size == 0 or not graph.recomputable[i] or i * n + i >= key:
            continue
        _, before, after = profile.life(i, key)
        if after is None or after == key:
            continue
        stage = after // n
        again = stage * n + i
        if again <= key:
            continue
        gap = slice(bisect_right(profile.keys, before), bisect_left(profile.keys, again))
        most = float(np.minimum(excess[gap], size).sum())
        factor = math.exp(style.noise * rng.gauss(0.0, 1.0)) if style.noise else 1.0
        if best is not None and factor * (graph.cost[i] + price) / most**style.exponent >= best.score:
            continue
        # Memory if i is evicted, to which the closure adds what it keeps longer, and how far that may go: nowhere over
        # the budget, or where it is exceeded already, not by more than a fraction of what the eviction relieves.
        after_it, ceiling = memory.copy(), np.maximum(memory, budget)
        after_it[gap] -= size
        ceiling[gap] = np.maximum(memory[gap] - int(style.keep * size), budget)
        nodes = _closure(profile, i, stage, after_it, ceiling)
        if nodes is None:
            continue
        relief = float((excess - np.maximum(after_it - budget, 0)).sum())
        if relief <= 0:
            continue
        score = factor * sum(graph.cost[j] + price for j in nodes) / relief**style.exponent
        if best is None or score < best.score:
            best = Eviction(score, stage, tuple(sorted(nodes)))
    return best


def _closure(profile: Profile, i: int, stage: int, memory: np.ndarray, ceiling: np.ndarray) -> set[int] | None:
    """What must be recomputed in `stage` for node i to be; None if that is impossible.

    Dependencies that are dead by then are kept until then where `memory`, which this updates, stays below `ceiling`.
    """
    graph, n, keys = profile.graph, profile.graph.n, profile.keys
    nodes, stack = {i}, [i]
    kept: dict[int, int] = {}
    while stack:
        k = stack.pop()
        at = stage * n + k
        for d in graph.deps[k]:
            start, end, after = profile.life(d, at)
            end = max(end, kept.get(d, end))
            size = graph.memory[d]
            if d in nodes or after is not None or end >= at:
                continue
            span = slice(bisect_right(keys, end), bisect_left(keys, at))
            # Once a stage: what this stage has computed before can only be kept.
            if span.start >= span.stop or start // n == stage or int((memory[span] - ceiling[span]).max()) + size <= 0:
                memory[span] += size
                kept[d] = at
                continue
            if not graph.recomputable[d]:
                return None
            nodes.add(d)
            stack.append(d)
    return nodes


def prune(profile: Profile, budget: int) -> None:
    """Drops recomputes, dearest first, as long as the budget holds, until none can be dropped."""
    cost = profile.graph.cost
    dropped = True
    while dropped:
        dropped = False
        for t, i in sorted(profile.pairs, key=lambda pair: (-cost[pair[1]], -pair[0], -pair[1])):
            profile.remove(t, i)
            if profile.peak > budget:
                profile.add(t, i)
            else:
                dropped = True


def styles(count: int, rng: random.Random) -> list[Style]:
    """The runs of the heuristic: the plainest first, then noisy ones."""
    fixed = [Style(), Style(keep=0.5), Style(0.7), Style(0.5), Style(0.7, keep=0.9), Style(1.4), Style(0.5, keep=0.5)]
    while len(fixed) < count:
        keep = rng.choice([0.0, 0.0, 0.1, 0.5, 0.9])
        fixed.append(Style(rng.uniform(0.4, 1.4), rng.choice([0.1, 0.3, 0.6]), keep, rng.choice([1e-3, 0.1, 0.5])))
    return fixed[:count]


def construct(graph: Graph, budget: int, *, seed: int = 0, deadline: float = math.inf) -> Schedule | None:
    """The best schedule within `budget` bytes that a few runs of the heuristic find; None if they find none."""
    if graph.peak <= budget:
        return Schedule(graph, status="optimal", solver="heuristic")
    if graph.floor > budget:
        return None
    rng = random.Random(seed)
    best: Schedule | None = None
    for style in styles(_runs(graph.n), rng):
        if time.monotonic() >= deadline:
            break
        descent = lower_peak(graph, budget, style, rng, deadline)
        if descent.fits:
            best = _cheaper(best, _pruned(graph, descent, budget))
    return best


def lowest_peak(graph: Graph, *, seed: int = 0, deadline: float = math.inf) -> Schedule:
    """The schedule with the smallest peak that the heuristic reaches: bisection on the budget."""
    rng = random.Random(seed)
    low, best = graph.floor, Descent((), graph.peak, True)
    for style in styles(3, rng):
        best = min(best, lower_peak(graph, low, style, rng, deadline), key=lambda descent: descent.peak)
    while best.peak - low > max(1, graph.peak // 500) and time.monotonic() < deadline:
        middle = (low + best.peak) // 2
        tries = [lower_peak(graph, middle, style, rng, deadline) for style in styles(3, rng)]
        found = min(tries, key=lambda descent: descent.peak)
        low = low if found.peak <= middle else middle
        best = min(best, found, key=lambda descent: descent.peak)
    return _pruned(graph, best, best.peak)


def _runs(n: int) -> int:
    """How many runs are worth their time: about a second's worth, however large the graph."""
    return max(3, min(24, 2000 // max(1, n)))


def _pruned(graph: Graph, descent: Descent, budget: int) -> Schedule:
    profile = Profile(graph, descent.pairs)
    prune(profile, budget)
    return Schedule(graph, tuple(profile.pairs), solver="heuristic")


def _cheaper(a: Schedule | None, b: Schedule) -> Schedule:
    return b if a is None or b.cost < a.cost else a
