"""Pure functions, as haiku transforms modules into: parameters, state and a key go in; optax accumulates gradients.

python examples/train_pure.py
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

import jaxremat

Tree = dict[str, Any]


def init(key: jax.Array) -> tuple[Tree, Tree]:
    keys = jax.random.split(key, 6)
    return {f"linear_{k}": jax.random.normal(keys[k], (64, 64)) / 8 for k in range(6)}, {"mean": jnp.zeros(64)}


def apply(params: Tree, state: Tree, key: jax.Array, x: jax.Array) -> tuple[jax.Array, Tree]:
    for k, w in enumerate(params.values()):
        x = jnp.tanh(x @ w)
        x = x * jax.random.bernoulli(jax.random.fold_in(key, k), 0.9, x.shape) / 0.9
    state = {"mean": 0.9 * state["mean"] + 0.1 * x.mean(0)}
    return (x - state["mean"])[:, :10], state


optimizer = optax.MultiSteps(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-3)), every_k_schedule=2)


def train_step(
    params: Tree, state: Tree, accumulated: Any, key: jax.Array, images: jax.Array, labels: jax.Array
) -> tuple[Tree, Tree, Any, jax.Array]:
    def loss(params: Tree) -> tuple[jax.Array, Tree]:
        logits, new = apply(params, state, key, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new

    (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, accumulated = optimizer.update(grads, accumulated, params)
    return optax.apply_updates(params, updates), new, accumulated, value


def main() -> None:
    key = jax.random.key(0)
    images = jax.random.normal(key, (2048, 64))
    labels = jnp.argmax(images[:, :10], -1)
    params, state = init(key)
    accumulated = optimizer.init(params)

    step = jaxremat.remat(train_step, budget=0.8, donate_argnums=(0, 1, 2))
    print(step.plan(params, state, accumulated, key, images, labels).summary())
    for k in range(10):
        key = jax.random.fold_in(key, k)
        params, state, accumulated, value = step(params, state, accumulated, key, images, labels)
        print(f"step {k}: loss {value:.4f}")


if __name__ == "__main__":
    main()
