"""`grad`, `value_and_grad` and `remat`: trace, plan once per signature, run."""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import numpy as np

from jaxremat._budget import Budget, check_budget
from jaxremat._captures import captures, same
from jaxremat._cost import CostFunction, source_of
from jaxremat._fit import Fitted, Options, follow
from jaxremat._plan import Plan
from jaxremat._progress import on_terminal
from jaxremat._recall import planned
from jaxremat._signature import Call, Traced, trace
from jaxremat._target import Compiled, Target
from jaxremat._trace import Program
from jaxremat.solvers import SOLVERS

Progress = bool | Callable[[str], None]


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    budget: Budget = "auto",
    solver: str = "auto",
    cost: str | CostFunction = "auto",
    target: str | None = None,
    time_limit: float = 60.0,
    gap: float = 1e-4,
    plan: Plan | None = None,
    progress: Progress = False,
) -> Callable[..., Any]:
    """`jax.grad` within a memory budget: the same gradients, and a compiled peak that was measured to fit.

    **Arguments:** `fun`, `argnums`, `has_aux`, `holomorphic`, `allow_int` as in `jax.grad`. By keyword:

    - `budget`: what the compiled function may hold on one device, arguments, outputs and temporaries together: bytes as
      an int, a string such as `"12GiB"`, `"800MB"` or `"60%"`, a float in (0, 1] as a fraction of the peak of the plain
      program, `"auto"` for what the device has free, or None for no limit.
    - `solver`: a name in `jaxremat.SOLVERS`.
    - `cost`: what a schedule minimises: `"profile"`, seconds that each kernel was measured to take on this machine;
      `"xla"`, seconds by the compiler's estimates, or by its counts of operations and bytes; `"flops"`, operations; a
      function of a node; or `"auto"`, which is `"profile"` for the default backend and `"xla"` for any other target.
    - `target`: the chip to plan for, such as `"cpu"`, `"tpu:v5e"`, `"cuda:a100"`; None is the default backend. A chip that
      is not here is compiled for ahead of time, which needs the extra `jaxremat[tpu]` or `jaxremat[cuda]`.
    - `time_limit`, `gap`: seconds for each solve, and the relative gap at which it may stop.
    - `plan`: a plan made before for the same function and shapes; nothing is solved, and `budget` is not looked at.
    - `progress`: True to print what is being done to standard error, or a function that is given each message.

    **Returns:** a function like `jax.grad(fun)`, for eager calls, under `jax.jit` and inside other traced functions. Its
    `.plan(*args, **kwargs)` takes arrays or `jax.ShapeDtypeStruct`s and returns the `Plan` for them.

    **Raises:** when called, `BudgetError` if nothing that fits is found, `PlanMismatchError` if `plan` is for something
    else; at once, `TypeError` or `ValueError` naming an argument that is wrong. What `fun` and JAX raise passes through.

    >>> import jax.numpy as jnp, jaxremat
    >>> g = jaxremat.grad(lambda w: jnp.tanh(w).sum(), budget="1GiB")
    >>> g(jnp.zeros(2))
    Array([1., 1.], dtype=float32)
    """
    transform = functools.partial(
        jax.grad, argnums=argnums, has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int
    )
    options = checked_options(budget, solver, cost, target, time_limit, gap, progress)
    return budgeted(fun, transform, argnums, options, plan)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    budget: Budget = "auto",
    solver: str = "auto",
    cost: str | CostFunction = "auto",
    target: str | None = None,
    time_limit: float = 60.0,
    gap: float = 1e-4,
    plan: Plan | None = None,
    progress: Progress = False,
) -> Callable[..., Any]:
    """`jax.value_and_grad` within a memory budget. Keywords, result and errors are those of `jaxremat.grad`.

    >>> import jax.numpy as jnp, jaxremat
    >>> jaxremat.value_and_grad(lambda w: (w**2).sum(), budget=1.0)(jnp.ones(2))
    (Array(2., dtype=float32), Array([2., 2.], dtype=float32))
    """
    transform = functools.partial(
        jax.value_and_grad, argnums=argnums, has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int
    )
    options = checked_options(budget, solver, cost, target, time_limit, gap, progress)
    return budgeted(fun, transform, argnums, options, plan)


def remat(
    fun: Callable[..., Any],
    *,
    donate_argnums: int | Sequence[int] = (),
    budget: Budget = "auto",
    solver: str = "auto",
    cost: str | CostFunction = "auto",
    target: str | None = None,
    time_limit: float = 60.0,
    gap: float = 1e-4,
    plan: Plan | None = None,
    progress: Progress = False,
) -> Callable[..., Any]:
    """`fun` within a memory budget: any traceable function, such as a whole training step.

    `donate_argnums` are the positional arguments whose memory results may take over, as in `jax.jit`: what they share
    counts once. Inside another traced function nothing is donated. The other keywords, `.plan` and errors are those of
    `jaxremat.grad`.

    >>> import jax, jax.numpy as jnp, jaxremat
    >>> step = jaxremat.remat(lambda w: w - 0.5 * jax.grad(lambda w: (w**2).sum())(w), budget="1MB")
    >>> step(jnp.ones(2))
    Array([0., 0.], dtype=float32)
    """
    options = checked_options(budget, solver, cost, target, time_limit, gap, progress)
    return budgeted(fun, lambda f: f, (), options, plan, donate_argnums)


def budgeted(
    fun: Callable[..., Any],
    transform: Callable[[Callable[..., Any]], Callable[..., Any]],
    argnums: int | Sequence[int],
    options: Options,
    plan: Plan | None,
    donate_argnums: int | Sequence[int] = (),
    numbers: bool = True,
) -> Callable[..., Any]:
    """Give `transform(fun)` its budget. Without `numbers`, Python numbers are part of the function, as strings are."""
    if not callable(fun):
        raise TypeError(f"fun: expected a function, got {fun!r}")
    if plan is not None and not isinstance(plan, Plan):
        raise TypeError(f"plan: expected a jaxremat.Plan, got {plan!r}; Plan.load(path) reads a saved one")
    inner = _Budgeted(fun, transform, argnums, options, plan, _positions(donate_argnums), numbers)
    return named_after(inner.unbudgeted, inner.__call__, __wrapped__=fun, plan=inner.plan, unbudgeted=inner.unbudgeted)


def _positions(donate_argnums: Any) -> frozenset[int]:
    try:
        return frozenset(operator.index(k) for k in np.atleast_1d(np.asarray(donate_argnums, object)))
    except TypeError:
        raise TypeError(f"donate_argnums: expected an int or a sequence of ints, got {donate_argnums!r}") from None


def checked_options(
    budget: Budget = "auto",
    solver: str = "auto",
    cost: str | CostFunction = "auto",
    target: str | None = None,
    time_limit: float = 60.0,
    gap: float = 1e-4,
    progress: Progress = False,
) -> Options:
    """The keywords that all functions share; raises `TypeError` or `ValueError` naming the one that is wrong."""
    check_budget(budget)
    if solver not in SOLVERS:
        raise ValueError(f"solver: expected one of {', '.join(map(repr, SOLVERS))}, got {solver!r}")
    for name, value in (("time_limit", time_limit), ("gap", gap)):
        if isinstance(value, bool) or not isinstance(value, Real) or not value >= 0:
            raise ValueError(f"{name}: expected a number >= 0, got {value!r}")
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(f"progress: expected True, False or a function of a message, got {progress!r}")
    source_of(cost, Target.of(target))
    say = progress if callable(progress) else on_terminal if progress else None
    return Options(budget, solver, cost, target, float(time_limit), float(gap), say)


def named_after(fun: Callable[..., Any], run: Callable[..., Any], **attributes: Any) -> Callable[..., Any]:
    """`run` as a plain function with the name and docstring of `fun`, and `attributes`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    call.__doc__ = f"{getattr(fun, '__name__', 'A function')} within a memory budget, by jaxremat."

    if hasattr(fun, "__name__"):
        assigned = [name for name in functools.WRAPPER_ASSIGNMENTS if getattr(fun, name, None) is not None]
        functools.update_wrapper(call, fun, assigned, updated=())
    vars(call).update(attributes)
    return call


@dataclass(frozen=True)
class _Ready:
    """A traced call, its plan, and the program that runs it."""

    traced: Traced
    plan: Plan
    compiled: Compiled
    captured: tuple[Any, ...] = ()

    def run(self, arrays: Sequence[Any]) -> Any:
        """The results for the traced `arrays` of a call: compiled, or as part of an enclosing trace."""
        values = [*self.traced.program.consts, *arrays]
        traced = any(isinstance(v, jax.core.Tracer) for v in values)
        compiled = self.compiled.run if self.plan.target == jax.default_backend() else None
        if traced:
            return self.traced.results(self.traceable(*values), arrays)
        if compiled is None or any(map(_elsewhere, values)) or _checks_numbers():
            compiled = self.movable
        return self.traced.results(compiled(*values), arrays)

    @functools.cached_property
    def traceable(self) -> Callable[..., Any]:
        """The rewritten program for tracers."""
        return jax.jit(jex.jaxpr_as_fun(self.plan.jaxpr), inline=True)

    @functools.cached_property
    def movable(self) -> Callable[..., Any]:
        """The rewritten program for arrays on other devices, and as `jax.jit` runs it."""
        donated = sorted(self.traced.program.donated)
        return jax.jit(jex.jaxpr_as_fun(self.plan.jaxpr), donate_argnums=donated)


def _checks_numbers() -> bool:
    """Whether JAX looks for numbers that are none in what a program returns, and where they come from."""
    return jax.config.jax_debug_nans or jax.config.jax_debug_infs  # pyright: ignore[reportAttributeAccessIssue]


def _elsewhere(value: Any) -> bool:
    """Whether an array has to stay on devices other than the default one."""
    if not isinstance(value, jax.Array) or not getattr(value, "committed", False):
        return False
    return value.devices() != {jax.local_devices()[0]}


class _Budgeted:
    """A function with a budget: what it was traced and planned to, by signature and by program."""

    def __init__(
        self,
        fun: Callable[..., Any],
        transform: Callable[[Callable[..., Any]], Callable[..., Any]],
        argnums: int | Sequence[int],
        options: Options,
        plan: Plan | None,
        donated: frozenset[int],
        numbers: bool,
    ):
        self._fun, self.unbudgeted = fun, transform(fun)
        self._differentiated = frozenset(np.ravel(argnums).tolist())
        self._options, self._given, self._donated, self._numbers = options, plan, donated, numbers
        self._calls: dict[Hashable, _Ready] = {}
        self._plans: dict[str, Fitted] = {}
        self._static: dict[Any, frozenset[int]] = {}  # the leaves whose values the function needs
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]  # for debugging
            return self.unbudgeted(*args, **kwargs)
        call, ready = self._ready(args, kwargs)
        return ready.run(call.arrays)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments, arrays or `jax.ShapeDtypeStruct`s. Nothing is run."""
        with jax.disable_jit(False):
            return self._ready(args, kwargs)[1].plan

    def _ready(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Call, _Ready]:
        """What a call runs; traced and planned unless a call like it was before."""
        with self._lock:
            call = Call.of(args, kwargs, self._differentiated, self._static, self._numbers)
            key = call.key()
            ready = self._calls.get(key)
            if ready is not None and same(ready.captured, captures(self._fun)):
                return call, ready
            call, traced = self._trace(call, args, kwargs)
            fitted = self._fitted(traced.program)
            ready = _Ready(traced, fitted.plan, fitted.compiled, captures(self._fun))
            key = call.key()
            if key is not None and not traced.leaks:
                self._calls[key] = ready
            return call, ready

    def _trace(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Call, Traced]:
        """Trace the call; where that fails, with the values that the function needs of Python numbers, else of arrays."""

        def tried(needed: frozenset[int]) -> tuple[Call, Traced]:
            chosen = Call.of(args, kwargs, self._differentiated, {call.tree: needed}, self._numbers)
            return chosen, trace(self.unbudgeted, chosen, self._donated)

        try:
            return call, trace(self.unbudgeted, call, self._donated)
        except Exception as error:
            failure = error
        numbers, known = frozenset(call.numbers), frozenset(call.known if self._differentiated else ())
        for needed in filter(None, (numbers, known)):
            try:
                found = tried(needed)
            except Exception as error:
                failure = error
                continue
            for number in sorted(needed) if needed == numbers else ():
                with contextlib.suppress(Exception):
                    found, needed = tried(needed - {number}), needed - {number}
            self._static[call.tree] = needed
            return found
        raise failure

    def _fitted(self, program: Program) -> Fitted:
        """The plan for a program, made once."""
        if program.fingerprint not in self._plans:
            given = self._given
            found = planned(program, self._options) if given is None else follow(program, given)
            self._plans[program.fingerprint] = found
        return self._plans[program.fingerprint]
