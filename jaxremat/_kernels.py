"""What a graph says of the nodes of a program: names, costs, bytes, dependencies, workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxremat._cost import CostFunction, costs
from jaxremat._partition import Node, dependencies
from jaxremat._target import Target
from jaxremat._trace import Program, bytes_of, is_literal, scope_of
from jaxremat._workspace import workspaces


def describe(
    program: Program,
    nodes: Sequence[Node],
    target: Target,
    cost: str | CostFunction = "auto",
    *,
    measure: bool = True,
    constant: int | None = None,
) -> dict[str, Any]:
    """The arguments of `Graph` for the `nodes` of `program`; without `measure`, workspaces count as none.

    Arguments and results take `constant` bytes, by default those of their shapes: a node's memory is what it leaves
    beside the results it writes.
    """
    results = frozenset(v for v in program.outvars if not is_literal(v))
    held = results | frozenset(program.invars)
    return {
        "names": [node.name for node in nodes],
        "cost": costs(nodes, target, cost),
        "memory": [sum(bytes_of(v.aval) for v in node.outputs if v not in results) for node in nodes],
        "deps": dependencies(nodes),
        "workspace": workspaces(nodes, _dying(nodes), held, target) if measure else None,
        "constant": program.argument_bytes + program.output_bytes if constant is None else constant,
        "recomputable": [not node.effects for node in nodes],
        "backward": _backward(nodes),
    }


def _backward(nodes: Sequence[Node]) -> list[bool] | None:
    """Which nodes belong to the backward pass, or come after it; None if the program was not differentiated."""
    marks: dict[Any, bool] = {}
    for node in nodes:
        transposed = any("transpose(" in scope_of(eqn) for eqn in node.eqns)
        mark = transposed or any(marks.get(v, False) for v in node.inputs)
        marks |= dict.fromkeys(node.outputs, mark)
    backward = [any(marks[v] for v in node.outputs) for node in nodes]
    return backward if any(backward) else None


def _dying(nodes: Sequence[Node]) -> list[frozenset[Any]]:
    """For each node, the values of others that it is the last to read when nothing is recomputed."""
    made = {v for node in nodes for v in node.outputs}
    last = {v: k for k, node in enumerate(nodes) for v in node.inputs}
    return [frozenset(v for v in node.inputs if v in made and last[v] == k) for k, node in enumerate(nodes)]
