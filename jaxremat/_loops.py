"""A program's loops, from the cheapest way to run them to the one that keeps the least.

Each pair of scans has a ladder of choices (`_residuals`). Together they give one sequence of programs: the next one
takes the next rung of the pair where a byte less costs the least. The rest of the program is the solver's as ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxremat._cost import CostFunction, costs, rates
from jaxremat._pairs import Pair
from jaxremat._partition import Node, is_light
from jaxremat._progress import Say
from jaxremat._residuals import Choice, ladder, price
from jaxremat._target import Target
from jaxremat._trace import variables

Choices = tuple[Choice, ...]


def rungs(pairs: Sequence[Pair], target: Target, cost: str | CostFunction, say: Say | None = None) -> list[Choices]:
    """Choices for all `pairs` of scans, ever dearer and ever smaller; one of no choices if there are no pairs."""
    traffic = 2 / rates(target)[1] if not callable(cost) and cost != "flops" else 0.0
    each = [rung for pair in pairs if (rung := ladder(pair, _equation_costs(pair, target, cost, say), traffic))]
    at = [0] * len(each)
    found = [tuple(rung[0] for rung in each)]
    while further := [k for k, rung in enumerate(each) if at[k] + 1 < len(rung)]:
        k = min(further, key=lambda k: price(each[k][at[k]], each[k][at[k] + 1]))
        at[k] += 1
        found.append(tuple(rung[j] for rung, j in zip(each, at, strict=True)))
    return found


def _equation_costs(pair: Pair, target: Target, cost: str | CostFunction, say: Say | None) -> dict[int, float]:
    """What one more run of each early equation costs: of a light one, which is fused, the operations only."""
    eqns = {k: pair.joint.eqns[k] for k in pair.early}
    light = {k for k, eqn in eqns.items() if is_light(eqn) and not callable(cost)}
    rate = 1.0 if cost == "flops" else rates(target)[0]
    found = {k: sum(v.aval.size for v in eqns[k].outvars) / rate for k in light}
    heavy = {k: eqn for k, eqn in eqns.items() if k not in light}
    nodes = [
        Node(eqn.primitive.name, (eqn,), tuple(dict.fromkeys(variables(eqn.invars))), tuple(eqn.outvars))
        for eqn in heavy.values()
    ]
    return found | dict(zip(heavy, costs(nodes, target, cost, say=say).each, strict=True))
