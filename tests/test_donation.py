"""Donated arguments: results take their memory over, and the budget counts it once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxremat
from jaxremat._target import Target

WIDTH = 256


def loss(w, x):
    for _ in range(3):
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def step(state, x):
    value, grad = jax.value_and_grad(loss)(state["w"], x)
    momentum = 0.9 * state["momentum"] + grad
    return {"w": state["w"] - momentum, "momentum": momentum}, value


@pytest.fixture
def state():
    return {"w": jnp.eye(WIDTH), "momentum": jnp.zeros((WIDTH, WIDTH))}


@pytest.fixture(scope="module")
def x():
    return jax.random.normal(jax.random.key(0), (512, WIDTH))


def test_the_peak_is_that_of_jit_with_the_same_donation(state, x):
    plan = jaxremat.remat(step, budget=None, donate_argnums=0).plan(state, x)
    stats = jax.jit(step, donate_argnums=0).lower(state, x).compile().memory_analysis()
    total = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    assert plan.measured_peak_bytes == total - stats.alias_size_in_bytes
    kept = jaxremat.remat(step, budget=None).plan(state, x)
    assert kept.measured_peak_bytes > plan.measured_peak_bytes
    assert kept.fingerprint != plan.fingerprint


def test_a_step_within_a_budget_takes_its_state_over(state, x):
    run = jaxremat.remat(step, budget=0.85, donate_argnums=0)
    plan = run.plan(state, x)
    assert plan.measured_peak_bytes <= plan.budget_bytes < plan.plain_peak_bytes
    expected = jax.jit(step)(state, x)
    given = state["w"]
    result = run(state, x)
    assert given.is_deleted()
    assert not x.is_deleted()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), result, expected)
    run(result[0], x)
    assert result[0]["w"].is_deleted()


def test_nothing_is_donated_inside_another_traced_function(state, x):
    run = jaxremat.remat(step, budget=1.0, donate_argnums=0)
    jax.jit(run)(state, x)
    assert not state["w"].is_deleted()
    given = state["w"]
    jax.jit(run, donate_argnums=0)(state, x)
    assert given.is_deleted()


def test_donation_with_keywords_flags_and_negative_positions(x):
    run = jaxremat.remat(lambda scale, w, name, *, x: (w * scale + x.sum(), name), donate_argnums=[-2], budget=None)
    w, y = jnp.ones(8), jnp.ones(8)
    result, name = run(2.0, w, "a", x=y)
    assert name == "a"
    assert w.is_deleted()
    assert not y.is_deleted()
    np.testing.assert_allclose(result, 10.0)


@pytest.mark.parametrize("wrong", ["state", 1.5, [0, None]])
def test_bad_positions_are_named(wrong):
    with pytest.raises(TypeError, match=r"^donate_argnums: expected"):
        jaxremat.remat(step, donate_argnums=wrong)


def test_a_position_that_is_not_there_is_named(state, x):
    with pytest.raises(ValueError, match=r"^donate_argnums: there is no argument 2, the call has 2"):
        jaxremat.remat(step, budget=None, donate_argnums=2)(state, x)


@pytest.mark.parametrize("name", ["tpu:v5e", "cuda:a100"])
def test_a_chip_that_is_not_here_counts_shared_memory_once(name):
    try:
        Target.of(name)
    except ValueError as error:
        pytest.skip(str(error))
    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    peaks = [
        jaxremat.remat(lambda w, g: w - 0.1 * g, budget=None, target=name, donate_argnums=donated).plan(w, w)
        for donated in ((), 0)
    ]
    assert peaks[0].measured_peak_bytes - peaks[1].measured_peak_bytes == WIDTH * WIDTH * 4
