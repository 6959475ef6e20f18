"""grad, value_and_grad and remat as drop-in replacements: same results, same calling conventions, same errors."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxremat

WIDTH, BATCH = 32, 256


def chain(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


@pytest.fixture(scope="module")
def ws():
    keys = jax.random.split(jax.random.key(0), 6)
    return [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys]


@pytest.fixture(scope="module")
def x():
    return jax.random.normal(jax.random.key(1), (BATCH, WIDTH))


def same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert getattr(a, "weak_type", False) == getattr(b, "weak_type", False)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7)


def test_value_and_grad_equals_jax_within_the_budget(ws, x):
    ours = jaxremat.value_and_grad(chain, budget=0.7)
    same(ours(ws, x), jax.value_and_grad(chain)(ws, x))
    plan = ours.plan(ws, x)
    assert plan.measured_peak_bytes <= plan.budget_bytes < plan.plain_peak_bytes
    assert plan.schedule.pairs, "a budget of 0.7 needs recomputation here"


def test_grad_equals_jax(ws, x):
    same(jaxremat.grad(chain, budget=0.7)(ws, x), jax.grad(chain)(ws, x))


@pytest.mark.parametrize("argnums", [0, 1, -1, (0, 1), [1, 0], np.int64(1)])
def test_argnums(ws, x, argnums):
    same(jaxremat.grad(chain, argnums, budget=0.9)(ws, x), jax.grad(chain, argnums)(ws, x))


def test_aux_may_hold_what_is_not_an_array(ws, x):
    def fun(ws, x):
        return chain(ws, x), {"mean": x.mean(), "name": "chain", "none": None, "flag": True}

    (value, aux), grads = jaxremat.value_and_grad(fun, has_aux=True, budget=0.9)(ws, x)
    (value_, aux_), grads_ = jax.value_and_grad(fun, has_aux=True)(ws, x)
    assert aux["name"] == "chain"
    assert aux["none"] is None
    assert aux["flag"] is True
    same((value, aux["mean"], grads), (value_, aux_["mean"], grads_))


def test_keyword_arguments_and_defaults(ws, x):
    def fun(ws, x, *, scale=2.0, power=2):
        return scale * chain(ws, x) ** power

    for kwargs in ({}, {"scale": 3.0}, {"scale": jnp.float32(3.0), "power": 3}):
        same(jaxremat.grad(fun, budget=0.9)(ws, x, **kwargs), jax.grad(fun)(ws, x, **kwargs))
    same(jaxremat.grad(fun, budget=0.9)(ws, x=x), jax.grad(fun)(ws, x=x))


def test_python_values_that_the_function_needs(ws, x):
    def fun(ws, x, depth, mode, flag):
        if flag and mode == "sum":
            return chain(ws[:depth], x) * BATCH
        return chain(ws[:depth], x)

    ours = jaxremat.grad(fun, budget=1.0)
    for arguments in ((2, "sum", True), (3, "sum", True), (3, "mean", True), (3, "sum", False)):
        same(ours(ws, x, *arguments), jax.grad(fun)(ws, x, *arguments))


def test_numbers_are_traced_once(ws, x):
    traces = []

    def fun(ws, x, step):
        traces.append(step)
        return chain(ws, x) * step

    ours = jaxremat.grad(fun, budget=1.0)
    for step in (1, 2, 3):
        same(ours(ws, x, step), jax.grad(lambda ws, step: chain(ws, x) * step)(ws, step))
    assert len(traces) == 1


def test_numbers_beside_one_whose_value_is_needed_stay_traced(ws, x):
    fun = lambda ws, x, depth, step: chain(ws[:depth], x) * step
    ours = jaxremat.grad(fun, budget=1.0)
    plans = [ours.plan(ws, x, 2, step) for step in (1, 2, 3)]
    assert plans[0] is plans[1] is plans[2]
    same(ours(ws, x, 2, 4), jax.grad(fun)(ws, x, 2, 4))


def test_traced_once_per_signature(ws, x):
    traces = []

    def fun(ws, x):
        traces.append(x.shape)
        return chain(ws, x)

    ours = jaxremat.value_and_grad(fun, budget=0.8)
    for batch in (x, x + 1, x[:128], x):
        ours(ws, batch)
    ours.plan(ws, x)
    ours.plan(ws, jax.ShapeDtypeStruct((128, WIDTH), jnp.float32))
    assert traces == [(BATCH, WIDTH), (128, WIDTH)]


def test_closure_over_an_array(ws, x):
    ours = jaxremat.grad(lambda ws: chain(ws, x), budget=0.8)
    same(ours(ws), jax.grad(lambda ws: chain(ws, x))(ws))
    consts = ours.plan(ws).jaxpr.consts
    assert not consts, "closed-over arrays are arguments of the program, not part of it"


class _Scaled:
    def __init__(self):
        self.factor = 2.0

    def loss(self, w):
        return jnp.sum(jnp.tanh(w) * self.factor)


_settings = {"factor": 2.0}


def _helper(w):
    return jnp.sum(jnp.tanh(w)) * _settings["factor"]


def test_values_that_helpers_and_objects_hold_are_seen_when_replaced(monkeypatch):
    w, scaled = jnp.ones(3), _Scaled()
    by_method = jaxremat.grad(scaled.loss, budget=1.0)
    by_helper = jaxremat.grad(lambda w: _helper(w), budget=1.0)
    before = by_method(w), by_helper(w)
    scaled.factor = 6.0
    monkeypatch.setitem(_settings, "factor", 6.0)
    np.testing.assert_allclose(by_method(w), 3 * before[0], rtol=1e-6)
    np.testing.assert_allclose(by_helper(w), 3 * before[1], rtol=1e-6)


def test_without_jit_the_function_runs_as_it_is(ws, x):
    ours = jaxremat.grad(chain, budget=0.7)
    with jax.disable_jit():
        same(ours(ws, x), jax.grad(chain)(ws, x))
        assert ours.plan(ws, x).measured_peak_bytes <= ours.plan(ws, x).budget_bytes


def test_planning_in_64_bits_of_one_context():
    with jax.enable_x64(True):
        ws, x = [jnp.eye(32, dtype=jnp.float64) * 0.9] * 6, jnp.ones((512, 32), jnp.float64)
        ours = jaxremat.grad(chain, budget=0.8)
        same(ours(ws, x), jax.grad(chain)(ws, x))
        assert ours.plan(ws, x).schedule.solver != "plain"


@pytest.mark.parametrize("fun", [None, 3])
def test_what_is_no_function_is_told_at_once(fun):
    with pytest.raises(TypeError, match="^fun: expected a function"):
        jaxremat.remat(fun)


def test_closed_over_value_that_is_replaced_is_seen(ws, x):
    batch = x

    def fun(ws):
        return chain(ws, batch)

    ours = jaxremat.grad(fun, budget=0.9)
    ours(ws)
    batch = 2 * x
    same(ours(ws), jax.grad(fun)(ws))


def test_closure_over_tracers(ws, x):
    def outer(grad, ws, x):
        return grad(lambda ws: chain(ws, jnp.sin(x)))(ws)

    ours = jax.jit(functools.partial(outer, functools.partial(jaxremat.grad, budget=0.8)))
    same(ours(ws, x), jax.jit(functools.partial(outer, jax.grad))(ws, x))
    same(ours(ws, x + 1), jax.jit(functools.partial(outer, jax.grad))(ws, x + 1))


def test_under_jit_the_rewritten_program_is_compiled(ws, x):
    ours = jaxremat.value_and_grad(chain, budget=0.7)
    compiled = jax.jit(ours).lower(ws, x).compile()
    same(compiled(ws, x), jax.value_and_grad(chain)(ws, x))
    stats = compiled.memory_analysis()
    peak = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    assert peak <= ours.plan(ws, x).budget_bytes


def test_under_vmap_grad_and_jvp(ws, x):
    ours, theirs = jaxremat.grad(chain, 1, budget=0.8), jax.grad(chain, 1)
    stack = jnp.stack([x, 2 * x])
    same(jax.vmap(ours, (None, 0))(ws, stack), jax.vmap(theirs, (None, 0))(ws, stack))
    second = [jax.grad(lambda x, f=f: jnp.sum(f(ws, x) ** 2))(x) for f in (ours, theirs)]
    same(*second)
    same(*[jax.jvp(lambda x, f=f: f(ws, x), (x,), (x,)) for f in (ours, theirs)])


def test_inside_scan(ws, x):
    def step(grad, ws, batch):
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grad(ws, batch)), batch.sum()

    batches = jnp.stack([x, x + 1, x + 2])
    results = [
        jax.lax.scan(functools.partial(step, grad), ws, batches)
        for grad in (jaxremat.grad(chain, budget=0.8), jax.grad(chain))
    ]
    same(*results)


def test_remat_of_a_whole_step(ws, x):
    def step(ws, x):
        value, grads = jax.value_and_grad(chain)(ws, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads), value

    ours = jaxremat.remat(step, budget=0.8)
    same(ours(ws, x), step(ws, x))
    plan = ours.plan(ws, x)
    assert plan.measured_peak_bytes <= plan.budget_bytes


def test_holomorphic_and_allow_int():
    z = jnp.arange(4.0) * (1 + 2j)
    holomorphic = lambda z: jnp.sum(jnp.sin(z) ** 2)
    same(jaxremat.grad(holomorphic, holomorphic=True, budget="1MB")(z), jax.grad(holomorphic, holomorphic=True)(z))
    fun = lambda pair: jnp.sum(pair[0] ** 2) * jnp.sum(pair[1])
    pair = (jnp.arange(3.0), jnp.arange(3))
    ours = jaxremat.grad(fun, allow_int=True, budget="1MB")(pair)
    theirs = jax.grad(fun, allow_int=True)(pair)
    same(ours[0], theirs[0])
    assert ours[1].dtype == theirs[1].dtype == jax.dtypes.float0
    assert ours[1].shape == theirs[1].shape


def test_python_scalars_are_differentiated_as_jax_does():
    same(jaxremat.value_and_grad(lambda a: a**3, budget="1MB")(2.0), jax.value_and_grad(lambda a: a**3)(2.0))


def test_x64():
    with jax.enable_x64(True):
        x = np.linspace(0, 1, 8)
        same(jaxremat.grad(lambda x: jnp.sum(jnp.exp(x)), budget="1MB")(x), jax.grad(lambda x: jnp.sum(jnp.exp(x)))(x))


def test_names_and_docstrings_are_kept():
    ours = jaxremat.grad(chain, budget="1GB")
    assert ours.__name__ == "chain"


@pytest.mark.parametrize(
    ("fun", "arguments", "error"),
    [
        (lambda x: x * 2, (jnp.ones(3),), TypeError),  # not scalar
        (lambda x: (x.sum(), x.sum()), (jnp.ones(3),), TypeError),  # a tuple without has_aux
        (lambda x: x.sum(), (jnp.arange(3),), TypeError),  # integers
        (lambda x: x.sum(), ("text",), TypeError),
        (lambda x: x.sum(), (), TypeError),
        (lambda x: jnp.ones(2) @ jnp.ones(3), (1.0,), TypeError),
        (lambda x: undefined, (1.0,), NameError),  # noqa: F821
    ],
)
def test_errors_of_the_function_and_of_jax_pass_unchanged(fun, arguments, error):
    with pytest.raises(error) as theirs:
        jax.value_and_grad(fun)(*arguments)
    with pytest.raises(error) as ours:
        jaxremat.value_and_grad(fun, budget="1GB")(*arguments)
    assert type(ours.value) is type(theirs.value)
    assert str(ours.value).split(". ")[0] == str(theirs.value).split(". ")[0]


@pytest.mark.parametrize(
    "budget", [-1, 0, -0.5, 0.0, 1.5, float("nan"), float("inf"), "x", "12 parsecs", "", "-3MB", "120%", "0"]
)
def test_bad_budgets(budget):
    with pytest.raises(ValueError, match="budget"):
        jaxremat.grad(chain, budget=budget)


@pytest.mark.parametrize("budget", [[1], True, 1j, b"1GB", jnp.ones(3)])
def test_budgets_of_a_wrong_type(budget):
    with pytest.raises(TypeError, match="budget"):
        jaxremat.grad(chain, budget=budget)


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("solver", "simplex", ValueError),
        ("solver", None, ValueError),
        ("cost", "price", ValueError),
        ("target", "abacus", ValueError),
        ("target", 3, TypeError),
        ("time_limit", -1, ValueError),
        ("time_limit", "soon", ValueError),
        ("gap", float("nan"), ValueError),
        ("plan", "plan.json", TypeError),
    ],
)
def test_other_bad_options_are_named(option, value, error):
    with pytest.raises(error, match=option):
        jaxremat.value_and_grad(chain, **{"budget": 0.5, option: value})


def test_function_that_is_no_function():
    with pytest.raises(TypeError):
        jaxremat.grad(3, budget=0.5)


def test_budget_below_the_arguments(ws, x):
    with pytest.raises(jaxremat.BudgetError, match=r"budget.*arguments and outputs alone") as caught:
        jaxremat.grad(chain, budget="1KB")(ws, x)
    minimum = caught.value.minimum_bytes
    plan = jaxremat.grad(chain, budget=minimum).plan(ws, x)
    assert plan.measured_peak_bytes <= minimum


def test_no_limit_and_auto_run_the_plain_program(ws, x):
    for budget in (None, "auto", "1TB", 1.0):
        plan = jaxremat.grad(chain, budget=budget).plan(ws, x)
        assert plan.plain
        assert plan.overhead == 1.0
        assert plan.measured_peak_bytes == plan.plain_peak_bytes


def test_output_and_global_state_are_left_alone(ws, x, capfd):
    before = dict(jax.config.values)
    jaxremat.grad(chain, budget=0.7)(ws, x)
    assert dict(jax.config.values) == before
    assert capfd.readouterr() == ("", "")


def test_progress(ws, x, capsys):
    messages = []
    jaxremat.grad(chain, budget=0.7, progress=messages.append).plan(ws, x)
    assert any("measured" in message for message in messages)
    jaxremat.grad(chain, budget=0.7, progress=True).plan(ws, x)
    assert "jaxremat: compiling" in capsys.readouterr().err


def test_threads_share_one_plan(ws, x):
    traces = []

    def fun(ws, x):
        traces.append(1)
        return chain(ws, x)

    ours = jaxremat.grad(fun, budget=0.8)
    threads = [threading.Thread(target=ours, args=(ws, x)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(traces) == 1


def test_arrays_on_another_backend_device_still_work(ws, x):
    ours = jaxremat.grad(chain, budget=0.8)
    same(ours(jax.device_put(ws, jax.devices()[0]), np.asarray(x)), jax.grad(chain)(ws, x))


def test_a_target_that_is_the_default_backend(ws, x):
    plan = jaxremat.grad(chain, budget=0.8, target="cpu").plan(ws, x)
    assert plan.target == "cpu"
