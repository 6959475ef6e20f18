"""The gradient of max pooling without the workspace that XLA:CPU takes for it.

XLA:CPU expands `select_and_scatter` into a reduction over index pairs, which takes several times the result's bytes.
Here the winner of each window is found by comparing its positions one after another, and each position's share of the
gradient is spread with interior padding; only the winners' numbers, a byte each, are materialised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_LARGEST_WINDOW = 32  # positions; each is a term of the sum


def max_pool_gradient(eqn: Any, source: Any, operand: Any) -> list[Any]:
    """The result of a `select_and_scatter_add` equation: the same values, added up in the same order."""
    params = eqn.params
    window, strides, padding = params["window_dimensions"], params["window_strides"], params["padding"]
    if params["select_prim"].name != "ge" or int(np.prod(window)) > _LARGEST_WINDOW:
        return [eqn.primitive.bind(source, operand, **params)]
    offsets = list(np.ndindex(*window))
    winner = _winners(operand, source.shape, offsets, strides, padding)
    result = None
    # The last position first: it belongs to the window that XLA visits first.
    for number in reversed(range(len(offsets))):
        share = jnp.where(winner == number, source, jnp.zeros_like(source))
        spread = _spread(share, offsets[number], strides, padding, operand.shape)
        result = spread if result is None else result + spread
    return [result]


def _winners(
    operand: Any,
    shape: Sequence[int],
    offsets: Sequence[tuple[int, ...]],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> jax.Array:
    """For each window, the number of the position that is selected: the first of the largest.

    Padding counts as the lowest value, as it does for JAX: what it wins is lost.
    """
    if operand.dtype.itemsize < 4 and jnp.issubdtype(operand.dtype, jnp.floating):
        operand = operand.astype(jnp.float32)  # exact, and compares faster
    if any(low or high > 0 for low, high in padding):
        lowest = jnp.array(-jnp.inf if jnp.issubdtype(operand.dtype, jnp.floating) else jnp.iinfo(operand.dtype).min)
        operand = lax.pad(operand, lowest.astype(operand.dtype), [(low, max(0, high), 0) for low, high in padding])
    best, number = None, jnp.zeros(shape, jnp.int8)
    for k, offset in enumerate(offsets):
        limits = [o + (s - 1) * stride + 1 for o, s, stride in zip(offset, shape, strides, strict=True)]
        value = lax.slice(operand, offset, limits, strides)
        if best is None:
            best = value
            continue
        better = ~(best >= value)
        best, number = jnp.where(better, value, best), jnp.where(better, jnp.int8(k), number)
    return number


def _spread(
    share: Any, offset: tuple[int, ...], strides: Sequence[int], padding: Sequence[tuple[int, int]], full: Sequence[int]
) -> jax.Array:
    """Put the share of one position of each window where it stands in the operand."""
    config = []
    for o, stride, (low, _), size, count in zip(offset, strides, padding, full, share.shape, strict=True):
        reach = (count - 1) * stride + 1
        config.append((o - low, size - (o - low) - reach, stride - 1))
    return lax.pad(share, jnp.zeros((), share.dtype), config)
