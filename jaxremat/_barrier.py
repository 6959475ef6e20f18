"""What keeps XLA from undoing a schedule: calls it does not inline, and a barrier it cannot see through.

`stage_call` runs a function as a call of its own. XLA:CPU compiles such a call as written: nothing moves across it,
and what it returns is materialised. `barrier` is one identity on any number of arrays: whatever reads one of its
results is computed after all of its operands, and equal computations on both sides of it are not merged.

How a barrier is lowered depends on the platform. TPU and GPU honour `optimization_barrier`. XLA:CPU may expand it
before its last pass of common-subexpression elimination, so there the barrier is an identity function called without
inlining; buffers pass through it without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
from jax.experimental.xla_metadata import set_xla_metadata
from jax.interpreters import ad, batching, mlir

barrier_p = jex.Primitive("remat_barrier")
barrier_p.multiple_results = True


def barrier(*arrays: Any) -> list[jax.Array]:
    """Return `arrays` unchanged, each one tied to all the others.

    Reading any result waits for every operand. Works under `jit`, `vmap`, `grad`, `jvp` and `shard_map`.

    >>> h, cotangent = barrier(jax.numpy.ones(3), jax.numpy.zeros(()))
    """
    return barrier_p.bind(*arrays)


def stage_call(fun: Callable[..., Any], *args: Any) -> Any:
    """Call the jitted `fun` so that XLA:CPU neither inlines the call nor moves work across it."""
    with set_xla_metadata(inlineable="false"):
        return fun(*args)


def _identity(*arrays: Any) -> list[Any]:
    return list(arrays)


def _opaque_identity(*arrays: Any) -> list[Any]:
    return stage_call(jax.jit(_identity), *arrays)


def _optimization_barrier(*arrays: Any) -> list[Any]:
    return list(jax.lax.optimization_barrier(arrays))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    return barrier(*primals), list(tangents)


def _batch(args: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
    return barrier(*args), dims


barrier_p.def_impl(jax.jit(_identity))
barrier_p.def_abstract_eval(_identity)
ad.primitive_jvps[barrier_p] = _jvp
batching.primitive_batchers[barrier_p] = _batch
mlir.register_lowering(barrier_p, mlir.lower_fun(_opaque_identity, multiple_results=True), platform="cpu")
mlir.register_lowering(barrier_p, mlir.lower_fun(_optimization_barrier, multiple_results=True))
