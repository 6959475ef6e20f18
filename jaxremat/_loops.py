"""A program's loops, from the cheapest way to run them to the one that keeps the least.

Each pair of scans has a ladder of choices (`_residuals`). Together they give one sequence of programs: the next one
takes the next rung of the pair where a byte less costs the least. The rest of the program is the solver's as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxremat._cost import CostFunction, costs, rates
from jaxremat._pairs import Pair, pairs, variables
from jaxremat._partition import Node, is_light
from jaxremat._residuals import Choice, ladder
from jaxremat._scans import chosen
from jaxremat._target import Target
from jaxremat._trace import Program

Choices = tuple[Choice, ...]


def rungs(program: Program, target: Target, cost: str | CostFunction) -> list[Choices]:
    """Choices for all pairs of scans of `program`, ever dearer and ever smaller; one of no choices if it has no pair."""
    each = [rung for pair in pairs(program) if (rung := _ladder(pair, target, cost))]
    at = [0] * len(each)
    found = [tuple(rung[0] for rung in each)]
    while further := [k for k, rung in enumerate(each) if at[k] + 1 < len(rung)]:
        k = min(further, key=lambda k: _price(each[k][at[k]], each[k][at[k] + 1]))
        at[k] += 1
        found.append(tuple(rung[j] for rung, j in zip(each, at, strict=True)))
    return found


def with_choices(program: Program, choices: Choices) -> Program:
    """`program` with its loops run as chosen."""
    return chosen(program, pairs(program), choices) if choices else program


def _price(now: Choice, then: Choice) -> float:
    return (then.cost - now.cost) / max(1, now.bytes - then.bytes)


def _ladder(pair: Pair, target: Target, cost: str | CostFunction) -> Sequence[Choice]:
    traffic = 2 / rates(target)[1] if cost in ("auto", "xla") else 0.0
    return ladder(pair, _equation_cost(target, cost), traffic)


def _equation_cost(target: Target, cost: str | CostFunction) -> Callable[[Any], float]:
    """What one more run of an equation costs within a body: of a light one, which is fused, the operations only."""

    def of(eqn: Any) -> float:
        if is_light(eqn) and not callable(cost):
            operations = sum(v.aval.size for v in eqn.outvars)
            return operations if cost == "flops" else operations / rates(target)[0]
        node = Node(eqn.primitive.name, (eqn,), tuple(dict.fromkeys(variables(eqn.invars))), tuple(eqn.outvars))
        return costs([node], target, cost)[0]

    return of
