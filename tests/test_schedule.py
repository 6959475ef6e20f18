import doctest
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import graphs_with_pairs

import jaxremat._schedule
from jaxremat._graph import Graph
from jaxremat._schedule import Schedule, Statement, simulate

CHAIN = Graph("abcd", [1, 2, 3, 4], [5, 6, 7, 8], [[], [0], [1], [0, 2]])


def test_examples_in_docstrings():
    assert doctest.testmod(jaxremat._schedule).failed == 0


@given(graphs_with_pairs())
@settings(max_examples=300, deadline=None)
def test_any_set_of_pairs_is_a_schedule_and_the_simulator_agrees(case):
    graph, pairs = case
    s = Schedule(graph, pairs)
    assert simulate(graph, s.statements) == s.peak == max(s.memory)
    computes = [statement.node for statement in s.statements if statement.kind == "compute"]
    assert computes == [i for t in range(graph.n) for i in range(graph.n) if s.R[t, i]]
    assert s.cost == pytest.approx(sum(graph.cost[i] for i in computes))


@given(graphs_with_pairs())
@settings(max_examples=300, deadline=None)
def test_constraints_of_the_paper_hold(case):
    graph, pairs = case
    s = Schedule(graph, pairs)
    R, S, n = s.R, s.S, graph.n
    assert R.diagonal().all()  # (8a)
    assert not np.triu(S).any()  # (8b)
    assert not np.triu(R, 1).any()  # (8c)
    assert not (S[1:] & ~(R[:-1] | S[:-1])).any()  # (1c)
    free = set()
    for t in range(n):
        kept = S[t + 1] if t + 1 < n else np.zeros(n, bool)
        used = graph.constant + sum(graph.memory[i] for i in range(n) if S[t, i])  # (2)
        for k in range(t + 1):
            for i in graph.deps[k]:
                assert not R[t, k] or R[t, i] or S[t, i]  # (1b)
            used += graph.memory[k] * int(R[t, k])
            assert s.U[t, k] == used
            for i in (*graph.deps[k], k):
                if R[t, k] and not kept[i] and not any(R[t, j] for j in graph.users[i] if j > k):  # (5)
                    free.add((t, i, k))
                    used -= graph.memory[i]  # (3), (4)
    assert free == {(t, i, k) for (t, k), nodes in s.free.items() for i in nodes}


@given(graphs_with_pairs())
@settings(max_examples=100, deadline=None)
def test_matrices_round_trip(case):
    graph, pairs = case
    s = Schedule(graph, pairs)
    again = Schedule.from_matrices(graph, s.R, s.S)
    assert again == s
    assert pickle.loads(pickle.dumps(s)) == s


def test_spurious_checkpoints_are_dropped():
    S = np.tril(np.ones((4, 4), bool), -1)
    s = Schedule.from_matrices(CHAIN, np.eye(4), S)
    assert s.S.sum() < S.sum()
    assert s.peak == CHAIN.peak
    assert s.overhead == 1.0


@pytest.mark.parametrize(
    ("R", "S", "message"),
    [
        (np.eye(3), np.zeros((3, 3)), "shape"),
        (np.zeros((4, 4)), np.zeros((4, 4)), "8a"),
        (np.eye(4), np.eye(4), "8a"),
        (np.eye(4), np.zeros((4, 4)), "1b"),
        (np.eye(4), np.diag([1, 1, 1], -1) + np.diag([1], -3), "1c"),
    ],
)
def test_invalid_matrices(R, S, message):
    with pytest.raises(ValueError, match=message):
        Schedule.from_matrices(CHAIN, R, S)


def test_frees_come_right_after_the_last_use():
    s = Schedule(CHAIN, ((3, 0),))
    text = " ".join(("+" if x.kind == "compute" else "-") + CHAIN.names[x.node] for x in s.statements)
    assert text == "+a +b -a +c -b +a +d -a -c -d"
    assert s.free == {(1, 1): (0,), (2, 2): (1,), (3, 3): (0, 2, 3)}
    assert s.cost == 11.0
    assert s.gap == pytest.approx(1 / 11)


@pytest.mark.parametrize("pair", [(0, 0), (1, 1), (1, 2), (4, 0), (-1, 0)])
def test_pairs_out_of_range(pair):
    with pytest.raises(ValueError, match="pairs"):
        Schedule(CHAIN, (pair,))


def test_nodes_that_must_not_be_recomputed():
    g = Graph("ab", [1, 1], [1, 1], [[], [0]], recomputable=[False, True])
    with pytest.raises(ValueError, match="not recomputable"):
        Schedule(g, ((1, 0),))
    plan = [("compute", 0), ("deallocate", 0), ("compute", 0), ("compute", 1)]
    with pytest.raises(ValueError, match="twice"):
        simulate(g, [Statement(*x) for x in plan])


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ([("compute", 1)], "not in memory"),
        ([("compute", 0), ("deallocate", 0), ("compute", 1)], "not in memory"),
        ([("deallocate", 0)], "not in memory"),
        ([("compute", 0), ("compute", 0)], "still in memory"),
        ([("compute", 0), ("compute", 1)], "never computed"),
    ],
)
def test_the_simulator_rejects_wrong_plans(plan, message):
    with pytest.raises(ValueError, match=message):
        simulate(CHAIN, [Statement(*x) for x in plan])


def test_free_computes_have_overhead_one():
    g = Graph("ab", [0, 0], [1, 1], [[], [0]])
    s = Schedule(g, ((1, 0),))
    assert (s.cost, s.overhead, s.gap) == (0.0, 1.0, 0.0)


def test_no_nodes():
    s = Schedule(Graph([], [], [], [], constant=7))
    assert (s.peak, s.cost, s.statements, s.peak_node, s.R.shape) == (7, 0.0, (), None, (0, 0))
    assert simulate(s.graph, s.statements) == 7


# Values written over others, and nodes that leave several


def test_a_value_is_written_over_one_that_nothing_reads_any_more():
    names, cost, memory, deps = "abcd", [1] * 4, [4, 4, 4, 4], [[], [0], [1], [0, 2]]
    plain = Graph(names, cost, memory, deps)
    g = Graph(names, cost, memory, deps, inplace=[None, 0, 1, 2])
    assert (plain.floor, plain.peak) == (12, 12)
    assert (g.floor, g.peak) == (8, 8)  # b is not written over a, which d reads; c is over b, and d over c
    assert Schedule(g).memory == (4, 8, 8, 8)
    again = Schedule(g, ((3, 0),))  # where a is computed again, b takes its place
    assert again.memory == (4, 4, 4, 8, 8)
    assert simulate(g, again.statements) == again.peak == 8


def test_parts_come_and_are_recomputed_with_their_node_and_are_freed_apart():
    g = Graph(
        ["a", "run", "second", "x", "y", "z"],
        cost=[1, 5, 0, 1, 1, 1],
        memory=[1, 10, 20, 1, 1, 1],
        deps=[[], [0], [1], [1], [2], [0, 4]],
        part_of=[None, None, 1, None, None, None],
    )
    assert g.makers == (0, 1, 1, 3, 4, 5)
    assert g.parts == ((), (2,), (), (), (), ())
    assert g.floor == 31  # the node runs with both of its values
    assert Schedule(g).memory == (1, 31, 31, 32, 22, 3)
    again = Schedule(g, ((4, 1),))
    assert again.cost == g.total_cost + 5
    assert again.R[4].nonzero()[0].tolist() == [1, 2, 4]
    assert again.memory == (1, 31, 31, 12, 31, 31, 22, 3)  # the second value is freed at once where nothing reads it
    assert simulate(g, again.statements) == again.peak
    for pair in ((4, 2), (2, 0)):
        with pytest.raises(ValueError, match="computed along"):
            Schedule(g, (pair,))
    plan = [Statement("compute", i) for i in (0, 1, 3, 2, 4, 5)]
    with pytest.raises(ValueError, match="part of what was not computed just before"):
        simulate(g, plan)
    R = again.R.copy()
    R[4, 2] = False
    with pytest.raises(ValueError, match="node 2 is not computed in the same stages"):
        Schedule.from_matrices(g, R, np.tril(np.ones((6, 6), bool), -1))
