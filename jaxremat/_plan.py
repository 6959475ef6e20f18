"""Plan: what was decided for one function and one signature, saved and loaded, summarised."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.extend.core as jex
import jaxlib

from jaxremat import _store
from jaxremat._errors import PlanMismatchError
from jaxremat._graph import Graph
from jaxremat._residuals import Choice
from jaxremat._schedule import Schedule
from jaxremat._trace import Program

_FORMAT = 4
_MAYBE = type(None)
_PARTS: dict[str, dict[str, tuple[type, ...]]] = {  # what a saved plan holds, and of which types
    "graph": dict.fromkeys(("names", "cost", "memory", "deps", "workspace", "recomputable"), (list,))
    | {"constant": (int,), "backward": (list, _MAYBE)},
    "schedule": {"bound": (int, float), "status": (str,), "solver": (str,)},
    "plan": {
        "budget_bytes": (int, _MAYBE),
        "plain_peak_bytes": (int,),
        "predicted_peak_bytes": (int,),
        "measured_peak_bytes": (int, _MAYBE),
        "target": (str,),
        "fingerprint": (str,),
        "compiles": (int,),
        "plain_cost": (int, float),
        "cost_source": (str,),
        "ends": (list, _MAYBE),
        "notes": (list,),
    },
}
_COSTS = {
    "profile": "measured on this machine",
    "xla": "XLA's estimates",
    "flops": "operations",
    "function": "the caller's function",
}
_GRAPHS = {"compiled": "the kernels of the compiled program", "rules": "kernels by rules"}


@dataclass(frozen=True)
class Plan:
    """A schedule that was compiled and measured, and the program that follows it.

    - `graph`, `schedule`: the nodes of the program and the order of their computes, recomputes and frees.
    - `budget_bytes`: what was allowed; None for no limit.
    - `plain_peak_bytes`, `measured_peak_bytes`: arguments, outputs and temporaries of the compiled programs, the plain
      one and this one. None if the target cannot be compiled for here.
    - `predicted_peak_bytes`: what the schedule was expected to take.
    - `target`: the platform it is for. `compiles`: how many programs were compiled to find it.
    - `fingerprint`: of the traced program, to know it again. `plain_cost`: of computing its every node once.
    - `cost_source`: where the costs of nodes come from: "profile", measured on this machine; "xla", "flops", "function".
    - `ends`: which values the kernels of the compiled program were seen to end at, by their numbers among all that the
      flat program's equations make; None where nodes follow rules.
    - `notes`: what could not be done as it was meant to be, such as a compiled program that could not be read.
    - `loops`: for each differentiated scan that is written anew, what it keeps of its iterations.
    """

    graph: Graph = field(repr=False)
    schedule: Schedule = field(repr=False)
    budget_bytes: int | None
    plain_peak_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int | None
    target: str
    fingerprint: str = field(repr=False)
    plain_cost: float
    compiles: int = 0
    cost_source: str = "xla"
    ends: tuple[int, ...] | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    loops: tuple[Choice, ...] = ()
    rewritten: jex.ClosedJaxpr | None = field(default=None, repr=False, compare=False)

    @property
    def jaxpr(self) -> jex.ClosedJaxpr:
        """The program that runs: closed-over arrays, then the flattened arguments, to the flattened results.

        Raises `ValueError` on a loaded plan, which knows its schedule but not its function:
        `jaxremat.grad(f, plan=plan).plan(*args)` gives the same plan with its jaxpr.
        """
        if self.rewritten is None:
            raise ValueError("plan: a loaded plan has no jaxpr; jaxremat.grad(f, plan=plan).plan(*args) gives it one")
        return self.rewritten

    @property
    def plain(self) -> bool:
        """Whether the plain program fits the budget and runs as it is."""
        return self.schedule.solver == "plain"

    @property
    def graph_source(self) -> str:
        """What the nodes are: "compiled", the kernels of the compiled program, or "rules"."""
        return "rules" if self.ends is None else "compiled"

    @property
    def overhead(self) -> float:
        """Planned cost over the cost of computing every node of the plain program once."""
        return self.schedule.cost / self.plain_cost if self.plain_cost else 1.0

    @property
    def status(self) -> str:
        return self.schedule.status

    @property
    def gap(self) -> float:
        return self.schedule.gap

    @property
    def solver(self) -> str:
        return self.schedule.solver

    def summary(self) -> str:
        """What was planned, in a dozen lines of text."""
        again = Counter(self.graph.names[i] for _, i in self.schedule.pairs)
        cost = {self.graph.names[i]: self.graph.cost[i] for _, i in self.schedule.pairs}
        dearest = sorted(again, key=lambda name: -again[name] * cost[name])[:5]
        node = self.schedule.peak_node
        lines = [
            f"target            {self.target}",
            f"budget            {_bytes(self.budget_bytes)}",
            f"plain peak        {_bytes(self.plain_peak_bytes)}",
            f"planned peak      {self._ratio(self.predicted_peak_bytes)}",
            f"measured peak     {self._ratio(self.measured_peak_bytes)}",
            f"planned overhead  {self.overhead:.4f} of the plain cost",
            f"solver            {self.solver}: {self.status}, gap {self.gap:.2%}, {self.compiles} compilations",
            f"costs and nodes   {_COSTS[self.cost_source]}; {_GRAPHS[self.graph_source]}",
            *(f"note              {note}" for note in self.notes),
            *(f"loop              {choice.describe()}" for choice in self.loops),
            f"nodes             {self.graph.n}, of which {len(again)} are recomputed, {sum(again.values())} times in all",
        ]
        if self.plain:
            lines.append("the plain program fits the budget and runs as it is")
        elif node is not None:
            lines.append(f"peak at           {self.graph.names[node]}")
        lines += [f"  recomputed      {name} x{again[name]}" for name in dearest]
        return "\n".join(lines)

    def _ratio(self, value: int | None) -> str:
        share = "" if value is None else f" ({value / max(1, self.plain_peak_bytes):.1%} of plain)"
        return _bytes(value) + share

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to `path` as JSON, whole or not at all. The jaxpr is not part of it."""
        try:
            _store.replace(Path(path), json.dumps(self.record()))
        except OSError as error:
            raise type(error)(error.errno, error.strerror, os.fspath(path)) from None

    def record(self) -> dict[str, Any]:
        """What `save` writes, and `of` reads."""
        return {
            "jaxremat_plan": _FORMAT,
            "graph": {name: getattr(self.graph, name) for name in _PARTS["graph"]},
            "pairs": self.schedule.pairs,
            "loops": [dataclasses.asdict(choice) for choice in self.loops],
            "schedule": {name: getattr(self.schedule, name) for name in _PARTS["schedule"]},
            "plan": {name: getattr(self, name) for name in _PARTS["plan"]},
            "versions": {"jax": jax.__version__, "jaxlib": jaxlib.__version__},
        }

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """Read what `save` wrote. Raises `ValueError` if the file is no plan."""
        text = Path(path).read_bytes()
        try:
            return Plan.of(json.loads(text))
        except (ValueError, TypeError) as error:
            raise ValueError(f"path: {os.fspath(path)!r} is not a saved plan: {error}") from error

    @staticmethod
    def of(record: Any) -> Plan:
        """The plan of a `record`. Raises `ValueError` or `TypeError` if it is none."""
        if not isinstance(record, dict) or "jaxremat_plan" not in record:
            raise ValueError("it has no key 'jaxremat_plan'")
        if record["jaxremat_plan"] != _FORMAT:
            raise ValueError(f"its format is {record['jaxremat_plan']!r}, this version reads {_FORMAT}")
        parts = {part: _checked_part(record, part, fields) for part, fields in _PARTS.items()}
        plan = parts["plan"]
        _expect(plan["cost_source"] in _COSTS, f"'cost_source' is {plan['cost_source']!r}")
        ends = plan["ends"]
        _expect(ends is None or all(type(k) is int and k >= 0 for k in ends), "'ends' is not a list of numbers")
        plan["ends"] = None if ends is None else tuple(ends)
        _expect(all(isinstance(note, str) for note in plan["notes"]), "'notes' is not a list of texts")
        plan["notes"] = tuple(plan["notes"])
        pairs = record.get("pairs")
        if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
            raise ValueError("'pairs' is not a list of pairs")
        graph = Graph(**parts["graph"])
        schedule = Schedule(graph, pairs=tuple((t, i) for t, i in pairs), **parts["schedule"])
        return Plan(graph, schedule, **plan, loops=_choices(record.get("loops")))

    def check(self, program: Program) -> None:
        """Raise `PlanMismatchError` unless the plan was made for `program`."""
        if program.fingerprint != self.fingerprint:
            raise PlanMismatchError(
                "plan: it was made for another function, other argument shapes or another version of JAX; "
                "plan again for these arguments"
            )


def _checked_part(record: dict[str, Any], part: str, fields: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    values = record.get(part)
    if not isinstance(values, dict) or set(values) != set(fields):
        raise ValueError(f"{part!r} does not hold {', '.join(map(repr, fields))}")
    for name, types in fields.items():
        if not isinstance(values[name], types) or isinstance(values[name], bool):
            raise ValueError(f"{name!r} in {part!r} has the value {values[name]!r}")
    return values


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


def _choices(records: Any) -> tuple[Choice, ...]:
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError("'loops' is not a list of choices")
    return tuple(Choice.of(record) for record in records)


def _bytes(value: Any) -> str:
    return "none" if value is None else f"{value / 2**20:,.1f} MiB"
