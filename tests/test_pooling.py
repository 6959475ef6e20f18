"""The max-pool gradient and the convolutions of CPU stages equal XLA's own, to the bit, with less workspace."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxremat._convolution import canonical_convolution
from jaxremat._pooling import max_pool_gradient


def equation(fun, name, *args):
    (eqn,) = [eqn for eqn in jax.make_jaxpr(fun)(*args).eqns if eqn.primitive.name == name]
    return eqn


def pool(x, window, stride, padding):
    lowest = np.array(-np.inf, x.dtype)
    return lax.reduce_window(x, lowest, lax.max, (1, window, window, 1), (1, stride, stride, 1), padding)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    ("size", "window", "stride", "padding"),
    [
        (8, 2, 2, "VALID"),
        (9, 2, 2, "VALID"),  # the last row and column are in no window
        (9, 2, 2, "SAME"),
        (8, 3, 2, "SAME"),
        (9, 3, 2, ((0, 0), (1, 1), (1, 1), (0, 0))),
        (8, 3, 1, "SAME"),
        (9, 3, 2, "VALID"),
        (8, 2, 3, "VALID"),
        (4, 4, 4, "VALID"),
    ],
)
def test_max_pool_gradient(size, window, stride, padding, dtype):
    x = jnp.round(3 * jax.random.normal(jax.random.key(0), (2, size, size, 3))).astype(dtype)  # with ties
    fun = lambda x: pool(x, window, stride, padding)
    g = jax.random.normal(jax.random.key(1), fun(x).shape).astype(dtype)
    eqn = equation(lambda x, g: jax.vjp(fun, x)[1](g), "select_and_scatter_add", x, g)
    (ours,) = jax.jit(lambda g, x: max_pool_gradient(eqn, g, x))(g, x)
    theirs = jax.jit(lambda g, x: eqn.primitive.bind(g, x, **eqn.params))(g, x)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("value", [-jnp.inf, jnp.nan])
def test_windows_without_a_largest_value(value):
    x = jnp.ones((1, 3, 3, 1)).at[0, :2].set(value)
    fun = lambda x: pool(x, 3, 2, "SAME")
    g = jnp.arange(1.0, 5.0).reshape(1, 2, 2, 1)
    eqn = equation(lambda x, g: jax.vjp(fun, x)[1](g), "select_and_scatter_add", x, g)
    np.testing.assert_array_equal(max_pool_gradient(eqn, g, x)[0], eqn.primitive.bind(g, x, **eqn.params))


def test_max_pool_gradient_takes_no_workspace():
    x = jnp.ones((4, 32, 32, 16))
    fun = lambda x: pool(x, 2, 2, "VALID")
    g = fun(x)
    eqn = equation(lambda x, g: jax.vjp(fun, x)[1](g), "select_and_scatter_add", x, g)
    ours = jax.jit(lambda g, x: max_pool_gradient(eqn, g, x)).lower(g, x).compile()
    assert ours.memory_analysis().temp_size_in_bytes < x.nbytes // 8


@pytest.mark.parametrize("layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NHWC", "OIHW", "NCHW")])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_and_their_gradients(layout, stride):
    shape = {"N": 2, "H": 6, "W": 7, "C": 4, "I": 4, "O": 8}
    x = jax.random.normal(jax.random.key(0), [shape[c] for c in layout[0]])
    kernel = {"H": 3, "W": 3} | {c: shape[c] for c in "IO"}
    w = jax.random.normal(jax.random.key(1), [kernel[c] for c in layout[1]])

    def fun(x, w):
        return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=layout)

    traced = jax.make_jaxpr(lambda x, w: jax.vjp(fun, x, w)[1](fun(x, w)))(x, w)
    values = dict(zip(traced.jaxpr.invars, (x, w), strict=True))
    for eqn in traced.eqns:
        operands = [values[v] for v in eqn.invars]
        result = eqn.primitive.bind(*operands, **eqn.params)
        values[eqn.outvars[0]] = result
        if eqn.primitive.name == "conv_general_dilated":
            np.testing.assert_allclose(canonical_convolution(eqn, *operands)[0], result, rtol=1e-4, atol=1e-4)
