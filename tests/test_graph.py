import doctest
import math

import pytest
from strategies import shared_graph

import jaxremat._graph
from jaxremat._graph import Graph


def test_examples_in_docstrings():
    assert doctest.testmod(jaxremat._graph).failed == 0


def test_floor_and_peak_include_constant_and_workspace():
    g = Graph("abc", [1, 2, 3], [10, 20, 30], [[], [0], [0]], workspace=[0, 5, 0], constant=100)
    assert g.footprint == (110, 135, 140)
    assert (g.floor, g.peak, g.total_cost) == (140, 140, 6.0)
    assert g.budget_at(0.0) == g.floor
    assert g.budget_at(1.0) == g.peak


def test_values_nobody_reads_are_freed_at_once():
    g = Graph("abc", [1, 1, 1], [10, 10, 1], [[], [], []])
    assert g.peak == 10


def test_multi_edges_are_collapsed():
    g = Graph("ab", [1, 1], [3, 4], [[], [0, 0, 0]])
    assert g.deps == ((), (0,))
    assert g.floor == 7


def test_empty_graph():
    g = Graph([], [], [], [], constant=5)
    assert (g.n, g.floor, g.peak, g.total_cost) == (0, 5, 5, 0.0)


def test_is_a_value():
    g, h = (Graph("ab", [1, 1], [3, 4], [[], [0]]) for _ in range(2))
    assert g == h
    assert hash(g) == hash(h)


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("cost", {"cost": [1]}),
        ("cost", {"cost": [1, -1]}),
        ("cost", {"cost": [1, math.nan]}),
        ("cost", {"cost": [1, math.inf]}),
        ("cost", {"cost": [1, "2"]}),
        ("memory", {"memory": [1, 2, 3]}),
        ("memory", {"memory": [1, -2]}),
        ("memory", {"memory": [1, 2.5]}),
        ("memory", {"memory": [1, math.inf]}),
        ("deps", {"deps": [[0], []]}),
        ("deps", {"deps": [[], [2]]}),
        ("deps", {"deps": [[], [-1]]}),
        ("deps", {"deps": [[], [0.5]]}),
        ("workspace", {"workspace": [1, -1]}),
        ("constant", {"constant": -1}),
        ("recomputable", {"recomputable": [True]}),
        ("inplace", {"inplace": [None]}),
        ("inplace", {"inplace": [None, 1]}),
        ("inplace", {"inplace": [None, True]}),
        ("inplace", {"inplace": [None, 0], "memory": [1, 2]}),
        ("inplace", {"inplace": [None, 0], "deps": [[], []]}),
        ("inplace", {"inplace": [None, 0], "part_of": [None, 0], "cost": [1, 0]}),
        ("part_of", {"part_of": [0, None]}),
        ("part_of", {"part_of": [None, 0]}),  # it has a cost of its own
        ("part_of", {"part_of": [None, 0], "cost": [1, 0], "deps": [[], []]}),
        ("part_of", {"part_of": [None, 0], "cost": [1, 0], "workspace": [0, 1]}),
        ("part_of", {"part_of": [None, 0], "cost": [1, 0], "recomputable": [True, False]}),
    ],
)
def test_bad_arguments_are_named(argument, change):
    arguments = {"names": "ab", "cost": [1, 1], "memory": [1, 1], "deps": [[], [0]]} | change
    with pytest.raises(ValueError, match=f"^{argument}"):
        Graph(**arguments)


def test_node_link_is_sorted_and_collapsed():
    nodes = [{"name": k, "duration": k, "out_cost": 10 * k} for k in range(3)]
    links = [{"0": 2, "1": 0}, {"0": 2, "1": 0}, {"0": 0, "1": 1}]
    g = Graph.from_node_link({"nodes": nodes, "links": links})
    assert g.names == ("2", "0", "1")
    assert g.cost == (2.0, 0.0, 1.0)
    assert g.memory == (20, 0, 10)
    assert g.deps == ((), (0,), (1,))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"links": []}, "'nodes'"),
        ({"nodes": [{"id": 0, "cost_cpu": 1}], "links": []}, "'cost_ram' or 'out_cost'"),
        ({"nodes": [{"id": 0}, {"id": 0}], "links": []}, "same id"),
        ({"nodes": [{"id": 0}], "links": [{"source": 0, "target": 1}]}, "not a node"),
        ({"nodes": [{"id": 0}], "links": [{"source": 0, "target": 0}]}, "cycle"),
    ],
)
def test_bad_node_link(data, message):
    with pytest.raises(ValueError, match=message):
        Graph.from_node_link(data)


@pytest.mark.parametrize(
    ("name", "n", "edges"), [("vgg16_b256", 45, 87), ("unet_b32", 71, 148), ("resnet50_b256", 353, 751)]
)
def test_real_graphs(name, n, edges):
    g = shared_graph(name)
    if g is None:
        pytest.skip("the folder of shared graphs is not here")
    assert g.n == n
    assert sum(map(len, g.deps)) <= edges
    assert g.floor < g.peak


@pytest.mark.parametrize("name", ["random_n100", "random_n250"])
def test_random_graphs_are_sorted(name):
    g = shared_graph(name)
    if g is None:
        pytest.skip("the folder of shared graphs is not here")
    assert g.n == int(name.removeprefix("random_n"))
    assert all(i < k for k, deps in enumerate(g.deps) for i in deps)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("deps", [[], 0]), ("deps", [[], [False]]), ("cost", None), ("cost", [True, 1]), ("recomputable", "ab")],
)
def test_what_is_no_field_of_a_graph_is_named(argument, value):
    fields = {"names": "ab", "cost": [1, 1], "memory": [1, 1], "deps": [[], [0]]} | {argument: value}
    with pytest.raises(ValueError, match=f"^{argument}: "):
        Graph(**fields)


def test_more_bytes_than_solvers_count():
    with pytest.raises(ValueError, match="^memory: "):
        Graph("ab", [1, 1], [2**62, 2**62], [[], [0]])
