"""The program whose scheduled HLO is saved in tests/hlo, and how to save it again.

python tests/hlo_samples.py            # needs the extras tpu and cuda
"""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

from jaxremat._materialised import tagged
from jaxremat._target import Target
from jaxremat._trace import Program, flatten

FOLDER = Path(__file__).with_name("hlo")
TARGETS = ("cpu", "tpu:v5e", "cuda:a100")


def program() -> Program:
    """Loss and gradients of a two-layer tanh MLP: 128 rows, 32 columns.

    The backward pass is written by hand: versions of JAX differentiate to other equations, and samples know them by
    their numbers.
    """

    def step(w1, w2, x):
        h1 = jnp.tanh(x @ w1)
        rest1 = 1.0 - h1
        h2 = jnp.tanh(h1 @ w2)
        rest2 = 1.0 - h2
        squares, slope = lax.integer_pow(h2, 2), 2.0 * h2
        loss = jnp.sum(squares) / h2.size
        cotangent = jnp.broadcast_to(jnp.float32(1.0) / h2.size, h2.shape) * slope * rest2
        cotangent = cotangent + cotangent * h2
        grad2 = _contracted(cotangent, h1, 0, 0).T
        cotangent = _contracted(cotangent, w2, 1, 1) * rest1
        cotangent = cotangent + cotangent * h1
        return loss, _contracted(cotangent, x, 0, 0).T, grad2

    weights = [jax.ShapeDtypeStruct((32, 32), jnp.float32)] * 2
    return flatten(jax.make_jaxpr(step)(*weights, jax.ShapeDtypeStruct((128, 32), jnp.float32)))


def _contracted(a: jax.Array, b: jax.Array, i: int, j: int) -> jax.Array:
    return lax.dot_general(a, b, (((i,), (j,)), ((), ())), preferred_element_type=jnp.float32)


def saved(target: str) -> str:
    return (FOLDER / f"{target.replace(':', '_')}.txt").read_text()


def save() -> None:
    for target in TARGETS:
        text = Target.of(target).compile(tagged(program()), program().structs()).hlo()
        text = re.sub(r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n.*?(?=\n\n)", "", text, flags=re.DOTALL)
        (FOLDER / f"{target.replace(':', '_')}.txt").write_text(text)


if __name__ == "__main__":
    save()
