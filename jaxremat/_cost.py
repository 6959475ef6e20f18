"""What each node costs, and the workspace it needs while it runs.

Workspace is measured: XLA compiles the node as a call, the way it stands in the rewritten program, and what it
allocates beyond the values that go in and come out is the workspace. Inputs that die with the call are made inside the
measured program, so that XLA may reuse their memory as it will there.

Cost is XLA's count of floating-point operations (`"flops"`), or that and the bytes moved, each over a nominal rate
(`"xla"`, a roofline), or what the caller's own function says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp

from jaxremat._barrier import stage_call
from jaxremat._partition import Node
from jaxremat._rewrite import node_function
from jaxremat._target import Target, flops_of, memory_of
from jaxremat._trace import bytes_of, struct_of

# Nominal rates; only their ratio matters to a schedule. About eight operations for each byte moved.
_FLOPS_PER_SECOND = 1e11
_BYTES_PER_SECOND = 1.2e10

CostFunction = Callable[[Node], float]
NAMES = ("auto", "xla", "flops")


def check_cost(cost: Any) -> None:
    """Raise `ValueError` unless `cost` is a known name or a function."""
    if not callable(cost) and cost not in NAMES:
        raise ValueError(f"cost: expected one of {', '.join(map(repr, NAMES))} or a function of a node, got {cost!r}")


def costs(nodes: Sequence[Node], target: Target, cost: str | CostFunction = "auto") -> list[float]:
    """The cost of computing each node once: seconds by nominal rates, or operations for `"flops"`."""
    check_cost(cost)
    if callable(cost):
        return [_checked(cost(node), node) for node in nodes]
    counted: dict[str, float] = {}
    result = []
    for node in nodes:
        key = _key(node, target)
        if key not in counted:
            counted[key] = flops_of(_lower(node, target))
        moved = sum(bytes_of(v.aval) for v in (*node.inputs, *node.outputs))
        roofline = counted[key] / _FLOPS_PER_SECOND + moved / _BYTES_PER_SECOND
        result.append(counted[key] if cost == "flops" else roofline)
    return result


def _checked(value: Any, node: Node) -> float:
    if not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise ValueError(f"cost: the function returned {value!r} for node {node.name!r}, expected a number >= 0")
    return float(value)


def _lower(node: Node, target: Target) -> Any:
    return jax.jit(node_function(node, target.platform)).lower(*_structs(node))


def _structs(node: Node) -> list[jax.ShapeDtypeStruct]:
    return [struct_of(v.aval) for v in node.inputs]


def _key(node: Node, target: Target) -> str:
    """Equal for nodes that run the same program."""
    return str(jax.make_jaxpr(node_function(node, target.platform))(*_structs(node)))


class Workspace:
    """Measures workspaces on `target`, each distinct node and pattern of dying inputs once.

    `held` are the variables that live through the whole program whatever the schedule: its arguments and results.
    """

    def __init__(self, target: Target, held: frozenset[Any]):
        self._target = target
        self._held = held
        self._measured: dict[Any, int] = {}

    def bytes(self, node: Node, dying: frozenset[Any]) -> int:
        """Bytes `node` needs beyond its inputs and outputs while it runs, the inputs in `dying` being read last."""
        place = tuple((v in self._held, v in dying) for v in node.inputs), tuple(v in self._held for v in node.outputs)
        key = (_key(node, self._target), place)
        if key not in self._measured:
            self._measured[key] = self._measure(node, dying)
        return self._measured[key]

    def _measure(self, node: Node, dying: frozenset[Any]) -> int:
        if node.effects:
            return 0
        stage = jax.jit(node_function(node, self._target.platform))
        given = [v for v in node.inputs if v in self._held or not _fillable(v.aval)]

        def surrounded(seed: Any, *values: Any) -> list[Any]:
            env, living = dict(zip(given, values, strict=True)), []
            for v in node.inputs:
                if v not in env:
                    env[v], seed = stage_call(jax.jit(_filler(v.aval)), seed)
                    living += [] if v in dying else [env[v]]
            outputs = stage_call(stage, *(env[v] for v in node.inputs))
            results = [x for x, v in zip(outputs, node.outputs, strict=True) if v in self._held]
            passing = [x for x, v in zip(outputs, node.outputs, strict=True) if v not in self._held]
            read = stage_call(jax.jit(_read), *passing, *living) if passing or living else []
            return [*results, *read]

        structs = [jax.ShapeDtypeStruct((), jnp.int32), *(struct_of(v.aval) for v in given)]
        temporaries = memory_of(self._target.compile(surrounded, structs)).temporaries
        alive = [v for v in node.inputs if v not in given] + [v for v in node.outputs if v not in self._held]
        return max(0, temporaries - sum(bytes_of(v.aval) for v in alive))


def _fillable(aval: Any) -> bool:
    return not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)


def _filler(aval: Any) -> Callable[[Any], Any]:
    def fill(seed: Any) -> Any:
        return jnp.full(aval.shape, seed.astype(aval.dtype)), seed + 1

    return fill


def _read(*values: Any) -> list[Any]:
    """A few bytes of each value, so that it lives until here."""
    return [v[(slice(0, 1),) * v.ndim] if _fillable(v.aval) else v for v in map(jnp.asarray, values)]
