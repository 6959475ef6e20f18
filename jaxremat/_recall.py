"""Plans that were made before, by this process or another one, for the same program and the same options.

What a plan depends on is its key in the cache folder: the program, the options, and what `_store.environment` lists. A
plan that is found is followed, compiled and measured before it is handed over, as one that was made anew.

Plans that stopped at the time limit are kept too. The limit is part of the key: who accepted what it gave once is spared
the wait, and gets a better plan by granting more.
"""

from __future__ import annotations

import math

from jaxremat import _store
from jaxremat._budget import budget_bytes
from jaxremat._cost import source_of
from jaxremat._errors import PlanMismatchError
from jaxremat._fit import Fitted, Options, fit, follow
from jaxremat._plan import Plan
from jaxremat._target import Target
from jaxremat._trace import Program


def planned(program: Program, options: Options) -> Fitted:
    """The plan for `program`: recalled if it was made before, else made and kept. Raises `BudgetError` as `fit` does."""
    key = _key(program, options)
    if key is None:
        return fit(program, options)
    found = _recalled(key, program, options)
    if found is None:
        found = fit(program, options)
        _store.write("plans", {key: found.plan.record()})
    return found


def _key(program: Program, options: Options) -> str | None:
    """Equal where the same plan is to be found; None where that cannot be told, or nothing is kept."""
    if callable(options.cost) or _store.folder() is None:
        return None
    target = Target.of(options.target)
    source = source_of(options.cost, target)
    chosen = [options.budget, options.solver, source, target.name, options.time_limit, options.gap]
    return "|".join([program.fingerprint, program.plain_fingerprint, repr(chosen), _store.environment(target.identity)])


def _recalled(key: str, program: Program, options: Options) -> Fitted | None:
    try:
        plan = Plan.of(_store.read("plans", key))
        if not _answers(plan, options):
            return None
        if options.progress:
            options.progress("compiling a plan made before")
        found = follow(program, plan)
    except (ValueError, TypeError, PlanMismatchError):
        return None
    return found if _answers(found.plan, options) else None


def _answers(plan: Plan, options: Options) -> bool:
    """Whether the plan is the one to be found for the budget.

    `"auto"` is other bytes each time. What is cheapest within a budget is so within any smaller one that it fits, and
    the plain program wherever it fits.
    """
    budget = budget_bytes(options.budget, plan.plain_peak_bytes, Target.of(plan.target).memory)
    made_for = math.inf if plan.plain or plan.budget_bytes is None else plan.budget_bytes
    fits = plan.measured_peak_bytes is not None and plan.measured_peak_bytes <= (math.inf if budget is None else budget)
    return fits and (budget is None or budget <= made_for)
