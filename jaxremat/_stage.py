"""A node becomes a function, written so that XLA compiles it well wherever it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxremat._convolution import canonical_convolution
from jaxremat._partition import Node
from jaxremat._pooling import max_pool_gradient
from jaxremat._trace import evaluate, struct_of

_CPU_RULES = {"conv_general_dilated": canonical_convolution, "select_and_scatter_add": max_pool_gradient}


def node_function(node: Node, platform: str) -> Callable[..., list[Any]]:
    """The function of a node: the values of `node.inputs` to those of `node.outputs`."""

    def stage(*values: Any) -> list[Any]:
        env = dict(zip(node.inputs, values, strict=True))
        evaluate(node.eqns, env, _CPU_RULES if platform == "cpu" else None)
        return [env[v] for v in node.outputs]

    stage.__name__ = stage.__qualname__ = node.name
    return stage


def node_structs(node: Node) -> list[jax.ShapeDtypeStruct]:
    """Shapes and types of what the function of `node` is called with."""
    return [struct_of(v.aval) for v in node.inputs]


def node_key(node: Node, platform: str) -> str:
    """Equal for nodes that run the same program."""
    return str(jax.make_jaxpr(node_function(node, platform))(*node_structs(node)))
