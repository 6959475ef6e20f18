"""What the modules for other frameworks share: imports that name their extra, and the common keywords."""

from __future__ import annotations

import importlib
from typing import Any, TypedDict

from jaxremat._api import Progress, checked_options
from jaxremat._budget import Budget
from jaxremat._cost import CostFunction
from jaxremat._fit import Options
from jaxremat._plan import Plan


class Keywords(TypedDict, total=False):
    """The keywords that all functions share; see `jaxremat.grad`."""

    budget: Budget
    solver: str
    cost: str | CostFunction
    target: str | None
    time_limit: float
    gap: float
    plan: Plan | None
    progress: Progress


def split(keywords: Keywords) -> tuple[Options, Plan | None]:
    """The options and the plan in `keywords`. Raises `TypeError` or `ValueError` naming one that is wrong."""
    unknown = sorted(set(keywords) - set(Keywords.__annotations__))
    if unknown:
        raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}")
    options = {name: value for name, value in keywords.items() if name != "plan"}
    return checked_options(**options), keywords.get("plan")  # pyright: ignore[reportArgumentType]


def imported(name: str, extra: str) -> Any:
    """The module `name`. Raises `ImportError` naming the extra that brings it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name}: {error}; pip install 'jaxremat[{extra}]'", name=error.name) from error
