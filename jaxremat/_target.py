"""The machine a plan is for: compile for it, measure the peak, read the compiler's estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax

from jaxremat._aot import CompilationError, check_available, compiler
from jaxremat._chips import CHIPS, ROOMIEST, Chip

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
class Compiled:
    """A compiled program: its memory, the compiler's counts and, where it can run in this process, itself.

    `hlo` gives the scheduled program of the compiler, as text.
    """

    memory: Memory
    analysis: Mapping[str, float]
    hlo: Callable[[], str]
    run: Callable[..., Any] | None = None

    @property
    def flops(self) -> float:
        """Floating-point operations, by the compiler's own count."""
        return max(0.0, self.analysis.get("flops", 0.0))


class _Exported(NamedTuple):
    """A program for a compiler in another process, and the numbers of its donated arguments."""

    program: bytes
    donated: tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """A platform to plan for: "cpu", or "tpu:v5e" for example, whose `chip` need not be in this machine."""

    name: str
    platform: str
    chip: Chip | None = None

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
            raise TypeError(f"target: expected None or a name such as 'cpu' or 'tpu:v5e', got {target!r}")
        if target in CHIPS:
            check_available(CHIPS[target])
            return cls(target, CHIPS[target].platform, CHIPS[target])
        if target not in {"cpu", here}:
            known = ", ".join(map(repr, sorted({"cpu", here, *CHIPS})))
            raise ValueError(f"target: expected None or one of {known}, got {target!r}")
        return cls(target, target)

    @property
    def here(self) -> bool:
        """Whether it is what programs run on in this process."""
        return self.chip is None and self.platform == jax.default_backend()

    @property
    def identity(self) -> str:
        """The device and its compiler, with their versions."""
        if self.chip is not None:
            return f"{self.name} {compiler(self.chip).identity}"
        device = jax.local_devices(backend=self.platform)[0]
        return f"{device.device_kind} {device.client.platform_version}"

    @property
    def memory(self) -> int | None:
        """Bytes of memory of a chip that need not be here; None for the devices of this process."""
        return None if self.chip is None else self.chip.memory

    def lower(
        self, fun: Callable[..., Any], structs: Sequence[jax.ShapeDtypeStruct], donated: Iterable[int] = ()
    ) -> Any:
        """`fun` lowered for this target, as `jax.jit(fun).lower(...)`, under the settings of the calling thread.

        `donated` are the numbers of the arguments whose memory results may take over.
        """
        jitted = jax.jit(fun, keep_unused=True, donate_argnums=tuple(sorted(donated)))
        if self.chip is not None:
            exported = jax.export.export(jitted, platforms=(self.platform,))(*structs)
            return _Exported(bytes(exported.serialize()), tuple(sorted(donated)))
        with jax.default_device(jax.local_devices(backend=self.platform)[0]):
            return jitted.lower(*structs)

    def compile(
        self, fun: Callable[..., Any], structs: Sequence[jax.ShapeDtypeStruct], donated: Iterable[int] = ()
    ) -> Compiled:
        """`fun` compiled for this target, as `jax.jit(fun).lower(...).compile()`."""
        return self.finish(self.lower(fun, structs, donated))

    def finish(self, lowered: Any, quick: bool = False) -> Compiled:
        """What `lower` gave, compiled; may run on any thread.

        With `quick` its machine code is not optimised, which changes nothing about its memory.
        """
        if self.chip is not None:
            return _compiled_for(self.chip, lowered)
        options = _QUICK.get(self.platform) if quick else None
        try:
            return _compiled_here(lowered.compile(compiler_options=options))
        except jax.errors.JaxRuntimeError as error:
            if options is None or "No such compile option" not in str(error):
                raise
            return _compiled_here(lowered.compile())


def _compiled_here(compiled: Any) -> Compiled:
    stats = compiled.memory_analysis()
    memory = Memory(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        aliased=stats.alias_size_in_bytes,
    )
    return Compiled(memory, analysis_of(compiled), compiled.as_text, compiled)


def _compiled_for(chip: Chip, exported: _Exported) -> Compiled:
    """Compiled for `chip`; a program that its compiler refuses for want of memory, for the roomiest chip of the family.

    What that program takes is then what the roomiest chip's takes, and in any case more than `chip` has.
    """
    try:
        return _compiled_elsewhere(chip, exported)
    except CompilationError as error:
        roomiest = CHIPS[ROOMIEST[chip.platform]]
        if "RESOURCE_EXHAUSTED" not in str(error) or roomiest.memory <= chip.memory:
            raise
    found = _compiled_elsewhere(roomiest, exported)
    missing = chip.memory + 1 - found.memory.peak
    return replace(found, memory=replace(found.memory, temporaries=found.memory.temporaries + max(0, missing)))


def _compiled_elsewhere(chip: Chip, exported: _Exported) -> Compiled:
    answer = compiler(chip).compile(*exported)
    return Compiled(Memory(**answer["memory"]), answer["analysis"], partial(_hlo, chip, exported))


def _hlo(chip: Chip, exported: _Exported) -> str:
    return compiler(chip).compile(*exported, text=True)["text"]


def analysis_of(stage: Any) -> dict[str, float]:
    """XLA's counts of operations and bytes for a lowered or compiled program."""
    analysis = stage.cost_analysis() or {}
    return analysis[0] if isinstance(analysis, list) else analysis
