import doctest
import math

import pytest
from strategies import need_shared_graph, training_chain

import jaxremat._batch
from jaxremat._batch import largest, largest_batch, scaled
from jaxremat._errors import BudgetError
from jaxremat._graph import Graph


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
    fits = {extra: largest_batch(lambda k: scaled(item, k, fixed=5), 200, extra_passes=extra) for extra in (0.0, 1.0)}
    assert fits[0.0].batch == (200 - 5) // item.peak
    assert fits[1.0].batch >= 2 * fits[0.0].batch
    for extra, answer in fits.items():
        graph = scaled(item, answer.batch, fixed=5)
        assert answer.schedule.peak <= 200
        assert answer.schedule.cost <= graph.total_cost + extra * sum(graph.cost[i] for i in graph.forward)
        assert answer.failed == answer.batch + 1


def test_no_baseline_beats_it():
    vgg = need_shared_graph("vgg16_b256")
    item = Graph(vgg.names, vgg.cost, [size // 256 for size in vgg.memory], vgg.deps, backward=vgg.backward)
    batch = {
        solver: largest_batch(lambda k: scaled(item, k), 16 * 2**30, solver=solver).batch
        for solver in ("checkpoint_all", "chen_sqrt", "linearized_greedy", "auto")
    }
    assert batch["checkpoint_all"] < batch["chen_sqrt"] <= batch["linearized_greedy"] <= batch["auto"]


def test_not_even_one_fits():
    item = training_chain(3)
    with pytest.raises(BudgetError, match="batch of 1"):
        largest_batch(lambda k: scaled(item, k, fixed=100), 100)


@pytest.mark.parametrize(
    ("argument", "value"), [("most", 0), ("most", 1.5), ("extra_passes", -1.0), ("extra_passes", math.nan)]
)
def test_bad_arguments(argument, value):
    with pytest.raises(ValueError, match=f"^{argument}"):
        largest_batch(lambda k: scaled(training_chain(3), k), 100, **{argument: value})
