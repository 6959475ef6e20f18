"""`filter_grad`, `filter_value_and_grad` and `filter_remat`: functions of equinox modules within a memory budget.

As everywhere in equinox, what is not an array stays what it is: numbers, strings and functions inside modules are part
of the program, and only the inexact arrays of the first argument are differentiated. equinox is imported where one of
these functions is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from jaxremat._api import budgeted
from jaxremat._extras import Keywords, imported, split


def filter_grad(
    fun: Callable[..., Any] | None = None, *, has_aux: bool = False, **keywords: Unpack[Keywords]
) -> Callable[..., Any]:
    """`eqx.filter_grad` within a memory budget; without `fun`, a decorator. Keywords are those of `jaxremat.grad`.

    **Raises:** what `jaxremat.grad` raises, and `ImportError` where equinox is missing.

    >>> import equinox as eqx, jax, jax.numpy as jnp, jaxremat
    >>> model = eqx.nn.MLP(2, 1, 8, 2, key=jax.random.key(0))
    >>> grads = jaxremat.equinox.filter_grad(lambda model, x: model(x).sum(), budget="1MB")(model, jnp.ones(2))
    >>> grads.layers[-1].bias
    Array([1.], dtype=float32)
    """
    return _filtered(fun, lambda f: imported("equinox", "equinox").filter_grad(f, has_aux=has_aux), keywords)


def filter_value_and_grad(
    fun: Callable[..., Any] | None = None, *, has_aux: bool = False, **keywords: Unpack[Keywords]
) -> Callable[..., Any]:
    """`eqx.filter_value_and_grad` within a memory budget. Arguments and errors are those of `filter_grad`."""
    return _filtered(fun, lambda f: imported("equinox", "equinox").filter_value_and_grad(f, has_aux=has_aux), keywords)


def filter_remat(fun: Callable[..., Any] | None = None, **keywords: Unpack[Keywords]) -> Callable[..., Any]:
    """`fun`, such as a whole training step, within a memory budget, in place of `eqx.filter_jit`.

    Arguments and errors are those of `filter_grad`.
    """
    return _filtered(fun, lambda f: f, keywords)


def _filtered(
    fun: Callable[..., Any] | None, transform: Callable[[Callable[..., Any]], Callable[..., Any]], keywords: Keywords
) -> Callable[..., Any]:
    if fun is None:
        return lambda fun: _filtered(fun, transform, keywords)
    options, plan = split(keywords)
    return budgeted(fun, transform, (), options, plan, numbers=False)
