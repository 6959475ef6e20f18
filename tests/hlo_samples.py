"""The program whose scheduled HLO is saved in tests/hlo, and how to save it again.

python tests/hlo_samples.py            # needs the extras tpu and cuda
"""

import re
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxremat._materialised import tagged
from jaxremat._target import Target
from jaxremat._trace import Program, flatten

FOLDER = Path(__file__).with_name("hlo")
TARGETS = ("cpu", "tpu:v5e", "cuda:a100")


def program() -> Program:
    """Loss and gradients of a two-layer tanh MLP: 128 rows, 32 columns."""

    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    weights = [jax.ShapeDtypeStruct((32, 32), jnp.float32)] * 2
    return flatten(jax.make_jaxpr(jax.value_and_grad(loss))(weights, jax.ShapeDtypeStruct((128, 32), jnp.float32)))


def saved(target: str) -> str:
    return (FOLDER / f"{target.replace(':', '_')}.txt").read_text()


def save() -> None:
    for target in TARGETS:
        text = Target.of(target).compile(tagged(program()), program().structs()).hlo()
        text = re.sub(r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n.*?(?=\n\n)", "", text, flags=re.DOTALL)
        (FOLDER / f"{target.replace(':', '_')}.txt").write_text(text)


if __name__ == "__main__":
    save()
