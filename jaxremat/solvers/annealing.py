"""Simulated annealing over sets of recomputes, which may exceed the budget on the way, at a price.

Any set of pairs (t, i) is a schedule, so a step is a small change of the set: evict a value from a gap in which nothing
reads it, with the recomputes that this entails, or take a recompute back, with those that only it read. What a state
is worth is the cost of its recomputes plus a price times the bytes over the budget, summed over all computes. The price
rises while the budget is exceeded and falls while it holds, which keeps the search at the edge of what fits, where the
cheap schedules are. The temperature falls from several times the mean cost of a node to a part of it, in cycles that
get longer and start from the best state, hot and warm by turns.
"""

import math
import random
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import numpy as np

from .._graph import Graph
from .._schedule import Schedule
from ._profile import Profile
from .heuristics import prune_pairs

__all__ = ["Annealing"]

_HOT, _WARM, _COLD = 10.0, 2.0, 0.2  # temperatures, in units of the mean cost of a node
_CYCLE = 5000  # steps of the first two cycles, one from hot and one from warm; each further two are twice as long
_PRICE = 10.0  # at first: of a mean value's bytes over the budget at one compute, in units of the mean cost of a node
_RATE, _ADAPT = 1.01, 500  # the factor by which the price changes, and after how many steps
_RANGE = 5.0  # the factor by which it may differ from what it is at first
_TRIES = 30  # at finding a value that lives across an event

Pair = tuple[int, int]


class Annealing:
    """A search for cheap schedules within a budget, from wherever `restart` puts it; at first from keep-everything.

    - `pairs`, `value`: the best state so far, and by how many bytes its peak exceeds the budget and what it costs.
    """

    def __init__(self, graph: Graph, budget: int, seed: int):
        self.graph, self.budget = graph, budget
        self._rng = random.Random(f"annealing {seed}")
        n = max(1, graph.n)
        cost_unit = graph.total_cost / n or 1.0
        self._costs = [cost / cost_unit for cost in graph.cost]
        self._byte_unit = sum(graph.memory) / n or 1.0
        self._evictable = [i for i in range(graph.n) if graph.recomputable[i] and graph.memory[i] and graph.users[i]]
        self._price = _PRICE
        self._step, self._cycle, self._hot = 0, _CYCLE, True
        self.pairs: list[Pair] = []
        self.value = (max(0, graph.peak - budget), graph.total_cost)
        self._schedule: Schedule | None = None
        self._enter(())

    def schedule(self) -> Schedule | None:
        """The best schedule within the budget, pruned; None if there is none yet."""
        if self.value[0] > 0:
            return None
        if self._schedule is None:
            pairs = prune_pairs(self.graph, self.pairs, self.budget)
            self._schedule = Schedule(self.graph, tuple(pairs), solver="annealing")
            self.pairs, self.value = pairs, (0, self._schedule.cost)
        return self._schedule

    def restart(self, pairs: Iterable[Pair], excess: int, cost: float) -> None:
        """The next cycle starts from these pairs, if they are better than the best so far."""
        if (excess, cost) < self.value:
            self.pairs, self.value, self._schedule = sorted(pairs), (excess, cost), None
            if not self._step:
                self._enter(self.pairs)

    def run(self, steps: int, deadline: float) -> None:
        """At most that many steps."""
        for _ in range(steps if self._evictable else 0):
            if self._step % _ADAPT == 0:
                if time.monotonic() >= deadline:
                    break
                price = self._price * (_RATE if self._excess > 0 else 1 / _RATE)
                self._price = min(max(price, _PRICE / _RANGE), _PRICE * _RANGE)
            if self._step == self._cycle:
                self._step, self._hot = 0, not self._hot
                self._cycle *= 2 if self._hot else 1
                self._enter(self.pairs)
            start = _HOT if self._hot else _WARM
            self._try_step(start * (_COLD / start) ** (self._step / self._cycle))
            self._step += 1

    def _enter(self, pairs: Iterable[Pair]) -> None:
        """Makes these pairs the current state."""
        self._profile = Profile(self.graph, pairs)
        self._list = self._profile.pairs
        self._place = {pair: place for place, pair in enumerate(self._list)}
        self._excess = self._measured_excess()
        self._cost = math.fsum(self._costs[i] for _, i in self._list)

    def _measured_excess(self) -> float:
        return float(np.maximum(self._profile.memory - self.budget, 0).sum()) / self._byte_unit

    def _try_step(self, temperature: float) -> None:
        """Makes a change, and takes it back unless it is for the better or, the more so the hotter, not much worse."""
        before = self._cost
        added: list[Pair] = []
        removed: list[Pair] = []
        if self._list and self._rng.random() < 0.4:
            self._take_back(removed)
        else:
            self._evict(added)
        if not added and not removed:
            return
        excess = self._measured_excess()
        worse = self._cost - before + self._price * (excess - self._excess)
        if worse <= 0 or self._rng.random() < math.exp(-worse / temperature):
            self._excess = excess
            self._keep_if_best()
            return
        for pair in added:
            self._remove(pair)
        for pair in removed:
            self._add(pair)
        self._cost = before

    def _keep_if_best(self) -> None:
        over = max(0, self._profile.peak - self.budget) if self._excess > 0 else 0
        if over > self.value[0]:
            return
        cost = self.graph.total_cost * (1.0 + self._cost / max(1, self.graph.n))
        if over < self.value[0] or cost < self.value[1] * (1 - 1e-9):
            self.pairs, self.value, self._schedule = list(self._list), (over, cost), None

    def _add(self, pair: Pair) -> None:
        self._profile.add(*pair)
        self._place[pair] = len(self._list)
        self._list.append(pair)
        self._cost += self._costs[pair[1]]

    def _remove(self, pair: Pair) -> None:
        self._profile.remove(*pair)
        place, last = self._place.pop(pair), self._list.pop()
        if last != pair:
            self._list[place], self._place[last] = last, place
        self._cost -= self._costs[pair[1]]

    def _take_back(self, removed: list[Pair]) -> None:
        """Removes a recompute and those of its stage that nothing reads any more."""
        stack = [self._list[self._rng.randrange(len(self._list))]]
        while stack:
            pair = stack.pop()
            if pair not in self._place or (removed and self._is_read(pair)):
                continue
            self._remove(pair)
            removed.append(pair)
            stack += [(pair[0], self.graph.makers[d]) for d in self.graph.deps[pair[1]]]

    def _is_read(self, pair: Pair) -> bool:
        t, i = pair
        profile, n, parts = self._profile, self.graph.n, self.graph.parts[i]
        read = profile.life(i, t * n + i + 1 + len(parts))[2] is not None
        return read or any(profile.life(v, t * n + v + 1)[2] is not None for v in parts)

    def _evict(self, added: list[Pair]) -> None:
        """Computes a value that lives across some event, most often one over the budget, again where it is read next."""
        profile, rng, n = self._profile, self._rng, self.graph.n
        memory = profile.memory
        if self._excess <= 0:
            position = rng.randrange(len(memory))
        elif rng.random() < 0.3:
            position = int(memory.argmax())
        else:
            over = np.flatnonzero(memory > self.budget)
            position = int(over[rng.randrange(len(over))])
        key = profile.keys[position]
        for _ in range(_TRIES):
            i = self._evictable[rng.randrange(len(self._evictable))]
            if i * n + i >= key:
                continue
            read = profile.life(i, key + 1)[2]
            if read is None:
                continue
            stage = read // n
            computes = profile.computes[i]
            if self.graph.part_of[stage] is not None:
                continue
            if stage * n + i > key and computes[bisect_right(computes, read) - 1] // n < stage:
                self._recompute(stage, i, added)
                return

    def _recompute(self, stage: int, i: int, added: list[Pair]) -> None:
        """Adds the recompute (stage, i), and those of dependencies that had better not be kept for it."""
        makers = self.graph.makers
        stack, seen, again = [makers[i]], {makers[i]}, {makers[i]}
        while stack:
            k = stack.pop()
            for d in self.graph.deps[k]:
                if d in seen or makers[d] in again:
                    continue
                seen.add(d)
                if self._rather_again(d, stage, stage * self.graph.n + k):
                    stack.append(makers[d])
                    again.add(makers[d])
            self._add((stage, k))
            added.append((stage, k))

    def _rather_again(self, d: int, stage: int, at: int) -> bool:
        """Whether to compute node d again in the stage, and not to keep it for a reader at key `at`: a biased guess."""
        if not self.graph.recomputable[d] or not self.graph.memory[d]:
            return False
        profile = self._profile
        _, before, after = profile.life(d, at)
        if after is not None or before // self.graph.n == stage:
            return False
        first, last = profile.position_after(d, before), bisect_left(profile.keys, at)
        if first >= last:
            return False
        exceeds = int(profile.memory[first:last].max()) + self.graph.memory[d] > self.budget
        return self._rng.random() < (0.8 if exceeds else 0.1)
