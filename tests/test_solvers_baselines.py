"""The strategies of earlier work, and what they share."""

import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, need_shared_graph, random_graph, solve_in_process, training_chain
from test_solvers import check

from jaxremat._errors import BudgetError
from jaxremat._graph import Graph
from jaxremat._schedule import Schedule, simulate
from jaxremat.solvers import solve
from jaxremat.solvers._policy import least_recomputes, policy
from jaxremat.solvers._revolve import revolve
from jaxremat.solvers.baselines import articulation_points

STRATEGIES = ("chen_sqrt", "chen_greedy", "ap_sqrt", "ap_greedy", "linearized_sqrt", "linearized_greedy", "griewank")


def path(costs, sizes) -> Graph:
    """A training step of a path: forward, loss, backward, with these costs and bytes of the layers."""
    chain = training_chain(len(costs), both=False)
    n = chain.n
    cost = [*costs, 1, *(2 * c for c in reversed(costs))]
    memory = [*sizes, 1, *reversed(sizes)]
    return Graph(chain.names, cost, memory, chain.deps, backward=[k > len(costs) for k in range(n)])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_on_a_path_the_generalisations_are_the_originals(layers, fraction):
    graph = path(*zip(*layers, strict=True))
    for kind in ("sqrt", "greedy"):
        found = []
        for family in ("chen", "ap", "linearized"):
            try:
                found.append(solve(graph, graph.budget_at(fraction), f"{family}_{kind}").pairs)
            except BudgetError as error:
                found.append(error.minimum_bytes)
        assert found[0] == found[1] == found[2]


def test_sqrt_segments_of_a_path():
    graph = training_chain(15, both=False)  # 16 forward nodes, in 4 segments
    schedule = solve(graph, None, "chen_sqrt")
    dropped = {i for _, i in schedule.pairs}
    assert not dropped & {3, 7, 11}  # the ends of segments are checkpoints
    assert dropped == {0, 1, 2, 4, 5, 6, 8, 9, 10}  # and all else before the last of them is computed twice
    assert len(schedule.pairs) == len(dropped)
    assert schedule.peak < graph.peak


def test_segments_of_the_greedy_strategy_trade_memory_for_cost():
    graph = training_chain(24, both=False)
    costs = []
    for fraction in (1.0, 0.8, 0.6, 0.4):
        schedule = solve(graph, graph.budget_at(fraction), "chen_greedy")
        check(schedule, graph.budget_at(fraction))
        costs.append(schedule.cost)
    assert costs == sorted(costs)


def test_revolve_needs_as_few_computes_as_possible():
    @cache
    def least(length: int, slots: int) -> int:
        if length == 0:
            return 0
        options = [length + least(length - 1, slots)]
        if slots:
            options += [m + least(length - m, slots - 1) + least(m - 1, slots) for m in range(1, length)]
        return min(options)

    for length in range(1, 15):
        read = {p: 2 * length - p for p in range(length)}
        for slots in range(1, 6):
            assert len(revolve(length, read, slots)) + length == least(length, slots)


def test_griewank_on_a_long_path():
    graph = training_chain(64, both=False)
    schedule = solve(graph, 10, "griewank")
    check(schedule, 10)
    assert schedule.overhead < 2.5


@pytest.mark.parametrize("solver", ["chen_sqrt", "chen_greedy", "griewank"])
def test_path_strategies_say_where_the_path_ends(solver):
    graph = Graph(["a", "b", "skip", "d"], [1] * 4, [1] * 4, [[], [0], [0, 1], [2]], backward=[False] * 3 + [True])
    with pytest.raises(ValueError, match=f"^solver: '{solver}'.*path.*'skip'"):
        solve(graph, None, solver)


def test_strategies_against_the_optimum(monkeypatch):
    solve_in_process(monkeypatch)
    rng = random.Random(1)
    for _ in range(25):
        layers = rng.randint(2, 5)
        graph = rng.choice(
            [
                path([rng.randint(1, 9) for _ in range(layers)], [rng.randint(1, 9) for _ in range(layers)]),
                random_graph(rng, 8),
            ]
        )
        for fraction in (0.8, 0.3):
            budget = graph.budget_at(fraction)
            for solver in STRATEGIES:
                try:
                    schedule = solve(graph, budget, solver)
                except ValueError:  # does not fit, or is undefined
                    continue
                check(schedule, budget)
                assert solve(graph, budget, gap=0.0).cost <= schedule.cost + 1e-9


def test_real_networks():
    vgg, unet = need_shared_graph("vgg16_b256"), need_shared_graph("unet_b32")
    assert len(vgg.forward) == 22
    for solver in STRATEGIES:
        check(solve(vgg, vgg.budget_at(0.5), solver), vgg.budget_at(0.5))
    greedy = solve(unet, unet.budget_at(0.5), "linearized_greedy")
    assert greedy.overhead < 1.2


# What they share


@given(graphs(max_nodes=9), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_parts_are_never_recomputed_apart(graph, rng):
    n = graph.n
    S = np.array([[i < t and rng.random() < 0.5 for i in range(n)] for t in range(n)], dtype=bool).reshape(n, n)
    simulate(graph, Schedule(graph, tuple(least_recomputes(graph, S))).statements)


@given(graphs(max_nodes=9, parts=False), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_least_recomputes_are_correct_and_none_too_many(graph, rng):
    n = graph.n
    S = np.array([[i < t and rng.random() < 0.5 for i in range(n)] for t in range(n)], dtype=bool).reshape(n, n)
    pairs = least_recomputes(graph, S)
    Schedule(graph, tuple(pairs))  # none of a node that is not recomputable
    kept = S.copy()
    for i in range(n):
        if not graph.recomputable[i]:
            kept[i + 1 :, i] = True
    R = Schedule(graph, tuple(pairs)).R
    Schedule.from_matrices(graph, R, kept)  # (1b), (1c), (8a-c)
    for t, i in pairs:
        without = R.copy()
        without[t, i] = False
        with pytest.raises(ValueError, match="1b|1c"):
            Schedule.from_matrices(graph, without, kept)


@given(graphs(max_nodes=10))
@settings(max_examples=60, deadline=None)
def test_articulation_points_disconnect_the_graph(graph):
    def components(nodes: set[int]) -> int:
        count, rest = 0, set(nodes)
        while rest:
            count, stack = count + 1, [rest.pop()]
            while stack:
                i = stack.pop()
                near = {*graph.deps[i], *graph.users[i]} & rest
                rest -= near
                stack += near
        return count

    every = set(range(graph.n))
    expected = {i for i in every if components(every - {i}) > components(every)} | {0, graph.n - 1}
    assert set(articulation_points(graph, every)) == expected


def test_forward_nodes():
    chain = training_chain(8)
    assert chain.forward == tuple(range(9))  # the guess
    marked = Graph("abc", [1] * 3, [1] * 3, [[], [0], [1]], backward=[False, True, False])
    assert marked.forward == (0, 2)
    assert Graph([], [], [], []).forward == ()


def test_checkpoints_are_kept_and_the_rest_is_dropped_after_the_forward_pass():
    chain = training_chain(6, both=False)
    S = policy(chain, chain.forward, [3])
    assert S[4:, 3].all()
    assert not S[8, :3].any()
