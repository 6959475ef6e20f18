"""`grad`, `value_and_grad` and `remat` for functions of `flax.nnx` modules, which are updated in place.

A module is split into its graph and its state, the state goes through the budgeted program as other arrays do, and what
comes out is merged into the module that was passed in, as `nnx.jit` does it. flax is imported by the first call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax

from jaxremat._api import budgeted, named_after
from jaxremat._extras import Keywords, imported, split
from jaxremat._plan import Plan

_CONTEXT = "jaxremat"  # under which flax keeps which module outside of the program is which one inside


def grad(
    f: Callable[..., Any] | None = None,
    *,
    argnums: Any = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    **keywords: Unpack[Keywords],
) -> Callable[..., Any]:
    """`nnx.grad` within a memory budget: modules are updated in place, gradients are an `nnx.State`.

    **Arguments:** those of `nnx.grad`, with `argnums` an int, an `nnx.DiffState` or a sequence of them; and the keywords
    of `jaxremat.grad`, such as `budget`.

    **Returns:** a function like `nnx.grad(f)`; without `f`, a decorator. Its `.plan(*args, **kwargs)` takes modules and
    arrays and changes nothing. A plan holds one structure of the modules: another one is planned for anew.

    **Raises:** what `jaxremat.grad` raises, and `ImportError` where flax is missing.

    >>> import jax.numpy as jnp, jaxremat
    >>> from flax import nnx
    >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    >>> grads = jaxremat.nnx.grad(lambda model, x: model(x).sum(), budget="1MB")(model, jnp.ones((3, 2)))
    >>> grads["bias"][...]
    Array([3.], dtype=float32)
    """
    options = {"argnums": argnums, "has_aux": has_aux, "holomorphic": holomorphic, "allow_int": allow_int}
    return _differentiated("grad", f, options | _given(graph=graph, graph_updates=graph_updates), keywords)


def value_and_grad(
    f: Callable[..., Any] | None = None,
    *,
    argnums: Any = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    **keywords: Unpack[Keywords],
) -> Callable[..., Any]:
    """`nnx.value_and_grad` within a memory budget. Arguments, result and errors are those of `jaxremat.nnx.grad`.

    >>> import jax.numpy as jnp, jaxremat
    >>> from flax import nnx
    >>> model = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    >>> step = jaxremat.nnx.value_and_grad(lambda model, x: model(x).sum(), budget=None)
    >>> value, grads = step(model, jnp.ones((3, 2)))
    >>> float(model.mean[0]) > 0  # it was updated
    True
    """
    options = {"argnums": argnums, "has_aux": has_aux, "holomorphic": holomorphic, "allow_int": allow_int}
    return _differentiated("value_and_grad", f, options | _given(graph=graph, graph_updates=graph_updates), keywords)


def remat(
    f: Callable[..., Any] | None = None,
    *,
    donate_argnums: int | Sequence[int] = (),
    **keywords: Unpack[Keywords],
) -> Callable[..., Any]:
    """`f` within a memory budget: a whole training step over modules and an `nnx.Optimizer`, as with `nnx.jit`.

    Modules are updated in place. `donate_argnums` and the keywords are those of `jaxremat.remat`.

    >>> import jax.numpy as jnp, jaxremat, optax
    >>> from flax import nnx
    >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    >>> optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    >>> @jaxremat.nnx.remat(budget="1MB")
    ... def step(model, optimizer, x):
    ...     value, grads = nnx.value_and_grad(lambda model: model(x).sum())(model)
    ...     optimizer.update(model, grads)
    ...     return value
    >>> value = step(model, optimizer, jnp.ones((3, 2)))
    >>> model.bias[...]
    Array([-0.3], dtype=float32)
    """
    if f is None:
        return functools.partial(remat, donate_argnums=donate_argnums, **keywords)
    return _budgeted(f, lambda f: f, keywords, donate_argnums=donate_argnums)


def _given(**options: Any) -> dict[str, Any]:
    """The options that are not None, which leaves the others to flax, whose versions differ."""
    return {name: value for name, value in options.items() if value is not None}


def _differentiated(
    name: str, f: Callable[..., Any] | None, options: dict[str, Any], keywords: Keywords
) -> Callable[..., Any]:
    if f is None:
        return lambda f: _differentiated(name, f, options, keywords)
    argnums = options["argnums"]
    several = argnums if isinstance(argnums, Sequence) else (argnums,)
    positions = [getattr(argnum, "argnum", argnum) for argnum in several]
    return _budgeted(f, lambda f: getattr(_flax_nnx(), name)(f, **options), keywords, argnums=positions)


def _budgeted(
    f: Callable[..., Any],
    transform: Callable[[Callable[..., Any]], Callable[..., Any]],
    keywords: Keywords,
    *,
    argnums: Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """Give `transform(f)`, a function of modules, its budget."""
    options, plan = split(keywords)
    pure = budgeted(f, lambda f: _on_states(transform(f)), argnums, options, plan, donate_argnums)
    nnx = _flax_nnx()

    @nnx.update_context(_CONTEXT)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = nnx.to_tree((args, kwargs), ctxtag=_CONTEXT)
        *_, out = nnx.from_tree(pure(*args, **kwargs), ctxtag=_CONTEXT, is_inner=False)
        return out

    @nnx.update_context(_CONTEXT)
    def planned(*args: Any, **kwargs: Any) -> Plan:
        args, kwargs = nnx.to_tree((args, kwargs), ctxtag=_CONTEXT)
        return pure.plan(*args, **kwargs)  # pyright: ignore[reportFunctionMemberAccess]

    return named_after(f, call, plan=planned, unbudgeted=transform(f))


def _on_states(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` as a function of graphs and states, to those that it leaves of its arguments, and its result."""
    nnx = _flax_nnx()

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = nnx.from_tree((args, kwargs), ctxtag=_CONTEXT, is_inner=True)
        out = f(*args, **kwargs)
        left, out = nnx.to_tree(((args, kwargs), out), ctxtag=_CONTEXT)
        is_module = lambda x: isinstance(x, nnx.NodeStates)
        return jax.tree.map(lambda x: x if is_module(x) else None, left, is_leaf=is_module), out

    return run


def _flax_nnx() -> Any:
    return imported("flax.nnx", "flax")
