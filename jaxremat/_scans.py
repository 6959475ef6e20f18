"""Writes pairs of scans anew: the forward one stacks what was chosen, the backward one computes the rest again.

Both stay loops, so XLA can neither merge what is computed twice nor move it from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxremat._pairs import Pair, Scan, variables
from jaxremat._residuals import Choice, value
from jaxremat._trace import Program, evaluate, flatten, is_literal, scoped


def chosen(program: Program, pairs: Sequence[Pair], choices: Collection[Choice]) -> Program:
    """`program` with each pair of scans that has a choice written anew; its `plain` stays that of `program`."""
    by_forward = {pair.forward: pair for pair in pairs}
    writers = [_Writer(by_forward[choice.forward], choice) for choice in choices]
    forward = {w.pair.forward: w for w in writers}
    backward = {w.pair.backward: w for w in writers}

    def run(*values: Any) -> list[Any]:
        env = dict(zip(program.invars, values, strict=True))
        done: dict[int, _Done] = {}
        for k, eqn in enumerate(program.eqns):
            if k in forward:
                with scoped(eqn):
                    done[k] = forward[k].forward(_Operands.of(eqn, env))
                env.update(forward[k].results(done[k]))
            elif k in backward:
                with scoped(eqn):
                    results = backward[k].backward(done[backward[k].pair.forward], _Operands.of(eqn, env))
                env.update(zip(eqn.outvars, results, strict=True))
            else:
                evaluate([eqn], env)
        return [_read(env, a) for a in program.outvars]

    return replace(flatten(jax.make_jaxpr(run)(*program.structs())), plain=program.plain)


def _read(env: Mapping[Any, Any], atom: Any) -> Any:
    """The value of `atom`; None for a stack that is not made any more."""
    return jnp.asarray(atom.val, atom.aval.dtype) if is_literal(atom) else env.get(atom)


@dataclass(frozen=True)
class _Operands:
    consts: Sequence[Any]
    init: Sequence[Any]
    xs: Sequence[Any]

    @classmethod
    def of(cls, eqn: Any, env: Mapping[Any, Any]) -> _Operands:
        scan = Scan(eqn)
        return cls(*([_read(env, a) for a in part] for part in (scan.consts, scan.init, scan.xs)))


@dataclass(frozen=True)
class _Done:
    """What a run of forward iterations was given, the carry it left, and by variable of the joint body what it stacked.

    `starts` are the carries at which its segments start, stacked, if it has segments.
    """

    given: _Operands
    carry: Sequence[Any]
    stacks: Mapping[Any, Any]
    starts: Sequence[Any] = ()


@dataclass(frozen=True)
class _Writer:
    pair: Pair
    choice: Choice

    @cached_property
    def lasting(self) -> list[Any]:
        return variables(self.pair.ys[j] for j in sorted(self.pair.lasting))

    @cached_property
    def kept(self) -> list[Any]:
        """What has to be stacked: not what is stacked in any case, nor the forward scan's operands."""
        others = {*self.pair.xs, *self.lasting}
        return [v for v in (value(self.pair, place) for place in self.choice.kept) if v not in others]

    @cached_property
    def eqns(self) -> list[Any]:
        """The equations of a backward iteration."""
        return [self.pair.joint.eqns[k] for k in sorted({*self.choice.again, *self.pair.late})]

    @cached_property
    def read(self) -> set[Any]:
        """The variables that a backward iteration reads."""
        made = {v for eqn in self.eqns for v in eqn.outvars}
        used = variables([*(a for eqn in self.eqns for a in eqn.invars), *self.pair.backward_out])
        return {v for v in used if v not in made}

    def forward(self, given: _Operands) -> _Done:
        return self._forward(given, self.pair.first.length, self.choice.segments, self.lasting)

    def results(self, done: _Done) -> dict[Any, Any]:
        """The outputs of the forward equation that others than its backward scan read."""
        first, pair = self.pair.first, self.pair
        found = dict(zip(first.eqn.outvars, done.carry, strict=False))
        for j in pair.lasting:
            y = pair.ys[j]
            found[first.ys[j]] = (
                jnp.full((first.length, *y.aval.shape), y.val, y.aval.dtype) if is_literal(y) else done.stacks[y]
            )
        return found

    def backward(self, done: _Done, given: _Operands) -> list[Any]:
        """The results of the backward equation from its operands, the stacks among which are not looked at."""
        pair = self.pair
        own = set(pair.own)
        links = _links(pair)
        whole = {v: x for v, x in zip(links.consts, given.consts, strict=True) if not is_literal(v) and v in own}
        whole |= dict(zip(pair.consts, done.given.consts, strict=True))
        sliced = {v: x for v, x in zip(links.xs, given.xs, strict=True) if not is_literal(v) and v in own}
        sliced |= dict(zip(pair.xs, done.given.xs, strict=True)) | {v: done.stacks[v] for v in self.lasting}
        carry, ys = self._backward(done, list(given.init), whole, sliced, pair.first.length, self.choice.segments)
        return [*carry, *ys]

    def _forward(self, given: _Operands, length: int, segments: Sequence[int], stacked: Sequence[Any]) -> _Done:
        """Forward iterations that stack `stacked`, and what the choice keeps of them or the starts of their segments."""
        if not segments:
            return self._run(given, length, list(dict.fromkeys([*stacked, *self.kept])))
        (segment, *_), scan = segments, self.pair.first

        def body(carry: Any, x: Any) -> Any:
            done = self._run(_Operands(given.consts, carry, x), segment, stacked)
            return list(done.carry), (carry, [done.stacks[v] for v in stacked])

        xs = [_split(x, segment) for x in given.xs]
        carry, (starts, stacks) = lax.scan(body, list(given.init), xs, length // segment, reverse=scan.reverse)
        return _Done(given, carry, dict(zip(stacked, map(_joined, stacks), strict=True)), starts)

    def _run(self, given: _Operands, length: int, stacked: Sequence[Any]) -> _Done:
        pair, scan = self.pair, self.pair.first
        eqns = [pair.joint.eqns[k] for k in sorted(pair.needed_for([*pair.carry_out, *stacked]))]

        def body(carry: Any, x: Any) -> Any:
            env = dict(zip(pair.inputs, [*given.consts, *carry, *x], strict=True))
            evaluate(eqns, env)
            return [_read(env, a) for a in pair.carry_out], [env[v] for v in stacked]

        carry, stacks = _scan(scan, body, list(given.init), list(given.xs), length)
        return _Done(given, carry, dict(zip(stacked, stacks, strict=True)))

    def _backward(
        self,
        done: _Done,
        init: Sequence[Any],
        whole: Mapping[Any, Any],
        sliced: Mapping[Any, Any],
        length: int,
        segments: Sequence[int],
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Backward iterations: their carry and stacks. `whole` and `sliced` are what they can read beside `done`."""
        if not segments:
            return self._run_backward(done, init, whole, sliced, length)
        segment, *inner = segments
        pair = self.pair

        def body(carry: Any, x: Any) -> Any:
            start, part = x[0], dict(zip(parts, x[1], strict=True))
            again = self._forward(_Operands(done.given.consts, start, [part[v] for v in pair.xs]), segment, inner, ())
            return self._backward(again, carry, whole, part, segment, inner)

        parts = [v for v in sliced if v in self.read or v in pair.xs]
        xs = (done.starts, [_split(sliced[v], segment) for v in parts])
        carry, ys = lax.scan(body, list(init), xs, length // segment, reverse=pair.second.reverse)
        return carry, [_joined(y) for y in ys]

    def _run_backward(
        self, done: _Done, init: Sequence[Any], whole: Mapping[Any, Any], sliced: Mapping[Any, Any], length: int
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        pair, count = self.pair, len(self.pair.second.init)
        stacks = {v: x for v, x in {**sliced, **done.stacks}.items() if v in self.read}
        given = _links(pair).init
        # A carry that is kept need not be kept again as the result of the iteration before: it is handed on.
        lacking = self.read - stacks.keys() - whole.keys() - set(given)
        handed = [j for j, v in enumerate(pair.carry_out) if not is_literal(v) and v in lacking]
        stacks |= {pair.carry[j]: done.stacks[pair.carry[j]] for j in handed}
        names = list(stacks)

        def body(carry: Any, x: Any) -> Any:
            slices = dict(zip(names, x, strict=True))
            env = {**whole, **slices, **dict(zip(given, carry[0], strict=True))}
            env |= {pair.carry_out[j]: h for j, h in zip(handed, carry[1], strict=True)}
            evaluate(self.eqns, env)
            outputs = [_read(env, a) for a in pair.backward_out]
            return (outputs[:count], [slices[pair.carry[j]] for j in handed]), outputs[count:]

        start = (list(init), [done.carry[j] for j in handed])
        (carry, _), ys = _scan(pair.second, body, start, [stacks[v] for v in names], length)
        return carry, ys


def _links(pair: Pair) -> _Operands:
    """What the operands of the backward equation are in the joint body."""
    consts, init = len(pair.second.consts), len(pair.second.init)
    return _Operands(pair.links[:consts], pair.links[consts : consts + init], pair.links[consts + init :])


def _scan(scan: Scan, body: Callable[[Any, Any], Any], init: Any, xs: Any, length: int) -> Any:
    unroll = min(int(scan.eqn.params["unroll"]), max(1, length))
    return lax.scan(body, init, xs, length, reverse=scan.reverse, unroll=unroll)


def _split(x: Any, segment: int) -> Any:
    return x.reshape(x.shape[0] // segment, segment, *x.shape[1:])


def _joined(x: Any) -> Any:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
