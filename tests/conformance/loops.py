"""Loops and branches."""

import functools
import operator

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Cases, rand

CASES = Cases()
W, X, WS = rand(4, 4) * 0.5, rand(8, 4, seed=1), rand(3, 4, 4, seed=2) * 0.5


@CASES.loss(WS, X, argnums=(0, 1))
def scan_over_layers(ws, x):
    h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)
    return jnp.mean(h**2)


@CASES.loss(W, X)
def scan_over_closed_weights(w, x):
    h, ys = lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h.sum()), jnp.zeros(4), x)
    return jnp.sum(h) + jnp.sum(ys**2)


@CASES.loss(W)
def scan_without_xs(w):
    h, _ = lax.scan(lambda h, _: (jnp.sin(h @ w), None), jnp.ones(4), None, length=5)
    return h.sum()


@CASES.loss(W, X)
def scan_in_reverse(w, x):
    h, ys = lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h), jnp.zeros(4), x, reverse=True)
    return jnp.sum(h * ys[0])


@CASES.loss(W, X)
def scan_unrolled_by_three(w, x):
    h, ys = lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h), jnp.zeros(4), x, unroll=3)
    return jnp.sum(ys**2) + h.sum()


@CASES.loss(W, X)
def scan_unrolled_whole(w, x):
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros(4), x, unroll=True)[0].sum()


@CASES.loss(W, X[:0])
def scan_of_no_iterations(w, x):
    h, ys = lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h), jnp.ones(4), x)
    return h.sum() + ys.sum() + w.sum()


@CASES.loss(W, X[:1])
def scan_of_one_iteration(w, x):
    h, ys = lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h), jnp.ones(4), x)
    return h.sum() + ys.sum()


@CASES.loss(WS, X)
def scan_in_a_scan(ws, x):
    def layer(h, w):
        return lax.scan(lambda c, row: (jnp.tanh(c @ w + row), c), h[0], h)

    def body(h, w):
        last, rows = layer(h, w)
        return rows, last

    h, lasts = lax.scan(body, x, ws)
    return jnp.sum(h**2) + lasts.sum()


@CASES.loss({"w": W, "b": W[0]}, X)
def scan_with_a_tree_as_carry(p, x):
    def body(carry, x):
        h, (count, total) = carry["h"], carry["t"]
        h = jnp.tanh(h @ p["w"] + p["b"] + x)
        return {"h": h, "t": (count + 1, total + h.sum())}, {"h": h, "n": count}

    carry, ys = lax.scan(body, {"h": jnp.zeros(4), "t": (0, 0.0)}, x)
    return carry["t"][1] + (ys["h"] * ys["n"][:, None]).sum()


@CASES.loss(WS, X)
def scan_of_checkpointed_layers(ws, x):
    layer = jax.checkpoint(lambda h, w: (jnp.tanh(jnp.sin(h @ w)), None))
    return lax.scan(layer, x, ws)[0].sum()


@CASES.loss(WS, X)
def scan_with_an_integer_carry(ws, x):
    def body(c, w):
        i, h = c
        return (i + 1, jnp.where(i % 2 == 0, h @ w, jnp.sin(h))), i

    (_, h), i = lax.scan(body, (jnp.int32(0), x), ws)
    return jnp.sum(h) * i[-1]


@CASES.loss(WS, X)
def scan_with_keys_in_the_carry(ws, x):
    def body(c, w):
        key, h = c
        key, sub = jax.random.split(key)
        return (key, h @ w * jax.random.bernoulli(sub, 0.8, h.shape)), None

    return lax.scan(body, (jax.random.key(0), x), ws)[0][1].sum()


@CASES.loss(W, X)
def scan_with_a_branch_inside(w, x):
    def body(h, x):
        return lax.cond(x[0] > 0, lambda h: jnp.tanh(h @ w), lambda h: h * x, h), h

    h, ys = lax.scan(body, jnp.ones(4), x)
    return h.sum() + (ys**2).sum()


@CASES.loss(W, X)
def scan_whose_outputs_alone_matter(w, x):
    return lax.scan(lambda h, x: (jnp.tanh(h @ w), x @ w), jnp.ones(4), x)[1].sum()


@CASES.loss(W, X)
def scan_that_returns_its_input(w, x):
    h, ys = lax.scan(lambda h, x: (h, (x, h, 1.0)), w, x)
    return h.sum() + sum(y.sum() for y in ys)


@CASES.loss(W)
def fori_loop_of_static_bounds(w):
    return lax.fori_loop(0, 4, lambda i, h: jnp.tanh(h @ w) * (i + 1.0), jnp.ones(4)).sum()


@CASES.loss(W, X)
def fori_loop_that_updates_an_array(w, x):
    return (lax.fori_loop(0, 8, lambda i, a: a.at[i].set(jnp.tanh(a[i] @ w)), x) ** 2).sum()


@CASES.program
def fori_loop_of_a_traced_bound_is_an_error(api):
    f = lambda w, n: lax.fori_loop(0, n, lambda i, h: h @ w, jnp.ones(4)).sum()
    return jax.jit(api.value_and_grad(f))(W, 3)


@CASES.loss(W)
def while_loop_that_is_not_differentiated(w):
    steps = lax.while_loop(lambda s: s[1] < 20.0, lambda s: (s[0] + 1, s[1] * 2.0), (0, 1.0))[0]
    return (w**2).sum() * steps


@CASES.loss(W)
def while_loop_over_stopped_weights(w):
    def body(s):
        return s[0] + 1, s[1] @ lax.stop_gradient(w)

    return lax.while_loop(lambda s: s[0] < 3, body, (0, lax.stop_gradient(w)))[1].sum() * w.sum()


@CASES.loss(W)
def while_loop_that_is_differentiated_is_an_error(w):
    return lax.while_loop(lambda h: h.sum() < 10.0, lambda h: h * 2.0, w).sum()


@CASES.program
def while_loop_in_forward_mode(api):
    return api.remat(
        lambda w: jax.jvp(lambda w: lax.while_loop(lambda h: h.sum() < 9.0, lambda h: h * h, w), (w,), (w,))
    )(jnp.full(3, 1.5))


@CASES.loss(W, X)
def map_over_rows(w, x):
    return lax.map(lambda row: jnp.tanh(row @ w) ** 2, x).sum()


@CASES.loss(W, X)
def map_in_batches(w, x):
    return lax.map(lambda row: jnp.tanh(row @ w) ** 2, x, batch_size=3).sum()


@CASES.loss(X)
def associative_scan_of_a_sum(x):
    return (lax.associative_scan(jnp.add, x) ** 2).sum()


@CASES.loss(rand(8, 2, 2))
def associative_scan_of_matrices(m):
    return lax.associative_scan(jnp.matmul, m * 0.5, reverse=True).sum()


@CASES.loss(X)
def associative_scan_of_pairs(x):
    def combine(a, b):
        return a[0] * b[0], b[0] * a[1] + b[1]

    return lax.associative_scan(combine, (jax.nn.sigmoid(x), x))[1].sum()


@CASES.loss(W, X)
def cond_on_the_input(w, x):
    return lax.cond(x.sum() > 0, lambda h: jnp.tanh(h @ w).sum(), lambda h: (h**2).sum(), x)


@CASES.loss(W, True)
def cond_on_a_python_flag(w, flag):
    return lax.cond(flag, lambda w: jnp.sin(w).sum(), lambda w: w.sum(), w)


@CASES.loss(W, X)
def cond_without_operands(w, x):
    return lax.cond(w[0, 0] > 0, lambda: jnp.sin(x @ w).sum(), lambda: 1.0)


@CASES.loss(W, X, 2)
def switch_on_an_index(w, x, index):
    branches = [jnp.sin, jnp.cos, lambda h: jnp.tanh(h @ w), lambda h: h]
    return lax.switch(index, branches, x @ w).sum()


@CASES.loss(W, X)
def switch_in_a_vmap(w, x):
    index = jnp.arange(8) % 3
    return jax.vmap(lambda i, h: lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], h))(index, x @ w).sum()


@CASES.loss(W, X)
def cond_of_a_heavy_branch(w, x):
    def heavy(h):
        for _ in range(3):
            h = jnp.tanh(h @ w)
        return h

    return (lax.cond(jnp.max(x) > 0, heavy, jax.checkpoint(heavy), x) ** 2).sum()


@CASES.loss(W, X)
def select_of_two_computations(w, x):
    return lax.select(jnp.broadcast_to(x[:, :1] > 0, x.shape), jnp.tanh(x @ w), x @ w.T).sum()


@CASES.loss(W)
def python_loop_until_a_static_condition(w):
    h, depth = jnp.ones(4), 0
    while depth < 3:
        h, depth = jnp.tanh(h @ w), depth + 1
    return h.sum()


@CASES.loss(WS, X)
def reduce_over_layers_in_python(ws, x):
    return functools.reduce(lambda h, w: jnp.tanh(h @ w), ws, x).sum()


@CASES.loss(X)
def scan_over_many_arrays(x):
    xs = (x, {"a": x * 2, "b": (x, None)})

    def body(c, x):
        return c + jax.tree.reduce(operator.add, jax.tree.map(jnp.sum, x)), None

    return lax.scan(body, 0.0, xs)[0] ** 2


@CASES.loss(X)
def reduce_by_a_function_of_ones_own(x):
    return lax.reduce(x, 1.0, lambda a, b: a * b, (0,)).sum()


@CASES.loss(X)
def reduce_window_by_sum(x):
    return (lax.reduce_window(x, 0.0, lax.add, (3, 1), (1, 1), "SAME") ** 2).sum()


@CASES.loss(W, X)
def scan_under_jit_with_a_static_length(w, x):
    @functools.partial(jax.jit, static_argnames="n")
    def run(w, h, n):
        return lax.scan(lambda h, _: (jnp.tanh(h @ w), None), h, length=n)[0]

    return run(w, x, n=2).sum() + run(w, x, n=3).sum()


@CASES.loss(W, X)
def gradient_inside_the_loss_of_a_scan(w, x):
    def energy(h):
        return lax.scan(lambda c, r: (jnp.tanh(c @ w + r), None), jnp.zeros(4), h)[0].sum()

    return (jax.grad(energy)(x) ** 2).sum()
