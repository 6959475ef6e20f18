"""Training steps as people write them with flax, optax, equinox and pure functions: the same steps, within a budget."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training import dynamic_scale
from flax.training.train_state import TrainState

import jaxremat

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (512, 32))


def same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if eqx.is_array(a) or eqx.is_array(b):
            assert (jnp.shape(a), jnp.result_type(a)) == (jnp.shape(b), jnp.result_type(b))
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        else:
            assert a == b


def within(plan):
    assert plan.measured_peak_bytes <= plan.budget_bytes < plan.plain_peak_bytes


def mlp(params, x):
    for w in params["layers"]:
        x = jnp.tanh(x @ w)
    return jnp.mean((x * params["scale"]) ** 2)


@pytest.fixture
def params():
    keys = jax.random.split(KEY, 5)
    return {"layers": [jax.random.normal(k, (32, 32)) / 6 for k in keys], "scale": jnp.ones(32)}


OPTIMIZERS = {
    "adam after clipping, on a schedule": optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 8))
    ),
    "MultiSteps": optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2),
    "masked and partitioned": optax.chain(
        optax.masked(optax.add_decayed_weights(1e-2), {"layers": True, "scale": False}),
        optax.multi_transform({"a": optax.sgd(1e-2), "b": optax.set_to_zero()}, {"layers": "a", "scale": "b"}),
    ),
    "hyperparameters in the state": optax.inject_hyperparams(optax.sgd)(learning_rate=optax.linear_schedule(1, 0, 4)),
    "apply_if_finite": optax.apply_if_finite(optax.sgd(1e-2), 3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optax(params, name):
    optimizer = OPTIMIZERS[name]

    def step(params, state, x):
        value, grads = jax.value_and_grad(mlp)(params, x)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    ours, theirs = jaxremat.remat(step, budget=0.9), jax.jit(step)
    a = b = (params, optimizer.init(params))
    for k in range(3):
        *a, value = ours(*a, X + k)
        *b, expected = theirs(*b, X + k)
        same((a, value), (b, expected))
    within(ours.plan(*a, X))


def test_loss_scaling(params):
    scale = dynamic_scale.DynamicScale(growth_interval=1)

    def step(params, scale, x, value_and_grad):
        half = lambda p: mlp(jax.tree.map(lambda w: w.astype(jnp.float16), p), x.astype(jnp.float16))
        scaled = lambda p: half(p).astype(jnp.float32) * scale.scale
        value, grads = value_and_grad(scaled)(params)
        finite = jnp.all(jnp.asarray([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        kept = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.1 * g / scale.scale, p), params, grads)
        factor = jnp.where(finite, scale.growth_factor, scale.backoff_factor)
        return kept, scale.replace(scale=scale.scale * factor), value

    ours = jax.jit(lambda p, s, x: step(p, s, x, lambda f: jaxremat.value_and_grad(f, budget="10MB")))
    theirs = jax.jit(lambda p, s, x: step(p, s, x, jax.value_and_grad))
    for x in (X, X.at[0, 0].set(jnp.inf)):
        same(ours(params, scale, x), theirs(params, scale, x))


def test_flax_dynamic_scale_over_a_budgeted_loss(params):
    budgeted = jaxremat.remat(lambda p, x: dynamic_scale.DynamicScale().value_and_grad(mlp)(p, x), budget=0.95)
    same(budgeted(params, X), jax.jit(lambda p, x: dynamic_scale.DynamicScale().value_and_grad(mlp)(p, x))(params, X))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        for _ in range(3):
            x = nn.tanh(nn.Dense(32)(x))
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dropout(0.1, deterministic=not train)(x)


class Trained(TrainState):
    batch_stats: dict


def test_a_flax_train_state_with_batch_norm_dropout_and_donation():
    model = Net()

    def create():
        variables = model.init({"params": KEY, "dropout": KEY}, X[:1])
        return Trained.create(apply_fn=model.apply, tx=optax.adam(1e-2), **variables)

    def step(state, x, key):
        def loss(params):
            variables = {"params": params, "batch_stats": state.batch_stats}
            y, new = state.apply_fn(variables, x, rngs={"dropout": key}, mutable=["batch_stats"])
            return jnp.mean(y**2), new["batch_stats"]

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, batch_stats=stats), value

    ours, theirs = jaxremat.remat(step, budget=0.9, donate_argnums=0), jax.jit(step, donate_argnums=0)
    a, b = create(), create()
    within(ours.plan(a, X, KEY))
    first = jax.tree.leaves(a.params)
    for _ in range(2):
        (a, value), (b, expected) = ours(a, X, KEY), theirs(b, X, KEY)
        same(
            (a.params, a.opt_state, a.batch_stats, a.step, value),
            (b.params, b.opt_state, b.batch_stats, b.step, expected),
        )
    assert all(leaf.is_deleted() for leaf in first)


class Module(eqx.Module):
    layers: list
    norm: eqx.nn.BatchNorm
    scale: float
    activation: object

    def __init__(self, key):
        self.layers = [eqx.nn.Linear(32, 32, key=k) for k in jax.random.split(key, 3)]
        self.norm = eqx.nn.BatchNorm(32, axis_name="batch", mode="batch")
        self.scale, self.activation = 2.0, jax.nn.tanh

    def __call__(self, x, state):
        for layer in self.layers:
            x = self.activation(layer(x))
        x, state = self.norm(x, state)
        return x * self.scale, state


def module_loss(module, state, x):
    y, state = jax.vmap(module, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)
    return jnp.mean(y**2), state


def test_equinox_modules_keep_what_is_no_array():
    module, state = eqx.nn.make_with_state(Module)(KEY)
    ours = jaxremat.equinox.filter_value_and_grad(module_loss, has_aux=True, budget=0.9)
    theirs = eqx.filter_value_and_grad(module_loss, has_aux=True)
    same(ours(module, state, X), theirs(module, state, X))
    assert ours(module, state, X)[1].scale is None, "a Python number is not trained"
    same(eqx.filter_jit(ours)(module, state, X), theirs(module, state, X))
    within(ours.plan(module, state, X))
    grads = jaxremat.equinox.filter_grad(module_loss, has_aux=True, budget=None)
    same(grads(module, state, X), eqx.filter_grad(module_loss, has_aux=True)(module, state, X))


def test_an_equinox_step_and_a_partitioned_module():
    module = eqx.nn.MLP(32, 32, 32, 3, key=KEY)
    loss = lambda module, x: jnp.mean(jax.vmap(module)(x) ** 2)
    optimizer = optax.adam(1e-2)

    def step(module, state, x):
        value, grads = eqx.filter_value_and_grad(loss)(module, x)
        updates, state = optimizer.update(grads, state)
        return eqx.apply_updates(module, updates), state, value

    state = optimizer.init(eqx.filter(module, eqx.is_inexact_array))
    same(jaxremat.equinox.filter_remat(budget=0.95)(step)(module, state, X), eqx.filter_jit(step)(module, state, X))
    arrays, static = eqx.partition(module, eqx.is_inexact_array)
    by_hand = jaxremat.grad(lambda arrays, x: loss(eqx.combine(arrays, static), x), budget=0.95)
    same(by_hand(arrays, X), eqx.filter_grad(loss)(module, X))


def test_pure_functions_with_state_and_keys_as_haiku_transforms_them():
    def apply(params, state, key, x):
        for name, w in params.items():
            x = jnp.tanh(x @ w["w"] + w["b"])
            keep = jax.random.bernoulli(jax.random.fold_in(key, len(name)), 0.9, x.shape)
            x = jnp.where(keep, x / 0.9, 0.0)
        state = {"~": {"mean": 0.9 * state["~"]["mean"] + 0.1 * x.mean(0), "counter": state["~"]["counter"] + 1}}
        return x, state

    def loss(params, state, key, x):
        y, state = apply(params, state, key, x)
        return jnp.mean(y**2), state

    params = {f"mlp/~/linear_{k}": {"w": jnp.eye(32) * 0.9, "b": jnp.zeros(32)} for k in range(3)}
    state = {"~": {"mean": jnp.zeros(32), "counter": jnp.zeros((), jnp.int32)}}
    old_key = jax.random.PRNGKey(0)
    ours = jaxremat.value_and_grad(loss, has_aux=True, budget=0.9)
    same(ours(params, state, old_key, X), jax.value_and_grad(loss, has_aux=True)(params, state, old_key, X))
    within(ours.plan(params, state, old_key, X))
