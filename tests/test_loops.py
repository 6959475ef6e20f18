"""Differentiated loops: what they keep is chosen, the results are the same, and the memory is as predicted."""

from dataclasses import replace

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxremat
from bench.models import model
from jaxremat._cost import costs
from jaxremat._loops import rungs as rungs_of
from jaxremat._pairs import pairs
from jaxremat._partition import partition
from jaxremat._plan import Plan
from jaxremat._scans import chosen
from jaxremat._target import Target
from jaxremat._trace import Program, flatten

CPU = Target.of("cpu")


def normal(*shape):
    return jnp.asarray(np.random.default_rng(len(shape)).normal(0, 0.1, shape), jnp.float32)


WEIGHTS, X = normal(12, 32, 32), normal(256, 32)


def layers(ws, x):
    """One result of each layer is used besides, so its stack stays."""

    def body(h, w):
        return h + jax.nn.gelu(h @ w) @ w.T, h[0, 0]

    h, heads = lax.scan(body, x, ws)
    return jnp.mean(h**2) + jnp.sum(heads**2)


def backwards(ws, x):
    return jnp.mean(lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws, reverse=True)[0] ** 2)


def unrolled_twice(ws, x):
    return jnp.mean(lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws, unroll=2)[0] ** 2)


def checkpointed(ws, x):
    body = jax.checkpoint(lambda h, w: (jnp.tanh(jnp.tanh(h @ w) @ w), None))
    return jnp.mean(lax.scan(body, x, ws)[0] ** 2)


def shared_weight(ws, x):
    return jnp.mean(lax.fori_loop(0, 13, lambda i, h: jnp.tanh(h @ ws[0]) + i, x) ** 2)


def pytree_carry(ws, x):
    def body(carry, w):
        h, c = carry["h"], carry["c"]
        c = jax.nn.sigmoid(c) * jnp.tanh(h @ w)
        return {"h": jnp.tanh(c + h), "c": c}, None

    out, _ = lax.scan(body, {"h": x, "c": x}, ws)
    return jnp.mean(out["h"] ** 2 + out["c"])


def with_keys(ws, x):
    def body(h, layer):
        w, key = layer
        return jnp.where(jax.random.bernoulli(key, 0.8, h.shape), jnp.tanh(h @ w), 0.0), None

    return jnp.mean(lax.scan(body, x, (ws, jax.random.split(jax.random.key(0), 12)))[0] ** 2)


def nested(ws, x):
    def inner(h, _):
        return jnp.tanh(h @ ws[0]), None

    def outer(h, w):
        return lax.scan(inner, jnp.tanh(h @ w), None, length=3)[0], None

    return jnp.mean(lax.scan(outer, x, ws)[0] ** 2)


def mapped(ws, x):
    return jnp.mean(lax.map(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w)), ws) ** 2)


def two_loops(ws, x):
    h = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]
    return jnp.mean(lax.scan(lambda h, w: (jnp.sin(h @ w.T), None), h, ws)[0] ** 2)


LOSSES = [
    layers,
    backwards,
    unrolled_twice,
    checkpointed,
    shared_weight,
    pytree_carry,
    with_keys,
    nested,
    mapped,
    two_loops,
]


def program_of(loss, *args) -> Program:
    return flatten(jax.make_jaxpr(jax.value_and_grad(loss))(*args))


def rungs(program: Program, target: Target, cost: str):
    return rungs_of(pairs(program), target, cost)


def with_choices(program: Program, choices) -> Program:
    return chosen(program, pairs(program), choices)


def temporaries(jaxpr, *args) -> int:
    compiled = jax.jit(jex.jaxpr_as_fun(jaxpr)).lower(*args).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def evenly(found, count):
    return found[:: max(1, len(found) // count)] + found[-1:]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_every_choice_computes_the_same(loss):
    program = program_of(loss, WEIGHTS, X)
    assert len(pairs(program)) == (2 if loss is two_loops else 1)
    expected = jex.jaxpr_as_fun(program.plain)(WEIGHTS, X)
    for choices in evenly(rungs(program, CPU, "xla"), 3):
        found = jax.jit(jex.jaxpr_as_fun(with_choices(program, choices).jaxpr))(WEIGHTS, X)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("loss", [layers, checkpointed, shared_weight], ids=lambda loss: loss.__name__)
def test_stacks_take_the_bytes_that_a_choice_says(loss):
    program = program_of(loss, WEIGHTS, X)
    found = [c for c in rungs(program, CPU, "xla") if len(c[0].parts) == 1 and not c[0].parts[0].segments]
    assert len(found) > 1 or loss is shared_weight
    # Beside the stacks, one iteration's values and the gradients' accumulators.
    rest = {temporaries(with_choices(program, c).jaxpr, WEIGHTS, X) - c[0].bytes for c in found}
    assert max(rest) - min(rest) <= 6 * X.nbytes


def test_rungs_are_ever_dearer_and_ever_smaller():
    found = rungs(program_of(two_loops, WEIGHTS, X), CPU, "xla")
    cost = [sum(c.cost for c in choices) for choices in found]
    size = [sum(c.bytes for c in choices) for choices in found]
    assert cost == sorted(cost)
    assert size == sorted(size, reverse=True)
    assert size[-1] < 0.4 * size[0]


def test_a_carry_is_not_stacked_twice():
    """JAX stacks what comes into an iteration and what goes out of it; the one is the other an iteration later.

    How many stacks that are of a `tanh` depends on the version of JAX.
    """

    def recurrent(ws, x):
        return jnp.mean(lax.fori_loop(0, 13, lambda i, h: jnp.tanh(h @ ws[0]), x) ** 2)

    program = program_of(recurrent, WEIGHTS, X)
    plain = temporaries(program.plain, WEIGHTS, X)
    stacks = len(pairs(program)[0].first.ys)
    cheapest = rungs(program, CPU, "xla")[0]
    assert stacks > 1
    assert cheapest[0].bytes == 13 * X.nbytes
    spared = (stacks - 1) * 13 * X.nbytes
    assert temporaries(with_choices(program, cheapest).jaxpr, WEIGHTS, X) <= plain - spared + 2 * X.nbytes


def test_a_prime_number_of_iterations_goes_in_segments_too():
    found = rungs(program_of(shared_weight, WEIGHTS, X), CPU, "xla")
    assert found[-1][0].bytes < 0.6 * found[0][0].bytes
    assert all(sum(part.length for part in c[0].parts) == 13 for c in found)


def test_a_loop_costs_its_body_as_often_as_it_runs():
    def unrolled(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def scanned(ws, x):
        return jnp.mean(lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0] ** 2)

    each = [sum(costs(partition(program_of(f, WEIGHTS, X)), CPU, "flops").each) for f in (unrolled, scanned)]
    assert each[1] == pytest.approx(each[0], rel=0.05)


def test_scans_with_effects_or_without_gradient_are_left_alone():
    def talking(ws, x):
        def body(h, w):
            jax.debug.print("{}", h[0, 0])
            return jnp.tanh(h @ w), None

        return jnp.mean(lax.scan(body, x, ws)[0] ** 2)

    assert pairs(program_of(talking, WEIGHTS, X)) == ()
    assert pairs(flatten(jax.make_jaxpr(backwards)(WEIGHTS, X))) == ()


@pytest.mark.parametrize("loss", [layers, nested], ids=lambda loss: loss.__name__)
def test_budgets_hold_and_gradients_are_the_same(loss):
    value, grads = jax.value_and_grad(loss, argnums=(0, 1))(WEIGHTS, X)
    planned = jaxremat.value_and_grad(loss, argnums=(0, 1), budget=0.6)
    plan = planned.plan(WEIGHTS, X)
    assert plan.loops
    assert plan.measured_peak_bytes <= plan.budget_bytes
    found = planned(WEIGHTS, X)
    np.testing.assert_allclose(found[0], value, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), found[1], grads)


@pytest.mark.parametrize("loss", [layers, with_keys, nested], ids=lambda loss: loss.__name__)
def test_the_smallest_budget_works(loss):
    value, grads = jax.value_and_grad(loss, argnums=(0, 1))(WEIGHTS, X)
    tight = jaxremat.value_and_grad(loss, argnums=(0, 1), budget=1, time_limit=2)
    with pytest.raises(jaxremat.BudgetError) as error:
        tight(WEIGHTS, X)
    planned = jaxremat.value_and_grad(loss, argnums=(0, 1), budget=error.value.minimum_bytes, time_limit=2)
    plan = planned.plan(WEIGHTS, X)
    assert plan.measured_peak_bytes <= error.value.minimum_bytes < plan.plain_peak_bytes
    found = planned(WEIGHTS, X)
    np.testing.assert_allclose(found[0], value, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), found[1], grads)


def test_a_scanned_transformer_fits_a_quarter():
    case = model("gpt", layers=8, width=64, length=64, batch=4, vocabulary=200, scanned=True)
    planned = jaxremat.value_and_grad(case.loss, budget=0.3)
    plan = planned.plan(*case.args)
    assert plan.measured_peak_bytes <= plan.budget_bytes
    assert plan.loops
    assert plan.overhead < 1.25
    assert "scan" in plan.summary()
    assert plan.predicted_peak_bytes == pytest.approx(plan.measured_peak_bytes, rel=0.1)


def test_some_iterations_keep_more_where_that_is_cheaper():
    case = model("lstm", steps=64, batch=64, width=64, scanned=True)
    plans = [jaxremat.value_and_grad(case.loss, budget=b).plan(*case.args) for b in (0.6, 0.45)]
    assert any(len(plan.loops[0].parts) > 1 for plan in plans)
    for plan in plans:
        assert plan.measured_peak_bytes <= plan.budget_bytes
        assert plan.predicted_peak_bytes == pytest.approx(plan.measured_peak_bytes, rel=0.05)
    # What is not stacked is not written and read either, which may save more than computing it again costs.
    assert plans[0].overhead < plans[1].overhead < 1.3


def test_a_plan_with_loops_is_saved_and_followed(tmp_path):
    step = jaxremat.value_and_grad(layers, budget=0.5)
    plan = step.plan(WEIGHTS, X)
    assert plan.loops
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == replace(plan, rewritten=None)
    again = jaxremat.value_and_grad(layers, plan=loaded)
    assert str(again.plan(WEIGHTS, X).jaxpr) == str(plan.jaxpr)
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"loops": [{', '"loops": [{"depth": 1, '))
    with pytest.raises(ValueError, match="not a saved plan"):
        Plan.load(tmp_path / "plan.json")
