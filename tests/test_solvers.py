import doctest
import math
import random

import pytest
from brute_force import every_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, graphs_with_pairs, random_graph, solve_in_process, training_chain

import jaxremat.solvers
from jaxremat._errors import BudgetError
from jaxremat._graph import Graph
from jaxremat._schedule import Schedule, simulate
from jaxremat.solvers import SOLVERS, _mip, lowest_peak, solve
from jaxremat.solvers._profile import Profile
from jaxremat.solvers.heuristics import prune


@pytest.fixture
def in_process(monkeypatch):
    solve_in_process(monkeypatch)


def check(schedule: Schedule, budget: float) -> None:
    assert simulate(schedule.graph, schedule.statements) == schedule.peak <= budget
    assert schedule.graph.total_cost <= schedule.bound <= schedule.cost * (1 + 1e-9)
    assert schedule.status in ("optimal", "feasible")
    assert schedule.solver


def test_examples_in_docstrings():
    assert doctest.testmod(jaxremat.solvers).failed == 0


# The working set of the heuristics


@given(graphs_with_pairs(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_profile_follows_adds_and_removes(case, rng):
    graph, pairs = case
    profile, chosen = Profile(graph), set()
    for t, i in rng.sample(pairs, len(pairs)) + rng.sample(pairs, len(pairs) // 2):
        if (t, i) in chosen:
            profile.remove(t, i)
        else:
            profile.add(t, i)
        chosen ^= {(t, i)}
        s = Schedule(graph, tuple(chosen))
        assert tuple(profile.memory) == s.memory
        assert tuple(profile.pairs) == s.pairs


@given(graphs_with_pairs())
@settings(max_examples=100, deadline=None)
def test_prune_keeps_the_budget(case):
    graph, pairs = case
    before = Schedule(graph, pairs)
    profile = Profile(graph, pairs)
    prune(profile, before.peak)
    after = Schedule(graph, tuple(profile.pairs))
    assert after.peak <= before.peak
    assert set(after.pairs) <= set(before.pairs)


# Every solver


@pytest.mark.parametrize("solver", SOLVERS)
@given(graph=graphs(max_nodes=7), fraction=st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_every_solver_is_correct_and_within_budget_or_raises(solver, graph, fraction):
    budget = graph.budget_at(fraction)
    with pytest.MonkeyPatch.context() as patch:
        solve_in_process(patch)
        try:
            schedule = solve(graph, budget, solver, time_limit=5.0, samples=5)
        except BudgetError as error:
            assert error.minimum_bytes is not None
            assert error.minimum_bytes > budget or not error.proved
            return
        except ValueError as error:
            assert str(error).startswith(f"solver: '{solver}' is for graphs whose forward part is a path")
            return
    check(schedule, budget)


def small_graphs(seed: int, count: int):
    """Graphs of up to 6 nodes on which recomputing lowers the peak, each with all its schedules' costs and peaks."""
    rng = random.Random(seed)
    while count:
        graph = random_graph(rng, rng.randint(4, 6), density=rng.choice([0.3, 0.4, 0.5]), extras=rng.random() < 0.4)
        costs, peaks = every_schedule(graph)
        if peaks.min() < graph.peak:
            count -= 1
            yield graph, costs, peaks


def test_milp_agrees_with_brute_force(in_process):
    for graph, costs, peaks in small_graphs(seed=1, count=250):
        for budget in range(graph.floor, graph.peak):
            fits = peaks <= budget
            if not fits.any():
                with pytest.raises(BudgetError) as caught:
                    solve(graph, budget, "milp", gap=0.0)
                assert caught.value.proved
                assert caught.value.minimum_bytes >= peaks.min()
                continue
            schedule = solve(graph, budget, "milp", gap=0.0)
            check(schedule, budget)
            assert schedule.status == "optimal"
            assert schedule.cost == costs[fits].min()
            assert schedule.bound == schedule.cost


def test_trivial_graphs_agree_with_brute_force(in_process):
    rng = random.Random(2)
    for _ in range(100):
        graph = random_graph(rng, rng.randint(1, 5))
        costs, peaks = every_schedule(graph)
        assert peaks.min() >= graph.floor
        check(solve(graph, graph.peak, "milp"), graph.peak)
        assert costs[peaks <= graph.peak].min() == solve(graph, graph.peak, "milp").cost


def test_bounds_of_milp_are_true_on_awkward_numbers(in_process):
    rng = random.Random(3)
    for small, _, _ in small_graphs(seed=3, count=60):
        graph = Graph(
            small.names,
            [cost * rng.random() * 10 ** rng.randint(-6, 6) for cost in small.cost],
            [size * rng.randrange(10 ** rng.randint(5, 9)) for size in small.memory],
            small.deps,
            workspace=[rng.choice([0, rng.randrange(10**7)]) for _ in small.names],
            constant=10**12,
        )
        costs, peaks = every_schedule(graph)
        for budget in {int(peaks.min()), graph.budget_at(0.3), graph.budget_at(0.7)}:
            fits = peaks <= budget
            if fits.any():
                schedule = solve(graph, budget, "milp")
                check(schedule, budget)
                assert schedule.bound <= costs[fits].min() * (1 + 1e-9)
                assert schedule.cost <= costs[fits].min() * (1 + 2e-4)


def test_the_example_of_the_paper():
    chain = training_chain(8)
    assert chain.n == 17
    schedule = solve(chain, 4, "milp")
    check(schedule, 4)
    assert (schedule.cost, schedule.status) == (38.0, "optimal")


def test_cost_never_falls_when_the_budget_shrinks(in_process):
    rng = random.Random(3)
    for _ in range(30):
        graph = random_graph(rng, 6, density=0.5)
        last = graph.total_cost
        for budget in range(graph.peak, graph.floor - 1, -1):
            try:
                cost = solve(graph, budget, "milp", gap=0.0).cost
            except BudgetError:
                break
            assert cost >= last
            last = cost


# Budgets, their errors and the smallest peak


@given(graphs(max_nodes=12))
@settings(max_examples=100, deadline=None)
def test_the_lowest_peak_is_a_budget_that_works(graph):
    lowest = lowest_peak(graph)
    assert simulate(graph, lowest.statements) == lowest.peak >= graph.floor
    with pytest.MonkeyPatch.context() as patch:
        solve_in_process(patch)
        check(solve(graph, lowest.peak), lowest.peak)


def test_the_minimum_of_an_error_works(in_process):
    rng = random.Random(4)
    errors = 0
    for _ in range(40):
        graph = random_graph(rng, 12, density=0.3)
        try:
            solve(graph, max(graph.floor - 1, 0))
        except BudgetError as error:
            errors += 1
            assert error.proved
            assert error.operation in graph.names
            assert str(graph.floor) in str(error)
            check(solve(graph, error.minimum_bytes), error.minimum_bytes)
    assert errors > 30


def test_no_limit():
    chain = training_chain(4)
    for budget in (None, math.inf, 10**12):
        assert solve(chain, budget).overhead == 1.0


def test_checkpoint_all_names_its_peak():
    chain = training_chain(4)
    with pytest.raises(BudgetError) as caught:
        solve(chain, chain.peak - 1, "checkpoint_all")
    assert caught.value.minimum_bytes == chain.peak
    assert not caught.value.proved


def test_one_node_and_none():
    one = Graph("a", [1], [8], [[]], workspace=[2], constant=5)
    assert solve(one, 15).peak == 15
    with pytest.raises(BudgetError, match="floor of 15"):
        solve(one, 14)
    empty = Graph([], [], [], [], constant=5)
    assert solve(empty, 5).cost == 0.0
    with pytest.raises(BudgetError):
        solve(empty, 4)


@pytest.mark.parametrize("budget", [-1, -0.5, math.nan, "12", "", True, [4], 1j])
def test_bad_budgets(budget):
    with pytest.raises(ValueError, match="^budget"):
        solve(training_chain(2), budget)


@pytest.mark.parametrize(
    ("argument", "value"), [("time_limit", -1), ("time_limit", math.nan), ("gap", -1e-3), ("gap", 2), ("gap", "x")]
)
def test_bad_arguments(argument, value):
    with pytest.raises(ValueError, match=f"^{argument}"):
        solve(training_chain(2), 10, **{argument: value})


def test_unknown_solver():
    with pytest.raises(ValueError, match="^solver.*'auto'.*'milp'"):
        solve(training_chain(2), 10, "simplex")


def test_repeats_itself():
    graph = random_graph(random.Random(5), 60, density=0.08)
    budget = graph.budget_at(0.6)
    assert solve(graph, budget, seed=3).pairs == solve(graph, budget, seed=3).pairs


# The solver is missing, crashes, or is out of time


@pytest.fixture
def tight():
    """A graph and a budget at which the heuristic finds a schedule and does not prove it optimal."""
    return training_chain(12), 5


@pytest.mark.parametrize(
    "worker",
    [
        "import os; os.abort()",
        "raise SystemExit(3)",
        "print('not an answer')",
        "import time; time.sleep(60)",
        """print('{"status": "failed", "message": "no such module"}')""",
    ],
    ids=["crashes", "exits", "babbles", "hangs", "missing"],
)
def test_the_incumbent_survives_the_solver(worker, tmp_path, monkeypatch, tight):
    script = tmp_path / "worker.py"
    script.write_text(worker)
    monkeypatch.setattr(_mip, "_WORKER", script)
    schedule = solve(*tight, "milp", time_limit=8.0)
    check(schedule, tight[1])
    assert schedule.status == "feasible"


def test_no_python_to_start(monkeypatch, tight):
    monkeypatch.setattr(_mip.sys, "executable", "/nonexistent/python")
    assert solve(*tight, "milp", time_limit=8.0).status == "feasible"


def test_no_time_at_all(tight):
    try:
        check(solve(*tight, time_limit=0.0), tight[1])
    except BudgetError as error:
        assert not error.proved


def test_large_graphs_take_about_a_second():
    graph = random_graph(random.Random(6), 1000, density=0.003, extras=False)
    schedule = solve(graph, graph.budget_at(0.8), time_limit=20.0)
    check(schedule, graph.budget_at(0.8))


@pytest.mark.parametrize("solver", SOLVERS)
def test_nothing_to_compute(solver):
    assert solve(Graph([], [], [], []), None, solver).cost == 0


@pytest.mark.parametrize(("argument", "value"), [("enough", math.nan), ("progress", 3)])
def test_bad_options_are_named(argument, value):
    with pytest.raises((TypeError, ValueError), match=f"^{argument}: "):
        solve(Graph("a", [1], [1], [[]]), 12, **{argument: value})


def test_what_is_no_graph_is_named():
    with pytest.raises(TypeError, match="^graph: "):
        solve(None, 12)
