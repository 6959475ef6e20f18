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
from typing import Any

import jax

from jaxremat._trace import Program, evaluate_jaxpr, is_literal, struct_of


@dataclass(frozen=True)
class Scan:
    """The operands of a scan equation by their part in it."""

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

    @property
    def consts(self) -> Sequence[Any]:
        return self.eqn.invars[: self.eqn.params["num_consts"]]

    @property
    def init(self) -> Sequence[Any]:
        first = self.eqn.params["num_consts"]
        return self.eqn.invars[first : first + self.eqn.params["num_carry"]]

    @property
    def xs(self) -> Sequence[Any]:
        return self.eqn.invars[self.eqn.params["num_consts"] + self.eqn.params["num_carry"] :]

    @property
    def ys(self) -> Sequence[Any]:
        return self.eqn.outvars[self.eqn.params["num_carry"] :]


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

    @property
    def consts(self) -> Sequence[Any]:
        return self.inputs[: len(self.first.consts)]

    @property
    def carry(self) -> Sequence[Any]:
        return self.inputs[len(self.first.consts) : len(self.first.consts) + len(self.first.init)]

    @property
    def xs(self) -> Sequence[Any]:
        return self.inputs[len(self.first.consts) + len(self.first.init) :]

    @property
    def own(self) -> Sequence[Any]:
        return self.joint.invars[len(self.first.eqn.invars) :]

    @property
    def carry_out(self) -> Sequence[Any]:
        return self.joint.outvars[: len(self.first.init)]

    @property
    def ys(self) -> Sequence[Any]:
        return self.joint.outvars[len(self.first.init) : len(self.first.eqn.outvars)]

    @property
    def backward_out(self) -> Sequence[Any]:
        start = len(self.first.eqn.outvars)
        return self.joint.outvars[start : start + len(self.second.eqn.outvars)]

    @property
    def links(self) -> Sequence[Any]:
        return self.joint.outvars[-len(self.second.eqn.invars) :]

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
        read = [v for k in sorted(self.late) for v in variables(self.joint.eqns[k].invars)]
        early = {v for k in self.early for v in self.joint.eqns[k].outvars} | set(self.carry) | set(self.xs)
        return tuple(dict.fromkeys(v for v in [*read, *variables(self.backward_out)] if v in early))

    def needed_for(self, values: Iterable[Any]) -> frozenset[int]:
        """The equations of the joint body that `values` are computed by, all the way from its inputs."""
        needed: set[int] = set()
        open_ = [v for v in values if not is_literal(v)]
        while open_:
            k = self.made_by.get(open_.pop())
            if k is not None and k not in needed:
                needed.add(k)
                open_ += variables(self.joint.eqns[k].invars)
        return frozenset(needed)


def variables(atoms: Iterable[Any]) -> list[Any]:
    return [a for a in atoms if not is_literal(a)]


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
        for f in sorted({made[v] for v in variables(Scan(eqn).xs) if v in made}):
            if b in taken or f in taken or not _loops(eqns[f]) or Scan(eqns[f]).length != Scan(eqn).length:
                continue
            pair = _pair(program, f, b)
            if pair is not None and len(pair.lasting) < len(pair.ys):
                taken |= {f, b}
                yield pair


def _loops(eqn: Any) -> bool:
    """Whether `eqn` is a scan that stays a loop when it is compiled, and has no effects."""
    if eqn.primitive.name != "scan" or eqn.effects:
        return False
    return eqn.params["length"] > max(1, int(eqn.params["unroll"]))


def _lasting(program: Program, first: Scan, b: int) -> frozenset[int]:
    """Which stacks of the scan `first` are read by others than the `xs` of equation `b`, or returned."""
    second = Scan(program.eqns[b])
    read = set(program.results) | set(variables([*second.consts, *second.init]))
    for k, eqn in enumerate(program.eqns):
        if k != b:
            read.update(variables(eqn.invars))
    return frozenset(j for j, v in enumerate(first.ys) if v in read)


def _pair(program: Program, f: int, b: int) -> Pair | None:
    """The pair of equations `f` and `b`; None if their bodies hold arrays of their own."""
    first, second = Scan(program.eqns[f]), Scan(program.eqns[b])
    places = _places(first, second)
    own = [k for k, (kind, _) in enumerate(places) if kind == "own"]
    count = len(first.eqn.invars)

    def joint(*values: Any) -> list[Any]:
        seen: dict[Any, Any] = {}
        outputs = evaluate_jaxpr(first.body.jaxpr, (), values[:count], seen)
        source = {
            "own": dict(zip(own, values[count:], strict=True)),
            "stack": outputs[len(first.init) :],
            "shared": values,
        }
        linked = [source[kind][k] for kind, k in places]
        return [*outputs, *evaluate_jaxpr(second.body.jaxpr, (), linked, seen), *linked]

    if first.body.consts or second.body.consts:
        return None
    structs = [struct_of(v.aval) for v in first.body.jaxpr.invars]
    closed = jax.make_jaxpr(joint)(*structs, *(struct_of(second.body.jaxpr.invars[k].aval) for k in own))
    there = program.results | frozenset(program.invars) | frozenset(variables(second.xs))
    at_hand = frozenset(j for j, v in enumerate(first.xs) if is_literal(v) or v in there)
    return Pair(f, b, first, second, closed.jaxpr, _lasting(program, first, b), at_hand) if not closed.consts else None


def _places(first: Scan, second: Scan) -> list[tuple[str, int]]:
    """Where each input of the second body comes from: a stack of the first, an input of the first, or outside."""
    stacks = {v: j for j, v in enumerate(first.ys)}
    start = len(first.consts) + len(first.init)
    wholes = {v: k for k, v in enumerate(first.consts) if not is_literal(v)}
    slices = {v: start + k for k, v in enumerate(first.xs) if not is_literal(v)}

    def place(k: int, atom: Any) -> tuple[str, int]:
        if is_literal(atom) or len(second.consts) <= k < len(second.consts) + len(second.init):
            return "own", k
        if k < len(second.consts):
            return ("shared", wholes[atom]) if atom in wholes else ("own", k)
        if atom in stacks:
            return "stack", stacks[atom]
        return ("shared", slices[atom]) if atom in slices else ("own", k)

    return [place(k, atom) for k, atom in enumerate(second.eqn.invars)]
