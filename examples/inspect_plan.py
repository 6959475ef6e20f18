"""What a plan says, the program that follows it, and how it is used again without solving.

python examples/inspect_plan.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import jaxremat


def loss(weights: list[Any], x: jax.Array) -> jax.Array:
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def main() -> None:
    weights = [jnp.eye(128) * (1 + k / 8) for k in range(8)]
    x = jnp.linspace(-1, 1, 2048 * 128).reshape(2048, 128)

    # Shapes are enough to plan; nothing runs.
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (weights, x))
    plan = jaxremat.value_and_grad(loss, budget=0.6).plan(*shapes)
    print(plan.summary())

    print("\nthe schedule, recomputes marked:")
    computed = set()
    for statement in plan.schedule.statements:
        if statement.kind == "compute":
            mark = "  again" if statement.node in computed else ""
            print(f"  {plan.graph.names[statement.node]}{mark}")
            computed.add(statement.node)

    print("\nthe first lines of the rewritten program:")
    print("\n".join(str(plan.jaxpr).split("\n")[:20]))

    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan.json")
        again = jaxremat.value_and_grad(loss, plan=jaxremat.Plan.load(Path(folder) / "plan.json"))
    value, _ = again(weights, x)
    print(f"\nloss by the loaded plan: {value:.6f}")


if __name__ == "__main__":
    main()
