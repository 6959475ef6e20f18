"""Flattening: calls are opened, duplicates merged, dead code dropped, values unchanged."""

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest

from jaxremat._trace import bytes_of, flatten


def program_of(fun, *args):
    return flatten(jax.make_jaxpr(fun)(*args))


def primitives(program):
    return [eqn.primitive.name for eqn in program.eqns]


def check_values(fun, *args):
    program = program_of(fun, *args)
    consts = jax.make_jaxpr(fun)(*args).consts
    results = jex.jaxpr_as_fun(program.jaxpr)(*consts, *jax.tree.leaves(args))
    for ours, theirs in zip(results, jax.tree.leaves(fun(*args)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return program


x = jnp.linspace(0.0, 1.0, 12).reshape(3, 4)


def test_calls_are_opened():
    fun = lambda x: jax.jit(lambda y: jax.checkpoint(lambda z: jnp.sin(jax.nn.relu(z)))(y) + 1)(x)
    assert not {"jit", "pjit", "checkpoint", "remat2"} & set(primitives(check_values(fun, x)))


def test_rules_and_control_flow_stay():
    @jax.custom_vjp
    def ruled(x):
        return jnp.sin(x)

    ruled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g,))

    def fun(x):
        y = jax.lax.scan(lambda c, _: (ruled(c), None), x, length=2)[0]
        return jax.lax.cond(y.sum() > 0, jnp.cos, jnp.sin, ruled(y))

    names = primitives(check_values(fun, x))
    assert {"scan", "cond", "custom_vjp_call"} <= set(names)


def test_duplicates_are_merged_but_not_effects():
    def fun(x):
        jax.debug.callback(lambda: None)
        jax.debug.callback(lambda: None)
        return jnp.sin(x) + jnp.sin(x) * jnp.sin(x + 0)

    names = primitives(program_of(fun, x))
    assert names.count("sin") == 2
    assert names.count("debug_callback") == 2


def test_literals_of_other_types_or_signs_are_not_merged():
    def fun(x):
        return x * 0.0, x * -0.0, x[0, 0].astype(int) * 1, x[0, 0].astype(int) + True

    check_values(fun, -x)


def test_dead_code_is_dropped():
    assert primitives(program_of(lambda x: (jnp.cos(x), jnp.sin(x))[1], x)) == ["sin"]


def test_constants_become_arguments():
    table = jnp.arange(4.0)
    program = check_values(lambda x: x + table, x)
    assert not program.jaxpr.consts
    assert not program.plain.consts
    assert program.argument_bytes == x.nbytes + table.nbytes


def test_outputs_may_be_arguments_literals_and_repeated():
    check_values(lambda x: (x, x, 1.0, jnp.sin(x), jnp.sin(x)), x)


def test_the_fingerprint_tells_programs_apart():
    same = [program_of(lambda x: jnp.sin(x) * 2, x).fingerprint for _ in range(2)]
    assert same[0] == same[1]
    others = [program_of(f, x).fingerprint for f in (lambda x: jnp.sin(x) * 3, lambda x: jnp.cos(x) * 2)]
    others.append(program_of(lambda x: jnp.sin(x) * 2, x[:2]).fingerprint)
    assert len({*same, *others}) == 4


@pytest.mark.parametrize(
    ("struct", "size"),
    [
        (jax.ShapeDtypeStruct((3, 4), jnp.float32), 48),
        (jax.ShapeDtypeStruct((), jnp.bfloat16), 2),
        (jax.ShapeDtypeStruct((5, 0), jnp.float32), 0),
        (jax.ShapeDtypeStruct((7,), jnp.bool_), 7),
        (jax.ShapeDtypeStruct((7,), jax.dtypes.float0), 0),
    ],
)
def test_bytes(struct, size):
    assert bytes_of(struct) == size


def test_bytes_of_keys():
    assert bytes_of(jax.typeof(jax.random.split(jax.random.key(0), 3))) == 24
