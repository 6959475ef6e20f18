"""Partitions and rewrites: whatever the schedule, the rewritten program computes the same bits and obeys the order."""

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxremat import Graph, Schedule
from jaxremat._cost import costs
from jaxremat._kernels import Kernels, describe
from jaxremat._partition import dependencies, partition
from jaxremat._rewrite import rewrite
from jaxremat._target import Target
from jaxremat._trace import bytes_of, flatten

CPU = Target.of("cpu")

UNARY = [jnp.tanh, jnp.exp, lambda a: a * 2, lambda a: a.T, lambda a: a - a.mean(0), jax.nn.softmax, lambda a: a[::-1]]
BINARY = [jnp.add, jnp.multiply, lambda a, b: a @ b / 8, lambda a, b: jnp.where(a > b, a, b)]


@st.composite
def functions(draw):
    """A function of two 8 x 8 arrays that combines earlier values at random, and returns some of them."""
    steps = draw(
        st.lists(st.tuples(st.integers(0, 10), st.integers(0, 99), st.integers(0, 99)), min_size=2, max_size=9)
    )
    outputs = draw(st.lists(st.integers(0, 99), min_size=1, max_size=3))

    def fun(a, b):
        values = [a, b]
        for op, i, j in steps:
            left, right = values[-1 - i % min(4, len(values))], values[j % len(values)]
            values.append(UNARY[op](left) if op < len(UNARY) else BINARY[op - len(UNARY)](left, right))
        return [values[-1 - k % len(values)] for k in outputs]

    return fun


def graph_of(program, nodes):
    return Graph(**describe(program, Kernels(nodes), CPU, costs(nodes, CPU, "flops"), measure=False))


def arguments(program):
    return [jax.random.normal(jax.random.key(k), s.shape, s.dtype) for k, s in enumerate(program.structs())]


def random_schedule(graph, data):
    pairs = [(t, i) for t in range(graph.n) for i in range(t) if graph.recomputable[i]]
    chosen = data.draw(st.lists(st.sampled_from(pairs), max_size=4)) if pairs else []
    return Schedule(graph, chosen)


@settings(max_examples=40, deadline=None)
@given(functions(), st.data())
def test_any_schedule_computes_the_same_values(fun, data):
    a = jnp.linspace(-1, 1, 64).reshape(8, 8)
    program = flatten(jax.make_jaxpr(jax.value_and_grad(lambda a, b: sum(map(jnp.sum, fun(a, b)))))(a, a.T))
    nodes = partition(program)
    schedule = random_schedule(graph_of(program, nodes), data)
    for platform in ("cpu", "tpu"):
        jaxpr = rewrite(program, nodes, schedule.statements, platform)
        with jax.disable_jit():
            ours = jex.jaxpr_as_fun(jaxpr)(a, a.T)
            theirs = jex.jaxpr_as_fun(program.plain)(a, a.T)
        for x, y in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(x, y)


@settings(max_examples=40, deadline=None)
@given(functions())
def test_a_partition_computes_everything_once_in_a_valid_order(fun):
    a = jnp.ones((8, 8))
    program = flatten(jax.make_jaxpr(fun)(a, a))
    nodes = partition(program)
    made = set(program.invars)
    for node, deps in zip(nodes, dependencies(nodes), strict=True):
        assert set(node.inputs) <= made
        assert set(deps) == {k for k, other in enumerate(nodes) for v in node.inputs if v in other.outputs}
        made |= set(node.outputs)
    assert {v for v in program.outvars if isinstance(v, jex.Var)} <= made
    assert len({node.eqns[-1] for node in nodes}) == len(nodes)


def chain(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


@pytest.fixture(scope="module")
def mlp():
    program = flatten(jax.make_jaxpr(jax.value_and_grad(chain))([jnp.ones((64, 64))] * 6, jnp.ones((512, 64))))
    nodes = partition(program)
    return program, nodes, Graph(**describe(program, Kernels(nodes), CPU, costs(nodes, CPU, "flops")))


def test_elementwise_work_belongs_to_the_kernel_that_reads_it(mlp):
    _, _, graph = mlp
    assert sum(name.startswith("dot_general") for name in graph.names) == 6 + 5 + 6  # forward, dX, dW
    assert graph.n <= 24


def test_a_recompute_is_executed_and_costs_what_it_should(mlp):
    program, nodes, graph = mlp
    plain = CPU.compile(jex.jaxpr_as_fun(rewrite(program, nodes, Schedule(graph).statements, "cpu")), program.structs())
    # Where something reads node 1, or the program would not contain its recompute.
    reader = max(k for k in range(graph.n) if 1 in graph.deps[k])
    again = Schedule(graph, [(reader, 0), (reader, 1)])
    compiled = CPU.compile(jex.jaxpr_as_fun(rewrite(program, nodes, again.statements, "cpu")), program.structs())
    extra = compiled.flops - plain.flops
    assert extra == pytest.approx(graph.cost[0] + graph.cost[1], rel=0.05)


def test_the_compiled_peak_is_the_predicted_one(mlp):
    program, nodes, graph = mlp
    dots = [i for i, name in enumerate(graph.names) if name.startswith("dot")][:4]
    reader = {i: max(graph.users[i]) for i in dots}
    for pairs in ([], [(reader[dots[1]], dots[1])], [(reader[i], i) for i in dots]):
        schedule = Schedule(graph, pairs)
        compiled = CPU.compile(jex.jaxpr_as_fun(rewrite(program, nodes, schedule.statements, "cpu")), program.structs())
        assert compiled.memory.peak == pytest.approx(schedule.peak, rel=0.01)


def test_what_the_plan_frees_is_dead_in_the_printed_jaxpr(mlp):
    """The live bytes of the rewritten jaxpr, each value ending with its last reader, follow the schedule's memory."""
    program, nodes, graph = mlp
    i = 1
    schedule = Schedule(graph, [(max(graph.users[i]), i)])
    jaxpr = rewrite(program, nodes, schedule.statements, "cpu").jaxpr
    last = {v: k for k, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if isinstance(v, jex.Var)}
    calls = [k for k, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name != "remat_barrier"]
    assert len(calls) == len(schedule.lifetimes)
    results = set(jaxpr.outvars)
    for life, at in zip(schedule.lifetimes, calls, strict=True):
        for v in jaxpr.eqns[at].outvars:
            if v in results or v not in last:
                continue
            # The value, renamed by barriers or not, is last read by the call the schedule frees it after.
            end = max(last[u] for u in renamings(jaxpr, v) if u in last)
            freed_after = next(k for k, o in zip(calls, schedule.lifetimes, strict=True) if o.start == life.end)
            assert end <= freed_after + 2, "at most a barrier, which holds nothing, follows"


def renamings(jaxpr, v):
    names = {v}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "remat_barrier":
            names |= {out for a, out in zip(eqn.invars, eqn.outvars, strict=True) if a in names}
    return names


def test_effects_run_once_and_in_order(capfd):
    def fun(x):
        y = jnp.sin(x @ x)
        jax.debug.print("first {}", y.sum(), ordered=True)
        z = jnp.cos(y @ y)
        jax.debug.print("second {}", z.sum(), ordered=True)
        return z @ y

    x = jnp.eye(4)
    program = flatten(jax.make_jaxpr(fun)(x))
    nodes = partition(program)
    graph = graph_of(program, nodes)
    assert [k for k in range(graph.n) if not graph.recomputable[k]]
    last = graph.n - 1
    pairs = [(last, i) for i in range(last) if graph.recomputable[i]]
    jaxpr = rewrite(program, nodes, Schedule(graph, pairs).statements, "cpu")
    jax.jit(jex.jaxpr_as_fun(jaxpr))(x)
    jax.effects_barrier()
    lines = capfd.readouterr().out.split("\n")
    assert [line.split()[0] for line in lines if line] == ["first", "second"]


def test_dropout_masks_are_kept_rather_than_random_bits():
    def fun(w, x, key):
        for k in range(4):
            x = jnp.tanh(x @ w)
            x = jnp.where(jax.random.bernoulli(jax.random.fold_in(key, k), 0.5, x.shape), x, 0)
        return x.sum()

    w, x = jnp.ones((64, 64)), jnp.ones((512, 64))
    program = flatten(jax.make_jaxpr(jax.grad(fun))(w, x, jax.random.key(0)))
    graph = graph_of(program, partition(program))
    layer = 2 * x.nbytes + x.size  # the tanh, what dropout leaves of it, and a mask of a byte each
    assert graph.peak - graph.constant < 4 * layer + 2 * x.nbytes, "the random bits, 4 bytes each, would not fit"


def test_bytes_are_of_everything_a_node_leaves(mlp):
    program, nodes, graph = mlp
    results = set(program.outvars)
    for node, memory in zip(nodes, graph.memory, strict=True):
        assert memory == sum(bytes_of(v.aval) for v in node.outputs if v not in results)
