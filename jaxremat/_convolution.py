"""Convolutions in the form in which XLA:CPU has a fast kernel.

XLA:CPU brings a convolution into that form (batch, space, features; kernel: space, input, output features) only in a
program's entry computation. Inside a call it must be written that way, or weight gradients run tens of times slower.
"""

from __future__ import annotations

from typing import Any

from jax import lax


def canonical_convolution(eqn: Any, lhs: Any, rhs: Any) -> list[Any]:
    """The result of a `conv_general_dilated` equation, computed as transpose, NHWC/HWIO convolution, transpose."""
    params = dict(eqn.params)
    numbers = params.pop("dimension_numbers")
    rank = len(numbers.lhs_spec)
    space = tuple(range(1, rank - 1))
    batch_last = (0, rank - 1, *space)  # where batch, features and space stand in batch-space-features order
    canonical = lax.ConvDimensionNumbers(batch_last, (rank - 1, rank - 2, *range(rank - 2)), batch_last)
    lhs = lax.transpose(lhs, _to_channels_last(numbers.lhs_spec))
    out_features, in_features, *kernel_space = numbers.rhs_spec
    rhs = lax.transpose(rhs, (*kernel_space, in_features, out_features))
    result = lax.conv_general_dilated_p.bind(lhs, rhs, dimension_numbers=canonical, **params)
    return [lax.transpose(result, _inverse(_to_channels_last(numbers.out_spec)))]


def _to_channels_last(spec: tuple[int, ...]) -> tuple[int, ...]:
    batch, features, *space = spec
    return (batch, *space, features)


def _inverse(permutation: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(permutation.index(k) for k in range(len(permutation)))
