"""Types of numbers, and operations with derivatives of their own kind."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._case import Cases, rand

CASES = Cases()
W, X = rand(4, 4) * 0.5, rand(8, 4, seed=1)
SQUARE = rand(4, 4) @ rand(4, 4).T + 4 * np.eye(4, dtype=np.float32)
COMPLEX = (rand(4, 4) + 1j * rand(4, 4, seed=5)).astype(np.complex64)
IMAGE, FILTER = rand(2, 6, 6, 3), rand(3, 3, 3, 4, seed=2) * 0.3


def mlp(w, x):
    for _ in range(3):
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


@CASES.loss(jnp.asarray(W, jnp.bfloat16), jnp.asarray(X, jnp.bfloat16), rtol=3e-2)
def bfloat16(w, x):
    return mlp(w, x)


@CASES.loss(jnp.asarray(W, jnp.float16), jnp.asarray(X, jnp.float16), rtol=5e-3)
def float16(w, x):
    return mlp(w, x)


@CASES.loss(W, jnp.asarray(X, jnp.bfloat16))
def mixed_precision(w, x):
    h = jnp.tanh(x.astype(jnp.float32) @ w)
    return jnp.mean(h**2)


@CASES.loss(W, X, rtol=3e-2)
def weights_cast_to_bfloat16(w, x):
    h = jnp.tanh(x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16))
    return (h.astype(jnp.float32) ** 2).mean()


@CASES.loss(W, jnp.asarray(X, jnp.float8_e4m3fn))
def float8_inputs(w, x):
    return jnp.tanh(x.astype(jnp.float32) @ w).sum()


@CASES.loss(W, X)
def float8_quantised_products(w, x):
    cast = lambda a, t: a.astype(t).astype(jnp.float32)
    return (cast(x, jnp.float8_e4m3fn) @ cast(w, jnp.float8_e5m2)).sum()


@CASES.loss(W[0], jnp.asarray(np.arange(-8, 8).reshape(4, 4), jnp.int4))
def int4_weights(scale, q):
    return jnp.tanh(q.astype(jnp.float32) * scale).sum()


@CASES.loss(W, jnp.asarray(np.arange(16).reshape(4, 4), jnp.uint4))
def uint4_weights(w, q):
    return (w * q.astype(jnp.float32)).sum()


@CASES.loss(W, jnp.asarray(np.arange(32).reshape(8, 4) % 5, jnp.int8))
def int8_inputs(w, x):
    return (x.astype(jnp.float32) @ w).sum()


@CASES.loss(W, X > 0)
def boolean_masks(w, mask):
    return jnp.where(mask, mask @ w, 0.0).sum()


@CASES.loss(COMPLEX)
def complex_inputs(z):
    return jnp.sum(jnp.abs(jnp.sin(z @ z)) ** 2)


@CASES.loss(COMPLEX, holomorphic=True)
def complex_holomorphic(z):
    return jnp.sum(jnp.sin(z @ z))


@CASES.loss(W, holomorphic=True)
def real_inputs_of_a_holomorphic_function_are_an_error(w):
    return jnp.sum(w)


@CASES.loss(COMPLEX)
def complex_results_are_an_error(z):
    return jnp.sum(z)


@CASES.loss((W, np.arange(4)), allow_int=True)
def integers_among_the_differentiated(p):
    return (p[0] * p[1]).sum()


@CASES.loss((W, jnp.arange(4), np.array(True)), allow_int=True)
def integers_and_flags_among_the_differentiated(p):
    return jnp.where(p[2], p[0] @ p[1], 0.0).sum()


@CASES.loss({"w": W, "n": np.arange(4)})
def integers_without_allow_int_are_an_error(p):
    return (p["w"] * p["n"]).sum()


@CASES.program
def keys_of_the_new_style_are_not_differentiated(api):
    return api.value_and_grad(lambda p: (p[0] * jax.random.normal(p[1], (4, 4))).sum(), allow_int=True)(
        (W, jax.random.key(0))
    )


@CASES.loss(W, X, jax.random.key(3))
def keys_of_the_new_style(w, x, key):
    return (x @ w * jax.random.normal(key, (8, 4))).sum()


@CASES.loss(W, X, jax.random.PRNGKey(3))
def keys_of_the_old_style(w, x, key):
    return (x @ w * jax.random.uniform(key, (8, 4))).sum()


@CASES.loss(W, X, jax.random.key(3, impl="rbg"))
def keys_of_another_generator(w, x, key):
    return (x @ w * jax.random.uniform(key, (8, 4))).sum()


@CASES.loss(W, X, jax.random.key(0))
def dropout_by_split(w, x, key):
    for sub in jax.random.split(key, 3):
        x = jnp.tanh(x @ w)
        x = jnp.where(jax.random.bernoulli(sub, 0.7, x.shape), x / 0.7, 0.0)
    return (x**2).mean()


@CASES.loss(W, X, jax.random.key(0))
def dropout_by_fold_in(w, x, key):
    for i in range(3):
        x = jnp.tanh(x @ w) * jax.random.bernoulli(jax.random.fold_in(key, i), 0.7, x.shape)
    return (x**2).mean()


@CASES.loss(W, X, jax.random.key(0), has_aux=True)
def keys_as_aux(w, x, key):
    key, sub = jax.random.split(key)
    return (x @ w * jax.random.normal(sub, (8, 4))).sum(), (key, jax.random.split(sub))


@CASES.loss(jnp.abs(W) + 0.5, jax.random.key(0))
def random_variables_with_gradients(a, key):
    return (
        jax.random.gamma(key, a) + jax.random.laplace(key, a.shape) * a + jax.random.categorical(key, a).sum()
    ).sum()


@CASES.loss(SQUARE)
def cholesky(a):
    return jnp.sum(jnp.linalg.cholesky(a) ** 3)


@CASES.loss(X, rtol=1e-4)
def qr(x):
    q, r = jnp.linalg.qr(x)
    return jnp.sum(q**3) + jnp.sum(r**2)


@CASES.loss(SQUARE, rtol=1e-4)
def svd(a):
    return jnp.sum(jnp.linalg.svd(a, compute_uv=False) ** 2) + jnp.sum(jnp.linalg.svd(a)[0] ** 4)


@CASES.loss(SQUARE, rtol=1e-4)
def eigh(a):
    values, vectors = jnp.linalg.eigh(a)
    return jnp.sum(jnp.log(values)) + jnp.sum(vectors**4)


@CASES.loss(SQUARE + W, rtol=1e-4)
def eig_of_a_general_matrix(a):
    return jnp.sum(jnp.abs(jnp.linalg.eigvals(a)) ** 2)


@CASES.loss(SQUARE, X)
def solve(a, x):
    return jnp.sum(jnp.linalg.solve(a, x.T) ** 2)


@CASES.loss(SQUARE, X)
def triangular_solve(a, x):
    return jnp.sum(jax.scipy.linalg.solve_triangular(a, x.T, lower=True) ** 2)


@CASES.loss(SQUARE)
def inverse_and_determinant(a):
    return jnp.sum(jnp.linalg.inv(a)) + jnp.log(jnp.linalg.det(a))


@CASES.loss(SQUARE)
def slogdet(a):
    sign, logdet = jnp.linalg.slogdet(a)
    return sign * logdet


@CASES.loss(W)
def matrix_functions(w):
    return jnp.sum(jax.scipy.linalg.expm(w)) + jnp.sum(jnp.linalg.matrix_power(w, 3)) + jnp.linalg.norm(w)


@CASES.loss(X)
def fft(x):
    return jnp.sum(jnp.abs(jnp.fft.fft(x, axis=0)) ** 2 * jnp.arange(4))


@CASES.loss(X)
def fft_of_real_numbers_and_back(x):
    spectrum = jnp.fft.rfft2(x)
    return jnp.sum(jnp.fft.irfft2(spectrum * spectrum, s=x.shape) ** 3)


@CASES.loss(X)
def sort(x):
    return jnp.sum(jnp.sort(x, axis=0) * jnp.arange(8.0)[:, None])


@CASES.loss(X)
def sort_of_several_operands(x):
    keys, values = lax.sort((x, x**2), num_keys=1, dimension=0)
    return jnp.sum(keys * values * jnp.arange(8.0)[:, None])


@CASES.loss(X)
def argsort_and_gather(x):
    return jnp.sum(jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1) * jnp.arange(4.0))


@CASES.loss(X)
def top_k(x):
    values, indices = lax.top_k(x, 2)
    return jnp.sum(values**2 * indices)


@CASES.loss(X)
def extremes(x):
    return x.max() + x.min(0).sum() + (jnp.argmax(x, 1) * x.mean(1)).sum() + jnp.median(x) + jnp.quantile(x, 0.3)


@CASES.loss(X, np.array([0, 3, 3, 3, 1]))
def gather_of_repeated_rows(x, i):
    return jnp.sum(jnp.tanh(x[i]) ** 2)


@CASES.loss(X, np.array([0, 3, 3, 3, 1]))
def scatter_add_to_repeated_rows(x, i):
    return jnp.sum(jnp.zeros((8, 4)).at[i].add(x[:5]) ** 2)


@CASES.loss(X, np.array([0, 3, 5]))
def scatter_set_mul_and_max(x, i):
    a = x.at[i].set(jnp.sin(x[:3]))
    return jnp.sum(a.at[i].multiply(2.0, unique_indices=True) ** 2) + a.at[i].max(0.1).sum()


@CASES.loss(X, np.array([0, 30, -1]))
def indices_out_of_bounds(x, i):
    return x.at[i].get(mode="fill", fill_value=2.0).sum() + x.at[i].add(1.0, mode="drop").sum() + x[i].sum()


@CASES.loss(W, np.array([[1, 2], [2, 2]]))
def embedding_lookup(table, tokens):
    return jnp.mean(jnp.take(table, tokens, axis=0) ** 2)


@CASES.loss(X)
def segment_sums(x):
    return jnp.sum(jax.ops.segment_sum(x, jnp.array([0, 0, 1, 1, 1, 3, 3, 0]), num_segments=4) ** 2)


@CASES.loss(X)
def slices_and_updates(x):
    y = lax.dynamic_update_slice(x, jnp.sin(lax.dynamic_slice(x, (1, 1), (2, 2))), (3, 0))
    return jnp.sum(y[::2] * y[1::2]) + jnp.sum(jnp.roll(y, 1, 0) * x)


@CASES.loss(FILTER, IMAGE)
def convolution(w, x):
    return jnp.mean(
        jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    )


@CASES.loss(FILTER[:, :, :1], IMAGE)
def convolution_strided_dilated_and_grouped(w, x):
    w = jnp.concatenate([w] * 3, -1)
    y = lax.conv_general_dilated(
        x, w, (2, 1), [(1, 1), (2, 2)], (1, 2), (2, 1), ("NHWC", "HWIO", "NHWC"), feature_group_count=3
    )
    return jnp.sum(y**2)


@CASES.loss(FILTER, IMAGE)
def transposed_convolution(w, x):
    return jnp.sum(lax.conv_transpose(x, w, (2, 2), "SAME") ** 2)


@CASES.loss(rand(5), rand(12))
def convolution_in_one_dimension(w, x):
    return jnp.sum(jnp.convolve(x, w, mode="same") ** 2)


@CASES.loss(IMAGE)
def max_pooling(x):
    y = lax.reduce_window(jnp.tanh(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jnp.sum(y**2)


@CASES.loss(IMAGE)
def average_pooling(x):
    y = lax.reduce_window(jnp.tanh(x), 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    return jnp.sum(y**2) / 9


@CASES.loss(IMAGE)
def image_resizing(x):
    return jnp.sum(jax.image.resize(x, (2, 9, 9, 3), "bilinear") ** 2)


@CASES.loss(W, X)
def einsum(w, x):
    return jnp.einsum("bi,ij,bj,kj->k", x, w, x, w).sum()


@CASES.loss(rand(2, 4, 3), rand(2, 3, 5))
def batched_products(a, b):
    return jnp.sum(jnp.tanh(a @ b) ** 2)


@CASES.loss(X)
def cumulative_operations(x):
    return jnp.sum(
        jnp.cumsum(x, 0) ** 2 + jnp.cumprod(x, 1) + lax.cummax(x, 0) + lax.cumlogsumexp(x, 1) + lax.cummin(x, 1)
    )


@CASES.loss(W, X)
def layer_normalisation(w, x):
    h = x @ w
    return jnp.sum(((h - h.mean(-1, keepdims=True)) * lax.rsqrt(h.var(-1, keepdims=True) + 1e-5)) ** 3)


@CASES.loss(X, np.arange(8) % 4)
def cross_entropy(logits, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))


@CASES.loss(jnp.abs(X) + 1)
def special_functions(x):
    s = jax.scipy.special
    return jnp.sum(s.gammaln(x) + s.erf(x) + s.digamma(x) + s.i0e(x) + lax.igamma(x, x))


@CASES.loss(W[:0], X[:0])
def arrays_without_elements(w, x):
    return w.sum() + (x**2).sum() + 1.0


@CASES.loss(W, X[:0])
def a_batch_without_items(w, x):
    return jnp.tanh(x @ w).sum() + (w**2).sum()


@CASES.loss(jnp.float32(3.0))
def scalar_arrays(a):
    return a**3 + jnp.sin(a)


@CASES.loss(np.float32(3.0), np.int32(2))
def scalars_of_numpy(a, n):
    return a**n


@CASES.loss(2.0, 3, 0.5)
def scalars_of_python(a, n, b):
    return jnp.exp(a * n) * b


@CASES.loss(1 + 2j, holomorphic=True)
def complex_scalars_of_python(z):
    return z**2


@CASES.loss(2.0, has_aux=True)
def weak_types_survive(a):
    return a * 2, (a + 1, jnp.float32(a), 3.0, jnp.asarray(2))


@CASES.loss(jnp.asarray(1.5), argnums=(0,), has_aux=True)
def weakly_typed_arrays(a):
    return a * 2.0, jnp.exp(a) * 1


@CASES.program
def double_precision(api):
    with jax.enable_x64(True):
        return api.value_and_grad(mlp)(W.astype(np.float64), X.astype(np.float64))


@CASES.program
def double_precision_of_python_numbers(api):
    with jax.enable_x64(True):
        return api.value_and_grad(lambda a, n: jnp.sin(a) * n, has_aux=False)(2.0, 3)


@CASES.program
def numpy_doubles_without_x64(api):
    return api.value_and_grad(mlp)(W.astype(np.float64), X.astype(np.float64))


@CASES.program
def integers_of_64_bits_with_x64(api):
    with jax.enable_x64(True):
        return api.value_and_grad(lambda w, i: w[i].sum(), has_aux=False)(W, np.arange(2))


@CASES.program
def one_function_with_and_without_x64(api):
    differentiated = api.value_and_grad(mlp)
    results = [differentiated(W, X)]
    with jax.enable_x64(True):
        results += [differentiated(W, X), differentiated(W.astype(np.float64), X)]
    return results + [differentiated(W, X)]


@CASES.program
def debug_nans_is_an_error(api):
    with jax.debug_nans(True):
        return str(_raised(lambda: api.grad(lambda w: jnp.sqrt(w).sum())(-jnp.ones(3))))


def _raised(run):
    try:
        run()
    except FloatingPointError as error:
        return type(error).__name__


@CASES.program
def debug_nans_of_a_sound_function(api):
    with jax.debug_nans(True):
        return api.value_and_grad(mlp)(W, X)


@CASES.loss(-np.ones(3, np.float32))
def infinities_and_nans(x):
    return jnp.log(x).sum() + jnp.sqrt(jnp.abs(x) - 1).sum()


@CASES.loss(W, X)
def negative_zero_and_signs(w, x):
    return (jnp.sign(x @ w) * jnp.abs(x @ w) * -0.0 + jnp.copysign(x @ w, x)).sum()


@CASES.loss(W, X)
def bit_operations_on_the_way(w, x):
    bits = lax.bitcast_convert_type(x, jnp.int32) & 0x7FFFFFFF
    return (lax.bitcast_convert_type(bits, jnp.float32) @ w).sum()


@CASES.loss(W, X)
def precision_reduced_on_the_way(w, x):
    return lax.reduce_precision(jnp.tanh(x @ w), exponent_bits=8, mantissa_bits=7).sum()


@CASES.loss(W, X)
def polynomials_and_interpolation(w, x):
    return jnp.polyval(w[0], x).sum() + jnp.interp(x[0], jnp.arange(4.0), w[1]).sum()


@CASES.loss(W, X)
def straight_through_rounding(w, x):
    h = x @ w
    return ((h + jax.lax.stop_gradient(jnp.round(h) - h)) ** 2).sum()


@CASES.loss(W, X)
def long_chain_of_small_steps(w, x):
    h = x
    for i in range(12):
        h = jnp.sin(h) * 1.1 + w[i % 4]
    return h.sum()


@CASES.loss(rand(4, 2, 4) * 0.4, X)
def attention_with_a_mask(w, x):
    q, k = jnp.einsum("td,dhe->hte", x, w), jnp.einsum("td,dhe->hte", jnp.sin(x), w)
    scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), q @ k.mT, -1e9)
    return jnp.sum((jax.nn.softmax(scores) @ q) ** 2)
