"""The examples and the README run, and print figures that hold."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def run(name, *flags, code=0):
    command = [sys.executable, f"examples/{name}.py", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=ENVIRONMENT, timeout=500)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


SMALL = ["--steps", "4", "--batch", "2", "--size", "32", "--width", "8"]


def figure(output, label):
    return float(re.search(rf"^{label}\s+([0-9.]+)", output, re.MULTILINE)[1])


def test_the_unet_trains_within_its_budget():
    output = run("train_unet", *SMALL, "--budget", "80%")
    assert figure(output, "measured peak") <= figure(output, "budget") < figure(output, "plain peak")
    assert figure(output, "planned overhead") >= 1
    rows = [line.split() for line in output.split("\n") if re.match(r" +\d+ ", line)]
    assert len(rows) == 4
    for _, plain, ours in rows:
        assert float(ours) == pytest.approx(float(plain), rel=1e-3)
    assert float(rows[-1][2]) < float(rows[0][2]), "it learns"


def test_what_cannot_fit_is_told_and_nothing_is_trained():
    message = run("train_unet", *SMALL, "--budget", "100KB", code=1)
    assert "smallest budget found to work" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("flags", ["--budget nonsense", "--budget 1.5", "--steps 0", "--size 33", "--solver none"])
def test_bad_flags_are_named(flags):
    message = run("train_unet", *flags.split(), code=2)
    assert f"argument {flags.split()[0]}" in message


@pytest.mark.parametrize("name", ["wrap_train_step", "train_nnx", "train_equinox", "train_pure"])
def test_each_framework_trains_within_its_budget(name):
    output = run(name)
    losses = [float(value) for value in re.findall(r"loss ([0-9.]+)", output)]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    assert figure(output, "measured peak") <= figure(output, "budget") < figure(output, "plain peak")


def test_a_plan_is_inspected():
    output = run("inspect_plan")
    assert "  again" in output
    assert "remat_barrier" in output or "lambda" in output
    assert figure(output, "loss by the loaded plan:") > 0


def test_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 4
    space = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), space)
    assert "measured peak" in capsys.readouterr().out
