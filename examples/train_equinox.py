"""An equinox module trained by optax within a memory budget; its numbers and functions stay what they are.

python examples/train_equinox.py
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import jaxremat


@jaxremat.equinox.filter_value_and_grad(budget=0.8)
def loss(model: eqx.nn.MLP, images: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(images), labels).mean()


def main() -> None:
    images = jax.random.normal(jax.random.key(0), (2048, 64))
    labels = jnp.argmax(images[:, :10], -1)
    model = eqx.nn.MLP(64, 10, 64, depth=6, activation=jax.nn.tanh, key=jax.random.key(1))
    optimizer = optax.adam(1e-3)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    print(loss.plan(model, images, labels).summary())
    for k in range(10):
        value, grads = loss(model, images, labels)
        updates, state = optimizer.update(grads, state)
        model = eqx.apply_updates(model, updates)
        print(f"step {k}: loss {value:.4f}")


if __name__ == "__main__":
    main()
