"""LP rounding, eq. (1) without stages, and the LP relaxations of both forms."""

import random

import pytest
from brute_force import every_schedule
from strategies import layered_graph, need_shared_graph, solve_in_process, training_chain
from test_solvers import check, small_graphs

from jaxremat._errors import BudgetError
from jaxremat.solvers import solve
from jaxremat.solvers.unpartitioned import integrality_gap, relaxed_cost


@pytest.fixture
def in_process(monkeypatch):
    solve_in_process(monkeypatch)


@pytest.mark.parametrize("name", ["vgg16_b256", "unet_b32"])
def test_rounding_is_close_to_the_optimum_of_real_graphs(name):
    graph = need_shared_graph(name)
    best = solve(graph, graph.budget_at(0.7))
    schedule = solve(graph, graph.budget_at(0.7), "rounding")
    check(schedule, graph.budget_at(0.7))
    assert best.cost <= schedule.cost * (1 + 1e-4)
    assert schedule.cost <= 1.06 * best.cost


def test_rounding_of_small_graphs(in_process):
    found = 0
    for graph, costs, peaks in small_graphs(seed=9, count=40):
        budget = graph.budget_at(0.5)
        try:
            schedule = solve(graph, budget, "rounding")
        except BudgetError:
            continue
        found += 1
        check(schedule, budget)
        assert schedule.bound <= costs[peaks <= budget].min() + 1e-6
    assert found > 20


def test_random_rounding_depends_on_seed_and_samples(in_process):
    graph = layered_graph(30, seed=1)
    budget = graph.budget_at(0.6)
    pairs = [solve(graph, budget, "rounding_random", seed=5, samples=8).pairs for _ in range(2)]
    assert pairs[0] == pairs[1]
    check(solve(graph, budget, "rounding_random", samples=1), budget)


def test_large_graphs_are_rounded_from_the_cut_relaxation():
    graph = layered_graph(250, seed=1)
    schedule = solve(graph, graph.budget_at(0.8), "rounding", time_limit=30.0)
    check(schedule, graph.budget_at(0.8))
    assert schedule.bound > graph.total_cost


# Eq. (1)


def test_both_forms_agree_on_short_chains(in_process):
    for layers, budget in ((2, 3), (2, 4), (3, 4)):
        chain = training_chain(layers, both=False)
        costs = {solver: solve(chain, budget, solver).cost for solver in ("milp", "milp_unpartitioned")}
        schedule = solve(chain, budget, "milp_unpartitioned")
        check(schedule, budget)
        assert schedule.status == "optimal"
        assert costs["milp"] == costs["milp_unpartitioned"]


def test_both_forms_on_small_graphs(in_process):
    """Eq. (1) may compute nodes in another order, so it can do better; what comes back is a schedule all the same."""
    equal = total = 0
    for graph, costs, peaks in small_graphs(seed=4, count=15):
        budget = graph.budget_at(0.6)
        fits = peaks <= budget
        if graph.n > 5 or not fits.any():
            continue
        schedule = solve(graph, budget, "milp_unpartitioned", time_limit=20.0)
        check(schedule, budget)
        total += 1
        equal += schedule.cost == costs[fits].min()
        assert schedule.bound <= costs[fits].min()
    assert equal >= 0.8 * total > 0


def test_integrality_gaps_of_appendix_a(in_process):
    chain = training_chain(8, both=False)
    cost = solve(chain, 4, "milp").cost
    assert cost == 26.0
    assert integrality_gap(chain, 4, cost, "unpartitioned") == pytest.approx(21.56, abs=0.005)
    assert integrality_gap(chain, 4, cost, "partitioned") == pytest.approx(1.18, abs=0.005)


def test_integrality_gaps_of_the_chain_whose_gradients_read_outputs_too(in_process):
    chain = training_chain(8)
    assert 38 / relaxed_cost(chain, 4, "unpartitioned") == pytest.approx(29.66, abs=0.01)
    assert 38 / relaxed_cost(chain, 4, "partitioned") == pytest.approx(1.727, abs=0.001)


def test_relaxations_are_no_dearer_than_schedules(in_process):
    rng = random.Random(2)
    for graph, costs, peaks in small_graphs(seed=rng.randrange(100), count=20):
        for budget in (graph.budget_at(0.3), graph.budget_at(0.8)):
            fits = peaks <= budget
            if fits.any():
                for form in ("partitioned", "unpartitioned"):
                    assert relaxed_cost(graph, budget, form) <= costs[fits].min() + 1e-6


def test_brute_force_agrees_on_the_shortest_chain(in_process):
    chain = training_chain(2, both=False)
    costs, peaks = every_schedule(chain)
    assert solve(chain, 3, "milp_unpartitioned").cost == costs[peaks <= 3].min()
