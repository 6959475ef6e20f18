"""What computing a node costs: the seconds it was measured to take (`"profile"`); the compiler's estimate (`"xla"`), or
where there is none XLA's count of operations and the bytes moved, each over a nominal rate (a roofline); that count alone
(`"flops"`); or what the caller's own function says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Any

import jax

from jaxremat._partition import Node, partition
from jaxremat._progress import Say
from jaxremat._stage import known_again, node_function, node_key, node_structs
from jaxremat._target import Target, analysis_of
from jaxremat._timing import timed
from jaxremat._trace import bytes_of, flatten

# Nominal rates; only their ratio matters to a schedule. About eight operations for each byte moved.
_FLOPS_PER_SECOND = 1e11
_BYTES_PER_SECOND = 1.2e10

# Control flow, and the parameters that hold its bodies.
_BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}

_counted: dict[tuple[str, str], float] = {}  # operations that this process has counted, for the next budget or model

CostFunction = Callable[[Node], float]
NAMES = ("auto", "profile", "xla", "flops")


def check_cost(cost: Any) -> None:
    """Raise `ValueError` unless `cost` is a known name or a function."""
    if not callable(cost) and cost not in NAMES:
        raise ValueError(f"cost: expected one of {', '.join(map(repr, NAMES))} or a function of a node, got {cost!r}")


@dataclass(frozen=True)
class Costs:
    """The cost of computing each node once, in seconds, or in operations for `"flops"`.

    `source` is "profile", "xla", "flops" or "function". `estimated` are the names of the nodes that were to be timed and
    could not, whose cost is as of "xla".
    """

    each: tuple[float, ...]
    source: str
    estimated: tuple[str, ...] = ()


def source_of(cost: str | CostFunction, target: Target) -> str:
    """Where costs come from: "profile", "xla", "flops" or "function". `"auto"` profiles what is here.

    Raises `ValueError` where a chip is to be profiled that is not.
    """
    check_cost(cost)
    if callable(cost):
        return "function"
    if cost == "auto":
        return "profile" if target.here else "xla"
    if cost == "profile" and target.chip is not None:
        raise ValueError(f"cost: 'profile' runs kernels, and {target.name!r} is not here; use 'xla' or 'auto'")
    return cost


def costs(
    nodes: Sequence[Node],
    target: Target,
    cost: str | CostFunction = "auto",
    estimates: Mapping[Any, float] = MappingProxyType({}),
    say: Say | None = None,
) -> Costs:
    """What each node costs.

    `estimates` are the compiler's seconds to make each value, used where they are given for all that a node leaves, and
    nothing is measured. `say` is told how far measuring is.
    """
    source = source_of(cost, target)
    if callable(cost):
        return Costs(tuple(_checked(cost(node), node) for node in nodes), source)
    if source != "profile":
        return Costs(tuple(_estimates(nodes, target, source, estimates)), source)
    seconds = timed(nodes, target, say)
    rest = [node for node, value in zip(nodes, seconds, strict=True) if value is None]
    estimated = iter(_estimates(rest, target, "xla", estimates))
    each = tuple(next(estimated) if value is None else value for value in seconds)
    return Costs(each, source, tuple(node.name for node in rest))


def _estimates(
    nodes: Sequence[Node], target: Target, cost: str, estimates: Mapping[Any, float] = MappingProxyType({})
) -> list[float]:
    known: dict[str, float] = {}
    result = []
    for node in nodes:
        if cost != "flops" and node.outputs and all(v in estimates for v in node.outputs):
            result.append(math.fsum(estimates[v] for v in node.outputs))
            continue
        key = node_key(node, target.platform)
        if key not in known:
            loops = [eqn for eqn in node.eqns if eqn.primitive.name in _BODIES]
            known[key] = sum(_loop(eqn, target, cost) for eqn in loops) if loops else _once(node, key, target, cost)
        result.append(known[key])
    return result


def _once(node: Node, key: str, target: Target, cost: str) -> float:
    """A node without control flow, by XLA's count of its operations."""
    flops = _flops(node, key, target.platform)
    if cost == "flops":
        return flops
    rate, bandwidth = rates(target)
    return flops / rate + _moved(node) / bandwidth


def _flops(node: Node, key: str, platform: str) -> float:
    if (platform, key) in _counted:
        return _counted[platform, key]
    lowered = jax.jit(node_function(node, platform)).lower(*node_structs(node))
    flops = max(0.0, analysis_of(lowered).get("flops", 0.0))
    if known_again(key):
        _counted[platform, key] = flops
    return flops


def _moved(node: Node) -> int:
    """Bytes that a node reads and writes: of an array that it only takes a slice of, the slice."""
    read = 0
    for v in node.inputs:
        readers = [eqn for eqn in node.eqns if v in eqn.invars]
        sliced = all(e.primitive.name == "dynamic_slice" and e.invars[0] is v for e in readers)
        read += sum(bytes_of(e.outvars[0].aval) for e in readers) if sliced else bytes_of(v.aval)
    return read + sum(bytes_of(v.aval) for v in node.outputs)


def _loop(eqn: Any, target: Target, cost: str) -> float:
    """A scan: its body as often as it runs. A `while`: once, since that is not known. A `cond`: its dearest branch."""
    bodies = [eqn.params[name] for name in _BODIES[eqn.primitive.name]]
    branches = bodies[0] if eqn.primitive.name == "cond" else bodies
    each = [math.fsum(_estimates(partition(flatten(body)), target, cost)) for body in branches]
    if eqn.primitive.name == "cond":
        return max(each)
    return eqn.params.get("length", 1) * math.fsum(each)


def rates(target: Target) -> tuple[float, float]:
    """Operations and bytes a second."""
    chip = target.chip
    return (chip.flops, chip.bandwidth) if chip else (_FLOPS_PER_SECOND, _BYTES_PER_SECOND)


def _checked(value: Any, node: Node) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise ValueError(f"cost: the function returned {value!r} for node {node.name!r}, expected a number >= 0")
    return float(value)
