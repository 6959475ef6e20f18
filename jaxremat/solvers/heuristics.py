"""Schedules without a solver: lower the peak, eviction by eviction, until the budget holds; then prune.

Start from keeping everything. While the peak exceeds the budget, take the compute where it does so most, and among the
values that live across it unread pick one to evict: it is freed after its last use before and computed again in the
stage of its next use. Dependencies that are dead by then are kept longer where that fits and recomputed too where not.
The pick is the least cost per byte-of-excess relieved, along the whole gap. What turns out superfluous is pruned.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .._graph import Graph
from .._schedule import Schedule
from ._profile import Profile

__all__ = [
    "Style",
    "cheaper",
    "construct",
    "lower_peak",
    "lowest_peak",
    "prune",
    "prune_pairs",
    "pruned",
    "random_style",
    "repaired",
    "styles",
]

_PATIENCE = 100  # evictions, and n / 8 more, that may fail to lower the peak before a descent is given up


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


def lower_peak(
    graph: Graph,
    budget: int,
    style: Style,
    rng: np.random.Generator,
    deadline: float = math.inf,
    pairs: Iterable[tuple[int, int]] = (),
) -> Descent:
    """One greedy descent towards `budget` bytes, from the schedule of `pairs`; by default that is keep-everything."""
    made = list(pairs)
    profile = Profile(graph, made)
    best_peak, best_length = profile.peak, len(made)
    price = style.price * graph.total_cost / max(1, graph.n) or 1.0
    stalled = 0
    while best_peak > budget and stalled < _PATIENCE + graph.n // 8 and time.monotonic() < deadline:
        eviction = _cheapest_eviction(profile, budget, price, style, rng)
        if eviction is None:
            break
        for i in eviction.nodes:
            profile.add(eviction.stage, i)
            made.append((eviction.stage, i))
        peak = profile.peak
        stalled += 1
        if peak < best_peak:
            best_peak, best_length, stalled = peak, len(made), 0
    return Descent(tuple(made[:best_length]), best_peak, best_peak <= budget)


@dataclass(frozen=True)
class Candidates:
    """The values that live across the peak without being read there, the most promising first.

    Value `node[c]` could be freed before position `first[c]` of the profile and computed again in stage `stage[c]`, at
    position `last[c]`, for a score that is at least `least[c]`; `factor[c]` is its share of noise.
    """

    node: np.ndarray
    stage: np.ndarray
    first: np.ndarray
    last: np.ndarray
    factor: np.ndarray
    least: np.ndarray


def _candidates(
    profile: Profile, excess: np.ndarray, price: float, style: Style, rng: np.random.Generator
) -> Candidates:
    n, keys = profile.graph.n, np.array(profile.keys)
    key = keys[int(profile.memory.argmax())]
    node, start, end = profile.gaps()
    again = end - end % n + node
    chosen = np.flatnonzero((start < key) & (again > key) & profile.evictable[node])
    node, start, again = node[chosen], start[chosen], again[chosen]
    first, last = np.searchsorted(keys, start, "right"), np.searchsorted(keys, again, "left")
    # The relief at most: the sum over the gap of min(excess, bytes). Only where there is excess does it count.
    over = np.flatnonzero(excess)
    sums = np.zeros((len(node), len(over) + 1))
    np.cumsum(np.minimum(excess[over], profile.bytes[node][:, None]), axis=1, out=sums[:, 1:])
    rows = np.arange(len(node))
    most = sums[rows, np.searchsorted(over, last)] - sums[rows, np.searchsorted(over, first)]
    factor = np.exp(style.noise * rng.standard_normal(len(node))) if style.noise else np.ones(len(node))
    least = factor * (profile.cost[node] + price) / most**style.exponent
    order = np.argsort(least, kind="stable")
    return Candidates(*(a[order] for a in (node, again // n, first, last, factor, least)))


def _cheapest_eviction(
    profile: Profile, budget: int, price: float, style: Style, rng: np.random.Generator
) -> Eviction | None:
    graph, memory = profile.graph, profile.memory
    excess = np.maximum(memory - budget, 0)
    highest = np.maximum(memory, budget)
    total = int(excess.sum())
    found = _candidates(profile, excess, price, style, rng)
    best: Eviction | None = None
    for i, stage, first, last, factor, least in zip(*(a.tolist() for a in vars(found).values()), strict=True):
        if best is not None and least >= best.score:
            break
        # Memory if i is evicted, to which the closure adds what it keeps longer, and how far that may go: nowhere over
        # the budget, or where it is exceeded already, not by more than a fraction of what the eviction relieves.
        size = graph.memory[i]
        after_it, ceiling = memory.copy(), highest.copy()
        after_it[first:last] -= size
        np.maximum(memory[first:last] - int(style.keep * size), budget, out=ceiling[first:last])
        # The relief is at most what `least` counts on, so a closure that costs more than this is no use.
        dearest = math.inf if best is None else best.score / least * (graph.cost[graph.makers[i]] + price)
        nodes = _closure(profile, i, stage, after_it, ceiling, price, dearest)
        if nodes is None:
            continue
        relief = total - int(np.maximum(after_it - budget, 0).sum())
        if relief <= 0:
            continue
        score = factor * sum(graph.cost[j] + price for j in nodes) / relief**style.exponent
        if best is None or score < best.score:
            best = Eviction(score, stage, tuple(sorted(nodes)))
    return best


def _closure(
    profile: Profile, i: int, stage: int, memory: np.ndarray, ceiling: np.ndarray, price: float, dearest: float
) -> set[int] | None:
    """What must be recomputed in `stage` for value i to be; None if that is impossible or as costly as `dearest`.

    Dependencies that are dead by then are kept until then where `memory`, which this updates, stays below `ceiling`.
    """
    graph, n, keys, makers = profile.graph, profile.graph.n, profile.keys, profile.graph.makers
    nodes, stack, cost = {makers[i]}, [makers[i]], graph.cost[makers[i]] + price
    kept: dict[int, int] = {}
    while stack:
        k = stack.pop()
        at = stage * n + k
        for d in graph.deps[k]:
            if makers[d] in nodes:
                continue
            start, end, after = profile.life(d, at)
            end = max(end, kept.get(d, end))
            if after is not None or end >= at:
                continue
            size = graph.memory[d]
            first, last = profile.position_after(d, end), bisect_left(keys, at)
            # Once a stage: what this stage has computed before can only be kept.
            if (
                first >= last
                or start // n == stage
                or int((memory[first:last] - ceiling[first:last]).max()) + size <= 0
            ):
                memory[first:last] += size
                kept[d] = at
                continue
            cost += graph.cost[makers[d]] + price
            if not graph.recomputable[d] or cost >= dearest:
                return None
            nodes.add(makers[d])
            stack.append(makers[d])
    return nodes


def prune(profile: Profile, budget: int, deadline: float = math.inf) -> None:
    """Drops recomputes, dearest first, as long as the budget holds, until none can be dropped or the time is up."""
    cost = profile.graph.cost
    dropped = True
    while dropped:
        dropped = False
        for t, i in sorted(profile.pairs, key=lambda pair: (-cost[pair[1]], -pair[0], -pair[1])):
            if time.monotonic() >= deadline:
                return
            profile.remove(t, i)
            if profile.peak > budget:
                profile.add(t, i)
            else:
                dropped = True


def styles(count: int, rng: np.random.Generator) -> list[Style]:
    """The runs of the heuristic: the plainest first, then noisy ones."""
    fixed = [Style(), Style(keep=0.5), Style(0.7), Style(0.5), Style(0.7, keep=0.9), Style(1.4), Style(0.5, keep=0.5)]
    return fixed[:count] + [random_style(rng) for _ in range(count - len(fixed))]


def random_style(rng: np.random.Generator) -> Style:
    """A noisy style."""
    keep = float(rng.choice([0.0, 0.0, 0.1, 0.5, 0.9]))
    return Style(rng.uniform(0.4, 1.4), float(rng.choice([0.1, 0.3, 0.6])), keep, float(rng.choice([1e-3, 0.1, 0.5])))


def construct(
    graph: Graph, budget: int, *, seed: int = 0, deadline: float = math.inf, lowest: bool = True
) -> Schedule | None:
    """The best schedule within `budget` bytes that a few runs of the heuristic find; None if they find none.

    Given the time, they do find one at every budget from the peak of `lowest_peak` upwards, unless `lowest` is false.
    """
    if graph.peak <= budget:
        return Schedule(graph, status="optimal", solver="heuristic")
    if graph.floor > budget:
        return None
    rng = np.random.default_rng(seed)
    best: Schedule | None = None
    for style in styles(_runs(graph.n), rng):
        if time.monotonic() >= deadline:
            break
        descent = lower_peak(graph, budget, style, rng, deadline)
        if descent.fits:
            best = cheaper(best, pruned(graph, descent.pairs, budget, deadline))
    return best or (fallback(graph, budget, seed=seed, deadline=deadline) if lowest else None)


def fallback(graph: Graph, budget: int, *, seed: int = 0, deadline: float = math.inf) -> Schedule | None:
    """A schedule within `budget` bytes if `lowest_peak` reaches that far."""
    descent = _lowest(graph, seed, deadline, enough=budget)
    return pruned(graph, descent.pairs, budget, deadline) if descent.peak <= budget else None


def repaired(
    graph: Graph, pairs: Iterable[tuple[int, int]], budget: int, *, seed: int = 0, deadline: float = math.inf
) -> Schedule | None:
    """The cheapest of a few schedules within `budget` bytes that start from `pairs`; None if none fits."""
    pairs, rng = list(pairs), np.random.default_rng(seed)
    best: Schedule | None = None
    for style in styles(3, rng):
        descent = lower_peak(graph, budget, style, rng, deadline, pairs)
        if descent.fits:
            best = cheaper(best, pruned(graph, descent.pairs, budget, deadline))
    return best


def lowest_peak(graph: Graph, *, seed: int = 0, deadline: float = math.inf) -> Schedule:
    """The schedule with the smallest peak that the heuristic reaches: bisection on the budget."""
    lowest = _lowest(graph, seed, deadline)
    return pruned(graph, lowest.pairs, lowest.peak, deadline)


def _lowest(graph: Graph, seed: int, deadline: float, enough: int = 0) -> Descent:
    """Descents from keep-everything, then from where the best one ended, towards half of what is left to the floor.

    They end early where the peak is `enough`.
    """
    rng = np.random.default_rng(seed)
    low, best = graph.floor, Descent((), graph.peak, True)
    for style in styles(2, rng):
        best = min(best, lower_peak(graph, low, style, rng, deadline), key=lambda descent: descent.peak)
    while best.peak > enough and best.peak - low > max(1, graph.peak // 200) and time.monotonic() < deadline:
        middle = (low + best.peak) // 2
        for style, start in zip(styles(3, rng), ((), best.pairs, best.pairs), strict=True):
            found = lower_peak(graph, middle, style, rng, deadline, start)
            best = min(best, found, key=lambda descent: descent.peak)
            if best.peak <= middle:
                break
        low = low if best.peak <= middle else middle
    return best


def _runs(n: int) -> int:
    """How many runs are worth their time: about a second's worth, however large the graph."""
    return max(3, min(24, 2000 // max(1, n)))


def pruned(graph: Graph, pairs: Iterable[tuple[int, int]], budget: int, deadline: float = math.inf) -> Schedule:
    """The schedule of `pairs`, whose peak is within the budget, less what it can do without."""
    return Schedule(graph, tuple(prune_pairs(graph, pairs, budget, deadline)), solver="heuristic")


def prune_pairs(
    graph: Graph, pairs: Iterable[tuple[int, int]], budget: int, deadline: float = math.inf
) -> list[tuple[int, int]]:
    """As `pruned`, but the pairs alone."""
    profile = Profile(graph, pairs)
    prune(profile, budget, deadline)
    return profile.pairs


def cheaper(a: Schedule | None, b: Schedule) -> Schedule:
    """The one that costs less, the first if both cost the same."""
    return b if a is None or b.cost < a.cost else a
