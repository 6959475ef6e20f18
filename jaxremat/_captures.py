"""What a function reads from outside its arguments, to know when a trace of it is stale.

`jax.grad` runs the function each time and sees what closures and globals hold now. A traced call is kept instead, for
as long as all of that is still the same objects: what the function's closures and globals hold, and what those of the
functions of its own package hold that it calls, attributes that it names, the items of tuples and dicts, and the
arrays in the modules of frameworks, which are updated in place.
What is changed inside an array or a list in place is not seen: lists are what functions under trace append to.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import jax
import jax.core

_SEVERAL = 64  # items up to which a container is looked into


def captures(fun: Any) -> tuple[Any, ...]:
    """The objects that `fun` refers to outside its arguments, in an order that depends on the code alone."""
    found: list[Any] = []
    seen: set[int] = set()
    package = _package(fun)
    waiting = [fun]
    while waiting:
        fun = waiting.pop()
        if id(fun) in seen:
            continue
        seen.add(id(fun))
        held = [value for value in _read(fun, package) if not isinstance(value, jax.core.Tracer)]
        found += held
        waiting += reversed(held)
    return tuple(found)


def same(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Whether two results of `captures` are of the same objects."""
    return len(before) == len(now) and all(a is b or _equal_atoms(a, b) for a, b in zip(before, now, strict=True))


def _equal_atoms(a: Any, b: Any) -> bool:
    """Numbers and strings are compared by value; methods are made anew each time they are looked up."""
    if type(a) is not type(b):
        return False
    if isinstance(a, MethodType):
        return a.__self__ is b.__self__ and a.__func__ is b.__func__
    return isinstance(a, (int, float, complex, str)) and a == b


def _read(value: Any, package: str) -> Iterator[Any]:
    """What `value` gives a function that reads it."""
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
        yield from _attributes(value.__self__, _names(value.__func__))
    elif isinstance(value, FunctionType):
        if _package(value) == package:
            yield from _outside(value)
    elif isinstance(value, dict):
        yield from list(value.values()) if len(value) <= _SEVERAL else ()
    elif isinstance(value, tuple):
        yield from value if len(value) <= _SEVERAL else ()
    else:
        yield from jax.tree.leaves(value) if _is_module(value) else ()
        yield from _called(value, package)


def _called(value: Any, package: str) -> Iterator[Any]:
    """What an object of the function's own package reads when it is called."""
    call = vars(type(value)).get("__call__")
    if _package(value) == package and isinstance(call, FunctionType):
        yield call
        yield from _attributes(value, _names(call))


def _is_module(value: Any) -> bool:
    """Whether `value` is of a class of its own that JAX knows to hold arrays."""
    return not isinstance(value, (jax.Array, list)) and not jax.tree_util.all_leaves((value,))


def _outside(fun: FunctionType) -> Iterator[Any]:
    """What the closure and the globals of a function hold, and the attributes of those that it names."""
    held = [cell.cell_contents for cell in fun.__closure__ or () if _filled(cell)]
    names = _names(fun)
    held += [fun.__globals__[name] for name in names if name in fun.__globals__]
    yield from (*held, *(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values())
    inner = getattr(fun, "__wrapped__", None)
    if inner is not None:
        yield inner
    for value in held:
        yield from _attributes(value, names)


def _attributes(value: Any, names: Iterable[str]) -> list[Any]:
    """The attributes of `value` that a code names, without running any code to get them."""
    held = {} if isinstance(value, (FunctionType, MethodType)) else getattr(value, "__dict__", {})
    return [held[name] for name in names if name in held]


def _names(fun: Any) -> list[str]:
    """The globals and attributes that a function's code names, and the code of the functions inside it."""
    code = getattr(fun, "__code__", None)
    names: dict[str, None] = {}
    waiting = [code] if isinstance(code, CodeType) else []
    while waiting:
        code = waiting.pop()
        names |= dict.fromkeys(code.co_names)
        waiting += [const for const in code.co_consts if isinstance(const, CodeType)]
    return list(names)


def _package(value: Any) -> str:
    """The package that a function or an object comes from."""
    while isinstance(value, functools.partial):
        value = value.func
    module = getattr(value, "__module__", None) or getattr(type(value), "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
