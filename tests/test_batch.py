import doctest
import math

import jax
import jax.numpy as jnp
import pytest
from strategies import need_shared_graph, training_chain

import jaxremat
import jaxremat._batch
from jaxremat import BudgetError, Graph, max_batch_size
from jaxremat._batch import largest


def test_examples_in_docstrings():
    assert doctest.testmod(jaxremat._batch).failed == 0


def test_the_search_finds_the_largest_number():
    for most in (1, 2, 7, 100):
        for answer in range(min(most, 40) + 1):
            tried = []

            def attempt(k, answer=answer, tried=tried):
                tried.append(k)
                return k if k <= answer else None

            good, found, bad = largest(attempt, most)
            assert good == answer
            assert found == (answer or None)
            assert bad == (answer + 1 if answer < most else None)
            assert len(tried) <= 2 * math.log2(most) + 3


def test_rematerialization_makes_room_for_larger_batches():
    item = training_chain(6, both=False)
    fits = {
        extra: max_batch_size(lambda k: item.scaled(k, fixed=5), budget=200, extra_passes=extra) for extra in (0.0, 1.0)
    }
    assert fits[0.0] == (200 - 5) // item.peak
    assert fits[1.0] >= 2 * fits[0.0]
    for extra, answer in fits.items():
        graph = item.scaled(answer, fixed=5)
        assert answer.schedule.peak <= 200
        assert answer.schedule.cost <= graph.total_cost + extra * sum(graph.cost[i] for i in graph.forward)
        assert answer.failed == answer + 1


def test_no_baseline_beats_it():
    vgg = need_shared_graph("vgg16_b256")
    item = Graph(vgg.names, vgg.cost, [size // 256 for size in vgg.memory], vgg.deps, backward=vgg.backward)
    batch = {
        solver: max_batch_size(item.scaled, budget=16 * 2**30, solver=solver)
        for solver in ("checkpoint_all", "chen_sqrt", "linearized_greedy", "auto")
    }
    assert batch["checkpoint_all"] < batch["chen_sqrt"] <= batch["linearized_greedy"] <= batch["auto"]


def test_not_even_one_fits():
    item = training_chain(3)
    with pytest.raises(BudgetError, match="batch of 1"):
        max_batch_size(lambda k: item.scaled(k, fixed=100), budget=100)


def loss(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def arguments(batch):
    return [jax.ShapeDtypeStruct((32, 32), jnp.float32)] * 6, jax.ShapeDtypeStruct((64 * batch, 32), jnp.float32)


def test_the_largest_batch_of_a_traced_function():
    largest = {
        extra: max_batch_size(arguments, jax.value_and_grad(loss), budget=300_000, extra_passes=extra)
        for extra in (0.0, 1.0)
    }
    assert 1 <= largest[0.0] < largest[1.0]
    for extra, batch in largest.items():
        graph = batch.plan.graph
        forward = sum(graph.cost[i] for i in graph.forward)
        assert graph.backward is not None
        assert 0 < forward < graph.total_cost / 2
        assert batch.plan.measured_peak_bytes <= 300_000
        assert batch.schedule.cost <= (graph.total_cost + extra * forward) * (1 + 1e-6)
        assert batch.failed == batch + 1


def test_the_largest_batch_of_a_function_that_has_a_budget_already():
    budgeted = jaxremat.value_and_grad(loss, budget="1GiB")
    assert max_batch_size(arguments, budgeted, budget=300_000) == max_batch_size(
        arguments, jax.value_and_grad(loss), budget=300_000
    )


@pytest.mark.parametrize("budget", [None, 0.5, "50%"])
def test_a_share_of_the_plain_peak_is_no_budget_for_a_batch(budget):
    with pytest.raises(ValueError, match="^budget: expected bytes"):
        max_batch_size(arguments, jax.value_and_grad(loss), budget=budget)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("make_args", lambda: max_batch_size(3, loss, budget=100)),
        ("make_args", lambda: max_batch_size(lambda k: 3, loss, budget=100)),
        ("make_args", lambda: max_batch_size(lambda k: 3, budget=100)),
        ("fun", lambda: max_batch_size(arguments, 3, budget=100)),
    ],
)
def test_arguments_of_the_wrong_type(argument, call):
    with pytest.raises(TypeError, match=f"^{argument}"):
        call()


@pytest.mark.parametrize(
    ("argument", "value"), [("most", 0), ("most", 1.5), ("extra_passes", -1.0), ("extra_passes", math.nan)]
)
def test_bad_arguments(argument, value):
    with pytest.raises(ValueError, match=f"^{argument}"):
        max_batch_size(training_chain(3).scaled, budget=100, **{argument: value})
