"""Costs that are measured: what is timed, what is not, and what is kept."""

import jax
import jax.numpy as jnp
import pytest

import jaxremat
from jaxremat import _store, _timing
from jaxremat._cost import costs
from jaxremat._partition import partition
from jaxremat._target import Target
from jaxremat._trace import flatten

pytestmark = pytest.mark.profile

CPU = Target.of("cpu")
X = jnp.ones((256, 256))


def nodes_of(fun, *args):
    return partition(flatten(jax.make_jaxpr(fun)(*args)))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXREMAT_CACHE", str(tmp_path))
    monkeypatch.setattr(_timing, "_measured", {})
    return tmp_path


def another_process(monkeypatch):
    """What was measured is forgotten, and nothing may be measured again."""
    monkeypatch.setattr(_timing, "_measured", {})
    monkeypatch.setattr(_timing, "_run", lambda *args: pytest.fail("timed again"))


def test_a_large_product_takes_longer_than_a_small_one():
    small, large = (jnp.ones((n, n)) for n in (64, 512))
    nodes = nodes_of(lambda a, b: (a @ a, b @ b), small, large)
    seconds = dict(zip([node.outputs[0].aval.shape[0] for node in nodes], _timing.timed(nodes, CPU), strict=True))
    assert 0 < seconds[64] < seconds[512] < 1


def test_equal_nodes_are_timed_once(monkeypatch):
    timed = []
    monkeypatch.setattr(_timing, "_measured", {})
    monkeypatch.setattr(_timing, "_run", lambda program, node, target: timed.append(node) or 1.0)
    nodes = nodes_of(lambda w, x: jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w), X, X)
    assert _timing.timed(nodes, CPU) == [1.0] * 3
    assert len(timed) == 1


def test_another_process_finds_what_was_measured(cache, monkeypatch):
    nodes = nodes_of(lambda x: jnp.tanh(x @ x), X)
    seconds = _timing.timed(nodes, CPU)
    another_process(monkeypatch)
    assert _timing.timed(nodes, CPU) == seconds


@pytest.mark.parametrize("damage", [lambda text: text[: len(text) // 2], lambda text: text + "1", lambda text: ""])
def test_a_damaged_entry_is_measured_again(cache, damage, monkeypatch):
    nodes = nodes_of(lambda x: jnp.tanh(x @ x), X)
    _timing.timed(nodes, CPU)
    (path,) = (cache / "costs").iterdir()
    path.write_text(damage(path.read_text()))
    monkeypatch.setattr(_timing, "_measured", {})
    (again,) = _timing.timed(nodes, CPU)
    assert _store.read("costs", _store.environment(CPU.identity) + _timing._key(nodes[0], CPU)) == again


def test_no_room_for_a_cache_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAXREMAT_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(_timing, "_measured", {})
    assert all(_timing.timed(nodes_of(lambda x: x @ x, X), CPU))


@pytest.mark.parametrize("setting", ["off", "", "0"])
def test_a_cache_that_is_switched_off(setting, monkeypatch):
    monkeypatch.setenv("JAXREMAT_CACHE", setting)
    assert _store.folder() is None
    _store.write("costs", {"key": 1.0})
    assert _store.read("costs", "key") is None


def test_old_entries_go(cache, monkeypatch):
    monkeypatch.setitem(_store._MOST, "costs", 10)
    for k in range(25):
        _store.write("costs", {str(k): float(k)})
    assert len(list((cache / "costs").iterdir())) <= 10
    assert _store.read("costs", "24") == 24.0


def test_entries_of_other_settings_are_others(cache):
    before = _store.environment(CPU.identity)
    with jax.default_matmul_precision("bfloat16"):
        assert _store.environment(CPU.identity) != before


def forever(x):
    return jax.lax.while_loop(lambda x: jnp.all(x < 10), lambda x: x * 0.5, x)


def called_back(x):
    def refuse(x):
        raise AssertionError("ran while planning")

    return jax.pure_callback(refuse, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def in_a_branch(x):
    return jax.lax.cond(x[0, 0] > 0, called_back, jnp.sin, x)


@pytest.mark.parametrize("fun", [forever, called_back, in_a_branch])
def test_what_must_not_run_on_random_numbers_is_estimated(fun):
    nodes = nodes_of(lambda x: fun(jnp.tanh(x @ x)), X)
    found = costs(nodes, CPU, "profile")
    assert found.source == "profile"
    assert len(found.estimated) == 1
    assert all(cost >= 0 for cost in found.each)


@pytest.mark.parametrize("dtype", "bfloat16 float16 int8 uint32 bool_ complex64 int4 uint4 float8_e4m3fn".split())
def test_any_type_can_be_timed(dtype):
    x = jnp.ones((16, 16), getattr(jnp, dtype))
    assert all(_timing.timed(nodes_of(lambda x: (jnp.transpose(x), jnp.sum(x[::-1] != x, axis=0)), x), CPU))


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_random_keys_can_be_timed(kind):
    keys = jax.random.split(jax.random.key(0, impl=kind), 8)
    nodes = nodes_of(jax.vmap(lambda key: jax.random.normal(key, (64,))), keys)
    assert all(_timing.timed(nodes, CPU))


def test_planning_inside_a_trace_times_kernels():
    def loss(w, x):
        for _ in range(6):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    step = jaxremat.grad(loss, budget=0.9, cost="profile")
    x = jnp.ones((2048, 256))
    assert jnp.allclose(jax.jit(step)(X / 256, x), jax.grad(loss)(X / 256, x), atol=1e-5)
    plan = step.plan(X, x)
    assert (plan.cost_source, plan.graph_source, plan.notes) == ("profile", "rules", ())
    assert "measured on this machine" in plan.summary()


def test_a_plan_says_what_was_estimated(tmp_path):
    def loss(w, x):
        for _ in range(6):
            x = jnp.tanh(x @ jax.lax.stop_gradient(forever(w)) @ w)
        return jnp.sum(x)

    messages = []
    fun = jaxremat.grad(loss, budget=0.9, progress=messages.append)
    plan = fun.plan(X, jnp.ones((2048, 256)))
    (note,) = plan.notes
    assert "cannot be timed alone" in note
    assert "while" in note
    assert note in plan.summary()
    assert any(message.startswith("timing kernels") for message in messages)
    plan.save(tmp_path / "plan.json")
    again = jaxremat.Plan.load(tmp_path / "plan.json")
    assert (again.notes, again.cost_source) == (plan.notes, "profile")


def test_a_chip_that_is_not_here_cannot_be_profiled(monkeypatch):
    monkeypatch.setenv("JAXREMAT_AOT_PYTHON", "python")
    with pytest.raises(ValueError, match="cost: 'profile' runs kernels, and 'tpu:v5e' is not here"):
        jaxremat.grad(jnp.sum, cost="profile", target="tpu:v5e")
