"""A whole flax training step, loss, gradient and optimizer update, within a memory budget, its state donated.

python examples/wrap_train_step.py
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import jaxremat


class Classifier(nn.Module):
    """Eight dense layers with dropout."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(8):
            x = nn.tanh(nn.Dense(128)(x))
            x = nn.Dropout(0.1, deterministic=False)(x)
        return nn.Dense(10)(x)


def train_step(state: TrainState, images: jax.Array, labels: jax.Array, key: jax.Array) -> tuple[TrainState, jax.Array]:
    def loss(params: Any) -> jax.Array:
        logits = state.apply_fn(params, images, rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def main() -> None:
    model, key = Classifier(), jax.random.key(0)
    images = jax.random.normal(key, (4096, 64))
    labels = jnp.argmax(images @ jax.random.normal(jax.random.key(1), (64, 10)), -1)
    params = model.init({"params": key, "dropout": key}, images[:1])
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))

    step = jaxremat.remat(train_step, budget=0.7, donate_argnums=0)
    print(step.plan(state, images, labels, key).summary())
    for k in range(10):
        state, value = step(state, images, labels, jax.random.fold_in(key, k))
        print(f"step {k}: loss {value:.4f}")


if __name__ == "__main__":
    main()
