"""How long nodes take on the device of this process: each distinct one compiled on its own and run on random numbers.

A node runs in a loop within one program, the way it stands in the rewritten one, often enough to be told from the
clock's noise. What a loop of a few runs takes is subtracted, so that neither the call, nor transfers, nor the pages that a
fresh buffer faults in count. The median of some repeats is kept, in this process and in the user's cache folder.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxremat import _store
from jaxremat._barrier import barrier, stage_call
from jaxremat._partition import Node
from jaxremat._progress import Say, counted
from jaxremat._stage import known_again, node_function, node_key, node_structs
from jaxremat._target import Target

_THREADS = 2  # compilation runs outside Python's lock
_AT_ONCE = 16  # programs compiled before they are run and given up
_WINDOW = 4e-3  # seconds that the runs between two looks at the clock take at least
_REPEATS = 5
_ENOUGH = 0.03  # seconds of repeats, after which there are no more of them
_MOST_RUNS = 2000
_RESOLUTION = 1e-7  # seconds; no node takes less
_BLOCK = 1 << 20  # random numbers, of which larger arrays are repetitions

# What must not run on random numbers: it may not end, or it is the user's own code, or needs other devices.
_UNTIMED = frozenset(
    """
    while pure_callback io_callback debug_callback ffi_call custom_call pallas_call tpu_custom_call custom_partitioning
    shard_map psum all_gather all_to_all ppermute psum_scatter reduce_scatter pmin pmax
    """.split()
)

_measured: dict[str, float] = {}  # what this process has measured or read, for the next budget or model


def timed(nodes: Sequence[Node], target: Target, say: Say | None = None) -> list[float | None]:
    """Seconds that each node takes on the default device of `target`; None where it cannot be run on its own."""
    context = _store.environment(target.identity)
    keys = [_key(node, target) for node in nodes]
    found: dict[str, float | None] = {}
    missing: dict[str, Node] = {}
    for key, node in zip(keys, nodes, strict=True):
        if key is None or key in found or key in missing:
            continue
        known = _measured.get(context + key) or _seconds(_store.read("costs", context + key))
        if known is None:
            missing[key] = node
        else:
            found[key] = known
    new = dict(zip(missing, _measure(list(missing.values()), target, say), strict=True))
    kept = {context + key: value for key, value in new.items() if value is not None and known_again(key)}
    _measured.update(kept | {context + key: value for key, value in found.items() if value is not None})
    _store.write("costs", kept)
    found |= new
    return [None if key is None else found[key] for key in keys]


def _seconds(record: Any) -> float | None:
    return record if isinstance(record, float) and 0 < record < float("inf") else None


def _key(node: Node, target: Target) -> str | None:
    """Equal for nodes that run the same program; None for those that must not run on their own."""
    if node.effects or not all(map(_fillable, node.inputs)) or any(map(_untimed, node.eqns)):
        return None
    return node_key(node, target.platform)


def _fillable(v: Any) -> bool:
    dtype = getattr(v.aval, "dtype", None)
    if dtype is None or hasattr(v.aval, "inner_aval") or dtype == jax.dtypes.float0:
        return False
    return not jax.dtypes.issubdtype(dtype, jax.dtypes.extended) or jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _untimed(eqn: Any) -> bool:
    if eqn.primitive.name in _UNTIMED:
        return True
    return any(_untimed(inner) for body in jex.jaxprs_in_params(eqn.params) for inner in body.eqns)


def _measure(nodes: Sequence[Node], target: Target, say: Say | None) -> Iterator[float | None]:
    # The settings of JAX that a program is lowered under are those of this thread.
    with ThreadPoolExecutor(_THREADS) as pool, counted(say, "timing kernels", len(nodes)) as advance:
        for start in range(0, len(nodes), _AT_ONCE):
            some = nodes[start : start + _AT_ONCE]
            lowered = [target.lower(_looped(node, target.platform), _structs(node)) for node in some]
            programs = list(pool.map(_compiled, lowered))
            for node, program in zip(some, programs, strict=True):
                yield None if program is None else _run(program, node, target)
                advance()


def _compiled(lowered: Any) -> Any:
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError:
        return None


def _looped(node: Node, platform: str) -> Callable[..., Any]:
    """A program that runs `node` as often as its first argument says."""
    stage = jax.jit(node_function(node, platform))

    def looped(runs: Any, *values: Any) -> Any:
        inputs = [_wrapped(x, v) for x, v in zip(values, node.inputs, strict=True)]

        def body(run: Any, state: Any) -> Any:
            # The barriers make each run one of its own: it may be neither moved out of the loop nor left out.
            _, *tied = barrier(run, *inputs)
            outputs = stage_call(stage, *tied) if platform == "cpu" else stage(*tied)
            return barrier(state, *outputs)[0]

        return jax.lax.fori_loop(0, runs, body, jnp.int32(0))

    return looped


def _is_key(struct: jax.ShapeDtypeStruct) -> bool:
    return jax.dtypes.issubdtype(struct.dtype, jax.dtypes.prng_key)


def _wrapped(value: Any, v: Any) -> Any:
    """An argument of the timed program as the node takes it: random keys are made of their data."""
    if not jax.dtypes.issubdtype(v.aval.dtype, jax.dtypes.prng_key):
        return value
    kinds: list[Any] = []
    jax.eval_shape(lambda key: kinds.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct((), v.aval.dtype))
    return jax.random.wrap_key_data(value, impl=kinds[0])


def _structs(node: Node) -> list[jax.ShapeDtypeStruct]:
    arrays = [jax.eval_shape(jax.random.key_data, s) if _is_key(s) else s for s in node_structs(node)]
    return [jax.ShapeDtypeStruct((), jnp.int32), *arrays]


def _run(program: Any, node: Node, target: Target) -> float | None:
    """The median of the seconds that one run of the node takes; None if there is no room for it."""
    device = jax.local_devices(backend=target.platform)[0]
    try:
        # Not committed to the device: JAX takes the layout of committed sub-byte integers for another than the program's.
        with jax.ensure_compile_time_eval(), jax.default_device(device):
            arrays = [jnp.asarray(_random(struct)) for struct in _structs(node)[1:]]
            return _median(lambda runs: program(jnp.int32(runs), *arrays))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            return None
        raise


def _random(struct: jax.ShapeDtypeStruct) -> np.ndarray:
    """Random numbers: in (-1, 1), or small whole ones, which are indices of most arrays."""
    count = int(np.prod(struct.shape, dtype=np.int64))
    rng = np.random.default_rng(0)
    most = 2 if struct.dtype == np.bool_ else 128
    inexact = jax.dtypes.issubdtype(struct.dtype, np.inexact)
    some = rng.uniform(-1, 1, min(count, _BLOCK)) if inexact else rng.integers(0, most, min(count, _BLOCK))
    return np.resize(some.astype(struct.dtype), struct.shape)


def _median(start: Callable[[int], Any]) -> float:
    """Seconds of one run, where `start(n)` starts n of them."""

    def seconds(runs: int) -> float:
        before = time.perf_counter()
        jax.block_until_ready(start(runs))
        return time.perf_counter() - before

    seconds(1)  # the first run touches everything for the first time
    more = 1
    while (took := seconds(1 + more)) < _WINDOW and more < _MOST_RUNS:
        more = min(_MOST_RUNS, more * max(2, round(_WINDOW / took)))
    each = [took - seconds(1)]
    while len(each) < _REPEATS and len(each) * took < _ENOUGH:
        each.append(seconds(1 + more) - seconds(1))
    return max(_RESOLUTION, statistics.median(each) / more)
