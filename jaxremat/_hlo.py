"""Scheduled HLO, read from the text that XLA prints for a compiled program.

Only what the model of memory needs is read: the instructions of each computation in order, their types with layout and
padding, their operands, what they call, the name of the operation they come from, and what the backend adds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_BITS = {"pred": 8, "token": 0, "opaque": 0}
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^{}]*)\})?")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CONFIG = re.compile(r"\bbackend_config=(\{.*)$")
_TILE = re.compile(r"\(([\d,*]+)\)")


class HloError(ValueError):
    """The text is not scheduled HLO as this reader knows it."""


@dataclass(frozen=True)
class Array:
    """One array that an instruction leaves: its element type, dimensions, bytes with padding, and memory space."""

    dtype: str
    dims: tuple[int, ...]
    bytes: int
    space: int = 0  # 0 is the main memory of the device

    @property
    def size(self) -> int:
        return math.prod(self.dims)


@dataclass(frozen=True)
class Instruction:
    """`arrays` are the leaves of its type, one unless it is a tuple."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    called: tuple[str, ...]
    op_name: str
    attributes: str
    root: bool = False

    @cached_property
    def config(self) -> dict[str, Any]:
        """What the backend says of it; empty where there is nothing that can be read."""
        match = _CONFIG.search(self.attributes)
        if match is None:
            return {}
        try:
            return json.JSONDecoder().raw_decode(match[1])[0]
        except json.JSONDecodeError:
            return {}

    @property
    def cycles(self) -> int | None:
        """The backend's estimate of its time, in cycles."""
        value = self.config.get("estimated_cycles", self.config.get("window_config", {}).get("estimated_cycles"))
        return None if value is None else int(value)

    @property
    def index(self) -> int:
        """Of a get-tuple-element: which element."""
        match = re.search(r"\bindex=(\d+)", self.attributes)
        return int(match[1]) if match else 0


@dataclass(frozen=True)
class Module:
    """The computations of a program by name, each with its instructions in order."""

    computations: dict[str, tuple[Instruction, ...]]
    entry: str

    @property
    def schedule(self) -> tuple[Instruction, ...]:
        """The instructions of the entry computation in the order in which they run."""
        return self.computations[self.entry]


def parse(text: str) -> Module:
    """Read the text of a compiled program. Raises `HloError` if it is not scheduled or cannot be read."""
    if "is_scheduled=true" not in text.split("\n", 1)[0]:
        raise HloError("the program is not scheduled")
    computations: dict[str, tuple[Instruction, ...]] = {}
    entry, name, body = None, None, list[Instruction]()
    for line in _joined(text):
        if name is None:
            header = _HEADER.match(line)
            if header and "=" not in line.split("(", 1)[0]:
                name, body = header[2], []
                entry = name if header[1] else entry
        elif line.startswith("}"):
            computations[name], name = tuple(body), None
        elif line.strip():
            body.append(_instruction(line))
    if entry is None or entry not in computations:
        raise HloError("the program has no entry computation")
    return Module(computations, entry)


def _joined(text: str) -> Iterator[str]:
    """The lines of the text, those that a string or a literal runs over several of put together."""
    held = ""
    for line in text.split("\n"):
        held = f"{held}\n{line}" if held else line
        if held.count("{") <= held.count("}") or _HEADER.match(held) or not _INSTRUCTION.match(held):
            yield held
            held = ""
    if held:
        yield held


def _instruction(line: str) -> Instruction:
    start = _INSTRUCTION.match(line)
    if start is None:
        raise HloError(f"cannot read the instruction {line.strip()[:80]!r}")
    end = _type_end(line, start.end())
    opcode = _OPCODE.match(line, end)
    if opcode is None:
        raise HloError(f"cannot read the operation of {line.strip()[:80]!r}")
    close = _closing(line, opcode.end() - 1)
    attributes = line[close + 1 :]
    branches = _BRANCHES.search(attributes)
    called = [*_CALLED.findall(attributes), *(_OPERAND.findall(branches[1]) if branches else [])]
    op_name = _OP_NAME.search(attributes)
    return Instruction(
        name=start[2],
        opcode=opcode[1],
        arrays=tuple(_array(match) for match in _ARRAY.finditer(line, start.end(), end)),
        operands=tuple(_OPERAND.findall(line, opcode.end(), close)),
        called=tuple(called),
        op_name=op_name[1] if op_name else "",
        attributes=attributes,
        root=start[1] is not None,
    )


def _type_end(line: str, start: int) -> int:
    """Where the type that begins at `start` ends: at the matching parenthesis, or at the next blank."""
    if line[start] == "(":
        return _closing(line, start) + 1
    end = line.find(" ", start)
    if end < 0:
        raise HloError(f"cannot read the type in {line.strip()[:80]!r}")
    return end


def _closing(line: str, start: int) -> int:
    depth = 0
    for k in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[k], 0)
        if depth == 0:
            return k
    raise HloError(f"unbalanced parentheses in {line.strip()[:80]!r}")


def bits_of(dtype: str) -> int:
    """Bits of an element of this type, such as "f32", "bf16", "f8e4m3fn", "s4", "pred"."""
    if dtype in _BITS:
        return _BITS[dtype]
    match = re.match(r"(?:bf|f|s|u|c)(\d+)", dtype)
    if match is None:
        raise HloError(f"unknown element type {dtype!r}")
    return int(match[1])


def _array(match: re.Match[str]) -> Array:
    dtype, shape, layout = match[1], match[2], match[3] or ""
    dims = tuple(int(d.lstrip("<=")) for d in shape.split(",") if d.strip())
    order, _, rest = layout.partition(":")
    space = re.search(r"S\((\d+)\)", rest)
    element = re.search(r"E\((\d+)\)", rest)
    tiles = re.search(r"T((?:\([\d,*]+\))+)", rest)
    minor_to_major = [int(d) for d in order.split(",") if d.strip()] if order.strip() else []
    physical = [dims[d] for d in reversed(minor_to_major)] if len(minor_to_major) == len(dims) else list(dims)
    count = _padded(physical, _TILE.findall(tiles[1])) if tiles else math.prod(dims)
    bits = int(element[1]) if element else bits_of(dtype)
    return Array(dtype, dims, -(-count * bits // 8), int(space[1]) if space else 0)


def _padded(physical: list[int], tiles: list[str]) -> int:
    """Elements of an array whose last physical dimensions are padded to whole tiles, each tile's again to the next."""
    sizes = physical
    for text in tiles:
        tile = [None if t == "*" else int(t) for t in text.split(",")]
        sizes = [1] * (len(tile) - len(sizes)) + sizes
        head, tail = sizes[: len(sizes) - len(tile)], sizes[len(sizes) - len(tile) :]
        if None in tile:  # a dimension that is merged with the next
            return math.prod(sizes)
        counts = [-(-size // t) for size, t in zip(tail, tile, strict=True) if t is not None]
        sizes = [*head, *counts, *(t for t in tile if t is not None)]
    return math.prod(sizes)
