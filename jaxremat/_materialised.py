"""What a compiled program materialises: which values of the jaxpr have a buffer of their own, and of how many bytes.

Each equation is compiled under a scope of its own, so that every kernel of the scheduled program says which equations
its results come from: those at the roots of its fusion.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax

from jaxremat._chips import Chip
from jaxremat._hlo import Array, HloError, Instruction, Module, parse
from jaxremat._target import Target
from jaxremat._trace import Program, evaluate, is_literal

_TAG = re.compile(r"remat_eqn(\d+)")
_NO_BUFFER = frozenset(
    "parameter constant tuple get-tuple-element bitcast optimization-barrier async-done copy-done after-all".split()
)
_PASSING = frozenset("bitcast copy reshape transpose convert get-tuple-element tuple".split())
_LEAST_COVERAGE = 0.7  # of the bytes of all kernels that must be understood
_LARGEST_PADDING = 3.0  # elements of a buffer to elements of its value, beyond which it is not its buffer


@dataclass(frozen=True)
class Materialised:
    """`sizes`: bytes of the buffer of each value that has one; `scratch`: of other buffers of the kernel that makes it.

    `moved` are the bytes that the kernel reads and writes, and `cycles` the compiler's estimate of its time, where it
    gives one; of a kernel with several results, each result has its share. `over` are the values whose buffers, if not
    read again, the kernel may write its result into. `coverage` is the share of all kernels' bytes that could be mapped
    to values.
    """

    sizes: dict[Any, int]
    scratch: dict[Any, int]
    moved: dict[Any, float]
    cycles: dict[Any, float]
    over: dict[Any, frozenset[Any]]
    coverage: float


def materialised(program: Program, target: Target) -> Materialised:
    """Compile `program` for `target` and read what it materialises. Raises `HloError` where that cannot be understood."""
    found = read(program, parse(target.compile(tagged(program), program.structs(), program.donated).hlo()))
    if found.coverage < _LEAST_COVERAGE:
        raise HloError(
            f"only {found.coverage:.0%} of the bytes of its kernels could be told to be values of the program"
        )
    return found


def seconds(found: Materialised, chip: Chip) -> dict[Any, float]:
    """Seconds to make each value, by the compiler's own figures: bytes over bandwidth and its cycles, half and half.

    `optimal_seconds` of a TPU program is bytes over bandwidth alone, and the cycles, a figure of another scale, count
    operations: a plan that is to be good by both must weigh both.
    """
    moved, cycles = math.fsum(found.moved.values()), math.fsum(found.cycles.values())
    total = moved / chip.bandwidth
    if not cycles:
        return {}
    return {
        v: total * (found.moved[v] / moved + found.cycles[v] / cycles) / 2 for v in found.moved if v in found.cycles
    }


def tagged(program: Program) -> Any:
    def run(*values: Any) -> list[Any]:
        env = dict(zip(program.invars, values, strict=True))
        for k, eqn in enumerate(program.eqns):
            with jax.named_scope(f"remat_eqn{k}"):
                evaluate([eqn], env)
        return [a.val if is_literal(a) else env[a] for a in program.outvars]

    return run


def read(program: Program, module: Module) -> Materialised:
    """What the scheduled program `module` materialises of `program`, whose equations it was tagged with."""
    sizes: dict[Any, int] = {}
    scratch: dict[Any, int] = {}
    moved: dict[Any, float] = {}
    cycles: dict[Any, float] = {}
    over: dict[Any, frozenset[Any]] = {}
    held: dict[str, list[Any]] = {}  # the values in what an instruction leaves, None where they are not known
    arrays = {instruction.name: instruction.arrays for instruction in module.schedule}
    carried: dict[str, int] = {}  # bytes made only for the kernel that reads them, such as a weight in another layout
    mapped = total = 0
    for instruction in module.schedule:
        if instruction.opcode in _NO_BUFFER:
            held[instruction.name] = _passed_on(instruction, held)
            continue
        values, rest = [], sum(carried.pop(name, 0) for name in instruction.operands)
        for array, origin in zip(instruction.arrays, _origins(module, instruction), strict=True):
            size = array.bytes if array.space == 0 else 0
            total += size
            value = _value(program, origin, array)
            held.setdefault(instruction.name, []).append(value)
            if value is None:
                rest += size
                continue
            mapped += size
            values.append(value)
            if instruction.opcode != "copy" or value not in sizes:
                sizes[value] = max(size, sizes.get(value, 0))
        for value, operand in _overwriting(instruction, held):
            over[value] = over.get(value, frozenset()) | {operand}
        if not values:
            carried[instruction.name] = rest
        inputs = sum(array.bytes for name in instruction.operands for array in arrays.get(name, ()))
        for value in values:
            scratch[value] = max(rest, scratch.get(value, 0))
            share = 1 / len(values)
            moved[value] = moved.get(value, 0.0) + share * (inputs + sum(a.bytes for a in instruction.arrays))
            cycles[value] = cycles.get(value, 0.0) + share * (instruction.cycles or 0)
    return Materialised(sizes, scratch, moved, cycles, over, mapped / total if total else 1.0)


def _passed_on(instruction: Instruction, held: dict[str, list[Any]]) -> list[Any]:
    """The values in what an instruction leaves that only passes its operands on."""
    passed = [held.get(name, []) for name in instruction.operands]
    if instruction.opcode == "get-tuple-element" and passed:
        return passed[0][instruction.index : instruction.index + 1]
    return [v for values in passed for v in values] if instruction.opcode in ("tuple", "bitcast") else []


def _overwriting(instruction: Instruction, held: dict[str, list[Any]]) -> Iterator[tuple[Any, Any]]:
    """Pairs of a result and an operand whose buffer the backend lets it be written into.

    The backend lists groups of indices: those of operands, and behind them those of results.
    """
    count = len(instruction.operands)
    for group in instruction.config.get("aliasing_operands", {}).get("lists", ()):
        indices = [int(k) for k in group.get("indices", ())]
        results = [held[instruction.name][k - count] for k in indices if count <= k < count + len(instruction.arrays)]
        operands = [held.get(instruction.operands[k], []) for k in indices if k < count]
        yield from ((r, o[0]) for r in results for o in operands if r is not None and len(o) == 1 and o[0] is not None)


def _origins(module: Module, instruction: Instruction) -> Iterator[int | None]:
    """For each array that an instruction leaves, the equation it comes from."""
    if instruction.opcode != "fusion":
        for _ in instruction.arrays:
            yield _tag(instruction)
        return
    body = {inner.name: inner for inner in module.computations[instruction.called[0]]}
    root = next(inner for inner in body.values() if inner.root)
    ends = [body[name] for name in root.operands] if root.opcode == "tuple" else [root]
    for k in range(len(instruction.arrays)):
        end = ends[k] if k < len(ends) else root
        while _tag(end) is None and end.opcode in _PASSING and end.operands and end.operands[0] in body:
            end = body[end.operands[0]]
        tag = _tag(end)
        yield _tag(instruction) if tag is None else tag


def _tag(instruction: Instruction) -> int | None:
    found = _TAG.findall(instruction.op_name)
    return int(found[-1]) if found else None


def _value(program: Program, origin: int | None, array: Array) -> Any:
    """The result of equation `origin` that `array` holds, if it is one by its number of elements."""
    if origin is None or origin >= len(program.eqns):  # a scope of the caller's own may look like a tag
        return None
    fitting = [v for v in program.eqns[origin].outvars if v.aval.size <= array.size <= _LARGEST_PADDING * v.aval.size]
    return min(fitting, key=lambda v: array.size - v.aval.size, default=None)
