"""Mixed integer linear programs as data, and CBC to solve them."""

import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["Mip", "Outcome"]

_WORKER = Path(__file__).with_name("_cbc_worker.py")
_GRACE = 1.0  # seconds that CBC may overrun its limit before its process is ended


@dataclass(frozen=True)
class Outcome:
    """What a solver made of a problem.

    - `status`: `"optimal"`, `"feasible"`, `"infeasible"` (proved), `"unknown"` (out of time without a solution) or
        `"failed"` (missing, crashed; `message` says how).
    - `x`: the values of the variables, None without a solution.
    - `bound`: certified lower bound on the objective, -inf if there is none.
    """

    status: Literal["optimal", "feasible", "infeasible", "unknown", "failed"]
    x: list[float] | None
    bound: float
    message: str = ""


@dataclass
class Mip:
    """A minimisation problem under construction. Variables are known by their index."""

    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    rows: list[tuple[list[int], list[float], Literal["<", ">", "="], float]] = field(default_factory=list)

    def variable(self, lower: float, upper: float, *, cost: float = 0.0, integer: bool = False) -> int:
        """A new variable's index."""
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.cost) - 1

    def binary(self, *, cost: float = 0.0) -> int:
        """A new 0-1 variable's index."""
        return self.variable(0.0, 1.0, cost=cost, integer=True)

    def fix(self, variable: int, value: float) -> None:
        """Leaves the variable no other value."""
        self.lower[variable] = self.upper[variable] = value

    def fix_lower(self, variable: int, value: float) -> None:
        """Leaves the variable no smaller value."""
        self.lower[variable] = value

    def row(self, terms: dict[int, float], sense: Literal["<", ">", "="], right: float) -> None:
        """Adds the constraint: the sum of coefficient x variable is at most, at least or equal to `right`."""
        self.rows.append((list(terms), list(terms.values()), sense, right))

    def solve_cbc(
        self,
        seconds: float,
        *,
        gap: float = 0.0,
        seed: int = 0,
        start: dict[int, float] | None = None,
        relax: bool = False,
    ) -> Outcome:
        """Minimises with CBC, for at most `seconds`, starting from a feasible point if one is given.

        `relax=True` solves the LP relaxation.
        """
        deadline = time.monotonic() + seconds
        problem = {
            "cost": self.cost,
            "lower": self.lower,
            "upper": self.upper,
            "integer": self.integer,
            "rows": self.rows,
            "start": None if start is None else list(start.items()),
            "gap": gap,
            "seed": seed % 2**31,
            "relax": relax,
        }
        # The limit that the solver is told counts from when it starts, and reading the problem in is part of it.
        problem["seconds"] = max(0.1, deadline - time.monotonic() - 5e-5 * len(self.rows))
        return _run(problem, seconds + _GRACE)


def _run(problem: dict, seconds: float) -> Outcome:
    # -P: the folder of the script must not shadow what it imports.
    command = [sys.executable, "-P", str(_WORKER)]
    text = json.dumps(problem)
    try:
        done = subprocess.run(
            command,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome("unknown", None, -math.inf, "CBC did not stop in time")
    except OSError as error:
        return Outcome("failed", None, -math.inf, f"CBC could not be started: {error}")
    if done.returncode != 0:
        return Outcome("failed", None, -math.inf, f"CBC ended with exit code {done.returncode}")
    try:
        answer = json.loads(done.stdout)
        return outcome(answer)
    except (ValueError, KeyError, TypeError):
        return Outcome("failed", None, -math.inf, f"CBC gave no answer that makes sense: {done.stdout[:80]!r}")


def outcome(answer: dict) -> Outcome:
    """The worker's answer as an `Outcome`."""
    bound = answer.get("bound")
    bound = -math.inf if bound is None or not math.isfinite(bound) else bound
    return Outcome(answer["status"], answer.get("x"), bound, answer.get("message", ""))
