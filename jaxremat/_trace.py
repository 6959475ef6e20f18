"""A function becomes one flat program: calls inlined, duplicates merged, dead code gone.

The planner wants equations it can move and repeat one by one. `flatten` therefore evaluates a traced jaxpr again, and
opens every call on the way (`jit`, `closed_call`, `jax.checkpoint`): what a user's `jax.checkpoint` recomputes becomes
the solver's choice. Calls that carry a rule of their own (`custom_jvp`, `custom_vjp`), control flow and kernels stay
as they are, single equations.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import numpy as np

# Calls without a meaning of their own: their body may stand in place of the equation.
_INLINED = {"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2"}


def bytes_of(aval: Any) -> int:
    """Bytes of an array of type `aval`, unpadded; 0 for tokens and other values without a shape."""
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or dtype is None or dtype == jax.dtypes.float0:
        return 0
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        if not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
            return 0
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(shape, dtype))
        return bytes_of(data)
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def struct_of(value: Any) -> jax.ShapeDtypeStruct:
    """The shape, dtype and weak type of an array, a tracer, a Python scalar or an aval."""
    aval = value if hasattr(value, "weak_type") and hasattr(value, "dtype") else jax.typeof(value)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def is_literal(atom: Any) -> bool:
    return isinstance(atom, jex.Literal)


def variables(atoms: Iterable[Any]) -> list[Any]:
    """Those of `atoms` that are no literals."""
    return [a for a in atoms if not is_literal(a)]


@dataclass(frozen=True)
class Program:
    """A flat jaxpr without constants: `jaxpr.jaxpr.invars` stand for `consts`, then for the arguments.

    `plain` is the same function as JAX traced it, which is what the rewritten program is measured against. `consts` are
    the arrays that were closed over. `donated` are the numbers of the arguments whose memory results may take over.
    """

    jaxpr: jex.ClosedJaxpr
    plain: jex.ClosedJaxpr
    consts: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    donated: frozenset[int] = frozenset()

    @property
    def invars(self) -> Sequence[Any]:
        return self.jaxpr.jaxpr.invars

    @property
    def outvars(self) -> Sequence[Any]:
        return self.jaxpr.jaxpr.outvars

    @cached_property
    def results(self) -> frozenset[Any]:
        """The variables among the outputs."""
        return frozenset(variables(self.outvars))

    @cached_property
    def eqns(self) -> tuple[Any, ...]:
        """The equations that an output or an effect needs, in order."""
        needed = set(self.results)
        kept = []
        for eqn in reversed(self.jaxpr.jaxpr.eqns):
            if eqn.effects or any(v in needed for v in eqn.outvars):
                kept.append(eqn)
                needed.update(variables(eqn.invars))
        return tuple(reversed(kept))

    @cached_property
    def argument_bytes(self) -> int:
        return sum(bytes_of(v.aval) for v in self.invars)

    @cached_property
    def output_bytes(self) -> int:
        return sum(bytes_of(v.aval) for v in self.outvars)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for programs with the same equations on the same shapes, with the same arguments donated."""
        return _fingerprint(self.jaxpr, f" donated {sorted(self.donated)}" if self.donated else "")

    @cached_property
    def plain_fingerprint(self) -> str:
        """Equal where JAX traced the same function: also the calls that the flat program has not are the same."""
        return _fingerprint(self.plain)

    def structs(self) -> list[jax.ShapeDtypeStruct]:
        return [struct_of(v.aval) for v in self.invars]


def _fingerprint(jaxpr: jex.ClosedJaxpr, more: str = "") -> str:
    text = re.sub(r" at 0x[0-9a-f]+", "", str(jaxpr)) + more
    return hashlib.sha256(text.encode()).hexdigest()


def flatten(closed: jex.ClosedJaxpr) -> Program:
    """Inline the calls of `closed`, merge equal equations, and turn all constants into leading arguments.

    The constants of the calls come before its own.
    """
    opened = _without_consts(closed, opening=True)
    inner = opened.consts
    if inner:
        opened = _without_consts(opened)
    plain = _without_consts(closed, unread=inner) if inner or closed.consts else closed
    return Program(opened, plain, consts=(*inner, *closed.consts))


def _without_consts(closed: jex.ClosedJaxpr, opening: bool = False, unread: Sequence[Any] = ()) -> jex.ClosedJaxpr:
    """`closed` with arguments for the arrays in `unread`, then for its constants; its calls are opened on demand."""
    skipped, split = len(unread), len(unread) + len(closed.consts)

    def run(*values: Any) -> list[Any]:
        return evaluate_jaxpr(closed.jaxpr, values[skipped:split], values[split:], {} if opening else None)

    arguments = (*unread, *closed.consts, *(v.aval for v in closed.jaxpr.invars))
    return jax.make_jaxpr(run)(*map(struct_of, arguments))


def evaluate(
    eqns: Iterable[Any], env: dict[Any, Any], rules: Mapping[str, Callable[..., list[Any]]] | None = None
) -> None:
    """Run `eqns` on the values in `env` (variable to value), which receives every result.

    `rules` maps a primitive's name to `rule(eqn, *values) -> results`, which then stands in for binding it.
    """
    for eqn in eqns:
        values = [a.val if is_literal(a) else env[a] for a in eqn.invars]
        rule = rules.get(eqn.primitive.name) if rules else None
        results = bind(eqn, values) if rule is None else rule(eqn, *values)
        env.update(zip(eqn.outvars, results, strict=True))


def scope_of(eqn: Any) -> str:
    """The transformations and named scopes that `eqn` was traced under, such as "transpose(jvp(layer))"."""
    return str(eqn.source_info.name_stack)


def scoped(eqn: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which equations are traced under the scopes that `eqn` was traced under."""
    scope = scope_of(eqn)
    return jax.named_scope(scope) if scope else contextlib.nullcontext()


def bind(eqn: Any, values: Sequence[Any]) -> list[Any]:
    """The results of `eqn` on other operands, under the settings and scopes that it was traced under."""
    params = eqn.primitive.get_bind_params(eqn.params)
    with eqn.ctx.manager, scoped(eqn):
        results = eqn.primitive.bind(*values, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


def scan_counts(eqn: Any) -> tuple[int, int]:
    """How many of the operands of a scan are constants, and how many its carry; the rest are what it goes over."""
    if "num_carry" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()  # since jax 0.12
    return len(consts), len(carry)


def evaluate_jaxpr(
    jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], seen: dict[Hashable, Any] | None
) -> list[Any]:
    """Evaluate `jaxpr`; with a `seen` table, open its calls and reuse the result of an equal earlier equation.

    What makes mutable arrays stays one call: the order of their reads and writes is not that of their values.
    """
    if seen is not None and _makes_refs(jaxpr):
        run = lambda *values: evaluate_jaxpr(jaxpr, values[: len(consts)], values[len(consts) :], None)
        return list(jax.jit(run)(*consts, *args))
    env = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        values = [a.val if is_literal(a) else env[a] for a in eqn.invars]
        inner = _inner_jaxpr(eqn) if seen is not None else None
        if inner is not None:
            with scoped(eqn):
                results = evaluate_jaxpr(inner.jaxpr, inner.consts, values, seen)
        elif seen is None or eqn.effects:
            results = bind(eqn, values)
        else:
            key = _equation_key(eqn, values)
            _, results = seen.get(key, (None, None))
            if results is None:
                results = bind(eqn, values)
                if key is not None:
                    seen[key] = values, results  # tracers are told apart by their addresses, so none may go
        env.update(zip(eqn.outvars, results, strict=True))
    return [a.val if is_literal(a) else env[a] for a in jaxpr.outvars]


def _makes_refs(jaxpr: Any) -> bool:
    return any(hasattr(v.aval, "inner_aval") for eqn in jaxpr.eqns for v in eqn.outvars)


def _inner_jaxpr(eqn: Any) -> jex.ClosedJaxpr | None:
    """The body of a call that may be inlined, else None."""
    if eqn.primitive.name not in _INLINED or getattr(eqn.ctx, "xla_metadata", None):
        return None
    if any(eqn.params.get("donated_invars", ())) or _has_shardings(eqn):
        return None
    body = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return jex.ClosedJaxpr(body, ()) if isinstance(body, jex.Jaxpr) else body


def _has_shardings(eqn: Any) -> bool:
    shardings = [*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ())]
    return any(isinstance(s, jax.sharding.Sharding) for s in shardings)


def _equation_key(eqn: Any, values: Sequence[Any]) -> Hashable | None:
    """Equal for equations that compute the same thing; None where that cannot be told."""
    operands = tuple(
        id(v) if isinstance(v, jax.core.Tracer) else (type(v), getattr(v, "dtype", None), _scalar(v)) for v in values
    )
    key = (eqn.primitive, operands, tuple(sorted(eqn.params.items(), key=lambda item: item[0])), str(eqn.ctx))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _scalar(value: Any) -> Hashable:
    return np.asarray(value).tobytes() if np.ndim(value) == 0 else id(value)
