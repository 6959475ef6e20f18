"""The workspace of a node: what XLA allocates while it runs, beyond its inputs and outputs.

It is measured. XLA compiles the node as a call, the way it stands in the rewritten program, and what that takes beyond
the values that go in and come out is the workspace. Inputs that die with the call are made inside the measured program,
so that XLA may reuse their memory as it will there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from jaxremat._barrier import stage_call
from jaxremat._partition import Node
from jaxremat._stage import known_again, node_function, node_key
from jaxremat._target import Target
from jaxremat._trace import bytes_of, struct_of

_THREADS = 2  # compilation runs outside Python's lock

_Case = tuple[Target, str, tuple[tuple[bool, bool], ...], tuple[bool, ...]]
_known: dict[_Case, int] = {}  # what this process has measured, for the next budget or model


def workspaces(
    nodes: Sequence[Node], dying: Sequence[frozenset[Any]], held: frozenset[Any], target: Target
) -> list[int]:
    """Bytes that each node needs beyond its inputs and outputs while it runs, each distinct case measured once.

    `dying` are the inputs that each node is the last to read; `held` the variables that live through the whole program
    whatever the schedule: its arguments and results.
    """
    keys = [_case(node, dead, held, target) for node, dead in zip(nodes, dying, strict=True)]
    missing = {key: k for k, key in reversed(list(enumerate(keys))) if key not in _known}
    # The settings of JAX that a program is lowered under are those of this thread.
    programs = [_program(nodes[k], dying[k], held, target) for k in missing.values()]
    with ThreadPoolExecutor(_THREADS) as pool:
        measured = pool.map(lambda program: _measure(target, *program), programs)
        found = dict(zip(missing, measured, strict=True))
    _known.update((key, size) for key, size in found.items() if known_again(key[1]))
    return [found[key] if key in found else _known[key] for key in keys]


def _case(node: Node, dying: frozenset[Any], held: frozenset[Any], target: Target) -> _Case:
    inputs = tuple((v in held, v in dying) for v in node.inputs)
    return target, node_key(node, target.platform), inputs, tuple(v in held for v in node.outputs)


def _measure(target: Target, lowered: Any, alive: int) -> int:
    return 0 if lowered is None else max(0, target.finish(lowered, quick=True).memory.temporaries - alive)


def _program(node: Node, dying: frozenset[Any], held: frozenset[Any], target: Target) -> tuple[Any, int]:
    """The node and what surrounds it, lowered; and the bytes of inputs and outputs among its temporaries."""
    if node.effects:
        return None, 0
    stage = jax.jit(node_function(node, target.platform))
    given = [v for v in node.inputs if v in held or not _fillable(v.aval)]

    def surrounded(seed: Any, *values: Any) -> list[Any]:
        env, living = dict(zip(given, values, strict=True)), []
        for v in node.inputs:
            if v not in env:
                env[v], seed = stage_call(jax.jit(_filler(v.aval)), seed)
                living += [] if v in dying else [env[v]]
        outputs = stage_call(stage, *(env[v] for v in node.inputs))
        results = [x for x, v in zip(outputs, node.outputs, strict=True) if v in held]
        passing = [x for x, v in zip(outputs, node.outputs, strict=True) if v not in held]
        read = stage_call(jax.jit(_read), *passing, *living) if passing or living else []
        return [*results, *read]

    structs = [jax.ShapeDtypeStruct((), jnp.int32), *(struct_of(v.aval) for v in given)]
    alive = [v for v in node.inputs if v not in given] + [v for v in node.outputs if v not in held]
    return target.lower(surrounded, structs), sum(bytes_of(v.aval) for v in alive)


def _fillable(aval: Any) -> bool:
    return not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)


def _filler(aval: Any) -> Callable[[Any], Any]:
    def fill(seed: Any) -> Any:
        return jnp.full(aval.shape, seed.astype(aval.dtype)), seed + 1

    return fill


def _read(*values: Any) -> list[Any]:
    """A few bytes of each value, so that it lives until here."""
    return [v[(slice(0, 1),) * v.ndim] for v in values]
