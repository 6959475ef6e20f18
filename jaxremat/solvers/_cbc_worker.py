"""Runs CBC through python-mip in a process of its own: a problem comes in and its outcome goes out as JSON.

A script, not a module to import. In its own process the solver can be stopped on time, may crash, and may print what
it likes, without harm to the caller. It imports nothing of this package, so it starts in a fraction of a second.
"""

import json
import os
import sys


def main() -> None:
    # What CBC prints goes nowhere; the outcome keeps the real standard output.
    channel = os.fdopen(os.dup(1), "w")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    with channel:
        json.dump(answer(json.load(sys.stdin)), channel)


def answer(problem: dict) -> dict:
    try:
        import mip
    except ImportError as error:
        return {"status": "failed", "message": f"python-mip cannot be imported: {error}"}
    return _solve(mip, problem)


def _solve(mip, problem: dict) -> dict:
    model = mip.Model(sense=mip.MINIMIZE, solver_name=mip.CBC)
    model.verbose = 0
    model.threads = 1
    model.seed = problem["seed"]
    model.max_mip_gap = problem["gap"]
    columns = zip(problem["cost"], problem["lower"], problem["upper"], problem["integer"], strict=True)
    x = [
        model.add_var(name=f"x{k}", obj=cost, lb=lower, ub=upper, var_type=mip.INTEGER if integer else mip.CONTINUOUS)
        for k, (cost, lower, upper, integer) in enumerate(columns)
    ]
    for row, coefficients, sense, constant in problem["rows"]:
        model.add_constr(mip.LinExpr([x[k] for k in row], coefficients, -constant, sense))
    if problem["start"] is not None:
        model.start = [(x[k], value) for k, value in problem["start"]]
    status = model.optimize(max_seconds=problem["seconds"], relax=problem["relax"])
    proved = {mip.OptimizationStatus.OPTIMAL: "optimal", mip.OptimizationStatus.INFEASIBLE: "infeasible"}
    solved = model.num_solutions > 0 or (problem["relax"] and status == mip.OptimizationStatus.OPTIMAL)
    return {
        "status": proved.get(status, "feasible" if solved else "unknown"),
        "x": [variable.x for variable in x] if solved else None,
        "bound": model.objective_bound,
        "message": str(status),
    }


if __name__ == "__main__":
    main()
