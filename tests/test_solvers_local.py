"""Local search: simulated annealing, and what it adds to neighbourhood search."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, layered_graph

from jaxremat import Schedule, lowest_peak
from jaxremat._schedule import simulate
from jaxremat.solvers._profile import Profile
from jaxremat.solvers.annealing import Annealing
from jaxremat.solvers.local import Local


@given(graphs(max_nodes=9), st.floats(0, 1), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_steps_of_annealing_keep_count(graph, fraction, seed):
    budget = graph.budget_at(fraction)
    search = Annealing(graph, budget, seed)
    search.run(300, math.inf)
    # The state after changes made and taken back, against one made anew.
    assert sorted(search._list) == search._profile.pairs
    anew = Profile(graph, search._list)
    assert tuple(search._profile.memory) == tuple(anew.memory)
    assert search._cost == pytest.approx(math.fsum(search._costs[i] for _, i in search._list), abs=1e-9)
    best = Schedule(graph, tuple(search.pairs))
    assert search.value[0] == max(0, best.peak - budget)
    assert search.value[1] == pytest.approx(best.cost)
    found = search.schedule()
    assert (found is not None) == (best.peak <= budget)
    if found is not None:
        assert simulate(graph, found.statements) == found.peak <= budget
        assert found.cost <= best.cost


def test_annealing_fits_where_descents_do_not():
    graph = layered_graph(150, seed=0)
    fraction = (lowest_peak(graph).peak - graph.floor) / (graph.peak - graph.floor)
    budget = graph.budget_at(fraction - 0.1)
    search = Annealing(graph, budget, 0)
    search.run(10_000, math.inf)
    found = search.schedule()
    assert found is not None
    assert simulate(graph, found.statements) <= budget


def test_both_searches_go_on_from_the_better_schedule():
    graph = layered_graph(60, seed=3)
    budget = graph.budget_at(0.5)
    local = Local(graph, budget, 0)
    values = []
    for _ in range(12):
        local.run(1, math.inf)
        values.append(local.value)
        assert local.value == min(local._annealing.value, local._neighbourhood.value)
        assert local._annealing.value[0] == local._neighbourhood.value[0]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]
    found = local.schedule()
    assert found is not None
    assert found.cost == pytest.approx(local.value[1])
    again = Local(graph, budget, 0)
    again.run(12, math.inf)
    assert again.schedule().pairs == found.pairs


def test_nothing_to_evict():
    graph = layered_graph(1, seed=0)
    search = Annealing(graph, graph.floor, 0)
    search.run(10, math.inf)
    assert search.schedule().pairs == ()
