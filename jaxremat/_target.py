"""The machine a plan is for: compile for it, measure the peak, read the compiler's estimates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

# Options that save compile time where only memory is looked at. A version of XLA may not know them.
_QUICK: dict[str, dict[str, Any]] = {
    "cpu": {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
}


@dataclass(frozen=True)
class Memory:
    """Bytes of a compiled program on one device, as `memory_analysis()` gives them."""

    arguments: int
    outputs: int
    temporaries: int
    aliased: int

    @property
    def peak(self) -> int:
        """What an allocator must find: arguments, outputs and temporaries, less what they share."""
        return self.arguments + self.outputs + self.temporaries - self.aliased


@dataclass(frozen=True)
class Target:
    """A platform to plan for, "cpu" for example."""

    name: str
    platform: str

    @classmethod
    def of(cls, target: str | Target | None) -> Target:
        """The target of this name; None is the default backend's own.

        Raises `ValueError` for a target that cannot be compiled for here, `TypeError` where it is not a string.
        """
        if isinstance(target, Target):
            return target
        here = jax.default_backend()
        if target is None:
            return cls(here, here)
        if not isinstance(target, str):
            raise TypeError(f"target: expected None or a name such as 'cpu', got {target!r}")
        if target not in {"cpu", here}:
            known = " or ".join(map(repr, sorted({"cpu", here})))
            raise ValueError(f"target: cannot compile for {target!r} here; use None or {known}")
        return cls(target, target)

    def lower(self, fun: Callable[..., Any], structs: Sequence[jax.ShapeDtypeStruct]) -> Any:
        """`fun` lowered for this target, as `jax.jit(fun).lower(...)`, under the settings of the calling thread."""
        with jax.default_device(jax.local_devices(backend=self.platform)[0]):
            return jax.jit(fun, keep_unused=True).lower(*structs)

    def compile(self, fun: Callable[..., Any], structs: Sequence[jax.ShapeDtypeStruct]) -> Any:
        """`fun` compiled for this target, as `jax.jit(fun).lower(...).compile()`."""
        return self.finish(self.lower(fun, structs))

    def finish(self, lowered: Any, quick: bool = False) -> Any:
        """What `lower` gave, compiled; may run on any thread.

        With `quick` its machine code is not optimised, which changes nothing about its memory.
        """
        options = _QUICK.get(self.platform) if quick else None
        try:
            return lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            if options is None or "No such compile option" not in str(error):
                raise
            return lowered.compile()


def memory_of(compiled: Any) -> Memory:
    """The bytes of a compiled program."""
    stats = compiled.memory_analysis()
    return Memory(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        aliased=stats.alias_size_in_bytes,
    )


def flops_of(compiled: Any) -> float:
    """Floating-point operations of a compiled program, by XLA's own count."""
    return max(0.0, _analysis(compiled).get("flops", 0.0))


def bytes_accessed(compiled: Any) -> float:
    """Bytes that a compiled program reads and writes, by XLA's own count."""
    return max(0.0, _analysis(compiled).get("bytes accessed", 0.0))


def _analysis(compiled: Any) -> dict[str, float]:
    analysis = compiled.cost_analysis() or {}
    return analysis[0] if isinstance(analysis, list) else analysis
