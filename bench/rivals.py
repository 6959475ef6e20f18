"""Ours against `jax.checkpoint` placed by hand, on the same compiler: at the memory that each rival takes, who is faster?

python bench/rivals.py --models gpt unet --target tpu:v5e --json rivals.json

Needs a folder with the rivals' models.py, $JAXREMAT_RIVALS or `shared/rivals` beside the checkout. Each rival is compiled;
its measured bytes are the budget of a plan of ours, whose compiled program is then compared by the compiler's estimates:
`optimal_seconds` and the sum of `estimated_cycles` (TPU only).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.extend.core as jex

sys.path.insert(0, str(Path(__file__).parents[1]))

import jaxremat
from jaxremat._hlo import parse
from jaxremat._target import Compiled, Target

FOLDER = Path(os.environ.get("JAXREMAT_RIVALS") or Path(__file__).resolve().parents[2] / "shared" / "rivals")


def load() -> Any:
    spec = importlib.util.spec_from_file_location("rival_models", FOLDER / "models.py")
    if spec is None or spec.loader is None or not (FOLDER / "models.py").exists():
        raise SystemExit(f"no models.py in {FOLDER}; set JAXREMAT_RIVALS")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(target: Target, loss: Callable[..., Any], args: tuple[Any, ...]) -> Compiled:
    leaves, tree = jax.tree.flatten(args)
    return target.compile(lambda *flat: jax.value_and_grad(loss)(*jax.tree.unflatten(tree, flat)), leaves)


def figures(program: Compiled) -> dict[str, float]:
    cycles = sum(i.cycles or 0 for i in parse(program.hlo()).schedule)
    return {"bytes": program.memory.peak, "seconds": program.analysis.get("optimal_seconds", 0.0), "cycles": cycles}


def ours(target: Target, loss: Callable[..., Any], args: tuple[Any, ...], budget: int) -> dict[str, float] | None:
    try:
        plan = jaxremat.value_and_grad(loss, budget=budget, target=target.name, time_limit=20).plan(*args)
    except jaxremat.BudgetError:
        return None
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in plan.jaxpr.in_avals]
    return figures(target.compile(jex.jaxpr_as_fun(plan.jaxpr), structs))


def compare(module: Any, name: str, target: Target, only: list[str]) -> list[dict[str, Any]]:
    model = module.ALL[name]()
    args = (model.par, model.inp)
    variants = module.variants(model)
    plain = figures(compiled(target, variants["plain"], args))
    rows = []
    for method, loss in variants.items():
        if method == "plain" or (only and method not in only):
            continue
        rival = figures(compiled(target, loss, args))
        found = ours(target, variants["plain"], args, int(rival["bytes"]))
        rows.append({"model": name, "method": method, "plain": plain, "rival": rival, "ours": found})
        print(line(rows[-1]), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    def shares(found: dict[str, float] | None) -> str:
        if found is None:
            return "   does not fit     "
        ratios = [
            found[key] / row["plain"][key] if row["plain"][key] else 0.0 for key in ("bytes", "seconds", "cycles")
        ]
        return " ".join(f"{ratio:6.3f}" for ratio in ratios)

    return f"{row['model']:9} {row['method']:18} {shares(row['rival'])}   {shares(row['ours'])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["gpt", "vgg16", "unet", "lstm", "resnet50"])
    parser.add_argument("--methods", nargs="+", default=[], help="only these rivals")
    parser.add_argument("--target", default="tpu:v5e")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    options = parser.parse_args()
    module, target = load(), Target.of(options.target)
    print("model     rival                bytes   secs  cycles   ours: bytes secs cycles   (all as shares of plain)")
    rows = []
    with jax.default_matmul_precision("highest" if target.platform == "tpu" else "default"):
        for name in options.models:
            rows += compare(module, name, target, options.methods)
    won = [
        row["ours"] is not None and all(row["ours"][key] <= row["rival"][key] * 1.0005 for key in ("seconds", "cycles"))
        for row in rows
    ]
    print(f"at the same or less memory, no slower by both estimates in {sum(won)} of {len(won)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
