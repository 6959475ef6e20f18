"""Differentiated loops: a forward scan, the backward scan that reads what it stacks, and one iteration of both.

JAX differentiates a `lax.scan` into two: the forward one stacks residuals, one of each an iteration, and the backward
one reads them in the opposite direction. Most of the memory of a model that scans over its layers or over time is in
these stacks. The bodies of both, put together, are the *joint body*: one iteration with what has to be kept of it. A
user's `jax.checkpoint` is opened there like everywhere, and what it computes again is merged with the first time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax

from jaxremat._trace import Program, evaluate_jaxpr, is_literal, scan_counts, struct_of, variables


class Operands(NamedTuple):
    """What belongs to the operands of a scan, such as their values, by their part in it."""

    consts: Sequence[Any]
    init: Sequence[Any]
    xs: Sequence[Any]


@dataclass(frozen=True)
class Scan:
    """A scan equation."""

    eqn: Any

    @property
    def body(self) -> Any:
        return self.eqn.params["jaxpr"]

    @property
    def length(self) -> int:
        return self.eqn.params["length"]

    @property
    def reverse(self) -> bool:
        return self.eqn.params["reverse"]

    @cached_property
    def operands(self) -> Operands:
        return self.split(self.eqn.invars)

    @property
    def ys(self) -> Sequence[Any]:
        return self.eqn.outvars[len(self.operands.init) :]

    def split(self, each: Sequence[Any]) -> Operands:
        """One thing for each operand, by part."""
        consts, carry = scan_counts(self.eqn)
        return Operands(each[:consts], each[consts : consts + carry], each[consts + carry :])


@dataclass(frozen=True)
class Pair:
    """Equations number `forward` and `backward` of a program, both scans, and one iteration of the two together.

    - `joint`: the joint body, without calls and duplicates. Its inputs are those of the forward body, then `own`, those
      of the backward body that the forward one does not have; its outputs are those of the forward body, those of the
      backward one, and `links`: for each input of the backward body, what it is in the joint body.
    - `lasting`: positions of the stacks that others than the backward scan read.
    - `at_hand`: positions of the forward scan's `xs` that are there for the backward scan at no cost.
    """

    forward: int
    backward: int
    first: Scan
    second: Scan
    joint: Any
    lasting: frozenset[int]
    at_hand: frozenset[int]

    @property
    def inputs(self) -> Sequence[Any]:
        """The variables of the joint body that the forward body is given."""
        return self.joint.invars[: len(self.first.eqn.invars)]

    @cached_property
    def _given(self) -> Operands:
        return self.first.split(self.inputs)

    @property
    def consts(self) -> Sequence[Any]:
        return self._given.consts

    @property
    def carry(self) -> Sequence[Any]:
        return self._given.init

    @property
    def xs(self) -> Sequence[Any]:
        return self._given.xs

    @property
    def own(self) -> Sequence[Any]:
        return self.joint.invars[len(self.first.eqn.invars) :]

    @property
    def carry_out(self) -> Sequence[Any]:
        return self.joint.outvars[: len(self.carry)]

    @property
    def ys(self) -> Sequence[Any]:
        return self.joint.outvars[len(self.carry) : len(self.first.eqn.outvars)]

    @property
    def backward_out(self) -> Sequence[Any]:
        start = len(self.first.eqn.outvars)
        return self.joint.outvars[start : start + len(self.second.eqn.outvars)]

    @cached_property
    def links(self) -> Operands:
        return self.second.split(self.joint.outvars[-len(self.second.eqn.invars) :])

    @property
    def opposed(self) -> bool:
        """Whether the second scan runs the other way, as a backward pass does."""
        return self.first.reverse != self.second.reverse

    @cached_property
    def made_by(self) -> dict[Any, int]:
        """For each variable that the joint body computes, the number of its equation."""
        return {v: k for k, eqn in enumerate(self.joint.eqns) for v in eqn.outvars}

    @cached_property
    def early(self) -> frozenset[int]:
        """The equations of the joint body that read nothing of the backward pass, and so may run in either scan."""
        late = set(self.own)
        found = []
        for k, eqn in enumerate(self.joint.eqns):
            if any(v in late for v in variables(eqn.invars)):
                late.update(eqn.outvars)
            else:
                found.append(k)
        return frozenset(found)

    @cached_property
    def forced(self) -> frozenset[int]:
        """The equations that the forward scan needs for its carry and for the stacks that others read."""
        return self.needed_for([*self.carry_out, *(self.ys[j] for j in sorted(self.lasting))])

    @cached_property
    def late(self) -> frozenset[int]:
        """The equations that only the backward scan can run."""
        return self.needed_for(self.backward_out) - self.early

    @cached_property
    def residuals(self) -> tuple[Any, ...]:
        """What the backward scan reads of an iteration of the forward one: values and inputs of the joint body."""
        read = [v for eqn in self.eqns(self.late) for v in variables(eqn.invars)]
        early = {v for k in self.early for v in self.joint.eqns[k].outvars} | set(self.carry) | set(self.xs)
        return tuple(dict.fromkeys(v for v in [*read, *variables(self.backward_out)] if v in early))

    def eqns(self, numbers: Iterable[int]) -> list[Any]:
        """These equations of the joint body, in order."""
        return [self.joint.eqns[k] for k in sorted(numbers)]

    def needed_for(self, values: Iterable[Any]) -> frozenset[int]:
        """The equations of the joint body that `values` are computed by, all the way from its inputs."""
        needed: set[int] = set()
        open_ = variables(values)
        while open_:
            k = self.made_by.get(open_.pop())
            if k is not None and k not in needed:
                needed.add(k)
                open_ += variables(self.joint.eqns[k].invars)
        return frozenset(needed)


def pairs(program: Program) -> tuple[Pair, ...]:
    """The pairs of scans in `program`, each scan in one pair at most."""
    return tuple(_pairs(program))


def _pairs(program: Program) -> Iterator[Pair]:
    eqns = program.eqns
    made = {v: k for k, eqn in enumerate(eqns) for v in eqn.outvars}
    taken: set[int] = set()
    for b, eqn in enumerate(eqns):
        if not _loops(eqn):
            continue
        for f in sorted({made[v] for v in variables(Scan(eqn).operands.xs) if v in made}):
            if b in taken or f in taken or not _loops(eqns[f]) or Scan(eqns[f]).length != Scan(eqn).length:
                continue
            pair = _pair(program, f, b)
            if pair is not None:
                taken |= {f, b}
                yield pair


def _loops(eqn: Any) -> bool:
    """Whether `eqn` is a scan that stays a loop when it is compiled, and has no effects."""
    if eqn.primitive.name != "scan" or eqn.effects:
        return False
    return eqn.params["length"] > max(1, int(eqn.params["unroll"]))


def _lasting(program: Program, first: Scan, b: int) -> frozenset[int]:
    """Which stacks of the scan `first` are read by others than the `xs` of equation `b`, or returned."""
    second = Scan(program.eqns[b]).operands
    read = set(program.results) | set(variables([*second.consts, *second.init]))
    for k, eqn in enumerate(program.eqns):
        if k != b:
            read.update(variables(eqn.invars))
    return frozenset(j for j, v in enumerate(first.ys) if v in read)


def _pair(program: Program, f: int, b: int) -> Pair | None:
    """The pair of equations `f` and `b`; None if others read all that the first stacks, or a body holds arrays."""
    first, second = Scan(program.eqns[f]), Scan(program.eqns[b])
    lasting = _lasting(program, first, b)
    if len(lasting) == len(first.ys) or first.body.consts or second.body.consts:
        return None
    places = _places(first, second)
    own = [k for k, (kind, _) in enumerate(places) if kind == "own"]
    count = len(first.eqn.invars)

    def joint(*values: Any) -> list[Any]:
        seen: dict[Any, Any] = {}
        outputs = evaluate_jaxpr(first.body.jaxpr, (), values[:count], seen)
        source = {
            "own": dict(zip(own, values[count:], strict=True)),
            "stack": outputs[len(first.operands.init) :],
            "shared": values,
        }
        linked = [source[kind][k] for kind, k in places]
        return [*outputs, *evaluate_jaxpr(second.body.jaxpr, (), linked, seen), *linked]

    structs = [struct_of(v.aval) for v in first.body.jaxpr.invars]
    closed = jax.make_jaxpr(joint)(*structs, *(struct_of(second.body.jaxpr.invars[k].aval) for k in own))
    there = program.results | frozenset(program.invars) | frozenset(variables(second.operands.xs))
    at_hand = frozenset(j for j, v in enumerate(first.operands.xs) if is_literal(v) or v in there)
    return Pair(f, b, first, second, closed.jaxpr, lasting, at_hand) if not closed.consts else None


def _places(first: Scan, second: Scan) -> list[tuple[str, int]]:
    """Where each input of the second body comes from: a stack of the first, an input of the first, or outside."""
    numbers = first.split(range(len(first.eqn.invars)))
    stacks = {v: ("stack", j) for j, v in enumerate(first.ys)}
    shared = [
        {v: ("shared", k) for v, k in zip(*part, strict=True) if not is_literal(v)}
        for part in ((first.operands.consts, numbers.consts), (first.operands.xs, numbers.xs))
    ]
    known = second.split(second.eqn.invars)
    sources = [*[shared[0]] * len(known.consts), *[{}] * len(known.init), *[shared[1] | stacks] * len(known.xs)]
    return [
        ("own", k) if is_literal(atom) else source.get(atom, ("own", k))
        for k, (atom, source) in enumerate(zip(second.eqn.invars, sources, strict=True))
    ]
