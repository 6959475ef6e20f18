"""Runs HiGHS through scipy in a process of its own: problems come in one after another, and each one's outcome goes out.

A script, not a module to import. In its own process the solver can be stopped on time, may crash, and may print what
it likes, without harm to the caller. Messages are pickles behind their length in eight bytes.
"""

import os
import pickle
import sys
import time


def main() -> None:
    # What HiGHS prints goes nowhere; the outcomes keep the real standard output.
    channel = os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    with channel:
        while length := sys.stdin.buffer.read(8):
            problem = pickle.loads(sys.stdin.buffer.read(int.from_bytes(length, "little")))
            message = pickle.dumps(answer(problem))
            channel.write(len(message).to_bytes(8, "little") + message)
            channel.flush()


def answer(problem: dict) -> dict:
    try:
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array
    except ImportError as error:
        return {"status": "failed", "message": f"scipy cannot be imported: {error}"}
    count = len(problem["cost"])
    if problem["cost"].size == 0:
        return {"status": "optimal", "x": np.zeros(0), "bound": 0.0}
    matrix = csr_array((problem["values"], problem["columns"], problem["rows"]), (len(problem["rows"]) - 1, count))
    integer = np.zeros(count) if problem["relax"] else problem["integer"]
    options = {"time_limit": max(0.05, problem["deadline"] - time.monotonic()), "mip_rel_gap": problem["gap"]}
    if problem["nodes"] is not None and integer.any():
        options["node_limit"] = problem["nodes"]
    result = milp(
        problem["cost"],
        integrality=integer,
        bounds=Bounds(problem["lower"], problem["upper"]),
        constraints=LinearConstraint(matrix, problem["least"], problem["most"]),
        options=options,
    )
    # scipy: 0 optimal, 1 a limit was reached, 2 infeasible, 3 unbounded, 4 other
    solved = result.x is not None
    status = {0: "optimal", 2: "infeasible"}.get(result.status, "feasible" if solved else "unknown")
    bound = result.get("mip_dual_bound") if integer.any() else (result.fun if result.status == 0 else None)
    return {"status": status, "x": result.x, "bound": bound, "message": result.message}


if __name__ == "__main__":
    main()
