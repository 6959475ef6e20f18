"""Ahead-of-time compilation for a chip that need not be here.

The compilers of TPU and GPU want an environment of their own, and they print. They therefore run in a process of their
own, one a chip, kept from one program to the next, which is sent an exported program and sends back what the compiler
says of it. The caller's flags, environment, devices and output stay as they are.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import jax

from jaxremat._chips import Chip

_WORKER = Path(__file__).with_name("_aot_worker.py")
_PYTHON = "JAXREMAT_AOT_PYTHON"  # an interpreter whose environment has the wheels, where this one's has not
_WHEELS = {"tpu": ("libtpu", "flatbuffers"), "cuda": ("jax_cuda12_plugin", "nvidia.cuda_nvcc", "flatbuffers")}


class CompilationError(RuntimeError):
    """What the compiler for another chip raised."""


def check_available(chip: Chip) -> None:
    """Raise `ValueError` naming the extra to install, unless what compiling for `chip` needs is there."""
    if os.environ.get(_PYTHON):
        return
    missing = [name for name in _WHEELS[chip.platform] if not _found(name)]
    if missing:
        raise ValueError(
            f"target: compiling for {chip.name!r} needs {', '.join(missing)}; pip install 'jaxremat[{chip.platform}]'"
        )


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@functools.cache
def _compiler(chip: Chip, process: int) -> Compiler:
    return Compiler(chip)


def compiler(chip: Chip) -> Compiler:
    """This process's compiler for `chip`."""
    return _compiler(chip, os.getpid())


class Compiler:
    """A process that compiles for one chip, started when first needed, and again after it has failed."""

    def __init__(self, chip: Chip):
        self._chip = chip
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._identity = ""
        self._lock = threading.Lock()
        atexit.register(self.end)

    @property
    def identity(self) -> str:
        """The packages that the compiler consists of, with their versions. Raises `CompilationError`."""
        with self._lock:
            self._running()
            return self._identity

    def compile(
        self,
        exported: bytes,
        donated: Sequence[int] = (),
        *,
        text: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The `memory`, the cost `analysis` and, on demand, the scheduled HLO `text` of an exported program.

        `donated` are the numbers of the arguments whose memory results may take over.
        Raises `CompilationError` with what the compiler says.
        """
        with self._lock:
            self._running()
            answer = self._ask(
                {"exported": exported, "donated": tuple(donated), "text": text, "options": dict(options or {})}
            )
        if "error" in answer:
            raise CompilationError(answer["error"])
        return answer

    def _running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self._start()

    def _start(self) -> None:
        self.end()
        chip = self._chip
        command = [os.environ.get(_PYTHON) or sys.executable, "-P", str(_WORKER)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "TPU_"))}
        environment |= {"JAX_PLATFORMS": "cpu"} | dict(chip.environment)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `end`
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, env=environment)
        plain = {"platform": chip.platform, "topology": dict(chip.topology), "options": dict(chip.options)}
        answer = self._ask(plain)
        if "error" in answer:
            self.end()
            raise CompilationError(f"the compiler for {chip.name} does not start: {answer['error']}")
        if answer["version"] != jax.__version__:
            self.end()
            raise CompilationError(
                f"{_PYTHON}: its environment has jax {answer['version']}, this process has {jax.__version__}"
            )
        self._identity = answer["packages"]

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(message, process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            said = self._tail()
            self.end()
            raise CompilationError(f"the compiler for {self._chip.name} ended unexpectedly. It said: {said}") from None
        except BaseException:
            self.end()  # a question without its answer read: the next would get the wrong one
            raise

    def _tail(self) -> str:
        assert self._log is not None
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        return self._log.read().decode(errors="replace").strip() or "nothing"

    def end(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, self._log):
                with contextlib.suppress(OSError):
                    if stream is not None:
                        stream.close()
