"""jaxremat.nnx: nnx.grad, nnx.value_and_grad and nnx.jit within a budget, over modules that are updated in place."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxremat

X = jax.random.normal(jax.random.key(0), (256, 32))


class Net(nnx.Module):
    def __init__(self, seed=0):
        rngs = nnx.Rngs(seed)
        self.layers = nnx.List([nnx.Linear(32, 32, rngs=rngs) for _ in range(3)])
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = nnx.tanh(layer(x))
        return x


def loss(model, x):
    return jnp.mean(model(x) ** 2)


def data(x):
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(data(a), data(b), rtol=1e-4, atol=1e-6)


def test_gradients_and_state_are_those_of_nnx_call_after_call():
    ours, theirs = Net(), Net()
    f, g = jaxremat.nnx.value_and_grad(loss, budget=0.8), nnx.value_and_grad(loss)
    for _ in range(3):
        value, grads = f(ours, X)
        same((value, grads), g(theirs, X))
        assert isinstance(grads, nnx.State)
        same(nnx.state(ours), nnx.state(theirs))
    plan = f.plan(ours, X)
    assert not plan.plain
    assert plan.measured_peak_bytes <= plan.budget_bytes
    same(nnx.state(ours), nnx.state(theirs))  # planning runs nothing


def test_a_plan_is_saved_and_followed(tmp_path):
    ours, theirs = Net(), Net()
    jaxremat.nnx.grad(loss, budget=0.8).plan(Net(), X).save(tmp_path / "plan")
    step = jaxremat.nnx.grad(loss, plan=jaxremat.Plan.load(tmp_path / "plan"))
    same(step(ours, X), nnx.grad(loss)(theirs, X))


def test_aux_keeps_python_values_and_flags_choose_programs():
    def with_aux(model, x, scale, train=True):
        if not train:
            model.eval()
        y = model(x) * scale
        return jnp.mean(y), {"outputs": y, "train": train, "name": "net"}

    f = jaxremat.nnx.value_and_grad(with_aux, has_aux=True, budget=1.0)
    g = nnx.value_and_grad(with_aux, has_aux=True)
    for flags in ({}, {"train": False}):
        ours, theirs = Net(), Net()
        ((a, auxa), gradsa), ((b, auxb), gradsb) = f(ours, X, 2.0, **flags), g(theirs, X, 2.0, **flags)
        same((a, gradsa, auxa.pop("outputs")), (b, gradsb, auxb.pop("outputs")))
        assert auxa == auxb
        assert ours.dropout.deterministic == theirs.dropout.deterministic


@pytest.mark.parametrize(
    "argnums", [(1, 2), (0, nnx.DiffState(1, nnx.BatchStat)), nnx.DiffState(0, nnx.PathContains("kernel"))]
)
def test_several_modules(argnums):
    def distance(a, b, x):
        return jnp.mean((a(x) - b(x)) ** 2)

    ours, theirs = (Net(0), Net(1)), (Net(0), Net(1))
    mine = jaxremat.nnx.grad(distance, argnums=argnums, budget=None)(*ours, X)
    same(mine, nnx.grad(distance, argnums=argnums)(*theirs, X))
    same([nnx.state(m) for m in ours], [nnx.state(m) for m in theirs])


def test_modules_in_containers_and_a_module_passed_twice():
    def loss(pair, twin, x):
        return jnp.mean(pair["a"](x) * pair["b"](x)) + jnp.sum(twin.norm.mean[...])

    ours, theirs = Net(), Net()
    args = lambda m: ({"a": m, "b": m.layers[0]}, m, X)
    mine = jaxremat.nnx.value_and_grad(lambda m, x: loss(*args(m)), budget=None)(ours, X)
    same(mine, nnx.value_and_grad(lambda m, x: loss(*args(m)))(theirs, X))
    step = jaxremat.nnx.remat(loss, budget=None)
    same(step(*args(ours)), nnx.jit(loss)(*args(theirs)))
    same(nnx.state(ours), nnx.state(theirs))


def test_what_a_call_adds_to_a_module_is_there_after_it():
    def count(model, x):
        model.calls = nnx.Variable(jnp.sum(x))
        return jnp.mean(model(x))

    ours, theirs = Net(), Net()
    for _ in range(2):
        same(jaxremat.nnx.grad(count, budget=None)(ours, X), nnx.grad(count)(theirs, X))
        same(ours.calls[...], theirs.calls[...])


def test_a_whole_step_with_its_optimizer_and_donation():
    def step(model, optimizer, x):
        value, grads = nnx.value_and_grad(loss)(model, x)
        optimizer.update(model, grads)
        return value

    ours, theirs = Net(), Net()
    adam = [nnx.Optimizer(m, optax.adam(1e-2), wrt=nnx.Param) for m in (ours, theirs)]
    before = ours.layers[0].kernel[...]
    f = jaxremat.nnx.remat(step, budget=0.85, donate_argnums=(0, 1))
    plan = f.plan(ours, adam[0], X)
    assert plan.measured_peak_bytes <= plan.budget_bytes < plan.plain_peak_bytes
    for _ in range(2):
        same(f(ours, adam[0], X), nnx.jit(step)(theirs, adam[1], X))
    assert before.is_deleted()
    same(nnx.state(adam[0]), nnx.state(adam[1]))


def test_inside_jit_and_scan():
    ours, theirs = Net(), Net()
    f, g = jaxremat.nnx.value_and_grad(loss, budget=None), nnx.value_and_grad(loss)
    same(nnx.jit(lambda m, x: f(m, x))(ours, X), nnx.jit(lambda m, x: g(m, x))(theirs, X))

    def body(model, x):
        return model, f(model, x)[0]

    def plain(model, x):
        return model, g(model, x)[0]

    xs = jnp.stack([X, 2 * X])
    scan = lambda body, m: nnx.scan(body, in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))(m, xs)[1]
    same(scan(body, ours), scan(plain, theirs))
    same(nnx.state(ours), nnx.state(theirs))


def test_a_closed_over_module_is_seen_as_it_is_now():
    teacher = Net(1)
    teacher.eval()

    def distance(model, x):
        return jnp.mean((model(x) - teacher(x)) ** 2)

    f, g = jaxremat.nnx.grad(distance, budget=None), nnx.grad(distance)
    ours, theirs = Net(), Net()
    for _ in range(2):
        same(f(ours, X), g(theirs, X))
        teacher.layers[0].kernel[...] *= 2


def test_as_decorators():
    @jaxremat.nnx.value_and_grad(argnums=1, budget="1GB")
    def f(x, model):
        """What f says."""
        return loss(model, x)

    same(f(X, Net()), nnx.value_and_grad(loss)(Net(), X))
    assert f.__name__ == "f"
    assert f.__doc__ == "What f says."


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match=r"^solver: "):
        jaxremat.nnx.grad(loss, solver="none")
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'buget'"):
        jaxremat.nnx.grad(loss, buget=0.5)
    with pytest.raises(jaxremat.BudgetError, match="smallest budget"):
        jaxremat.nnx.grad(loss, budget="1KB")(Net(), X)
    model = Net()
    with pytest.raises(ValueError, match="what the user's code raises"):
        jaxremat.nnx.grad(_raises, budget=None)(model, X)
    same(nnx.state(model), nnx.state(Net()))


def _raises(model, x):
    model(x)
    raise ValueError("what the user's code raises")


@pytest.mark.parametrize(
    ("framework", "call", "extra"),
    [("flax", "nnx.grad(abs)", "flax"), ("equinox", "equinox.filter_grad(abs)", "equinox")],
)
def test_a_missing_framework_names_its_extra(framework, call, extra):
    code = f"""
import sys, jaxremat
assert not {{"flax", "equinox", "optax"}} & set(sys.modules), "frameworks are imported where they are used"
sys.modules[{framework!r}] = None
jaxremat.{call}"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"ImportError: {framework}" in done.stderr, done.stderr
    assert f"pip install 'jaxremat[{extra}]'" in done.stderr
