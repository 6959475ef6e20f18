"""Revolve (Griewank & Walther 2000): reversing a path of steps with a given number of checkpoints.

t(l, s), the least number of computes to visit the values of a path of l nodes in reverse with s checkpoints besides the
value before it, which is always there: t(1, s) = 1, t(l, 0) = l (l + 1) / 2, and else the least over the place m of the
next checkpoint of m + t(l - m, s - 1) + t(m - 1, s).
"""

from collections.abc import Mapping
from functools import cache

import numpy as np

__all__ = ["revolve"]


def revolve(length: int, read: Mapping[int, int], slots: int) -> list[tuple[int, int]]:
    """The recomputes (stage, position) for a path 0, 1, ..., whose values are read in reverse, p in stage `read[p]`.

    The first visit of the path, which the forward pass makes, leaves the checkpoints that it should.
    """
    place = _places(length, slots)
    stored = _checkpoints(-1, length - 1, slots, place)
    held = {length - 1}  # computed last and still there
    pairs: list[tuple[int, int]] = []
    for p in range(length - 1, -1, -1):
        if p in stored:
            stored.remove(p)
            continue
        if p in held or p not in read:
            continue
        base = max(stored, default=-1)
        pairs += [(read[p], i) for i in range(base + 1, p + 1)]
        stored += _checkpoints(base, p, slots - len(stored), place)
    return pairs


def _checkpoints(base: int, last: int, slots: int, place: np.ndarray) -> list[int]:
    """Where to leave checkpoints on the way from `base`, which is there, to `last`."""
    stored = []
    while slots > 0 and (m := int(place[slots, last - base])) > 0:
        base += m
        stored.append(base)
        slots -= 1
    return stored


@cache
def _places(length: int, slots: int) -> np.ndarray:
    """place[s, l]: where t(l, s) leaves its first checkpoint, 0 for nowhere."""
    lengths = np.arange(length + 1)
    cost = lengths * (lengths + 1) // 2
    place = np.zeros((slots + 1, length + 1), dtype=np.int64)
    for s in range(1, slots + 1):
        fewer, cost = cost, np.zeros_like(cost)
        for k in range(1, length + 1):
            m = np.arange(1, k)
            options = np.concatenate([[fewer[k]], m + fewer[k - m] + cost[m - 1]])
            place[s, k] = options.argmin() or place[s - 1, k]  # where one more is of no use, as with one fewer
            cost[k] = options.min()
    return place
