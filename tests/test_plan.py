"""Plans: what they say, saved and loaded, used again, and refused where they do not belong."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxremat


def chain(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


WS = [jnp.eye(32) * (k + 1) / 4 for k in range(6)]
X = jnp.linspace(-1, 1, 256 * 32).reshape(256, 32)


@pytest.fixture(scope="module")
def plan():
    return jaxremat.value_and_grad(chain, budget=0.7).plan(WS, X)


def test_what_a_plan_says(plan):
    assert plan.budget_bytes == int(0.7 * plan.plain_peak_bytes)
    assert plan.measured_peak_bytes <= plan.budget_bytes
    assert plan.predicted_peak_bytes == pytest.approx(plan.measured_peak_bytes, rel=0.01)
    assert plan.predicted_peak_bytes <= plan.schedule.peak, "outputs give their room to what dies before they are made"
    assert plan.graph is plan.schedule.graph
    assert plan.overhead == plan.schedule.overhead > 1
    assert (plan.solver, plan.status, plan.gap) == (plan.schedule.solver, plan.schedule.status, plan.schedule.gap)
    assert plan.target == "cpu"
    assert plan.compiles >= 2
    assert "remat_barrier" in str(plan.jaxpr)
    assert [v.aval.shape for v in plan.jaxpr.jaxpr.invars] == [w.shape for w in WS] + [X.shape]


def test_the_summary_names_the_figures(plan):
    text = plan.summary()
    for figure in (plan.budget_bytes, plan.plain_peak_bytes, plan.predicted_peak_bytes, plan.measured_peak_bytes):
        assert f"{figure / 2**20:,.1f} MiB" in text
    assert f"{plan.overhead:.4f}" in text
    assert plan.solver in text


def test_saved_and_loaded(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    loaded = jaxremat.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.summary() == plan.summary()
    with pytest.raises(ValueError, match=r"plan: .*no jaxpr"):
        _ = loaded.jaxpr
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_loaded_plan_runs_without_solving(plan, tmp_path, monkeypatch):
    plan.save(tmp_path / "plan.json")
    loaded = jaxremat.Plan.load(str(tmp_path / "plan.json"))
    monkeypatch.setattr("jaxremat._fit.solve", None)
    ours = jaxremat.value_and_grad(chain, plan=loaded)
    for a, b in zip(jax.tree.leaves(ours(WS, X)), jax.tree.leaves(jax.value_and_grad(chain)(WS, X)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    again = ours.plan(WS, X)
    assert again == plan
    assert str(again.jaxpr) == str(plan.jaxpr)


def test_a_plain_plan_runs_plain(tmp_path):
    plan = jaxremat.grad(chain, budget=None).plan(WS, X)
    plan.save(tmp_path / "plan.json")
    ours = jaxremat.grad(chain, plan=jaxremat.Plan.load(tmp_path / "plan.json"))
    assert ours.plan(WS, X).measured_peak_bytes == plan.plain_peak_bytes


@pytest.mark.parametrize(
    ("fun", "arguments"),
    [
        (jaxremat.value_and_grad, (WS, X[:128])),
        (jaxremat.value_and_grad, (WS[:5], X)),
        (jaxremat.value_and_grad, (WS, X.astype(jnp.bfloat16))),
        (jaxremat.grad, (WS, X)),
    ],
)
def test_a_plan_for_something_else_is_refused(plan, fun, arguments):
    with pytest.raises(jaxremat.PlanMismatchError, match="plan"):
        fun(chain, plan=plan)(*arguments)


def test_a_plan_of_another_function_is_refused(plan):
    with pytest.raises(jaxremat.PlanMismatchError, match="plan"):
        jaxremat.value_and_grad(lambda ws, x: chain(ws, x) * 2, plan=plan)(WS, X)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("graph"),
        lambda record: record.update(jaxremat_plan=99),
        lambda record: record["graph"]["cost"].pop(),
        lambda record: record["pairs"].append([0, 10**6]),
        lambda record: record["plan"].pop("target"),
        lambda record: record["plan"].update(surprise=1),
    ],
)
def test_damaged_files_are_refused(plan, tmp_path, change):
    path = tmp_path / "plan.json"
    plan.save(path)
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="path: .* is not a saved plan"):
        jaxremat.Plan.load(path)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"jaxremat_plan": 1}'])
def test_files_that_are_no_plan_are_refused(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="path: .* is not a saved plan"):
        jaxremat.Plan.load(path)


def test_a_missing_file_is_the_systems_own_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        jaxremat.Plan.load(tmp_path / "none.json")


def test_saving_where_nothing_can_be_written_leaves_nothing(plan, tmp_path):
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(OSError, match=r"plan\.json"):
        plan.save(tmp_path / "plan.json")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    with pytest.raises(FileNotFoundError):
        plan.save(tmp_path / "nowhere" / "plan.json")


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("schedule", "status", -5),
        ("schedule", "solver", []),
        ("plan", "measured_peak_bytes", "abc"),
        ("plan", "compiles", None),
        ("graph", "names", "abc"),
    ],
)
def test_a_changed_file_is_no_plan(tmp_path, part, name, value):
    path = tmp_path / "plan.json"
    jaxremat.grad(lambda w: jnp.sum(jnp.tanh(w)), budget=1.0).plan(jnp.ones(3)).save(path)
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    record = json.loads(path.read_text())
    record[part][name] = value
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=f"'{name}' in '{part}'"):
        jaxremat.Plan.load(path)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    plan = jaxremat.grad(lambda w: jnp.sum(jnp.tanh(w)), budget=1.0).plan(jnp.ones(3))
    with pytest.raises(FileNotFoundError, match="missing/plan.json'"):
        plan.save(tmp_path / "missing" / "plan.json")
    assert list(tmp_path.iterdir()) == []
