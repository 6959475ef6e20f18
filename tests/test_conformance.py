"""Any program people write in JAX gives the same with our functions as with JAX's: at a budget of 0.9, at the smallest
budget that works, and with as many recomputations as can be.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import calls, loops, numerics, signatures, transformations
from conformance._case import Api, Case
from jax.experimental.compilation_cache.compilation_cache import reset_cache

import jaxremat

CASES = [*loops.CASES, *calls.CASES, *numerics.CASES, *signatures.CASES, *transformations.CASES]
THEIRS = Api(jax.grad, jax.value_and_grad, lambda fun: fun)
QUICK = {"solver": "linearized_greedy"}  # it is programs that are in question here, not schedules


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory):
    """Programs that several budgets have in common are compiled once."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for values in (settings, before):
        for name, value in values.items():
            jax.config.update(name, value)
        reset_cache()
        if values is settings:
            yield


def within(transform: Callable[..., Any], budget: float, missed: list[int]) -> Callable[..., Any]:
    """`transform` at a budget or, where that is too small, at the smallest one that works, which is added to `missed`."""

    def transformed(fun: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        made = [transform(fun, *args, **kwargs, budget=budget, **QUICK)]

        @functools.wraps(made[0])
        def call(*args_: Any, **kwargs_: Any) -> Any:
            try:
                return made[-1](*args_, **kwargs_)
            except jaxremat.BudgetError as error:
                missed.append(error.minimum_bytes or 0)
            made.append(transform(fun, *args, **kwargs, budget=missed[-1], **QUICK))
            return made[-1](*args_, **kwargs_)

        return call

    return transformed


def again(transform: Callable[..., Any]) -> Callable[..., Any]:
    """`transform` with a plan by which every node has what it reads computed again just before."""

    def transformed(fun: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        plain = transform(fun, *args, **kwargs, budget=None, cost=lambda node: 1.0)

        @functools.wraps(plain)
        def call(*args_: Any, **kwargs_: Any) -> Any:
            plan = plain.plan(*args_, **kwargs_)
            graph = plan.graph
            pairs = tuple((t, i) for t in range(graph.n) for i in graph.deps[t] if graph.recomputable[i])
            schedule = jaxremat.Schedule(graph, pairs, solver="again")
            planned = dataclasses.replace(plan, schedule=schedule)
            return transform(fun, *args, **kwargs, plan=planned)(*args_, **kwargs_)

        return call

    return transformed


def ours(kind: Callable[..., Any], *options: Any) -> Api:
    return Api(*(kind(t, *options) for t in (jaxremat.grad, jaxremat.value_and_grad, jaxremat.remat)))


def outcome(case: Case, api: Api) -> Any:
    """What the case gives, or the type and text of the error that it raises, but for values that the text shows."""
    try:
        result = case.run(api)
        jax.effects_barrier()
        return result
    except Exception as error:
        if isinstance(error, jaxremat.BudgetError):
            raise
        return type(error), re.sub(r"(with value|Output was) .*", r"\1", str(error), flags=re.DOTALL), error


def same(mine: Any, theirs: Any, rtol: float) -> None:
    assert jax.tree.structure(mine) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        if not isinstance(b, (jax.Array, np.ndarray, np.generic)):
            assert type(a) is type(b)
            assert a == b
            continue
        assert isinstance(a, jax.Array) == isinstance(b, jax.Array)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert getattr(a, "weak_type", False) == getattr(b, "weak_type", False)
        if a.dtype == jax.dtypes.float0:
            continue
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        if not np.issubdtype(a.dtype, np.number) or a.dtype.itemsize < 4:
            a, b = np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1e-6, float(np.max(np.abs(b), initial=0))))


def check(case: Case, theirs: Any, api: Api) -> None:
    mine = outcome(case, api)
    if isinstance(theirs, tuple) and isinstance(theirs[-1], Exception):
        assert mine[:2] == theirs[:2]
        return
    if isinstance(mine, tuple) and isinstance(mine[-1], Exception):
        raise mine[-1]
    same(mine, theirs, case.rtol)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_as_jax(case: Case):
    theirs = outcome(case, THEIRS)
    missed: list[int] = []
    check(case, theirs, ours(within, 0.9, missed))
    if not missed:
        check(case, theirs, ours(within, 1, missed))
    if case.again:
        check(case, theirs, ours(again))


def test_names_are_unique():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert len(names) >= 170
