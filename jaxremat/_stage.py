"""A node becomes a function, written so that XLA compiles it well wherever it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxremat._barrier import barrier
from jaxremat._convolution import canonical_convolution
from jaxremat._partition import Node
from jaxremat._pooling import max_pool_gradient
from jaxremat._trace import bind, bytes_of, evaluate, is_literal, struct_of

_Rules = Mapping[str, Callable[..., list[Any]]]

_CPU_RULES: _Rules = {"conv_general_dilated": canonical_convolution, "select_and_scatter_add": max_pool_gradient}

# What XLA makes arrays of scalars for. It makes equal ones once, and may keep them from one pass to the other.
_OF_SCALARS = "broadcast_in_dim clamp eq ge gt le lt max min ne select_n".split()
_LARGE = 4096  # bytes


def node_function(node: Node, platform: str) -> Callable[..., list[Any]]:
    """The function of a node: the values of `node.inputs` to those of `node.outputs`."""
    rules = _CPU_RULES if platform == "cpu" else None
    return _function(node, lambda env: rules)


def separate_function(node: Node) -> Callable[..., list[Any]]:
    """As `node_function`, with scalar constants of its own, for a node that runs long after others with the same ones.

    For `relu` and the like XLA:TPU and XLA:GPU otherwise make one array of zeros in the forward pass and keep it for
    the backward pass.
    """
    smallest = min(node.inputs, key=lambda v: bytes_of(v.aval), default=None)
    return _function(node, lambda env: None if smallest is None else _separating(env[smallest]))


def _function(node: Node, rules: Callable[[dict[Any, Any]], _Rules | None]) -> Callable[..., list[Any]]:
    """The function of a node; `rules` are given what is known before its equations run."""

    def stage(*values: Any) -> list[Any]:
        env = dict(zip(node.inputs, values, strict=True))
        evaluate(node.eqns, env, rules(env))
        return [env[v] for v in node.outputs]

    stage.__name__ = stage.__qualname__ = node.name
    return stage


def _separating(anchor: Any) -> _Rules:
    """Rules by which large arrays are made of scalars that are tied to `anchor`, and so are equal to no others."""
    own: dict[Any, Any] = {}

    def separated(eqn: Any, *operands: Any) -> list[Any]:
        if bytes_of(eqn.outvars[0].aval) < _LARGE:
            return bind(eqn, operands)
        return bind(eqn, [mine(a, x) if is_literal(a) else x for a, x in zip(eqn.invars, operands, strict=True)])

    def mine(literal: Any, value: Any) -> Any:
        key = (complex(value), literal.aval.dtype, literal.aval.weak_type)
        if key not in own:
            own[key] = barrier(jax.numpy.asarray(value, literal.aval.dtype), anchor)[0]
        return own[key]

    return dict.fromkeys(_OF_SCALARS, separated)


def node_structs(node: Node) -> list[jax.ShapeDtypeStruct]:
    """Shapes and types of what the function of `node` is called with."""
    return [struct_of(v.aval) for v in node.inputs]


def node_key(node: Node, platform: str) -> str:
    """Equal for nodes that run the same program."""
    return str(jax.make_jaxpr(node_function(node, platform))(*node_structs(node)))


def known_again(key: str) -> bool:
    """Whether a node is known again by its key: not one that prints the address of a function."""
    return " at 0x" not in key
