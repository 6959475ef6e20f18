"""Trains a U-Net within a memory budget, next to the same U-Net without one, and prints what both take.

    python examples/train_unet.py
    python examples/train_unet.py --budget 80MiB --steps 50 --solver milp

The images are made here: discs, squares and triangles on textured backgrounds, to be told apart pixel by pixel.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import jaxremat

LEVELS = 4
CLASSES = 4  # background, disc, square, triangle


class Convolutions(nn.Module):
    """Two convolutions of one level."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.relu(nn.Conv(self.features, (3, 3), kernel_init=nn.initializers.he_uniform())(x))
        return x


class UNet(nn.Module):
    """Four levels down, a bottom, four levels up, each of which reads the level that it mirrors."""

    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        skips = []
        for level in range(LEVELS):
            x = Convolutions(self.width * 2**level)(x)
            skips.append(x)
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = Convolutions(self.width * 2**LEVELS)(x)
        for level in reversed(range(LEVELS)):
            x = nn.ConvTranspose(self.width * 2**level, (2, 2), (2, 2))(x)
            x = Convolutions(self.width * 2**level)(jnp.concatenate([x, skips[level]], -1))
        return nn.Conv(CLASSES, (1, 1))(x)


def draw(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """An image (size, size, 3) with three shapes on it, and the class of every pixel."""
    y, x = np.mgrid[:size, :size] / size
    waves = rng.normal(0, 12, (3, 2, 1, 1)), rng.uniform(0, 6, (3, 1, 1))
    image = np.sin(waves[0][:, 0] * x + waves[0][:, 1] * y + waves[1]).transpose(1, 2, 0) * 0.3
    labels = np.zeros((size, size), np.int32)
    for kind in rng.integers(1, CLASSES, 3):
        radius = rng.uniform(0.1, 0.25)
        dx, dy = x - rng.uniform(0.2, 0.8), y - rng.uniform(0.2, 0.8)
        inside = {
            1: dx**2 + dy**2 < radius**2,
            2: np.maximum(abs(dx), abs(dy)) < radius,
            3: (dy < radius) & (dy > 2 * abs(dx) - radius),
        }[int(kind)]
        image[inside] = rng.uniform(-1, 1, 3)
        labels[inside] = kind
    return image + rng.normal(0, 0.1, image.shape), labels


def batches(seed: int, count: int, batch: int, size: int) -> list[tuple[jax.Array, jax.Array]]:
    rng = np.random.default_rng(seed)
    drawn = [[draw(rng, size) for _ in range(batch)] for _ in range(count)]
    return [
        (jnp.asarray([image for image, _ in some], jnp.float32), jnp.asarray([labels for _, labels in some]))
        for some in drawn
    ]


def train_step(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """One step of training by `gradient`, which is `jax.value_and_grad(loss)` or jaxremat's."""

    @jax.jit
    def step(state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[TrainState, jax.Array]:
        loss, grads = gradient(state.params, images, labels)
        return state.apply_gradients(grads=grads), loss

    return step


def train(steps: dict[str, Callable[..., Any]], state: TrainState, data: list[Any]) -> tuple[Any, Any]:
    """Losses and seconds of each step by name. All take every batch, in turns, so that their times compare."""
    states = dict.fromkeys(steps, state)
    losses: dict[str, list[float]] = {name: [] for name in steps}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for k, batch in enumerate(data):
        for name in sorted(steps, reverse=k % 2 == 1):
            start = time.perf_counter()
            states[name], loss = jax.block_until_ready(steps[name](states[name], *batch))
            seconds[name].append(time.perf_counter() - start)
            losses[name].append(float(loss))
        print(f"{k + 1:4}  {losses['plain'][-1]:10.6f}  {losses['ours'][-1]:10.6f}", flush=True)
    return losses, seconds


def peak(compiled: Any) -> int:
    """What a compiled program holds: arguments, outputs and temporaries, in bytes."""
    m = compiled.memory_analysis()
    return m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes - m.alias_size_in_bytes


def mib(value: float) -> str:
    return f"{value / 2**20:.1f} MiB"


def whole(text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, got {text!r}")
    return int(text)


def fraction_or_bytes(text: str) -> float | str:
    """`0.6` is a fraction of the plain peak; jaxremat reads `60%`, `200MiB` and `200000000`."""
    try:
        return float(text) if "." in text else text
    except ValueError:
        return text


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=fraction_or_bytes, default=0.6, help="0.6, 60%%, 200MiB (default: 0.6)")
    parser.add_argument("--steps", type=whole, default=20, help="training steps (default: 20)")
    parser.add_argument("--batch", type=whole, default=8, help="images a step (default: 8)")
    parser.add_argument("--size", type=whole, default=96, help="pixels an edge, a multiple of 16 (default: 96)")
    parser.add_argument("--width", type=whole, default=16, help="channels of the first level (default: 16)")
    parser.add_argument("--solver", choices=jaxremat.SOLVERS, default="auto", metavar="NAME", help="(default: auto)")
    parser.add_argument("--seed", type=partial(whole, least=0), default=0, help="of images and weights (default: 0)")
    options = parser.parse_args()
    if options.size % 2**LEVELS:
        parser.error(f"argument --size: expected a multiple of {2**LEVELS}, got {options.size}")
    try:
        jaxremat.grad(lambda x: x, budget=options.budget)
    except ValueError as error:
        parser.error(f"argument --budget: {str(error).removeprefix('budget: ')}")
    return options


def main() -> None:
    options = parse()
    data = batches(options.seed, options.steps, options.batch, options.size)
    model = UNet(options.width)
    key = jax.random.key(options.seed, impl="rbg")  # compiles in a quarter of the time that the default takes
    params = jax.jit(model.init)(key, data[0][0][:1])
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(5e-4))

    def loss(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy(model.apply(params, images), jax.nn.one_hot(labels, CLASSES)).mean()

    print(f"planning {sum(x.size for x in jax.tree.leaves(params)):,} weights, {options.batch} images", flush=True)
    gradient = jaxremat.value_and_grad(loss, budget=options.budget, solver=options.solver)
    start = time.perf_counter()
    try:
        plan = gradient.plan(params, *data[0])
    except jaxremat.BudgetError as error:
        sys.exit(f"{error}\nthe least that works: --budget {error.minimum_bytes} ({mib(error.minimum_bytes or 0)})")
    print(f"planned in        {time.perf_counter() - start:.1f} s by {plan.solver}")
    print(f"plain peak        {mib(plan.plain_peak_bytes)}")
    print(f"budget            {mib(plan.budget_bytes)}")
    print(f"planned peak      {mib(plan.predicted_peak_bytes)}")
    print(f"measured peak     {mib(plan.measured_peak_bytes)}")
    print(f"planned overhead  {plan.overhead:.4f} of the plain cost")

    jitted = {"plain": train_step(jax.value_and_grad(loss)), "ours": train_step(gradient)}
    steps = {name: step.lower(state, *data[0]).compile() for name, step in jitted.items()}
    peaks = {name: mib(peak(step)) for name, step in steps.items()}
    print(f"step with Adam    plain {peaks['plain']}, ours {peaks['ours']}")
    print("step  plain loss    our loss")
    losses, seconds = train(steps, state, data)
    pairs = {name: np.array(values) for name, values in seconds.items()}
    print(f"seconds per step  plain {np.median(pairs['plain']):.3f}, ours {np.median(pairs['ours']):.3f}")
    print(f"time of ours      {np.median(pairs['ours'] / pairs['plain']):.3f} of plain")
    apart = np.abs(np.subtract(losses["ours"], losses["plain"])) / np.abs(losses["plain"])
    print(f"losses differ by  {apart.max():.1e} at most, relatively")


if __name__ == "__main__":
    main()
