"""What every solver is given besides the graph."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .._schedule import Schedule

__all__ = ["Infeasible", "Request"]


class Infeasible(Exception):
    """Raised by a solver that has proved that no schedule fits."""


@dataclass(frozen=True)
class Request:
    """A question to a solver.

    - `budget`: bytes, constant included. Never below the floor of the graph when a solver sees it.
    - `time_limit`: seconds, counted from the creation of this object.
    - `gap`: relative gap, (cost - bound) / cost, at which a solver may stop.
    - `seed`: for whatever is random.
    - `samples`: how many roundings `rounding_random` tries of each relaxation.
    - `enough`: a cost that needs no improvement.
    - `progress`: called with each better schedule as it is found.
    """

    budget: int
    time_limit: float
    gap: float
    seed: int
    samples: int = 100
    enough: float = -math.inf
    progress: Callable[[Schedule], None] | None = None
    start: float = field(default_factory=time.monotonic)

    @property
    def deadline(self) -> float:
        """When to stop, on the clock of `time.monotonic`."""
        return self.start + self.time_limit

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.deadline - time.monotonic())
