"""A flax nnx module and its optimizer, updated in place by a training step within a memory budget.

python examples/train_nnx.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jaxremat


class Classifier(nnx.Module):
    """Six dense layers with batch norm and dropout."""

    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(64, 64, rngs=rngs) for _ in range(6)])
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = nnx.tanh(layer(x))
        return self.dropout(self.norm(x))[:, :10]


@jaxremat.nnx.remat(budget=0.8, donate_argnums=(0, 1))
def train_step(model: Classifier, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array) -> jax.Array:
    def loss(model: Classifier) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def main() -> None:
    images = jax.random.normal(jax.random.key(0), (2048, 64))
    labels = jnp.argmax(images[:, :10], -1)
    model = Classifier(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    print(train_step.plan(model, optimizer, images, labels).summary())
    for k in range(10):
        print(f"step {k}: loss {train_step(model, optimizer, images, labels):.4f}")


if __name__ == "__main__":
    main()
