"""Transformations around our functions."""

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._case import Cases, rand

CASES = Cases()
W, X = rand(4, 4) * 0.5, rand(8, 4, seed=1)
STACK = np.stack([X, X + 1, X - 1])


def loss(w, x):
    return jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w) ** 2)


@CASES.program
def under_jit(api):
    step = jax.jit(api.value_and_grad(loss))
    return step(W, X), step(W, X[:3]), step(W, X)


@CASES.program
def under_jit_with_static_arguments(api):
    f = lambda w, x, depth, name: loss(w, x) * depth + getattr(jnp, name)(w).sum()
    step = jax.jit(api.value_and_grad(f), static_argnums=(2,), static_argnames="name")
    return step(W, X, 2, name="sin"), step(W, X, 3, name="cos")


@CASES.program
def under_jit_with_donation(api):
    def step(w, x):
        return w - 0.1 * api.grad(loss)(w, x)

    step, w = jax.jit(step, donate_argnums=0), jnp.array(W)
    for _ in range(2):
        w = step(w, X)
    return w


@CASES.program
def the_gradient_function_itself_jitted_with_donation(api):
    return jax.jit(api.grad(loss), donate_argnums=(0,))(jnp.array(W), X)


@CASES.program
def under_jit_in_a_jit(api):
    return jax.jit(lambda w: jax.jit(api.grad(loss))(w, X) + api.grad(loss)(w, X))(W)


@CASES.program
def ours_of_a_jitted_function(api):
    return api.value_and_grad(jax.jit(loss))(W, X)


@CASES.program
def under_vmap(api):
    return jax.vmap(api.value_and_grad(loss), in_axes=(None, 0))(W, STACK)


@CASES.program
def under_vmap_of_both_and_out_axes(api):
    return jax.vmap(api.grad(loss), in_axes=(0, 1), out_axes=1)(np.stack([W] * 3), STACK.swapaxes(0, 1))


@CASES.program
def under_vmap_of_vmap_and_jit(api):
    f = jax.vmap(jax.vmap(api.grad(lambda w, row: jnp.tanh(row @ w).sum()), (None, 0)), (None, 0))
    return jax.jit(f)(W, STACK)


@CASES.program
def per_example_gradients(api):
    return jax.vmap(api.grad(lambda w, row: jnp.tanh(row @ w).sum()), in_axes=(None, 0))(W, X)


@CASES.program
def ours_of_a_vmap(api):
    return api.value_and_grad(lambda w: jax.vmap(lambda row: jnp.tanh(row @ w).sum())(X).sum())(W)


@CASES.program
def gradient_of_ours(api):
    return jax.grad(lambda w: (api.grad(loss)(w, X) ** 2).sum())(W)


@CASES.program
def ours_of_jax_gradient(api):
    return api.grad(lambda w: (jax.grad(loss)(w, X) ** 2).sum())(W)


@CASES.program
def ours_of_ours(api):
    return api.value_and_grad(lambda w: (api.grad(loss)(w, X) ** 2).sum())(W)


@CASES.program
def third_order(api):
    f = lambda a: jnp.sin(a) * jnp.exp(a)
    return api.grad(api.grad(api.grad(f)))(0.5)


@CASES.program
def jvp_of_ours(api):
    return jax.jvp(lambda w: api.value_and_grad(loss)(w, X), (W,), (W,))


@CASES.program
def hessian_vector_product(api):
    return jax.jit(lambda w, v: jax.jvp(lambda w: api.grad(loss)(w, X), (w,), (v,))[1])(W, W)


@CASES.program
def jacobian_forward_of_ours(api):
    return jax.jacfwd(api.grad(lambda a: jnp.sum(jnp.sin(a) ** 3)))(W[0])


@CASES.program
def jacobian_reverse_of_ours(api):
    return jax.jacrev(api.grad(lambda a: jnp.sum(jnp.sin(a) ** 3)))(W[0])


@CASES.program
def ours_of_a_hessian(api):
    return api.grad(lambda a: jnp.sum(jax.hessian(lambda a: jnp.sum(jnp.sin(a) ** 3))(a) ** 2))(W[0])


@CASES.program
def linearize_of_ours(api):
    value, linear = jax.linearize(lambda w: api.grad(loss)(w, X), W)
    return value, linear(W)


@CASES.program
def vjp_of_ours(api):
    value, pullback = jax.vjp(lambda w: api.grad(loss)(w, X), W)
    return value, pullback(value)


@CASES.program
def ours_in_a_scan(api):
    def step(w, x):
        value, grads = api.value_and_grad(loss)(w, x)
        return w - 0.1 * grads, value

    return lax.scan(step, W, STACK)


@CASES.program
def gradient_accumulation(api):
    def step(total, x):
        return jax.tree.map(jnp.add, total, api.grad(loss)(W, x)), None

    return jax.jit(lambda: lax.scan(step, jnp.zeros_like(W), STACK)[0])()


@CASES.program
def ours_in_a_fori_loop(api):
    return lax.fori_loop(0, 3, lambda i, w: w - 0.1 * api.grad(loss)(w, X), W)


@CASES.program
def ours_in_a_while_loop(api):
    step = lambda w: w - 0.1 * api.grad(loss)(w, X)
    return jax.jit(lambda w: lax.while_loop(lambda w: loss(w, X) > 0.05, step, w))(W)


@CASES.program
def ours_in_a_branch(api):
    return lax.cond(X.sum() > -100, lambda w: api.grad(loss)(w, X), lambda w: w, jnp.asarray(W))


@CASES.program
def ours_in_a_map(api):
    return lax.map(lambda x: api.value_and_grad(loss)(W, x), STACK)


@CASES.program
def ours_in_a_checkpoint(api):
    return jax.grad(lambda w: jax.checkpoint(lambda w: (api.grad(loss)(w, X) ** 2).sum())(w))(W)


@CASES.program
def eval_shape_of_ours(api):
    struct = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    shapes = jax.eval_shape(api.value_and_grad(loss), struct, X)
    return [(s.shape, str(s.dtype), s.weak_type) for s in jax.tree.leaves(shapes)]


@CASES.program
def make_jaxpr_of_ours(api):
    jaxpr = jax.make_jaxpr(api.value_and_grad(loss))(W, X)
    return [str(a) for a in jaxpr.in_avals], [str(a) for a in jaxpr.out_avals]


@CASES.program
def compiled_ahead_of_time(api):
    compiled = jax.jit(api.value_and_grad(loss)).lower(W, X).compile()
    return compiled(W, X)


@CASES.program
def lowered_from_shapes(api):
    struct = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    return jax.jit(api.grad(loss)).trace(struct, X).lower().compile()(W, X)


@CASES.program
def exported_and_read_again(api):
    exported = jax.export.export(jax.jit(api.value_and_grad(loss)))(W, X)
    return jax.export.deserialize(exported.serialize()).call(W, X)


@CASES.program
def called_from_threads(api):
    differentiated = api.value_and_grad(loss)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda n: differentiated(W, X[:n]), (8, 3, 8, 3)))


@CASES.program
def without_jit(api):
    with jax.disable_jit():
        return api.value_and_grad(loss)(W, X)


@CASES.program
def on_a_named_device(api):
    with jax.default_device(jax.devices("cpu")[0]):
        return api.value_and_grad(loss)(W, X)


@CASES.program
def under_a_matmul_precision(api):
    with jax.default_matmul_precision("highest"):
        return api.value_and_grad(loss)(W, X)


@CASES.program
def checking_for_leaks(api):
    with jax.checking_leaks():
        return jax.jit(api.grad(lambda w: jnp.sum(w**2)))(W)


@CASES.program
def closing_over_tracers(api):
    def outer(w, x):
        scaled = jnp.sin(x)
        return api.grad(lambda w: loss(w, scaled))(w)

    return jax.jit(outer)(W, X), jax.vmap(outer, (None, 0))(W, STACK), jax.grad(lambda x: outer(W, x).sum())(X)


@CASES.program
def one_function_eager_jitted_and_mapped(api):
    differentiated = api.grad(loss)
    return differentiated(W, X), jax.jit(differentiated)(W, X), jax.vmap(differentiated, (None, 0))(W, STACK)


@CASES.program
def remat_under_jax_gradient(api):
    return jax.grad(api.remat(loss))(W, X)


@CASES.program
def remat_of_a_forward_pass_in_a_bigger_loss(api):
    features = api.remat(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w))
    return jax.value_and_grad(lambda w: (features(w, X) ** 2).sum())(W)


@CASES.program
def remat_of_a_step_in_a_scan(api):
    step = api.remat(lambda w, x: (w - 0.1 * jax.grad(loss)(w, x), loss(w, x)))
    return lax.scan(step, jnp.asarray(W), STACK)


@CASES.program
def momentum_in_python(api):
    differentiated, w, velocity = jax.jit(api.value_and_grad(loss)), W, jnp.zeros_like(W)
    for x in STACK:
        value, grads = differentiated(w, x)
        velocity = 0.9 * velocity + grads
        w = w - 0.1 * velocity
    return value, w


@CASES.program
def a_custom_rule_that_calls_ours(api):
    @jax.custom_jvp
    def minimum(a):
        return functools.reduce(lambda x, _: x - 0.1 * api.grad(lambda x: (x - a) ** 2)(x), range(3), 0.0)

    minimum.defjvp(lambda p, t: (minimum(*p), t[0]))
    return jax.value_and_grad(minimum)(2.0)
