"""Plans that are found again: by another process, for the same program and options, and only where they hold."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxremat
from jaxremat import _fit, _recall, _store


def chain(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


WS = [jnp.eye(32) * (k + 1) / 4 for k in range(6)]
X = jnp.linspace(-1, 1, 256 * 32).reshape(256, 32)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXREMAT_CACHE", str(tmp_path))
    return tmp_path / "plans"


@pytest.fixture
def solved(monkeypatch):
    """The programs that a plan is made for from here on."""
    made = []

    def counting(program, options):
        made.append(program)
        return _fit.fit(program, options)

    monkeypatch.setattr(_recall, "fit", counting)
    return made


def plan(fun=chain, args=(WS, X), **options):
    """As another process would, which has only the cache folder."""
    return jaxremat.value_and_grad(fun, **{"budget": 0.7, **options}).plan(*args)


def test_a_plan_is_made_once(cache, solved):
    first, again = plan(), plan()
    assert len(solved) == 1
    assert again == first
    assert str(again.jaxpr) == str(first.jaxpr)
    results = jaxremat.value_and_grad(chain, budget=0.7)(WS, X)
    for a, b in zip(jax.tree.leaves(results), jax.tree.leaves(jax.value_and_grad(chain)(WS, X)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert len(solved) == 1


def test_another_process_finds_it(cache, tmp_path):
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_recall import plan
messages = []
print(plan(progress=messages.append, cost="xla").schedule.pairs, file=sys.stderr)
print(any("made before" in message for message in messages))
"""
    command, folder = [sys.executable, "-c", script], Path(__file__).parents[1]
    environment = dict(os.environ) | {"PYTHONPATH": str(folder)}
    first, again = (
        subprocess.run(command, capture_output=True, text=True, env=environment, check=True) for _ in range(2)
    )
    assert (first.stdout, again.stdout) == ("False\n", "True\n")
    assert first.stderr == again.stderr


@pytest.mark.parametrize(
    "other",
    [
        {"budget": None},
        {"solver": "checkpoint_all"},
        {"cost": "flops"},
        {"time_limit": 30.0},
        {"gap": 0.01},
        {"args": (WS[:5], X)},
        {"fun": jax.checkpoint(chain)},
    ],
)
def test_other_options_and_programs_have_other_plans(cache, solved, other):
    plan(budget=1.0)
    plan(**{"budget": 1.0, **other})
    assert len(solved) == 2


def test_other_settings_have_other_plans(cache, solved, monkeypatch):
    plan(budget=1.0)
    with jax.default_matmul_precision("highest"):
        plan(budget=1.0)
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
    plan(budget=1.0)
    assert len(solved) == 3


@pytest.mark.parametrize("setting", ["off", "0"])
def test_switched_off_nothing_is_kept(cache, solved, monkeypatch, setting):
    monkeypatch.setenv("JAXREMAT_CACHE", setting)
    plan(budget=1.0)
    plan(budget=1.0)
    assert len(solved) == 2
    assert not cache.exists()


def test_plans_by_a_function_are_not_kept(cache, solved):
    for _ in range(2):
        plan(budget=1.0, cost=lambda node: 1.0)
    assert len(solved) == 2
    assert not cache.exists()


def changed(path, change):
    """Another entry in place of that of `path`, as whole as it was."""
    record = json.loads(path.read_text().partition("\n")[2])
    change(record)
    text = json.dumps(record)
    path.write_text(f"{_store._hash(text)}\n{text}")


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.clear(),
        lambda record: record["pairs"].clear(),  # measures more than the budget
        lambda record: record["plan"].update(fingerprint="another"),
        lambda record: record["graph"]["names"].__setitem__(0, "another"),
        lambda record: record["plan"].update(measured_peak_bytes=None),
    ],
)
def test_a_plan_that_does_not_hold_is_made_again(cache, solved, change):
    first = plan()
    (path,) = cache.iterdir()
    changed(path, change)
    assert plan() == first
    assert len(solved) == 2
    assert plan() == first  # the entry was replaced
    assert len(solved) == 2


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"no hash\n{}"])
def test_a_damaged_file_is_as_good_as_none(cache, solved, damage):
    first = plan(budget=1.0)
    (path,) = cache.iterdir()
    path.write_bytes(damage)
    assert plan(budget=1.0) == first
    assert len(solved) == 2


def test_what_is_free_may_differ_where_the_plan_is_the_same(cache, solved, monkeypatch):
    plain = plan(budget=None).plain_peak_bytes
    free = lambda share: monkeypatch.setattr("jaxremat._budget.available_bytes", lambda: int(share * plain))
    free(0.9)
    first = plan(budget="auto")
    assert first.overhead > 1
    count = len(solved)
    free(1.0001 * first.measured_peak_bytes / plain)
    assert plan(budget="auto") == first
    assert len(solved) == count
    free(0.7)
    assert plan(budget="auto").measured_peak_bytes <= 0.7 * plain
    assert len(solved) == count + 1
    free(0.85)
    assert plan(budget="auto").budget_bytes == int(0.85 * plain)  # a dearer plan would fit too
    free(2.0)
    assert plan(budget="auto").plain
    free(100.0)
    assert plan(budget="auto").plain
    assert len(solved) == count + 3


def test_arguments_that_are_donated_are_part_of_the_program(cache, solved):
    step = lambda ws, x: jax.tree.map(lambda w, g: w - g, ws, jax.grad(chain)(ws, x))
    for donated in ((), (0,), (0,)):
        jaxremat.remat(step, budget=1.0, donate_argnums=donated).plan(WS, X)
    assert len(solved) == 2


def test_the_nodes_of_a_plan_are_found_without_reading_the_compiled_program():
    from jaxremat._kernels import Kernels, nodes_at
    from jaxremat._trace import flatten

    program = flatten(jax.make_jaxpr(jax.grad(chain))(WS, X))
    made = [v for eqn in program.eqns for v in eqn.outvars]
    ends = tuple(range(0, len(made), 3))
    nodes = nodes_at(program, ends)
    outputs = {v for node in nodes for v in node.outputs}
    assert {made[k] for k in ends} <= outputs
    assert Kernels(nodes, ends=ends).read
    read = dataclasses.replace(plan(), ends=ends)
    assert read.graph_source == "compiled"
    assert jaxremat.Plan.of(json.loads(json.dumps(read.record()))) == read
