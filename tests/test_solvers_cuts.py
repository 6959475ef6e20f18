"""Cut generation, neighbourhood and window search, and the driver that runs them."""

import random
import time

import numpy as np
import pytest
from brute_force import every_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import layered_graph, need_shared_graph, random_graph, solve_in_process, training_chain
from test_solvers import check, small_graphs

from jaxremat._errors import BudgetError
from jaxremat._graph import Graph
from jaxremat._schedule import Schedule
from jaxremat.solvers import _highs, heuristics, solve
from jaxremat.solvers._highs import Highs
from jaxremat.solvers._relaxation import relaxation
from jaxremat.solvers._request import Request
from jaxremat.solvers._search import Search
from jaxremat.solvers.cuts import CutGeneration
from jaxremat.solvers.neighbourhood import Neighbourhood
from jaxremat.solvers.windows import Windows


@pytest.fixture
def in_process(monkeypatch):
    solve_in_process(monkeypatch)


@given(st.integers(0, 10**6), st.data())
@settings(max_examples=60, deadline=None)
def test_the_relaxation_bounds_the_optimum_whatever_the_cuts(seed, data):
    graph = random_graph(random.Random(seed), 5)
    keys = [t * 5 + i for t in range(5) for i in range(t + 1)]
    cuts = tuple(sorted(data.draw(st.sets(st.sampled_from(keys), min_size=1, max_size=6))))
    costs, peaks = every_schedule(graph)
    with pytest.MonkeyPatch.context() as patch:
        solve_in_process(patch)
        for budget in range(graph.floor, graph.peak):
            fits = peaks <= budget
            if fits.any():
                outcome = Highs().solve(relaxation(graph, budget, cuts).mip, 10.0)
                assert outcome.status == "optimal"
                assert graph.total_cost + outcome.bound <= costs[fits].min() + 1e-6


@pytest.mark.parametrize("solver", ["cuts", "auto"])
def test_agrees_with_brute_force(solver, in_process):
    for graph, costs, peaks in small_graphs(seed=7, count=60):
        for budget in range(graph.floor, graph.peak):
            fits = peaks <= budget
            if not fits.any():
                with pytest.raises(BudgetError) as caught:
                    solve(graph, budget, solver)
                assert caught.value.proved
                continue
            schedule = solve(graph, budget, solver)
            check(schedule, budget)
            assert (schedule.status, schedule.cost) == ("optimal", costs[fits].min())


@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_the_milp_on_graphs_too_large_for_brute_force(seed, in_process):
    graph = random_graph(random.Random(seed), 14, density=0.2)
    for fraction in (0.7, 0.4):
        try:
            milp = solve(graph, graph.budget_at(fraction), "milp", time_limit=20.0)
        except BudgetError:
            continue
        if milp.status == "optimal":
            assert solve(graph, graph.budget_at(fraction)).cost == pytest.approx(milp.cost, rel=2e-4)


def test_the_example_of_the_paper(in_process):
    assert solve(training_chain(8), 4, "cuts").cost == 38.0
    assert solve(training_chain(8, both=False), 4, "cuts").cost == 26.0


def test_cost_never_falls_when_the_budget_shrinks(in_process):
    rng = random.Random(5)
    for _ in range(10):
        graph = random_graph(rng, 10, density=0.3)
        last = graph.total_cost
        for budget in np.linspace(graph.peak, graph.floor, 8, dtype=int).tolist():
            try:
                schedule = solve(graph, budget, gap=0.0)
            except BudgetError:
                break
            assert schedule.cost >= last - 1e-9
            last = schedule.cost


REAL = [
    ("vgg16_b256", 0.9, 1.00774),
    ("vgg16_b256", 0.3, 1.01968),
    ("unet_b32", 0.7, 1.01661),
    ("unet_b32", 0.2, 1.06483),
    ("resnet50_b256", 0.7, 1.00473),
    ("resnet50_b256", 0.3, 1.02597),
    ("random_n100", 0.7, 1.01771),
]


@pytest.mark.parametrize(("name", "fraction", "overhead"), REAL)
def test_real_graphs_are_proved_optimal(name, fraction, overhead):
    graph = need_shared_graph(name)
    budget = graph.budget_at(fraction)
    schedule = solve(graph, budget)
    check(schedule, budget)
    assert schedule.status == "optimal"
    assert schedule.overhead == pytest.approx(overhead, abs=1.1e-4)


# The parts


def test_every_part_keeps_the_budget_and_improves(in_process):
    graph = layered_graph(60, seed=3)
    budget = graph.budget_at(0.6)
    search = Search(graph, Request(budget, 30.0, 1e-4, 0))
    assert search.offer(heuristics.construct(graph, budget))
    before = search.best.cost
    with Highs() as highs:
        generation, windows = CutGeneration(search, highs), Windows(search, highs)
        neighbourhood = Neighbourhood(graph, budget, 0)
        for _ in range(3):
            generation.submit(nodes=50)
            generation.collect()
            windows.submit(generation.cuts)
            windows.collect()
            neighbourhood.restart(search.best.pairs, 0, search.best.cost)
            neighbourhood.run(20, search.request.deadline)
            search.offer(neighbourhood.schedule())
    check(search.result("parts"), budget)
    assert search.best.cost < before
    assert graph.total_cost < search.bound <= search.best.cost


def test_neighbourhood_search_lowers_the_peak_where_nothing_fits():
    graph = layered_graph(60, seed=3)
    neighbourhood = Neighbourhood(graph, graph.budget_at(0.3), 0)
    assert neighbourhood.schedule() is None
    neighbourhood.run(10, time.monotonic() + 20.0)
    assert Schedule(graph, tuple(neighbourhood.pairs)).peak < graph.peak


def test_better_schedules_are_reported_as_they_come():
    graph = layered_graph(60, seed=3)
    costs = []
    schedule = solve(graph, graph.budget_at(0.7), time_limit=20.0, progress=lambda found: costs.append(found.cost))
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == schedule.cost


def test_enough_is_enough():
    graph = layered_graph(80, seed=1)
    easy = solve(graph, graph.budget_at(0.7), enough=3 * graph.total_cost)
    assert easy.cost <= 3 * graph.total_cost
    start = time.monotonic()
    solve(graph, graph.budget_at(0.7), enough=graph.total_cost)  # proved impossible by the first bound above it
    assert time.monotonic() - start < 10.0


# Time, seeds and failures


@pytest.mark.parametrize("solver", ["auto", "cuts", "rounding", "milp", "milp_unpartitioned"])
def test_the_time_limit_is_kept_to_within_two_seconds(solver):
    graph = layered_graph(120, seed=2)
    start = time.monotonic()
    check(solve(graph, graph.budget_at(0.6), solver, time_limit=3.0), graph.budget_at(0.6))
    assert time.monotonic() - start < 5.0


def test_the_result_depends_on_the_seed_alone():
    graph = layered_graph(40, seed=4)
    budget = graph.budget_at(0.6)
    first, again = (solve(graph, budget, seed=3) for _ in range(2))
    assert first.status == "optimal"
    assert (first.pairs, first.bound) == (again.pairs, again.bound)


@pytest.fixture
def tight():
    """A graph and a budget at which the heuristic finds a schedule and does not prove it optimal."""
    return training_chain(12), 5


@pytest.mark.parametrize("solver", ["auto", "cuts"])
@pytest.mark.parametrize(
    "worker",
    [
        "import os; os.abort()",
        "raise SystemExit(3)",
        "import os, sys; sys.stdin.buffer.read(8); os.kill(os.getpid(), 9)",
        "import sys; sys.stdin.buffer.read(8); print('not an answer, but a long one', flush=True)",
        "import time; time.sleep(60)",
        """
import pickle, sys
while length := sys.stdin.buffer.read(8):
    sys.stdin.buffer.read(int.from_bytes(length, "little"))
    message = pickle.dumps({"status": "failed", "message": "no such module"})
    sys.stdout.buffer.write(len(message).to_bytes(8, "little") + message)
    sys.stdout.buffer.flush()
""",
    ],
    ids=["crashes", "exits", "is killed", "babbles", "hangs", "missing"],
)
def test_the_incumbent_survives_the_solver(worker, solver, tmp_path, monkeypatch, tight):
    script = tmp_path / "worker.py"
    script.write_text(worker)
    monkeypatch.setattr(_highs, "_WORKER", script)
    start = time.monotonic()
    schedule = solve(*tight, solver, time_limit=6.0)
    assert time.monotonic() - start < 20.0
    check(schedule, tight[1])
    assert schedule.status == "feasible"


def test_no_python_to_start(monkeypatch, tight):
    monkeypatch.setattr(_highs.sys, "executable", "/nonexistent/python")
    assert solve(*tight, time_limit=6.0).status == "feasible"


def test_one_error_without_solver_and_incumbent(monkeypatch):
    monkeypatch.setattr(_highs.sys, "executable", "/nonexistent/python")
    graph = training_chain(8)
    with pytest.raises(BudgetError) as caught:
        solve(graph, graph.floor, "cuts", time_limit=6.0)  # 38 computes, which the heuristic does not find
    assert not caught.value.proved
    assert caught.value.minimum_bytes > graph.floor


def test_no_process_is_left_behind():
    with Highs() as highs:
        process = highs._process
        assert highs.solve(relaxation(training_chain(4), 4, (20,)).mip, 10.0).status == "optimal"
    assert process.poll() is not None


def test_values_without_bytes_are_always_there(in_process):
    graph = Graph("abcdef", [9, 1, 1, 1, 1, 1], [0, 4, 4, 4, 4, 4], [[], [0], [1], [2], [0, 3], [1, 4]])
    schedule = solve(graph, 12)
    check(schedule, 12)
    assert all(graph.memory[i] for _, i in schedule.pairs)
