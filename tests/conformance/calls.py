"""Calls, rules of differentiation, checkpoints, effects and opaque operations."""

import builtins
import functools

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero, linear_call
from jax.experimental import checkify, io_callback, pallas
from jax.interpreters import ad, batching, mlir

from ._case import Cases, rand

CASES = Cases()
W, V, X = rand(4, 4) * 0.5, rand(4, 4, seed=3) * 0.5, rand(8, 4, seed=1)


@CASES.loss(W, X)
def nested_jit(w, x):
    inner = jax.jit(lambda h: jnp.tanh(h @ w))
    return jax.jit(lambda h: inner(inner(h)).sum())(x)


@CASES.loss(W, X)
def jit_called_twice_with_other_shapes(w, x):
    layer = jax.jit(lambda h, w: jnp.tanh(h @ w))
    return layer(layer(x, w), w).sum() + layer(x[:3], w).sum()


@CASES.loss(W, X)
def jit_with_donation_inside(w, x):
    double = jax.jit(lambda h: h * 2.0, donate_argnums=0)
    return (double(jnp.sin(x @ w)) ** 2).sum()


@CASES.loss(W, X)
def jit_that_is_not_inlined(w, x):
    return jax.jit(lambda h: jnp.exp(jnp.sin(h @ w)), inline=False)(x).sum()


@CASES.loss(X)
def activations_with_rules_of_their_own(x):
    h = jax.nn.relu(x) + jax.nn.silu(x) + jax.nn.gelu(x) + jax.nn.relu6(x) + jax.nn.softplus(x) + jax.nn.elu(x)
    return (h + jax.nn.log_sigmoid(x) + jax.nn.leaky_relu(x) + jax.nn.logsumexp(x)).sum()


@jax.custom_jvp
def clipped(x):
    return jnp.clip(x, -1, 1)


@clipped.defjvp
def _clipped_jvp(primals, tangents):
    return clipped(primals[0]), tangents[0] * 0.5


@CASES.loss(W, X)
def custom_jvp(w, x):
    return (clipped(jnp.sin(x @ w)) ** 2).sum()


@CASES.loss(X)
def custom_jvp_by_partial_rules(x):
    @jax.custom_jvp
    def product(a, b):
        return a * b

    product.defjvps(lambda t, ans, a, b: 2 * b * t, None)
    return product(x, jnp.sin(x)).sum()


@CASES.loss(X)
def custom_jvp_with_an_argument_that_is_not_differentiated(x):
    @functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
    def apply(f, x):
        return f(x)

    @apply.defjvp
    def rule(f, primals, tangents):
        return f(primals[0]), tangents[0] * 3

    return apply(jnp.sin, x).sum()


@jax.custom_vjp
def halved(h, w):
    return jnp.tanh(h @ w)


def _halved_forward(h, w):
    y = jnp.tanh(h @ w)
    return y, (y, h, w)


def _halved_backward(residuals, ct):
    y, h, w = residuals
    g = ct * (1 - y**2) * 0.5
    return g @ w.T, h.T @ g


halved.defvjp(_halved_forward, _halved_backward)


@CASES.loss(W, X, argnums=(0, 1))
def custom_vjp_with_residuals(w, x):
    return halved(halved(x, w), w).sum()


@CASES.loss(W, X)
def custom_vjp_in_a_checkpoint(w, x):
    return jax.checkpoint(halved)(x, w).sum()


@CASES.loss(W, X)
def custom_vjp_in_a_scan(w, x):
    return lax.scan(lambda h, _: (halved(h, w), None), x, length=3)[0].sum()


@CASES.loss(X, "sin")
def custom_vjp_with_an_argument_that_is_not_differentiated(x, name):
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def apply(name, x):
        return getattr(jnp, name)(x)

    apply.defvjp(lambda name, x: (apply(name, x), x), lambda name, x, g: (g * 7 * x,))
    return apply(name, x).sum()


@CASES.loss(X)
def custom_vjp_with_symbolic_zeros(x):
    @jax.custom_vjp
    def pair(a, b):
        return a * b, jnp.sin(a)

    def forward(a, b):
        assert a.perturbed
        assert not b.perturbed
        return pair(a.value, b.value), (a.value, b.value)

    def backward(residuals, cts):
        _, b = residuals
        first, second = cts
        assert isinstance(second, SymbolicZero)
        return first * b, None

    pair.defvjp(forward, backward, symbolic_zeros=True)
    return pair(x, jnp.ones_like(x))[0].sum()


@CASES.loss(X)
def custom_vjp_of_integers_has_float0_cotangents(x):
    @jax.custom_vjp
    def take(x, i):
        return x[i]

    def backward(residuals, g):
        x, i = residuals
        return jnp.zeros_like(x).at[i].add(g), np.zeros(i.shape, jax.dtypes.float0)

    take.defvjp(lambda x, i: (x[i], (x, i)), backward)
    return take(x, jnp.array([0, 3, 3])).sum()


@CASES.loss(X)
def custom_vjp_with_a_wrong_rule_is_an_error(x):
    @jax.custom_vjp
    def f(x):
        return x * 2

    f.defvjp(lambda x: (x * 2, None), lambda _, g: (g, g))
    return f(x).sum()


@CASES.loss(X)
def custom_gradient(x):
    @jax.custom_gradient
    def f(x):
        return x**2, lambda g: g * jnp.sin(x)

    return f(x).sum()


@CASES.loss(W, X)
def optimization_barrier(w, x):
    h, w = lax.optimization_barrier((jnp.tanh(x @ w), w))
    return (h @ w).sum()


def _block(w, x):
    h = checkpoint_name(jnp.sin(x @ w), "sin")
    return jnp.cos(checkpoint_name(h @ w, "product")).sum()


@CASES.loss(W, X)
def checkpoint(w, x):
    return jax.checkpoint(_block)(w, x)


POLICIES = jax.checkpoint_policies


@CASES.loss(W, X)
def checkpoint_that_saves_dots(w, x):
    return jax.checkpoint(_block, policy=POLICIES.dots_saveable)(w, x)


@CASES.loss(W, X)
def checkpoint_that_saves_names(w, x):
    return jax.checkpoint(_block, policy=POLICIES.save_only_these_names("sin"))(w, x)


@CASES.loss(W, X)
def checkpoint_that_saves_all_but_names(w, x):
    return jax.checkpoint(_block, policy=POLICIES.save_anything_except_these_names("product"))(w, x)


@CASES.loss(W, X)
def checkpoint_that_saves_everything(w, x):
    return jax.checkpoint(_block, policy=POLICIES.everything_saveable)(w, x)


@CASES.loss(W, X)
def checkpoint_in_a_checkpoint(w, x):
    return jax.checkpoint(lambda w, x: jax.checkpoint(_block)(w, jnp.sin(x)), prevent_cse=False)(w, x)


@CASES.loss(W, X, 2)
def checkpoint_with_a_static_argument(w, x, n):
    return jax.checkpoint(lambda w, x, n: sum(jnp.sin(x @ w).sum() for _ in range(n)), static_argnums=2)(w, x, n)


@CASES.loss(W, X)
def checkpoint_of_a_function_with_aux(w, x):
    h, name = jax.checkpoint(lambda x: (jnp.sin(x @ w), {"n": x.sum()}))(x)
    return h.sum() + name["n"]


@CASES.loss(W, X)
def names_outside_a_checkpoint(w, x):
    return _block(w, x)


@CASES.loss(W, X)
def named_scopes(w, x):
    with jax.named_scope("first"):
        h = jnp.sin(x @ w)
        with jax.named_scope("second/third"):
            return jnp.cos(h).sum()


@CASES.loss(W, X)
def named_calls(w, x):
    return jax.named_call(lambda h: jnp.sin(h @ w), name="layer (1)")(x).sum()


@CASES.loss(W, X)
def closure_convert(w, x):
    pure, consts = jax.closure_convert(lambda h: jnp.sin(h @ w), x)
    return pure(x, *consts).sum()


def _doubled_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2.0


@CASES.loss(W, X)
def pallas_call_that_is_interpreted(w, x):
    call = pallas.pallas_call(_doubled_kernel, out_shape=jax.ShapeDtypeStruct((8, 4), jnp.float32), interpret=True)

    @jax.custom_vjp
    def double(h):
        return call(h)

    double.defvjp(lambda h: (call(h), None), lambda _, g: (call(g),))
    return jnp.sin(double(x @ w)).sum()


@CASES.loss(W, X)
def pallas_call_with_its_own_derivative(w, x):
    call = pallas.pallas_call(_doubled_kernel, out_shape=jax.ShapeDtypeStruct((8, 4), jnp.float32), interpret=True)
    return jnp.sin(call(x @ w)).sum()


def _numpy_sin(x):
    return np.sin(np.asarray(x))


@CASES.loss(W, X)
def pure_callback(w, x):
    @jax.custom_jvp
    def sin(x):
        return jax.pure_callback(_numpy_sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")

    sin.defjvp(lambda p, t: (sin(p[0]), jnp.cos(p[0]) * t[0]))
    return sin(x @ w).sum()


@CASES.loss(W, X)
def pure_callback_without_a_derivative_is_an_error(w, x):
    return jax.pure_callback(_numpy_sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x @ w).sum()


def _logged(api, body, steps=3):
    """Values and gradients of a chain of layers with `body(log, i, h)` after each, and what it logged."""
    log = []

    def loss(w, x):
        h = x
        for i in range(steps):
            h = jnp.tanh(h @ w)
            body(log, i, h)
        return h.sum()

    differentiated = api.value_and_grad(loss)
    results = [differentiated(W, X) for _ in range(2)]
    jax.effects_barrier()
    return results, log


@CASES.program
def debug_callback_ordered(api):
    def body(log, i, h):
        jax.debug.callback(lambda s: log.append((i, round(float(s), 3))), h.sum(), ordered=True)

    return _logged(api, body)


@CASES.program
def debug_callback_unordered(api):
    results, log = _logged(api, lambda log, i, h: jax.debug.callback(lambda: log.append(i)))
    return results, sorted(log)


@CASES.program
def io_callback_ordered(api):
    def body(log, i, h):
        io_callback(lambda s: log.append((i, round(float(s), 3))), None, lax.stop_gradient(h.sum()), ordered=True)

    return _logged(api, body)


@CASES.program
def io_callback_unordered(api):
    def body(log, i, h):
        io_callback(lambda s: log.append((i, round(float(s), 3))), None, lax.stop_gradient(h.sum()))

    results, log = _logged(api, body)
    return results, sorted(log)


@CASES.program
def io_callback_whose_result_is_used(api):
    log = []

    def count(x):
        log.append(1)
        return np.float32(len(log))

    def loss(w):
        return jnp.sin(w).sum() * io_callback(count, jax.ShapeDtypeStruct((), jnp.float32), 0.0, ordered=True)

    differentiated = api.value_and_grad(loss)
    return differentiated(W), differentiated(W), log


@CASES.program
def debug_print(api):
    lines = []

    def loss(w, x):
        h = jnp.tanh(x @ w)
        jax.debug.print("sum {s:.3f} of {n}", s=h.sum(), n=x.shape[0], ordered=True)
        h = jnp.tanh(h @ w)
        jax.debug.print("then {s:.3f}", s=h.sum(), ordered=True)
        return h.sum()

    original = builtins.print
    builtins.print = lambda *values, **_: lines.append(" ".join(map(str, values)))
    try:
        results = api.value_and_grad(loss)(W, X)
        jax.effects_barrier()
    finally:
        builtins.print = original
    return results, lines


@CASES.program
def callbacks_in_a_scan(api):
    log = []

    def loss(w):
        def body(h, i):
            jax.debug.callback(lambda i: log.append(int(i)), i, ordered=True)
            return jnp.tanh(h @ w), None

        return lax.scan(body, jnp.ones(4), jnp.arange(3))[0].sum()

    results = api.value_and_grad(loss)(W)
    jax.effects_barrier()
    return results, log


@CASES.program
def callbacks_in_a_branch(api):
    log = []

    def loss(w):
        def loud(w):
            jax.debug.callback(lambda: log.append("loud"))
            return jnp.sin(w).sum()

        return lax.cond(w.sum() > -1e9, loud, lambda w: w.sum(), w)

    results = api.value_and_grad(loss)(W)
    jax.effects_barrier()
    return results, log


@CASES.program
def callbacks_in_a_checkpoint(api):
    log = []

    @jax.checkpoint
    def layer(h, w):
        jax.debug.callback(lambda: log.append("layer"))
        return jnp.tanh(jnp.sin(h @ w))

    results = api.value_and_grad(lambda w, x: layer(layer(x, w), w).sum())(W, X)
    jax.effects_barrier()
    return results, sorted(set(log))


@CASES.program
def a_callback_that_fails(api):
    def fail(x):
        raise ValueError("no")

    def loss(w):
        return io_callback(fail, jax.ShapeDtypeStruct((), jnp.float32), 0.0) * w.sum()

    try:
        jax.block_until_ready(api.value_and_grad(loss)(W))
    except Exception as error:
        return type(error).__name__, "no" in str(error)


@CASES.program(again=False)  # the numbers that JAX gives to errors differ from trace to trace
def checkify_around(api):
    def loss(w):
        checkify.check(jnp.all(w > 0), "w must be positive, sum {s}", s=w.sum())
        return jnp.log(w).sum()

    differentiated = checkify.checkify(api.grad(loss))
    return [(e.get(), g) for e, g in (differentiated(W**2), differentiated(-jnp.ones(3)))]


@CASES.program(again=False)
def checkify_inside(api):
    def loss(w):
        def checked(w):
            checkify.check(jnp.all(w > 0), "w must be positive")
            return jnp.log(jnp.abs(w)).sum()

        error, value = checkify.checkify(checked)(w)
        return value, error

    (value, error), grads = api.value_and_grad(loss, has_aux=True)(W)
    return value, error.get(), grads


@CASES.program
def checkify_of_float_errors(api):
    differentiated = checkify.checkify(api.grad(lambda w: jnp.log(w).sum()), errors=checkify.float_checks)
    error, grads = jax.jit(differentiated)(jnp.ones(3))
    return error.get(), grads


opaque_p = jex.Primitive("conformance_opaque")
opaque_p.def_impl(lambda x, *, power: x**power)
opaque_p.def_abstract_eval(lambda x, *, power: jax.core.ShapedArray(x.shape, x.dtype))
mlir.register_lowering(opaque_p, mlir.lower_fun(lambda x, *, power: x**power, multiple_results=False))
ad.defjvp(opaque_p, lambda g, x, *, power: g * power * opaque_p.bind(x, power=power - 1))
batching.defvectorized(opaque_p)


@CASES.loss(W, X)
def primitive_of_ones_own(w, x):
    return opaque_p.bind(jnp.tanh(x @ w), power=3).sum()


pair_p = jex.Primitive("conformance_pair")
pair_p.multiple_results = True
pair_p.def_impl(lambda x: [jnp.sin(x), jnp.cos(x)])
pair_p.def_abstract_eval(lambda x: [jax.core.ShapedArray(x.shape, x.dtype)] * 2)
mlir.register_lowering(pair_p, mlir.lower_fun(lambda x: [jnp.sin(x), jnp.cos(x)], multiple_results=True))


def _pair_jvp(primals, tangents):
    sin, cos = pair_p.bind(*primals)
    return [sin, cos], [cos * tangents[0], -sin * tangents[0]]


ad.primitive_jvps[pair_p] = _pair_jvp


@CASES.loss(W, X)
def primitive_of_several_results(w, x):
    a, b = pair_p.bind(x @ w)
    return (a * b + b).sum()


@CASES.loss(X)
def linear_call_with_its_transpose(x):
    scale = jnp.arange(1.0, 5.0)
    return linear_call(lambda s, x: x * s, lambda s, ct: ct * s * 2, scale, x).sum()


@CASES.loss(W, X[0])
def custom_linear_solve(w, b):
    a = w @ w.T + jnp.eye(4)
    matvec = lambda x: a @ x
    return lax.custom_linear_solve(matvec, b, lambda _, b: jnp.linalg.solve(a, b), symmetric=True).sum()


@CASES.loss(jnp.float32(2.0))
def custom_root(a):
    def solve(f, x):
        return lax.fori_loop(0, 20, lambda _, x: x - f(x) / (2 * x), x)

    return lax.custom_root(lambda x: x**2 - a, 1.0, solve, lambda g, y: y / g(1.0))


@CASES.loss(W, X)
def fused_attention_with_its_own_backward(w, x):
    @jax.custom_vjp
    def attention(q, k, v):
        return jax.nn.softmax(q @ k.T) @ v

    def forward(q, k, v):
        return attention(q, k, v), (q, k, v)

    def backward(residuals, g):
        return jax.vjp(lambda *a: jax.nn.softmax(a[0] @ a[1].T) @ a[2], *residuals)[1](g)

    attention.defvjp(forward, backward)
    return (attention(x @ w, x, x @ w.T) ** 2).sum()


@CASES.loss(rand(1, 4, 2, 4), X)
def dot_product_attention(q, x):
    k = jnp.tanh(x[:4, None] * q[0])[None]
    return (jax.nn.dot_product_attention(q, k, k, is_causal=True) ** 2).sum()


@CASES.loss(W, X)
def vjp_in_the_loss(w, x):
    y, pullback = jax.vjp(lambda w: jnp.tanh(x @ w), w)
    return (pullback(y)[0] ** 2).sum()


@CASES.loss(W, X)
def jvp_in_the_loss(w, x):
    return jax.jvp(lambda w: jnp.tanh(x @ w), (w,), (w,))[1].sum()


@CASES.loss(W, X)
def linear_transpose_in_the_loss(w, x):
    (back,) = jax.linear_transpose(lambda h: h @ x.T, w)(jnp.ones((4, 8)))
    return (back * w**2).sum()


@CASES.loss(W, X)
def a_gradient_penalty(w, x):
    grads = jax.vmap(jax.grad(lambda row: jnp.tanh(row @ w).sum()))(x)
    return ((jnp.linalg.norm(grads, axis=-1) - 1) ** 2).mean()


@CASES.loss(W, X)
def vmap_in_the_loss(w, x):
    return jax.vmap(lambda row: jnp.tanh(row @ w), in_axes=0, out_axes=1)(x).sum()


@CASES.loss(W, X)
def vmap_with_a_named_axis(w, x):
    def normalised(row):
        h = row @ w
        return h - lax.pmean(h, "batch")

    return (jax.vmap(normalised, axis_name="batch")(x) ** 2).sum()


@CASES.loss(W, X)
def stop_gradient(w, x):
    return (lax.stop_gradient(x @ w) * (x @ w)).sum()


@CASES.loss(W, X)
def custom_batching(w, x):
    @jax.custom_batching.custom_vmap
    def f(row):
        return jnp.sin(row)

    @f.def_vmap
    def rule(size, batched, rows):
        return jnp.sin(rows) * 2, True

    return (jax.vmap(f)(x) * (x @ w)).sum()


@CASES.loss(W, V, X, argnums=(0, 1))
def composite(w, v, x):
    layer = lax.composite(lambda h, w: jnp.tanh(h @ w), name="conformance.layer")
    return (layer(x, w) @ v).sum()


@CASES.loss(W, X)
def mixed_precision_contexts(w, x):
    with jax.default_matmul_precision("bfloat16"):
        h = x @ w
    with jax.numpy_dtype_promotion("strict"):
        return (h * h).sum()


@CASES.loss(X)
def mutable_arrays_inside(x):
    total = jax.new_ref(jnp.zeros(4))
    for i in range(3):
        total[...] += jnp.sin(x[i])
    return (jax.freeze(total) ** 2).sum()


@CASES.program
def mutable_arrays_in_an_inner_function(api):
    @jax.jit
    def total(x):
        ref = jax.new_ref(jnp.zeros(4))
        for i in range(3):
            ref[...] += jnp.sin(x[i])
        return jax.freeze(ref)

    return api.value_and_grad(lambda w: (total(jnp.tanh(X @ w)) ** 2).sum())(W)


@CASES.program(again=False)
def checks_that_fail_or_not(api):
    def positive(w):
        checkify.check(jnp.all(w > 0), "not positive: {least}", least=w.min())
        return jnp.log(w).sum()

    differentiated = api.value_and_grad(positive)
    results = [differentiated(W**2)]
    return results + [_error_of(lambda: differentiated(-W))]


def _error_of(run):
    try:
        return run()
    except Exception as error:
        return type(error).__name__, str(error).partition("\n")[0]


@CASES.loss(W)
def constants_inside_of_calls(w):
    table = np.arange(4, dtype=np.float32)
    return jax.jit(lambda w: (jnp.tanh(w * table) @ np.ones((4, 2), np.float32)).sum())(w)
