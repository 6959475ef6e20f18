"""What a schedule takes once XLA has laid its buffers out.

XLA assigns buffers in two steps. Largest first, each buffer goes into an output's buffer if one is large
enough and is not in use at the time. The rest is packed into one heap, whose size is what is in use at a time and
fragmentation, which depends on the order that XLA gives the program and is not known before it is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.extend.core as jex

from jaxremat._kernels import Kernels
from jaxremat._schedule import Schedule
from jaxremat._trace import bytes_of

_ALIGNMENT = {"tpu": 512, "cpu": 64}  # bytes that every buffer is a multiple of
_USUAL_ALIGNMENT = 256


class Buffer(NamedTuple):
    """`size` bytes, in use from step `start` to step `end`, both included; `output` if the program returns it."""

    size: int
    start: int
    end: int
    output: bool = False


def buffers_of(schedule: Schedule, kernels: Kernels, results: frozenset[Any]) -> list[Buffer]:
    """The buffers of a schedule; `results` are the values that the program returns.

    A value that is written over another one of the same size, which is not read again, takes its buffer over.
    """
    step = {life.start: k for k, life in enumerate(schedule.lifetimes)}
    found: list[Buffer] = []
    newest: dict[Any, int] = {}  # where in `found` the buffer of a value is
    for k, life in enumerate(schedule.lifetimes):
        node, workspace = kernels.nodes[life.node], schedule.graph.workspace[life.node]
        piece = workspace if kernels.read else min(workspace, max(map(_largest, node.eqns)) or workspace)
        found += [Buffer(size, k, k) for size in _pieces(workspace, piece)]
        for v in node.outputs:
            if v in results and v in newest:
                continue
            size = kernels.bytes_of(v)
            for at in (newest[u] for u in kernels.over.get(v, ()) if u in newest):
                if found[at].end == k and found[at].size == size and v not in results and not found[at].output:
                    found[at] = found[at]._replace(end=k - 1)
                    break
            newest[v] = len(found)
            found.append(Buffer(size, k, len(step), True) if v in results else Buffer(size, k, step[life.end]))
    return found


def _pieces(total: int, piece: int) -> Iterator[int]:
    """The buffers of a workspace: only its size is known where it was measured, and none is taken to be over `piece`."""
    while total > 0:
        yield min(piece, total)
        total -= piece


def _largest(eqn: Any) -> int:
    """Bytes of the largest value that an equation computes: in control flow, of those inside its bodies."""
    inner = [_largest(e) for body in jex.jaxprs_in_params(eqn.params) for e in body.eqns]
    return max(inner or [bytes_of(v.aval) for v in eqn.outvars], default=0)


def in_use(buffers: Iterable[Buffer], platform: str) -> int:
    """The most bytes that are in use at a time beside the outputs' buffers."""
    unit = _ALIGNMENT.get(platform, _USUAL_ALIGNMENT)
    rest = _beside_outputs([b._replace(size=-(-b.size // unit) * unit) for b in buffers if b.size])
    changes: dict[int, int] = {}
    for buffer in rest:
        changes[buffer.start] = changes.get(buffer.start, 0) + buffer.size
        changes[buffer.end + 1] = changes.get(buffer.end + 1, 0) - buffer.size
    live = most = 0
    for _, change in sorted(changes.items()):
        live += change
        most = max(most, live)
    return most


def _beside_outputs(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The buffers that do not fit into an output's buffer while that is not in use."""
    outputs: list[list[Buffer]] = []
    rest = []
    for buffer in sorted(buffers, key=lambda b: (-b.size, not b.output, b.start)):
        for held in reversed(outputs):
            exact = not buffer.output or buffer.size == held[0].size
            if (
                exact
                and buffer.size <= held[0].size
                and all(b.end < buffer.start or buffer.end < b.start for b in held)
            ):
                held.append(buffer)
                break
        else:
            if buffer.output:
                outputs.append([buffer])
            else:
                rest.append(buffer)
    return rest
