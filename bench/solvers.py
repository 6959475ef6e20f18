"""Compares solvers: prints overhead, certified bound and seconds per graph, budget and solver, and writes them as JSON.

    python bench/solvers.py                              # generated graphs, and the shared ones where they are found
    python bench/solvers.py --graphs vgg16_b256 unet_b32 --fractions .9 .5 --solvers auto rounding chen_sqrt
    python bench/solvers.py --graphs network1000 layered1000 --fractions .8 .5 --time-limit 300
    python bench/solvers.py --engines                    # HiGHS against CBC on the programs of the cut generation
    python bench/solvers.py --gaps                       # integrality gaps of eq. (9) and eq. (1), appendix A

Budgets are given as f: floor + f * (peak - floor). Shared graphs are looked for in $JAXREMAT_GRAPHS, or in
`shared/graphs` beside the checkout.
"""

import argparse
import json
import os
import random
import time
from pathlib import Path

from jaxremat._errors import BudgetError
from jaxremat._graph import Graph
from jaxremat.solvers import SOLVERS, solve
from jaxremat.solvers._highs import Highs
from jaxremat.solvers._profile import Profile
from jaxremat.solvers._relaxation import relaxation
from jaxremat.solvers.cuts import peaks
from jaxremat.solvers.unpartitioned import integrality_gap

SHARED = Path(os.environ.get("JAXREMAT_GRAPHS") or Path(__file__).resolve().parents[2] / "shared" / "graphs")
NAMES = ("vgg16_b256", "unet_b32", "resnet50_b256", "random_n100", "random_n250")
LAYERS = ("conv", "norm", "conv", "norm", "add")  # of a residual block of the generated networks
GENERATED = ("network500", "network1000", "layered500", "layered1000")


def network(n: int, seed: int = 0) -> Graph:
    """A training step of about n nodes: residual blocks of four layers, stages that halve bytes, and a backward pass."""
    rng = random.Random(seed)
    layers = (n - 1) // 2
    names, cost, memory, deps = [], [], [], []
    for k in range(layers):
        block, place = divmod(k, 5)
        size = 2 ** (26 - 3 * k // layers)
        names.append(f"block{block}_{LAYERS[place]}")
        cost.append([100, 8, 300, 8, 4][place] * rng.uniform(0.8, 1.2))
        memory.append(int(size * rng.uniform(0.9, 1.1)))
        deps.append([k - 1] * (k > 0) + [k - 5] * (place == 4 and k >= 5))
    names, cost, memory, deps = [*names, "loss"], [*cost, 1.0], [*memory, 4], [*deps, [layers - 1]]
    gradient = {layers: layers}  # of a node: the node that makes it
    users: dict[int, list[int]] = {}
    for k in range(layers + 1):
        for i in deps[k]:
            users.setdefault(i, []).append(k)
    for k in reversed(range(layers)):
        node = len(names)
        reads = {gradient[u] for u in users[k]} | {i for u in users[k] for i in deps[u] if i < layers} | {k}
        names.append(f"{names[k]}_backward")
        cost.append(2 * cost[k])
        memory.append(memory[k])
        deps.append(sorted(reads - {node}))
        gradient[k] = node
    return Graph(names, cost, memory, deps, backward=[k > layers for k in range(len(names))])


def layered(n: int, seed: int = 0) -> Graph:
    """Random layers of about sqrt(n) nodes that read the layer before them, and now and then one far behind."""
    rng = random.Random(seed)
    width = max(2, int(n**0.5))
    layers = [list(range(a, min(a + width, n))) for a in range(0, n, width)]
    deps: list[list[int]] = [[] for _ in range(n)]
    for depth in range(1, len(layers)):
        for k in layers[depth]:
            before = layers[depth - 1]
            deps[k] += rng.sample(before, min(len(before), rng.randint(1, 3)))
            if depth > 1 and rng.random() < 0.5:
                deps[k].append(rng.choice(layers[rng.randrange(depth - 1)]))
    cost, memory = [rng.randint(1, 50) for _ in range(n)], [rng.randint(1, 100) for _ in range(n)]
    return Graph([f"v{k}" for k in range(n)], cost, memory, deps)


def named(name: str) -> Graph | None:
    """A generated graph or a shared one; None if the latter is not here."""
    for kind, make in (("network", network), ("layered", layered)):
        if name.startswith(kind):
            return make(int(name.removeprefix(kind)))
    path = SHARED / f"{name}.json"
    return Graph.from_node_link(json.loads(path.read_text())) if path.exists() else None


def measure(graph: Graph, fraction: float, solver: str, time_limit: float, seed: int) -> dict:
    start = time.perf_counter()
    row: dict = {"solver": solver, "f": fraction, "overhead": None, "bound": None}
    try:
        schedule = solve(graph, graph.budget_at(fraction), solver, time_limit, seed=seed)
        row |= {"overhead": schedule.overhead, "bound": schedule.bound / graph.total_cost, "status": schedule.status}
    except BudgetError as error:
        row |= {"status": "infeasible" if error.proved else "none"}
    except ValueError:
        row |= {"status": "undefined"}
    return row | {"seconds": time.perf_counter() - start}


def table(options: argparse.Namespace) -> list[dict]:
    rows = []
    print(f"{'graph':16} {'n':>5} {'f':>5}  {'solver':18} {'overhead':>9} {'bound':>9} {'seconds':>8}  status")
    for name in options.graphs:
        graph = named(name)
        if graph is None:
            print(f"{name}: not found in {SHARED}")
            continue
        for fraction in options.fractions:
            for solver in options.solvers:
                row = {"graph": name, "n": graph.n} | measure(graph, fraction, solver, options.time_limit, options.seed)
                figures = ["" if row[key] is None else f"{row[key]:.5f}" for key in ("overhead", "bound")]
                print(
                    f"{name:16} {graph.n:5} {fraction:5}  {solver:18} {figures[0]:>9} {figures[1]:>9}"
                    f" {row['seconds']:8.2f}  {row['status']}",
                    flush=True,
                )
                rows.append(row)
    return rows


def engines(options: argparse.Namespace) -> list[dict]:
    """The programs of a few rounds of cut generation, each by both solvers to the same gap."""
    rows = []
    print(f"{'graph':16} {'f':>5} {'cuts':>5} {'columns':>8} {'HiGHS s':>8} {'CBC s':>8}")
    for name in options.graphs:
        graph = named(name)
        if graph is None:
            continue
        for fraction in options.fractions:
            budget = graph.budget_at(fraction)
            profile, cuts = Profile(graph), set()
            with Highs() as highs:
                for _ in range(3):
                    cuts |= {profile.keys[p] for p in peaks(profile, budget)[:3]}
                    built = relaxation(graph, budget, tuple(sorted(cuts)))
                    seconds = []
                    start = time.perf_counter()
                    outcome = highs.solve(built.mip, options.time_limit, gap=0.02)
                    seconds.append(time.perf_counter() - start)
                    start = time.perf_counter()
                    built.mip.solve_cbc(options.time_limit, gap=0.02)
                    seconds.append(time.perf_counter() - start)
                    rows.append({"graph": name, "f": fraction, "columns": len(built.mip.cost), "seconds": seconds})
                    print(
                        f"{name:16} {fraction:5} {len(cuts):5} {len(built.mip.cost):8} {seconds[0]:8.2f} {seconds[1]:8.2f}"
                    )
                    if outcome.x is None:
                        break
                    profile = Profile(graph, built.pairs(outcome.x))
                    if profile.peak <= budget:
                        break
    return rows


def chain(layers: int, *, both: bool) -> Graph:
    """The unit training chain; a layer's gradient reads the gradient after it, its input and, if `both`, its output."""
    n = 2 * layers + 1
    deps: list[list[int]] = [[]] + [[i - 1] for i in range(1, layers + 1)]
    for k in range(layers + 1, n):
        layer = 2 * layers - k
        deps.append([k - 1, layer] + ([layer + 1] if both and layer + 1 < layers else []))
    return Graph([f"v{k}" for k in range(n)], [1] * n, [1] * n, deps)


def gaps(options: argparse.Namespace) -> list[dict]:
    """Appendix A: the unit chain of 8 layers (n = 17) at budget 4, and what eq. (1) reaches on chains of 2 layers up."""
    rows = []
    for both in (False, True):
        cost = solve(chain(8, both=both), 4, "milp").cost
        for form in ("partitioned", "unpartitioned"):
            row = {"both": both, "form": form, "cost": cost}
            row["gap"] = integrality_gap(chain(8, both=both), 4, cost, form)
            rows.append(row)
            print(row)
    for layers in (2, 3, 4, 5, 8):
        for solver in ("milp", "milp_unpartitioned"):
            start = time.perf_counter()
            schedule = solve(chain(layers, both=False), 4, solver, options.time_limit)
            row = {"layers": layers, "solver": solver, "cost": schedule.cost, "bound": schedule.bound}
            rows.append(row | {"seconds": time.perf_counter() - start})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=[*NAMES, *GENERATED])
    parser.add_argument("--fractions", nargs="+", type=float, default=[0.9, 0.7, 0.5, 0.4, 0.3, 0.2])
    parser.add_argument("--solvers", nargs="+", choices=SOLVERS, default=["auto"])
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per graph, budget and solver")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", action="store_true", help="HiGHS against CBC instead")
    parser.add_argument("--gaps", action="store_true", help="integrality gaps instead")
    parser.add_argument("--out", type=Path, default=Path("solvers.json"))
    options = parser.parse_args()
    rows = (engines if options.engines else gaps if options.gaps else table)(options)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
