import jax
import jax.numpy as jnp
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from strategies import graphs_with_pairs

from jaxremat._buffers import Buffer, buffers_of, in_use
from jaxremat._graph import Graph
from jaxremat._kernels import Kernels
from jaxremat._merge import fewer_stages
from jaxremat._partition import dependencies, partition
from jaxremat._schedule import Schedule
from jaxremat._trace import flatten

MIB = 2**20
buffers = st.lists(
    st.tuples(st.integers(0, 64), st.integers(0, 20), st.integers(0, 8), st.booleans()).map(
        lambda t: Buffer(256 * t[0], t[1], t[1] + t[2], t[3])
    ),
    max_size=12,
)


def test_values_that_do_not_meet_share_memory():
    assert in_use([Buffer(MIB, 0, 1), Buffer(MIB, 2, 3)], "cuda") == MIB
    assert in_use([Buffer(MIB, 0, 2), Buffer(MIB, 2, 3)], "cuda") == 2 * MIB


def test_an_outputs_buffer_serves_before_the_output_is_made():
    output = Buffer(4 * MIB, 5, 9, output=True)
    assert in_use([output, Buffer(4 * MIB, 0, 4)], "cuda") == 0
    assert in_use([output, Buffer(4 * MIB, 0, 5)], "cuda") == 4 * MIB
    assert in_use([output, Buffer(5 * MIB, 0, 4)], "cuda") == 5 * MIB, "too large for it"


def test_small_buffers_are_rounded_up():
    assert in_use([Buffer(1, 0, 0)], "tpu") == 512
    assert in_use([Buffer(1, 0, 0)], "cuda") == 256


@given(buffers)
def test_what_is_in_use_lies_between_its_bounds(given_buffers):
    used = in_use(given_buffers, "cuda")
    inner = [b for b in given_buffers if not b.output]
    every = [sum(b.size for b in inner if b.start <= t <= b.end) for t in range(30)]
    outputs = sum(b.size for b in given_buffers if b.output)
    assert max(every, default=0) - outputs <= used <= max(every, default=0)


@given(graphs_with_pairs(), st.integers(0, 100))
def test_merging_stages_keeps_the_budget_and_the_cost(case, slack):
    graph, pairs = case
    schedule = Schedule(graph, pairs)
    merged = fewer_stages(schedule, schedule.peak + slack)
    assert merged.peak <= schedule.peak + slack
    assert merged.cost <= schedule.cost
    assert len({t for t, _ in merged.pairs}) <= len({t for t, _ in schedule.pairs})
    assert {i for _, i in merged.pairs} == {i for _, i in schedule.pairs}


def test_a_measured_workspace_goes_into_outputs_in_pieces():
    """A loop's workspace is the values of an iteration, each of which may take the room of a gradient not yet made."""

    def loss(ws, x):
        return jnp.sum(lax.scan(lambda h, w: (jnp.tanh(jnp.tanh(h @ w) @ w.T), None), x, ws)[0])

    program = flatten(jax.make_jaxpr(jax.grad(loss))(jnp.ones((8, 64, 64)), jnp.ones((128, 64))))
    nodes, value = partition(program), 128 * 64 * 4
    names = [node.name for node in nodes]
    workspace = [7 * value // 2 if name.startswith("scan") else 0 for name in names]
    graph = Graph(names, [1] * len(names), [0] * len(names), dependencies(nodes), workspace=workspace)
    found = [b for b in buffers_of(Schedule(graph), Kernels(nodes), program.results) if b.start == b.end]
    loops = [k for k, name in enumerate(names) if name.startswith("scan")]
    assert len(loops) == 2
    for k in loops:
        assert [b.size for b in found if b.start == k and b.size] == [value, value, value, value // 2]
