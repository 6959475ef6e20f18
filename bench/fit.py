"""Budgets against what is measured: plain, planned and compiled peak of each model at each budget, on each target.

python bench/fit.py --models vgg16 gpt --budgets 0.8 0.7 --json fit.json
python bench/fit.py --targets tpu:v5e cuda:a100 --json chips.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax

import jaxremat
from bench.models import MODELS, Case, model


def row(case: Case, target: str, budget: float, cost: str) -> dict[str, Any]:
    """One line of the table: a plan, or the smallest budget that works."""
    fun = jaxremat.value_and_grad(case.loss, has_aux=case.has_aux, budget=budget, cost=cost, target=target)
    start = time.perf_counter()
    result: dict[str, Any] = {"model": case.name, "target": target, "budget": budget}
    try:
        plan = fun.plan(*case.args)
    except jaxremat.BudgetError as error:
        found = {"minimum_bytes": error.minimum_bytes, "operation": error.operation}
    else:
        found = {
            "plain_bytes": plan.plain_peak_bytes,
            "predicted_bytes": plan.predicted_peak_bytes,
            "measured_bytes": plan.measured_peak_bytes,
            "overhead": plan.overhead,
            "gap": plan.gap,
            "solver": plan.solver,
            "nodes": plan.graph.n,
            "compiles": plan.compiles,
        }
    return result | found | {"seconds": time.perf_counter() - start}


def line(row: dict[str, Any]) -> str:
    head = f"{row['target']:9} {row['model']:10} {row['budget']:6.2f} "
    if "minimum_bytes" in row:
        return (
            head + f"smallest that works: {row['minimum_bytes']:,} bytes ({row['operation']}), {row['seconds']:.0f} s"
        )
    plain = row["plain_bytes"]
    shares = f"{row['predicted_bytes'] / plain:9.4f} {row['measured_bytes'] / plain:9.4f}"
    return head + f"{plain / 2**20:8.1f} {shares} {row['overhead']:9.4f} {row['gap']:8.4f} {row['seconds']:8.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=["mlp", "vgg16", "unet", "gpt", "resnet50", "lstm"]
    )
    parser.add_argument("--targets", nargs="+", default=["cpu"], help="such as cpu tpu:v5e cuda:a100")
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    parser.add_argument("--cost", default="auto")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    options = parser.parse_args()
    print("target    model      budget    plain planned/p measured/p overhead     gap  seconds   (plain in MiB)")
    rows = []
    for target, name in itertools.product(options.targets, options.models):
        case = model(name)
        for budget in options.budgets:
            # On a TPU a product of float32 arrays is one of bfloat16 arrays unless told otherwise.
            with jax.default_matmul_precision("highest" if target.startswith("tpu") else "default"):
                rows.append(row(case, target, budget, options.cost))
            print(line(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
