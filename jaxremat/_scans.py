"""Writes pairs of scans anew: the forward one stacks what was chosen, the backward one computes the rest again.

Both stay loops, so XLA can neither merge what is computed twice nor move it from one to the other. Where the choice
differs between parts of the iterations, each part is a loop of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxremat._pairs import Operands, Pair, Scan
from jaxremat._residuals import Choice, Part, value
from jaxremat._trace import Program, evaluate, flatten, is_literal, scoped, variables


def chosen(program: Program, pairs: Sequence[Pair], choices: Collection[Choice]) -> Program:
    """`program` with each pair of scans that has a choice written anew; its `plain` stays that of `program`."""
    if not choices:
        return program
    by_forward = {pair.forward: pair for pair in pairs}
    loops = [_Loops(by_forward[choice.forward], choice) for choice in choices]
    forward = {loop.pair.forward: loop for loop in loops}
    backward = {loop.pair.backward: loop for loop in loops}

    def run(*values: Any) -> list[Any]:
        env = dict(zip(program.invars, values, strict=True))
        ran: dict[int, _Ran] = {}
        for k, eqn in enumerate(program.eqns):
            if k in forward:
                with scoped(eqn):
                    ran[k] = forward[k].forward(_operands(eqn, env))
                    env.update(forward[k].results(ran[k]))
            elif k in backward:
                with scoped(eqn):
                    results = backward[k].backward(ran[backward[k].pair.forward], _operands(eqn, env))
                env.update(zip(eqn.outvars, results, strict=True))
            else:
                evaluate([eqn], env)
        return [_read(env, a) for a in program.outvars]

    return replace(program, jaxpr=flatten(jax.make_jaxpr(run)(*program.structs())).jaxpr)


def _read(env: Mapping[Any, Any], atom: Any) -> Any:
    """The value of `atom`; None for a stack that is not made any more."""
    return jnp.asarray(atom.val, atom.aval.dtype) if is_literal(atom) else env.get(atom)


def _operands(eqn: Any, env: Mapping[Any, Any]) -> Operands:
    """The values that a scan is given."""
    return Scan(eqn).split([_read(env, a) for a in eqn.invars])


@dataclass(frozen=True)
class _Slices:
    """Stacks by variable, of which each iteration reads a slice: those from `start` on, or all of them."""

    stacks: Mapping[Any, Any]
    start: Any = None

    def each(self, length: int) -> tuple[Any, Callable[[Any], dict[Any, Any]]]:
        """What a scan of `length` iterations goes over, and what gives the slices where it has arrived."""
        if self.start is None:
            names = list(self.stacks)
            return [self.stacks[v] for v in names], lambda x: dict(zip(names, x, strict=True))
        index = lambda i: {v: lax.dynamic_index_in_dim(x, i, keepdims=False) for v, x in self.stacks.items()}
        return self.start + jnp.arange(length), index

    def segments(self, length: int, segment: int) -> tuple[Any, Callable[[Any], _Slices]]:
        """What a scan of whole segments goes over, and what gives the slices of the one where it has arrived."""
        if self.start is None:
            names = list(self.stacks)
            split = [x.reshape(-1, segment, *x.shape[1:]) for x in self.stacks.values()]
            return split, lambda x: _Slices(dict(zip(names, x, strict=True)))
        return self.start + segment * jnp.arange(length // segment), lambda i: _Slices(self.stacks, i)

    def only(self, names: Collection[Any]) -> _Slices:
        return _Slices({v: x for v, x in self.stacks.items() if v in names}, self.start)


@dataclass(frozen=True)
class _Done:
    """The carry that a run of forward iterations left, and by variable of the joint body what it stacked.

    `starts` are the carries at which its segments start, stacked, if it has segments.
    """

    carry: Sequence[Any]
    stacks: Mapping[Any, Any]
    starts: Sequence[Any] = ()


@dataclass(frozen=True)
class _Ran:
    """A forward scan that has run: what it was given, its parts, and by variable the stacks of all iterations."""

    given: Operands
    parts: Sequence[_Done]
    stacks: Mapping[Any, Any]


@dataclass(frozen=True)
class _Loops:
    """A pair of scans and what was chosen for it."""

    pair: Pair
    choice: Choice

    def forward(self, given: Operands) -> _Ran:
        """The forward scans, one for each part."""
        pair = self.pair
        lasting = list(dict.fromkeys(variables(pair.ys[j] for j in sorted(pair.lasting))))
        consts = dict(zip(pair.consts, given.consts, strict=True))
        xs = dict(zip(pair.xs, given.xs, strict=True))
        carry, done = list(given.init), []
        for part, start in self._starts():
            run = _Run(pair, part, consts)
            done.append(run.forward(_Slices(xs, start), carry, part.length, part.segments, lasting))
            carry = done[-1].carry
        return _Ran(given, done, {v: _joined([d.stacks[v] for d in done], pair.first.reverse) for v in lasting})

    def results(self, ran: _Ran) -> dict[Any, Any]:
        """The outputs of the forward equation that others than its backward scan read."""
        first, pair = self.pair.first, self.pair
        found = dict(zip(first.eqn.outvars, ran.parts[-1].carry, strict=False))
        for j in pair.lasting:
            y = pair.ys[j]
            shape = (first.length, *y.aval.shape)
            found[first.ys[j]] = jnp.full(shape, y.val, y.aval.dtype) if is_literal(y) else ran.stacks[y]
        return found

    def backward(self, ran: _Ran, given: Operands) -> list[Any]:
        """The results of the backward equation from its operands, those that are stacks not looked at."""
        pair = self.pair
        consts = self._own(pair.links.consts, given.consts) | dict(zip(pair.consts, ran.given.consts, strict=True))
        xs = self._own(pair.links.xs, given.xs) | dict(zip(pair.xs, ran.given.xs, strict=True)) | dict(ran.stacks)
        carry, found = list(given.init), []
        parts = list(zip(ran.parts, self._starts(), strict=True))
        for done, (part, start) in reversed(parts) if pair.opposed else parts:
            run = _Run(pair, part, consts)
            carry, ys = run.backward(done, carry, _Slices(xs, start), part.length, part.segments)
            found.append(ys)
        return [*carry, *(_joined(ys, pair.second.reverse) for ys in zip(*found, strict=True))]

    def _own(self, names: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
        """By variable, the values that only the backward scan has."""
        own = set(self.pair.own)
        return {v: x for v, x in zip(names, values, strict=True) if not is_literal(v) and v in own}

    def _starts(self) -> Iterator[tuple[Part, int | None]]:
        """The parts in the order in which the forward scan runs, and at which position each one's slices start."""
        at = self.pair.first.length if self.pair.first.reverse else 0
        for part in self.choice.parts:
            at -= part.length if self.pair.first.reverse else 0
            yield part, at if len(self.choice.parts) > 1 else None
            at += 0 if self.pair.first.reverse else part.length


@dataclass(frozen=True)
class _Run:
    """Iterations that all keep the same; `consts` are, by variable of the joint body, what both bodies read whole."""

    pair: Pair
    part: Part
    consts: Mapping[Any, Any]

    @cached_property
    def eqns(self) -> list[Any]:
        """The equations of a backward iteration."""
        return self.pair.eqns({*self.part.again, *self.pair.late})

    @cached_property
    def read(self) -> set[Any]:
        """The variables that a backward iteration reads."""
        made = {v for eqn in self.eqns for v in eqn.outvars}
        used = variables([*(a for eqn in self.eqns for a in eqn.invars), *self.pair.backward_out])
        return {v for v in used if v not in made}

    def forward(
        self, xs: _Slices, init: Sequence[Any], length: int, segments: Sequence[int], stacked: Sequence[Any]
    ) -> _Done:
        """Forward iterations that stack `stacked`, and what is kept of them or the starts of their segments."""
        if not segments:
            others = {*self.pair.xs, *stacked}
            kept = [v for v in (value(self.pair, place) for place in self.part.kept) if v not in others]
            return self._iterate(xs, init, length, [*stacked, *kept])
        segment, scan = segments[0], self.pair.first
        over, part_at = xs.segments(length, segment)

        def body(carry: Any, x: Any) -> Any:
            done = self._iterate(part_at(x), carry, segment, stacked)
            return list(done.carry), (carry, list(done.stacks.values()))

        carry, (starts, stacks) = lax.scan(body, list(init), over, length // segment, reverse=scan.reverse)
        return _Done(carry, dict(zip(stacked, map(_merged, stacks), strict=True)), starts)

    def _iterate(self, xs: _Slices, init: Sequence[Any], length: int, stacked: Sequence[Any]) -> _Done:
        pair = self.pair
        eqns = pair.eqns(pair.needed_for([*pair.carry_out, *stacked]))
        over, slices_at = xs.each(length)

        def body(carry: Any, x: Any) -> Any:
            env = {**self.consts, **dict(zip(pair.carry, carry, strict=True)), **slices_at(x)}
            evaluate(eqns, env)
            return [_read(env, a) for a in pair.carry_out], [env[v] for v in stacked]

        carry, stacks = _scan(pair.first, body, list(init), over, length)
        return _Done(carry, dict(zip(stacked, stacks, strict=True)))

    def backward(
        self, done: _Done, init: Sequence[Any], xs: _Slices, length: int, segments: Sequence[int]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Backward iterations, their carry and stacks; `xs` are all slices there are beside those in `done`."""
        if not segments:
            return self._iterate_back(done, init, xs.only(self.read), length)
        segment, *inner = segments
        over, part_at = xs.only(self.read | set(self.pair.xs)).segments(length, segment)

        def body(carry: Any, x: Any) -> Any:
            start, part = x[0], part_at(x[1])
            again = self.forward(part.only(self.pair.xs), start, segment, inner, ())
            return self.backward(again, carry, part, segment, inner)

        reverse = self.pair.second.reverse
        carry, ys = lax.scan(body, list(init), (done.starts, over), length // segment, reverse=reverse)
        return carry, [_merged(y) for y in ys]

    def _iterate_back(
        self, done: _Done, init: Sequence[Any], xs: _Slices, length: int
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        pair, count, given = self.pair, len(self.pair.second.operands.init), self.pair.links.init
        kept = {v: x for v, x in done.stacks.items() if v in self.read and v not in xs.stacks}
        # A carry that is kept need not be kept again as the result of the iteration before: it is handed on.
        lacking = self.read - kept.keys() - xs.stacks.keys() - self.consts.keys() - set(given)
        handed = [j for j, v in enumerate(pair.carry_out) if not is_literal(v) and v in lacking]
        kept |= {pair.carry[j]: done.stacks[pair.carry[j]] for j in handed}
        over, slices_at = xs.each(length)

        def body(carry: Any, x: Any) -> Any:
            slices = dict(zip(kept, x[0], strict=True))
            env = {**self.consts, **slices, **slices_at(x[1]), **dict(zip(given, carry[0], strict=True))}
            env |= {pair.carry_out[j]: h for j, h in zip(handed, carry[1], strict=True)}
            evaluate(self.eqns, env)
            outputs = [_read(env, a) for a in pair.backward_out]
            return (outputs[:count], [slices[pair.carry[j]] for j in handed]), outputs[count:]

        start = (list(init), [done.carry[j] for j in handed])
        (carry, _), ys = _scan(pair.second, body, start, (list(kept.values()), over), length)
        return carry, ys


def _scan(scan: Scan, body: Callable[[Any, Any], Any], init: Any, xs: Any, length: int) -> Any:
    unroll = min(int(scan.eqn.params["unroll"]), max(1, length))
    return lax.scan(body, init, xs, length, reverse=scan.reverse, unroll=unroll)


def _merged(x: Any) -> Any:
    """Stacks of segments as one."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _joined(stacks: Sequence[Any], reverse: bool) -> Any:
    """Stacks of parts, in the order in which a scan runs, as one."""
    return stacks[0] if len(stacks) == 1 else jnp.concatenate(stacks[::-1] if reverse else stacks)
