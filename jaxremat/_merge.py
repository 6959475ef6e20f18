"""Fewer, longer runs of recomputation: each begins with a barrier, which costs fusions where XLA orders the program."""

from __future__ import annotations

from dataclasses import replace

from jaxremat._schedule import Schedule


def fewer_stages(schedule: Schedule, budget: int) -> Schedule:
    """The same recomputes in as few stages as the budget allows, each moved to an earlier stage that recomputes too.

    A value that two merged stages compute again is computed once less. The peak stays within `budget`.
    """
    stages = sorted({t for t, _ in schedule.pairs})
    for later in stages[1:]:
        earlier = max(t for t, _ in schedule.pairs if t < later)
        moved = [(earlier if t == later else t, i) for t, i in schedule.pairs]
        if any(i >= t for t, i in moved):
            continue
        candidate = replace(schedule, pairs=tuple(moved))
        if candidate.peak <= budget and candidate.cost <= schedule.cost:
            schedule = candidate
    return schedule
