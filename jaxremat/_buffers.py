"""What a schedule takes on TPU and GPU, where XLA lays the buffers out.

XLA:TPU and XLA:GPU assign buffers in two steps. Largest first, each buffer goes into an output's buffer if one is large
enough and is not in use at the time. The rest is packed into one heap, whose size is what is in use at a time and
fragmentation, which depends on the order that XLA gives the program and is not known before it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from jaxremat._partition import Node
from jaxremat._schedule import Schedule

_ALIGNMENT = {"tpu": 512}  # bytes that every buffer is a multiple of
_USUAL_ALIGNMENT = 256


class Buffer(NamedTuple):
    """`size` bytes, in use from step `start` to step `end`, both included; `output` if the program returns it."""

    size: int
    start: int
    end: int
    output: bool = False


def buffers_of(
    schedule: Schedule, nodes: Sequence[Node], results: frozenset[Any], bytes_of: Callable[[Any], int]
) -> list[Buffer]:
    """The buffers of a schedule; `results` are the values that the program returns, `bytes_of` gives a value's bytes."""
    step = {life.start: k for k, life in enumerate(schedule.lifetimes)}
    last = len(step)
    found: list[Buffer] = []
    returned: set[Any] = set()
    for k, life in enumerate(schedule.lifetimes):
        found.append(Buffer(schedule.graph.workspace[life.node], k, k))
        for v in nodes[life.node].outputs:
            if v not in results:
                found.append(Buffer(bytes_of(v), k, step[life.end]))
            elif v not in returned:
                returned.add(v)
                found.append(Buffer(bytes_of(v), k, last, output=True))
    return found


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
