"""From a program to its graph: what the nodes are, and what each costs, leaves in memory and needs while it runs.

On CPU nodes follow rules, since there the rewritten program makes every node a kernel of its own, and workspaces are
measured node by node. For a TPU or a GPU the compiled program is read: its kernels are the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxremat._cost import Costs
from jaxremat._hlo import HloError
from jaxremat._materialised import materialised, seconds
from jaxremat._partition import Node, dependencies, partition, partition_at, representatives
from jaxremat._target import Target
from jaxremat._trace import Program, bytes_of
from jaxremat._workspace import workspaces


@dataclass(frozen=True)
class Kernels:
    """The nodes of a program on a target, and what the compiler said of them: bytes of values, scratch, seconds, and
    which values a value may be written over.

    `ends`: which values the nodes were seen to end at, by their numbers among all that equations make; None where nodes
    follow rules. `fallback`: why the compiled program could not be read, where that was tried.
    """

    nodes: tuple[Node, ...]
    sizes: Mapping[Any, int] = field(default_factory=dict)
    scratch: Mapping[Any, int] = field(default_factory=dict)
    seconds: Mapping[Any, float] = field(default_factory=dict)
    over: Mapping[Any, frozenset[Any]] = field(default_factory=dict)
    ends: tuple[int, ...] | None = None
    fallback: str = ""

    @property
    def read(self) -> bool:
        """Whether they were read from the compiled program."""
        return self.ends is not None

    def bytes_of(self, v: Any) -> int:
        """Bytes of the buffer of a value."""
        return self.sizes.get(v, bytes_of(v.aval))


def kernels(program: Program, target: Target) -> Kernels:
    """The nodes of `program`: read from the compiled program where the target lets XLA choose them, else by rules."""
    if target.platform == "cpu":
        return Kernels(partition(program))
    try:
        found = materialised(program, target)
    except HloError as error:
        return Kernels(partition(program), fallback=str(error))
    kept = representatives(program, found.sizes)
    estimates = seconds(found, target.chip) if target.chip else {}
    ended = set(kept.values())
    ends = tuple(number for number, v in enumerate(_made(program)) if v in ended)
    return Kernels(
        nodes_at(program, ends),
        _gathered(kept, found.sizes, max),
        _gathered(kept, found.scratch, max),
        _gathered(kept, estimates, lambda a, b: a + b),
        _gathered(
            kept, {v: frozenset(kept[u] for u in us if u in kept) for v, us in found.over.items()}, frozenset.union
        ),
        ends=ends,
    )


def nodes_at(program: Program, ends: Sequence[int] | None) -> tuple[Node, ...]:
    """The nodes of `program` where they end at those values (`Kernels.ends`), which need not be read again."""
    if ends is None:
        return partition(program)
    made = _made(program)
    return partition_at(program, {made[number] for number in ends if number < len(made)})


def _made(program: Program) -> list[Any]:
    return [v for eqn in program.eqns for v in eqn.outvars]


def _gathered(kept: Mapping[Any, Any], values: Mapping[Any, Any], combine: Any) -> dict[Any, Any]:
    gathered: dict[Any, Any] = {}
    for v, value in values.items():
        gathered[kept[v]] = combine(gathered[kept[v]], value) if kept[v] in gathered else value
    return gathered


def describe(
    program: Program,
    kernels: Kernels,
    target: Target,
    cost: Costs,
    *,
    measure: bool = True,
    constant: int | None = None,
) -> dict[str, Any]:
    """The arguments of `Graph` for the nodes of `program`; without `measure`, workspaces that take measuring are none.

    `cost` are the costs of its nodes. Arguments and results take `constant` bytes, by default those of their shapes: a
    node's memory is what it leaves beside the results it writes.
    """
    nodes = kernels.nodes
    results = program.results
    held = results | frozenset(program.invars)
    if kernels.read:
        workspace = [max((kernels.scratch.get(v, 0) for v in node.outputs), default=0) for node in nodes]
    else:
        workspace = workspaces(nodes, _dying(nodes), held, target) if measure else None
    return {
        "names": [node.name for node in nodes],
        "cost": cost.each,
        "memory": [sum(kernels.bytes_of(v) for v in node.outputs if v not in results) for node in nodes],
        "deps": dependencies(nodes),
        "workspace": workspace,
        "constant": program.argument_bytes + program.output_bytes if constant is None else constant,
        "recomputable": [not node.effects for node in nodes],
        "backward": _backward(nodes),
    }


def _backward(nodes: Sequence[Node]) -> list[bool] | None:
    """Which nodes belong to the backward pass, or come after it; None if the program was not differentiated."""
    marks: dict[Any, bool] = {}
    for node in nodes:
        mark = node.transposed or any(marks.get(v, False) for v in node.inputs)
        marks |= dict.fromkeys(node.outputs, mark)
    backward = [any(marks[v] for v in node.outputs) for node in nodes]
    return backward if any(backward) else None


def _dying(nodes: Sequence[Node]) -> list[frozenset[Any]]:
    """For each node, the values of others that it is the last to read when nothing is recomputed."""
    made = {v for node in nodes for v in node.outputs}
    last = {v: k for k, node in enumerate(nodes) for v in node.inputs}
    return [frozenset(v for v in node.inputs if v in made and last[v] == k) for k, node in enumerate(nodes)]
