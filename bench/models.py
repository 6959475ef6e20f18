"""The models that tests and benchmarks measure: small, in plain JAX, with sizes by keyword.

>>> case = model("mlp", layers=2, width=8, batch=4)
>>> case.loss(*case.args).shape
()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class Case:
    """A loss and what it is called with: `args[0]` are the parameters, the rest is data."""

    name: str
    loss: Callable[..., Any]
    args: tuple[Any, ...]
    has_aux: bool = False


def model(name: str, **sizes: Any) -> Case:
    """The case of this name, its sizes changed by keyword."""
    return MODELS[name](**sizes)


class _Init:
    """Parameters drawn from a seed, one after another."""

    def __init__(self, seed: int = 0):
        self._rng = np.random.default_rng(seed)

    def normal(self, *shape: int) -> jax.Array:
        """A weight whose last axis is its output, scaled by the number of its inputs."""
        scale = 1 / np.sqrt(np.prod(shape[:-1]))
        return jnp.asarray(self._rng.normal(0, scale, shape), jnp.float32)

    def data(self, *shape: int) -> jax.Array:
        return jnp.asarray(self._rng.normal(0, 1, shape), jnp.float32)

    def labels(self, classes: int, *shape: int) -> jax.Array:
        return jnp.asarray(self._rng.integers(0, classes, shape), jnp.int32)


def _conv(x: Any, w: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _max_pool(x: Any, window: int, stride: int, padding: str = "VALID") -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, window, window, 1), (1, stride, stride, 1), padding)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def mlp(layers: int = 16, width: int = 256, batch: int = 4096) -> Case:
    """A chain of tanh layers and the mean of squares."""
    init = _Init()

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    return Case("mlp", loss, ([init.normal(width, width) for _ in range(layers)], init.data(batch, width)))


def vgg16(batch: int = 8, size: int = 112, width: int = 64, classes: int = 1000, dense: int = 1024) -> Case:
    """Thirteen convolutions with max pooling, three dense layers."""
    init = _Init()
    plan = [(1, 2), (2, 2), (4, 3), (8, 3), (8, 3)]
    params: dict[str, list[Any]] = {"conv": [], "dense": []}
    channels = 3
    for factor, count in plan:
        for _ in range(count):
            params["conv"].append((init.normal(3, 3, channels, factor * width), jnp.zeros(factor * width)))
            channels = factor * width
    features = channels * (size // 32) ** 2
    for outputs in (dense, dense, classes):
        params["dense"].append((init.normal(features, outputs), jnp.zeros(outputs)))
        features = outputs

    def loss(params: Any, x: Any, labels: Any) -> Any:
        layers = iter(params["conv"])
        for _, count in plan:
            for _ in range(count):
                w, b = next(layers)
                x = jax.nn.relu(_conv(x, w) + b)
            x = _max_pool(x, 2, 2)
        x = x.reshape(x.shape[0], -1)
        for k, (w, b) in enumerate(params["dense"]):
            x = x @ w + b
            x = jax.nn.relu(x) if k < 2 else x
        return _cross_entropy(x, labels)

    return Case("vgg16", loss, (params, init.data(batch, size, size, 3), init.labels(classes, batch)))


def unet(batch: int = 4, size: int = 128, width: int = 64, levels: int = 4, classes: int = 2) -> Case:
    """Two convolutions a level, max pooling down, transposed convolutions up, skip connections."""
    init = _Init()

    def pair(inputs: int, outputs: int) -> list[Any]:
        return [(init.normal(3, 3, i, outputs), jnp.zeros(outputs)) for i in (inputs, outputs)]

    widths = [width * 2**k for k in range(levels + 1)]
    params = {
        "down": [pair(i, o) for i, o in zip([3, *widths], widths, strict=False)],
        "up": [(init.normal(2, 2, 2 * w, w), pair(2 * w, w)) for w in reversed(widths[:-1])],
        "head": init.normal(1, 1, width, classes),
    }

    def convolve(x: Any, layers: Any) -> Any:
        for w, b in layers:
            x = jax.nn.relu(_conv(x, w) + b)
        return x

    def loss(params: Any, x: Any, labels: Any) -> Any:
        skips = []
        for k, layers in enumerate(params["down"]):
            x = convolve(x if k == 0 else _max_pool(x, 2, 2), layers)
            skips.append(x)
        for skip, (w, layers) in zip(reversed(skips[:-1]), params["up"], strict=True):
            up = lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = convolve(jnp.concatenate([up, skip], -1), layers)
        return _cross_entropy(_conv(x, params["head"]), labels)

    return Case("unet", loss, (params, init.data(batch, size, size, 3), init.labels(classes, batch, size, size)))


def gpt(
    layers: int = 6,
    width: int = 256,
    heads: int = 4,
    length: int = 256,
    batch: int = 8,
    vocabulary: int = 5000,
    dropout: float = 0.0,
    scanned: bool = False,
) -> Case:
    """A causal transformer; with `dropout`, its last argument is a key. `scanned`: one `lax.scan` over its layers."""
    init = _Init()
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}

    def block() -> dict[str, Any]:
        return {name: init.normal(*shape) for name, shape in shapes.items()} | {
            "scale1": jnp.ones(width),
            "scale2": jnp.ones(width),
        }

    params = {
        "embedding": init.normal(vocabulary, width),
        "position": init.normal(length, width),
        "blocks": [block() for _ in range(layers)],
    }

    def norm(x: Any, scale: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * scale

    def drop(x: Any, key: Any) -> Any:
        return x if dropout == 0 else jnp.where(jax.random.bernoulli(key, 1 - dropout, x.shape), x / (1 - dropout), 0)

    def attend(x: Any, p: Any) -> Any:
        q, k, v = jnp.split((x @ p["qkv"]).reshape(batch, length, heads, -1), 3, -1)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.float32(np.sqrt(width // heads))
        weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9), -1)
        return jnp.einsum("bhts,bshd->bthd", weights, v).reshape(batch, length, width) @ p["out"]

    def loss(params: Any, tokens: Any, targets: Any, key: Any = None) -> Any:
        keys = [None] * (2 * layers) if dropout == 0 else jax.random.split(key, 2 * layers)
        x = params["embedding"][tokens] + params["position"]

        def apply(x: Any, p: Any, first: Any, second: Any) -> Any:
            x = x + drop(attend(norm(x, p["scale1"]), p), first)
            return x + drop(jax.nn.gelu(norm(x, p["scale2"]) @ p["up"]) @ p["down"], second)

        if scanned:
            xs = (params["blocks"], None, None) if dropout == 0 else (params["blocks"], keys[::2], keys[1::2])
            x, _ = lax.scan(lambda x, layer: (apply(x, *layer), None), x, xs)
        else:
            for k, p in enumerate(params["blocks"]):
                x = apply(x, p, keys[2 * k], keys[2 * k + 1])
        return _cross_entropy(norm(x, 1.0) @ params["embedding"].T, targets)

    if scanned:
        params["blocks"] = jax.tree.map(lambda *p: jnp.stack(p), *params["blocks"])
    data = (init.labels(vocabulary, batch, length), init.labels(vocabulary, batch, length))
    return Case("gpt", loss, (params, *data, *((jax.random.key(0),) if dropout else ())))


def _batch_norm(x: Any, p: Any) -> tuple[Any, tuple[Any, Any]]:
    mean = x.mean((0, 1, 2))
    variance = jnp.mean(x * x, (0, 1, 2)) - mean * mean
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p[0] + p[1], (mean, variance)


def resnet50(batch: int = 8, size: int = 112, width: int = 64, classes: int = 1000) -> Case:
    """Bottleneck blocks with batch normalisation, 3, 4, 6 and 3 of them."""
    init = _Init()

    def layer(window: int, inputs: int, outputs: int) -> list[Any]:
        return [init.normal(window, window, inputs, outputs), jnp.ones(outputs), jnp.zeros(outputs)]

    blocks, strides, channels = [], [], width
    for stage, count in enumerate((3, 4, 6, 3)):
        inner = width * 2**stage
        for k in range(count):
            block = [layer(1, channels, inner), layer(3, inner, inner), layer(1, inner, 4 * inner)]
            blocks.append(block + ([layer(1, channels, 4 * inner)] if k == 0 else []))
            strides.append(2 if k == 0 and stage > 0 else 1)
            channels = 4 * inner
    params = {"stem": layer(7, 3, width), "blocks": blocks, "head": init.normal(channels, classes)}

    def apply(x: Any, p: Any, stride: int = 1) -> Any:
        return _batch_norm(_conv(x, p[0], stride), p[1:])[0]

    def loss(params: Any, x: Any, labels: Any) -> Any:
        x = _max_pool(jax.nn.relu(apply(x, params["stem"], 2)), 3, 2, "SAME")
        for block, stride in zip(params["blocks"], strides, strict=True):
            y = jax.nn.relu(apply(x, block[0]))
            y = jax.nn.relu(apply(y, block[1], stride))
            shortcut = apply(x, block[3], stride) if len(block) == 4 else x
            x = jax.nn.relu(apply(y, block[2]) + shortcut)
        return _cross_entropy(x.mean((1, 2)) @ params["head"], labels)

    return Case("resnet50", loss, (params, init.data(batch, size, size, 3), init.labels(classes, batch)))


def convnet(batch: int = 16, size: int = 32, width: int = 32, layers: int = 6, classes: int = 10) -> Case:
    """Convolutions with batch normalisation, whose running state is returned beside the loss (`has_aux`)."""
    init = _Init()
    channels = [3] + [width] * layers
    params = {
        "layers": [(init.normal(3, 3, i, width), jnp.ones(width), jnp.zeros(width)) for i in channels[:-1]],
        "head": init.normal(width, classes),
    }
    state = [(jnp.zeros(width), jnp.ones(width)) for _ in range(layers)]

    def loss(params: Any, state: Any, x: Any, labels: Any) -> Any:
        running = []
        for (w, *p), old in zip(params["layers"], state, strict=True):
            x, new = _batch_norm(_conv(x, w), p)
            x = jax.nn.relu(x)
            running.append(jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, old, new))
        return _cross_entropy(x.mean((1, 2)) @ params["head"], labels), running

    return Case("convnet", loss, (params, state, init.data(batch, size, size, 3), init.labels(classes, batch)), True)


def lstm(steps: int = 32, batch: int = 64, width: int = 256, scanned: bool = False) -> Case:
    """A recurrent network with a loss at every step, unrolled or in a `lax.scan`."""
    init = _Init()
    params = {
        "x": init.normal(width, 4 * width),
        "h": init.normal(width, 4 * width),
        "bias": jnp.zeros(4 * width),
        "out": init.normal(width, width),
    }

    def step(params: Any, carry: Any, x: Any, y: Any) -> Any:
        h, c, total = carry
        i, f, g, o = jnp.split(x @ params["x"] + h @ params["h"] + params["bias"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return h, c, total + jnp.mean((h @ params["out"] - y) ** 2)

    def loss(params: Any, xs: Any, ys: Any) -> Any:
        carry = (jnp.zeros((batch, width)), jnp.zeros((batch, width)), jnp.zeros(()))
        if scanned:
            return lax.scan(lambda carry, xy: (step(params, carry, *xy), None), carry, (xs, ys))[0][2]
        for x, y in zip(xs, ys, strict=True):
            carry = step(params, carry, x, y)
        return carry[2]

    def inputs() -> Iterator[jax.Array]:
        return (init.data(batch, width) for _ in range(steps))

    xs, ys = list(inputs()), list(inputs())
    return Case("lstm", loss, (params, jnp.stack(xs), jnp.stack(ys)) if scanned else (params, xs, ys))


MODELS: dict[str, Callable[..., Case]] = {f.__name__: f for f in (mlp, vgg16, unet, gpt, resnet50, convnet, lstm)}
