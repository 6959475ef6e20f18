"""The barrier: an identity under every transformation, which XLA does not see through."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxremat._barrier import barrier, stage_call


def compiled_flops(fun, *args):
    return jax.jit(fun).lower(*args).compile().cost_analysis()["flops"]


def both(x, y):
    x, y = barrier(x, y)
    return jnp.sin(x) * y


def test_it_is_an_identity():
    x, key = jnp.arange(3), jax.random.key(0)
    a, b, c = barrier(x, 2.0, key)
    np.testing.assert_array_equal(a, x)
    assert b == 2.0
    assert jnp.array_equal(jax.random.key_data(c), jax.random.key_data(key))


def test_under_transformations():
    x, y = jnp.linspace(0.0, 1.0, 4), jnp.linspace(1.0, 2.0, 4)
    plain = lambda x, y: jnp.sin(x) * y
    np.testing.assert_array_equal(jax.jit(both)(x, y), plain(x, y))
    np.testing.assert_array_equal(jax.vmap(both)(x, y), plain(x, y))
    np.testing.assert_array_equal(jax.vmap(both, (0, None))(x, 2.0), plain(x, 2.0))
    for order in (jax.grad, lambda f: jax.grad(jax.grad(f)), lambda f: jax.jvp(f, (0.3,), (1.0,))[1]):
        ours, theirs = (order(lambda x, f=f: f(x, 1.5)) for f in (both, plain))
        if callable(ours):
            ours, theirs = ours(0.3), theirs(0.3)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_under_shard_map():
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    spec = PartitionSpec("x")
    mapped = jax.shard_map(both, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    x = jnp.linspace(0.0, 1.0, 4)
    np.testing.assert_allclose(jax.jit(mapped)(x, x), jnp.sin(x) * x, rtol=1e-6)


def test_equal_calls_on_both_sides_are_not_merged():
    layer = jax.jit(lambda x: jnp.tanh(x @ x))
    x = jnp.eye(64)

    def twice(x, tie):
        first = stage_call(layer, x)
        other = barrier(x, first)[0] if tie else x
        return first + stage_call(layer, other)

    once = compiled_flops(lambda x: stage_call(layer, x), x)
    assert compiled_flops(lambda x: twice(x, tie=False), x) < 1.5 * once, "equal calls are merged"
    assert compiled_flops(lambda x: twice(x, tie=True), x) > 1.9 * once


def test_a_barrier_costs_no_memory():
    x = jnp.zeros((256, 256))
    layer = jax.jit(lambda x: jnp.tanh(x @ x))

    def run(x, tied):
        h = stage_call(layer, x)
        h = barrier(h, x)[0] if tied else h
        return stage_call(layer, h)

    temporaries = [
        jax.jit(lambda x, t=t: run(x, t)).lower(x).compile().memory_analysis().temp_size_in_bytes for t in (False, True)
    ]
    assert temporaries[1] <= temporaries[0] + 256
