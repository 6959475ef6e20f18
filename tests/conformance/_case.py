"""What a case is: a program that takes `grad`, `value_and_grad` and `remat` as given, and is run with JAX's and ours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Api:
    """The functions under comparison: JAX's own, or ours under some budget. `remat` is the identity for JAX."""

    grad: Callable[..., Any]
    value_and_grad: Callable[..., Any]
    remat: Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """`run` gives the results of one program; its relative tolerance is that of single precision by default.

    `again` is false where one trace of it cannot follow the plan of another.
    """

    name: str
    run: Callable[[Api], Any]
    rtol: float = 2e-5
    again: bool = True


class Cases(list[Case]):
    """The cases of a theme, filled by decorators on functions whose names become theirs."""

    def loss(self, *args: Any, rtol: float = 2e-5, kwargs: dict[str, Any] | None = None, **options: Any) -> Any:
        """The function is differentiated by `value_and_grad(fun, **options)` and called twice on `args`."""

        def add(fun: Callable[..., Any]) -> Callable[..., Any]:
            def run(api: Api) -> Any:
                differentiated = api.value_and_grad(fun, **options)
                return [differentiated(*args, **kwargs or {}) for _ in range(2)]

            self.append(Case(fun.__name__, run, rtol))
            return fun

        return add

    def program(self, fun: Callable[[Api], Any] | None = None, *, again: bool = True) -> Any:
        """The function is run as it is."""
        if fun is None:
            return functools.partial(self.program, again=again)
        self.append(Case(fun.__name__, fun, again=again))
        return fun


def rand(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Normal numbers, the same each time."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)
