"""Random graphs, chains and real ones, for the tests of graphs, schedules and solvers."""

import json
import os
import pickle
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import strategies as st

from jaxremat._graph import Graph
from jaxremat.solvers import _cbc_worker, _highs_worker, _mip
from jaxremat.solvers._highs import Highs

GRAPHS = Path(os.environ.get("JAXREMAT_GRAPHS") or Path(__file__).resolve().parents[2] / "shared" / "graphs")
REAL = ("vgg16_b256", "unet_b32", "resnet50_b256")


def shared_graph(name: str) -> Graph | None:
    """A graph from the folder beside the repository, None where that is absent."""
    path = GRAPHS / f"{name}.json"
    return Graph.from_node_link(json.loads(path.read_text())) if path.exists() else None


def need_shared_graph(name: str) -> Graph:
    """As `shared_graph`, but skips the test that asks for what is absent."""
    graph = shared_graph(name)
    if graph is None:
        pytest.skip("the folder of shared graphs is not here")
    return graph


def solve_in_process(patch: pytest.MonkeyPatch) -> None:
    """CBC and HiGHS in this process: no start-up time for each of hundreds of small problems."""
    patch.setattr(_mip, "_run", lambda problem, _: _mip.outcome(_cbc_worker.answer(problem)))
    patch.setattr(Highs, "_start", lambda self: None)
    patch.setattr(Highs, "_send", lambda self, message: setattr(self, "_message", message))
    patch.setattr(Highs, "_receive", lambda self: _highs_worker.answer(pickle.loads(self._message)))


def training_chain(layers: int, *, both: bool = True) -> Graph:
    """The unit-cost training graph of a path of layers, n = 2 * layers + 1: forward, loss, backward.

    The gradient of a layer reads the gradient after it, the layer's input and, if `both`, its output: with that, 8
    layers at budget 4 are the example of section 4.6 of the paper.
    """
    n = 2 * layers + 1
    deps: list[list[int]] = [[]] + [[i - 1] for i in range(1, layers + 1)]
    for k in range(layers + 1, n):
        layer = 2 * layers - k
        deps.append([k - 1, layer] + ([layer + 1] if both and layer + 1 < layers else []))
    return Graph([f"v{k}" for k in range(n)], [1] * n, [1] * n, deps)


def random_graph(rng: random.Random, n: int, *, density: float = 0.4, extras: bool = True) -> Graph:
    """Any DAG: several sinks, disconnected parts, zero costs and bytes; with workspace and such if `extras`."""
    return Graph(
        **_described(
            names=[f"v{k}" for k in range(n)],
            cost=[rng.choice([0, 1, 1, 2, 3, 7]) for _ in range(n)],
            memory=[rng.choice([0, 1, 1, 2, 3, 5]) for _ in range(n)],
            deps=[[i for i in range(k) if rng.random() < density] for k in range(n)],
            workspace=[rng.choice([0, 0, 0, 1, 4]) if extras else 0 for _ in range(n)],
            constant=rng.choice([0, 3]) if extras else 0,
            recomputable=[not extras or rng.random() < 0.9 for _ in range(n)],
            part=[extras and rng.random() < 0.15 for _ in range(n)],
            over=[extras and rng.random() < 0.3 for _ in range(n)],
        )
    )


def _described(*, part: list[bool], over: list[bool], **fields) -> dict:
    """The arguments of `Graph`. A node marked `part` becomes part of the one before it; one marked `over` is written
    over its last dependency, whose bytes it then has.
    """
    n = len(part)
    part_of: list[int | None] = [None] * n
    inplace: list[int | None] = [None] * n
    for k in range(1, n):
        if part[k]:
            i = part_of[k - 1]
            part_of[k] = i = k - 1 if i is None else i
            fields["cost"][k] = fields["workspace"][k] = 0
            fields["deps"][k] = [i]
            fields["recomputable"][k] = fields["recomputable"][i]
        elif over[k] and fields["deps"][k]:
            inplace[k] = max(fields["deps"][k])
            fields["memory"][k] = fields["memory"][inplace[k]]
    return fields | {"part_of": part_of, "inplace": inplace}


def layered_graph(n: int, seed: int) -> Graph:
    """Random layers that read the layer before them, and now and then one far behind."""
    rng = random.Random(seed)
    width = max(2, int(n**0.5))
    layers = [range(a, min(a + width, n)) for a in range(0, n, width)]
    deps: list[list[int]] = [[] for _ in range(n)]
    for before, layer in pairwise(layers):
        for k in layer:
            deps[k] = [rng.choice(before) for _ in range(rng.randint(1, 3))]
            if before[0] and rng.random() < 0.5:
                deps[k].append(rng.randrange(before[0]))
    cost, memory = [rng.randint(1, 50) for _ in range(n)], [rng.randint(1, 100) for _ in range(n)]
    return Graph([f"v{k}" for k in range(n)], cost, memory, deps)


@st.composite
def graphs(draw, max_nodes: int = 8, *, parts: bool = True) -> Graph:
    """Graphs of one node up, with everything that real programs have; bytes from none to gigabytes."""
    n = draw(st.integers(1, max_nodes))
    size = st.one_of(st.integers(0, 5), st.integers(0, 2**33))
    per_node = lambda element: st.lists(element, min_size=n, max_size=n)
    return Graph(
        **_described(
            names=[f"v{k}" for k in range(n)],
            cost=draw(per_node(st.one_of(st.integers(0, 4), st.floats(0, 1e3)))),
            memory=draw(per_node(size)),
            deps=[draw(st.lists(st.integers(0, k - 1), max_size=4)) if k else [] for k in range(n)],
            workspace=draw(per_node(size)),
            constant=draw(size),
            recomputable=draw(per_node(st.booleans())),
            part=draw(per_node(st.sampled_from([False, False, True]))) if parts else [False] * n,
            over=draw(per_node(st.booleans())),
        )
    )


@st.composite
def graphs_with_pairs(draw, max_nodes: int = 8) -> tuple[Graph, tuple[tuple[int, int], ...]]:
    """A graph and any set of recomputes of its recomputable nodes."""
    graph = draw(graphs(max_nodes))
    whole = [i for i in range(graph.n) if graph.part_of[i] is None]
    every = [(t, i) for t in whole for i in whole if i < t and graph.recomputable[i]]
    return graph, tuple(draw(st.sets(st.sampled_from(every)))) if every else ()
