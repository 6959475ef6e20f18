"""HiGHS, by way of scipy, in a process that is kept from one problem to the next."""

import contextlib
import math
import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from ._mip import Mip, Outcome

__all__ = ["Highs"]

_WORKER = Path(__file__).with_name("_highs_worker.py")
_GRACE = 0.7  # seconds that HiGHS may overrun its limit before its process is ended


class Highs:
    """A process that solves mixed integer programs, started at once and ended on leaving the `with` block.

    It is started afresh after it had to be ended or has come to an end by itself; the second failure is the last.
    """

    def __init__(self):
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._deadline = math.inf
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def solve(
        self, mip: Mip, seconds: float, *, gap: float = 0.0, nodes: int | None = None, relax: bool = False
    ) -> Outcome:
        """Minimises for at most `seconds`, and at most `nodes` nodes of the branch-and-bound tree.

        `relax=True` solves the LP relaxation.
        """
        self.submit(mip, seconds, gap=gap, nodes=nodes, relax=relax)
        return self.outcome()

    def submit(
        self, mip: Mip, seconds: float, *, gap: float = 0.0, nodes: int | None = None, relax: bool = False
    ) -> None:
        """As `solve`, but returns at once: `outcome` waits for the answer."""
        self._deadline = time.monotonic() + seconds
        if self._process is None and self._failures < 2:
            self._start()
        # The clock of `time.monotonic` is the system's: the process may still be starting up.
        problem = as_arrays(mip) | {"gap": gap, "nodes": nodes, "relax": relax, "deadline": self._deadline}
        with self._watched():
            self._send(pickle.dumps(problem))

    def outcome(self) -> Outcome:
        """What became of the problem submitted."""
        answer: dict = {"status": "failed", "message": "HiGHS could not be started or has failed before"}
        with self._watched():
            answer = self._receive()
        if answer["status"] == "failed":
            self._failures += 1
        bound = answer.get("bound")
        bound = -math.inf if bound is None or not math.isfinite(bound) else float(bound)
        return Outcome(answer["status"], answer.get("x"), bound, answer.get("message", ""))

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Ends the process when it does not do what is expected of it; what then follows finds none."""
        try:
            yield
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            self._failures += 1
            self._end()

    def _start(self) -> None:
        # -P: the folder of the script must not shadow what it imports.
        command = [sys.executable, "-P", str(_WORKER)]
        pipe, silence = subprocess.PIPE, subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=silence)
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        except OSError:
            self._failures += 1

    def _send(self, message: bytes) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        channel = self._process.stdin.fileno()
        rest = memoryview(len(message).to_bytes(8, "little") + message)
        while rest:
            _, ready, _ = select.select([], [channel], [], self._patience())
            if not ready:
                raise TimeoutError("HiGHS does not read")
            rest = rest[os.write(channel, rest) :]

    def _receive(self) -> dict:
        if self._process is None:
            raise EOFError("there is no process")
        assert self._process.stdout is not None
        channel, data = self._process.stdout.fileno(), b""
        while len(data) < 8 or len(data) < 8 + int.from_bytes(data[:8], "little"):
            ready, _, _ = select.select([channel], [], [], self._patience())
            if not ready:
                self._end()
                return {"status": "unknown", "message": "HiGHS did not stop in time"}
            part = os.read(channel, 1 << 20)
            if not part:
                raise EOFError("its process has ended")
            data += part
        answer = pickle.loads(data[8:])
        if not isinstance(answer, dict) or "status" not in answer:
            raise ValueError(f"{answer!r} makes no sense")
        return answer

    def _patience(self) -> float | None:
        return None if self._deadline == math.inf else max(0.0, self._deadline + _GRACE - time.monotonic())

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if stream is not None:
                        stream.close()


def as_arrays(mip: Mip) -> dict:
    """The problem as arrays, its rows in compressed form."""
    lengths = [len(columns) for columns, _, _, _ in mip.rows]
    right = np.array([right for _, _, _, right in mip.rows], dtype=float)
    sense = np.array([ord(sense) for _, _, sense, _ in mip.rows], dtype=np.int64)
    return {
        "cost": np.array(mip.cost, dtype=float),
        "lower": np.array(mip.lower, dtype=float),
        "upper": np.array(mip.upper, dtype=float),
        "integer": np.array(mip.integer, dtype=np.int64),
        "rows": np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32),
        "columns": np.array([c for columns, _, _, _ in mip.rows for c in columns], dtype=np.int32),
        "values": np.array([v for _, values, _, _ in mip.rows for v in values], dtype=float),
        "least": np.where(sense == ord("<"), -np.inf, right),
        "most": np.where(sense == ord(">"), np.inf, right),
    }
