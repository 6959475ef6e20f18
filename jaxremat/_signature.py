"""A call's arguments, split into arrays to trace and everything else, which is part of the function.

`jax.grad` traces only what it differentiates: a flag, a string or a length among the other arguments stays the Python
value it is. So do they here. Python numbers are traced where the function allows it, so that a step count does not mean
a new plan; a function that needs their value (as a shape, in an `if`) gets it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import compress
from types import MappingProxyType
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from jaxremat._trace import Program, flatten

_NUMBERS = (int, float, complex)


# For each structure of the arguments, the leaves that are numbers or arrays and stay the values they are.
Static = Mapping[Any, frozenset[int]]
_NOTHING: Static = MappingProxyType({})


@dataclass(frozen=True)
class Call:
    """The leaves of a call's arguments: `traced[i]` says whether `leaves[i]` is an array of the program.

    `differentiated[i]` says whether it belongs to an argument that the function is differentiated by.
    """

    leaves: tuple[Any, ...]
    traced: tuple[bool, ...]
    differentiated: tuple[bool, ...]
    tree: Any

    @classmethod
    def of(
        cls,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        differentiated: Collection[int],
        static: Static = _NOTHING,
        numbers: bool = True,
    ) -> Call:
        """Split the arguments. Arrays are traced and, with `numbers`, Python numbers, except those that `static` lists.

        `differentiated` are the positions of the arguments that are traced all the same.
        """
        leaves, tree = jax.tree.flatten((tuple(args), kwargs))
        kept = static.get(tree, frozenset())
        must: list[bool] = []
        for k, arg in enumerate(args):
            must += [k in differentiated or k - len(args) in differentiated] * len(jax.tree.leaves(arg))
        must += [False] * (len(leaves) - len(must))
        traced = (
            (is_array(x) or (_is_number(x) and (m or numbers))) and (m or k not in kept or not _is_known(x))
            for k, (x, m) in enumerate(zip(leaves, must, strict=True))
        )
        return cls(tuple(leaves), tuple(traced), tuple(must), tree)

    @property
    def numbers(self) -> list[int]:
        """Which leaves are Python numbers that are traced."""
        return [k for k, (x, t) in enumerate(zip(self.leaves, self.traced, strict=True)) if t and _is_number(x)]

    @property
    def known(self) -> list[int]:
        """Which leaves are traced although their values are known."""
        return [k for k, (x, t) in enumerate(zip(self.leaves, self.traced, strict=True)) if t and _is_known(x)]

    @property
    def arrays(self) -> list[Any]:
        return [x for x, t in zip(self.leaves, self.traced, strict=True) if t]

    def arrays_of(self, positions: Collection[int]) -> frozenset[int]:
        """Which of `arrays` belong to the positional arguments at `positions`."""
        args = self.tree.children()[0].children()
        wrong = [k for k in positions if not -len(args) <= k < len(args)]
        if wrong:
            raise ValueError(f"donate_argnums: there is no argument {wrong[0]}, the call has {len(args)}")
        chosen = {k % len(args) for k in positions}
        of_leaf = [k for k, arg in enumerate(args) for _ in range(arg.num_leaves)]
        of_leaf += [-1] * (len(self.leaves) - len(of_leaf))
        of_array = (k for k, traced in zip(of_leaf, self.traced, strict=True) if traced)
        return frozenset(number for number, k in enumerate(of_array) if k in chosen)

    def rebuild(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments again, with `arrays` for the traced leaves."""
        given = iter(arrays)
        return jax.tree.unflatten(
            self.tree, [next(given) if t else x for x, t in zip(self.leaves, self.traced, strict=True)]
        )

    def key(self) -> Hashable | None:
        """Equal for calls that trace to the same program; None where that cannot be told of a static leaf."""
        if any(not t and _changeable(x) for x, t in zip(self.leaves, self.traced, strict=True)):
            return None
        parts = tuple(_aval_key(x) if t else (type(x), x) for x, t in zip(self.leaves, self.traced, strict=True))
        key = (self.tree, parts, _config())
        try:
            hash(key)
        except TypeError:
            return None
        return key


@dataclass(frozen=True)
class Traced:
    """A traced call: its program, and how to put results together.

    `static` are the results that are no arrays of the program, and `passed` those that are arguments, with their numbers;
    both by their position among all. Where the function makes checks of `jax.experimental.checkify`, the program returns
    the state of those first, a tree of the structure `checks`.
    """

    program: Program
    tree: Any
    static: tuple[tuple[int, Any], ...]
    passed: tuple[tuple[int, int], ...]
    checks: Any = None

    def results(self, outputs: Sequence[Any], arrays: Sequence[Any]) -> Any:
        """What the function returns where its program gives `outputs` for the `arrays` of a call."""
        if self.checks is not None:
            split = self.checks.num_leaves
            checkify.check_error(jax.tree.unflatten(self.checks, outputs[:split]))
            outputs = outputs[split:]
        others = {k: x.copy() if isinstance(x, np.ndarray) else x for k, x in self.static}
        others |= {k: jnp.asarray(arrays[number]) for k, number in self.passed}
        computed = iter(outputs)
        leaves = [others[k] if k in others else next(computed) for k in range(self.tree.num_leaves)]
        return jax.tree.unflatten(self.tree, leaves)

    @property
    def leaks(self) -> bool:
        """Whether tracers of an enclosing transformation are closed over, so that it must be traced anew each time."""
        return any(isinstance(c, jax.core.Tracer) for c in self.program.consts)


def trace(fun: Callable[..., Any], call: Call, donated: Collection[int] = ()) -> Traced:
    """Trace `fun` on the arguments of `call`, of which those at the positions `donated` may be written over.

    What `fun` or JAX raises passes through unchanged.
    """
    given = call.arrays_of(donated)
    lent = {k for k, d in enumerate(compress(call.differentiated, call.traced)) if not d} - given
    seen: list[tuple[Any, dict[int, Any], dict[int, int]]] = []

    def flat(*arrays: Any) -> list[Any]:
        args, kwargs = call.rebuild(arrays)
        leaves, tree = jax.tree.flatten(fun(*args, **kwargs))
        number = {id(x): k for k, x in enumerate(arrays) if k in lent}
        passed = {k: number[id(x)] for k, x in enumerate(leaves) if id(x) in number}
        static = {k: x for k, x in enumerate(leaves) if not isinstance(x, jax.Array)}
        seen.append((tree, static, passed))
        return [x for k, x in enumerate(leaves) if k not in static and k not in passed]

    closed: jex.ClosedJaxpr = jax.make_jaxpr(flat)(*call.arrays)
    tree, static, passed = seen[-1]
    checks = None
    if any(isinstance(effect, _check_effect()) for effect in closed.effects):
        checked = checkify.checkify(jex.jaxpr_as_fun(closed))
        closed, (error, _) = jax.make_jaxpr(checked, return_shape=True)(*call.arrays)
        checks = jax.tree.structure(error)
    program = flatten(closed)
    program = replace(program, donated=frozenset(len(program.consts) + k for k in given))
    return Traced(program, tree, tuple(static.items()), tuple(passed.items()), checks)


@cache
def _check_effect() -> type:
    """What marks a program that makes checks, which cannot be compiled unless they are made values of it."""
    (effect,) = jax.make_jaxpr(lambda ok: checkify.check(ok, ""))(True).effects
    return type(effect)


def is_array(x: Any) -> bool:
    """Whether `x` is an array or stands for one; `float0` arrays, which hold nothing, are not traced."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype != jax.dtypes.float0 and x.dtype.kind not in "OSUMm"
    return isinstance(x, (jax.Array, jax.ShapeDtypeStruct))


def _changeable(x: Any) -> bool:
    """Whether an object that is no function may be changed in place and be equal to itself all the same."""
    mutable = hasattr(x, "__dict__") and not callable(x) and not isinstance(x, enum.Enum)
    return mutable or hasattr(x, "__jax_array__")


def _is_known(x: Any) -> bool:
    return not isinstance(x, (jax.core.Tracer, jax.ShapeDtypeStruct))


def _is_number(x: Any) -> bool:
    return isinstance(x, _NUMBERS) and not isinstance(x, bool)


def _aval_key(x: Any) -> Hashable:
    if isinstance(x, jax.ShapeDtypeStruct):
        return (x.shape, x.dtype, x.weak_type)
    aval = jax.typeof(x)
    return (aval.shape, aval.dtype, getattr(aval, "weak_type", False))


def _config() -> Hashable:
    """The settings of JAX that change what a trace looks like."""
    names = ("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_debug_nans")
    return tuple(getattr(jax.config, name, None) for name in names)
