"""How XLA lays buffers out on TPU and GPU, and so what a schedule takes there.

XLA:TPU and XLA:GPU assign buffers in two steps. Largest first, each buffer goes into an output's buffer if one is large
enough and is not in use at the time. The rest is packed into one heap, by decreasing size or by decreasing lifetime,
each at the best fitting offset. What that leaves unused is fragmentation: `memory_analysis()` of a TPU program counts
it twice, the heap and what the heap wastes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Packing:
    """Bytes of a program's temporaries: the most in use at a time, and the heap that holds them."""

    live: int
    heap: int

    def temporaries(self, platform: str) -> int:
        """What `memory_analysis()` says."""
        return 2 * self.heap - self.live if platform == "tpu" else self.heap


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


def pack(buffers: Iterable[Buffer], platform: str) -> Packing:
    """The temporaries of a program with these buffers."""
    unit = _ALIGNMENT.get(platform, _USUAL_ALIGNMENT)
    rest = _beside_outputs([b._replace(size=-(-b.size // unit) * unit) for b in buffers if b.size])
    by_lifetime = _heap(sorted(rest, key=lambda b: (b.start - b.end, -b.size)))
    if platform == "tpu":
        return Packing(_live(rest), by_lifetime)
    by_size = _heap(sorted(rest, key=lambda b: (-b.size, b.start - b.end)))
    return Packing(_live(rest), min(by_lifetime, by_size))


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


def _heap(buffers: Sequence[Buffer]) -> int:
    """The size of a heap into which the buffers are put one after another, each into the smallest gap that holds it."""
    placed: list[tuple[int, Buffer]] = []
    top = 0
    for buffer in buffers:
        taken = sorted((at, at + b.size) for at, b in placed if b.start <= buffer.end and buffer.start <= b.end)
        end, best = 0, None
        for low, high in taken:
            if low - end >= buffer.size and (best is None or low - end < best[0]):
                best = (low - end, end)
            end = max(end, high)
        offset = end if best is None else best[1]
        placed.append((offset, buffer))
        top = max(top, offset + buffer.size)
    return top


def _live(buffers: Iterable[Buffer]) -> int:
    changes: dict[int, int] = {}
    for buffer in buffers:
        changes[buffer.start] = changes.get(buffer.start, 0) + buffer.size
        changes[buffer.end + 1] = changes.get(buffer.end + 1, 0) - buffer.size
    live = most = 0
    for _, change in sorted(changes.items()):
        live += change
        most = max(most, live)
    return most
