"""Targets that are not here. What needs their compilers runs where the extras, or JAXREMAT_AOT_PYTHON, bring them."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxremat
import jaxremat._aot
from jaxremat._aot import CompilationError, compiler
from jaxremat._chips import CHIPS
from jaxremat._hlo import parse
from jaxremat._target import Target


def loss(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def arguments(layers=8, width=256, rows=2048):
    weights = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * layers
    return weights, jax.ShapeDtypeStruct((rows, width), jnp.float32)


def need(target):
    try:
        return Target.of(target)
    except ValueError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_missing_wheels_name_the_extra(monkeypatch, platform):
    monkeypatch.delenv("JAXREMAT_AOT_PYTHON", raising=False)
    monkeypatch.setattr(jaxremat._aot, "_found", lambda name: False)
    name = next(name for name in CHIPS if name.startswith(platform))
    with pytest.raises(ValueError, match=rf"^target: .*pip install 'jaxremat\[{platform}\]'"):
        jaxremat.grad(loss, target=name)


def test_an_unknown_target_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"^target: expected None or one of .*'tpu:v5e'.* got 'tpu:v99'"):
        jaxremat.grad(loss, target="tpu:v99")


def test_a_compiler_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setenv("JAXREMAT_AOT_PYTHON", sys.executable)
    broken = jaxremat._aot.Compiler(CHIPS["tpu:v5e"])
    monkeypatch.setattr(jaxremat._aot, "_WORKER", jaxremat._aot._WORKER.with_name("no_such_file.py"))
    with pytest.raises(CompilationError, match=r"ended unexpectedly. It said: .*no_such_file"):
        broken.compile(b"")


@pytest.mark.parametrize("name", CHIPS)
def test_every_chip_compiles(name):
    target = need(name)
    compiled = target.compile(
        lambda x, w: jnp.tanh(x @ w),
        [jax.ShapeDtypeStruct((512, 256), jnp.float32)] * 1 + [jax.ShapeDtypeStruct((256, 256), jnp.float32)],
    )
    assert compiled.memory.arguments == (512 + 256) * 256 * 4
    assert compiled.memory.outputs >= 512 * 256 * 4
    assert compiled.run is None
    assert len(parse(compiled.hlo()).schedule) >= 3


@pytest.mark.parametrize("name", ["tpu:v5e", "cuda:a100"])
def test_a_plan_for_a_chip_fits_and_is_predicted(name):
    need(name)
    with jax.default_matmul_precision("highest"):
        plan = jaxremat.value_and_grad(loss, budget=0.75, target=name, time_limit=10).plan(*arguments())
    assert plan.target == name
    assert plan.measured_peak_bytes <= plan.budget_bytes < plan.plain_peak_bytes
    assert plan.predicted_peak_bytes == pytest.approx(plan.measured_peak_bytes, rel=0.1)
    assert plan.schedule.pairs
    assert plan.overhead < 1.35


@pytest.mark.parametrize("name", ["tpu:v5e", "cuda:a100"])
def test_a_plan_for_a_chip_runs_here_with_the_same_gradients(name):
    need(name)
    structs = arguments(rows=512)
    rng = np.random.default_rng(0)
    args = jax.tree.map(lambda s: jnp.asarray(rng.normal(0, 0.06, s.shape), s.dtype), structs)
    planned = jaxremat.value_and_grad(loss, budget=0.9, target=name, time_limit=10)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8),
        planned(*args),
        jax.value_and_grad(loss)(*args),
    )


def test_a_step_too_large_for_its_chip_gets_a_plan_that_fits_it():
    target = need("tpu:v5e")
    with jax.default_matmul_precision("highest"):
        step = jaxremat.value_and_grad(loss, budget="auto", target="tpu:v5e", time_limit=10)
        plan = step.plan(*arguments(layers=12, width=1024, rows=2**19))
    assert plan.plain_peak_bytes > target.memory
    assert plan.measured_peak_bytes <= target.memory == plan.budget_bytes


@pytest.mark.parametrize("name", ["cuda:a100"])
def test_a_saved_plan_for_a_chip_is_followed(name, tmp_path):
    need(name)
    plan = jaxremat.value_and_grad(loss, budget=0.75, target=name, time_limit=10).plan(*arguments())
    plan.save(tmp_path / "plan.json")
    again = jaxremat.value_and_grad(loss, plan=jaxremat.Plan.load(tmp_path / "plan.json"), target=name).plan(
        *arguments()
    )
    assert again.measured_peak_bytes == plan.measured_peak_bytes
    assert str(again.jaxpr) == str(plan.jaxpr)


def test_what_a_compiler_refuses_is_told_and_the_next_program_compiles():
    target = need("tpu:v5e")
    with pytest.raises(CompilationError):
        compiler(CHIPS["tpu:v5e"]).compile(b"no program")
    assert target.compile(jnp.sin, [jax.ShapeDtypeStruct((8, 128), jnp.float32)]).memory.arguments == 4096


@pytest.mark.parametrize("name", ["tpu:v5e", "cuda:a100"])
def test_the_process_is_left_as_it_was(name):
    need(name)
    script = f"""
import os, jax, jax.numpy as jnp
before = dict(os.environ)
backend, devices = jax.default_backend(), jax.devices()
from jaxremat._target import Target
Target.of({name!r}).compile(jnp.sin, [jax.ShapeDtypeStruct((8, 128), jnp.float32)])
assert dict(os.environ) == before
assert (jax.default_backend(), jax.devices()) == (backend, devices)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ))
    quiet = subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr) <= len(quiet.stderr)
    assert done.stdout == quiet.stdout
