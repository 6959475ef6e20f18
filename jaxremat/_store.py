"""What is kept from one process to the next: measured costs and plans, in the user's cache folder.

`JAXREMAT_CACHE` names another folder, or switches it off (`JAXREMAT_CACHE=off`). One file an entry, replaced whole, so
any number of processes may read and write. A file that is damaged, or a folder that cannot be written, is as good as none.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jaxlib
import platformdirs

_FOLDER = "JAXREMAT_CACHE"
_OFF = {"off", "0", "no", "false", "none"}
_MOST = {"costs": 20_000, "plans": 200}  # entries of each kind; the oldest go

# Settings of JAX that change what a program compiles to and that its equations do not show.
_SETTINGS = """
jax_default_matmul_precision jax_enable_x64 jax_threefry_partitionable jax_threefry_gpu_kernel_lowering
jax_exec_time_optimization_effort jax_memory_fitting_effort jax_disable_most_optimizations
""".split()


def folder() -> Path | None:
    """Where entries are kept; None if they are not to be."""
    named = os.environ.get(_FOLDER)
    if named is None:
        return Path(platformdirs.user_cache_dir("jaxremat"))
    return None if named.strip().lower() in _OFF or not named.strip() else Path(named).expanduser()


def read(kind: str, key: str) -> Any:
    """What was written for `key`; None if nothing was, or it cannot be read."""
    root = folder()
    if root is None:
        return None
    try:
        check, _, text = _path(root, kind, key).read_text(encoding="utf-8").partition("\n")
        return json.loads(text) if check == _hash(text) else None
    except (OSError, ValueError):
        return None


def write(kind: str, entries: Mapping[str, Any]) -> None:
    """Keep each of `entries`, from its key to what JSON can hold. Does nothing where that is not possible."""
    root = folder()
    if root is None or not entries:
        return
    with contextlib.suppress(OSError):
        (root / kind).mkdir(parents=True, exist_ok=True)
        for key, value in entries.items():
            text = json.dumps(value)
            replace(_path(root, kind, key), f"{_hash(text)}\n{text}")
        _prune(root / kind, _MOST[kind])


def replace(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all. Raises `OSError`."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _path(root: Path, kind: str, key: str) -> Path:
    return root / kind / f"{_hash(key)}.json"


def _prune(entries: Path, most: int) -> None:
    """Delete the entries that were written first, and what a killed process left half written, beyond `most` files."""
    paths = list(entries.iterdir())
    if len(paths) > most:
        for path in sorted(paths, key=_written)[: len(paths) - most * 9 // 10]:
            path.unlink(missing_ok=True)


def _written(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def environment(device: str) -> str:
    """A part of keys: everything beside the program that what is measured of it depends on.

    Versions, this package's own code, the `device` (`Target.identity`) and the machine, and the settings of XLA and JAX.
    """
    settings = [f"{name}={getattr(jax.config, name, None)}" for name in _SETTINGS]
    flags = [f"{name}={os.environ.get(name, '')}" for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    return "|".join([_code(), _machine(), device, *settings, *flags])


@functools.cache
def _code() -> str:
    """The versions of JAX and of this package; the latter by its text, so that a change makes no stale entries."""
    texts = (path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py")))
    return f"jax {jax.__version__} jaxlib {jaxlib.__version__} jaxremat {_hash(texts)}"


@functools.cache
def _machine() -> str:
    """The processor and how many cores of it this process may use."""
    model = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line for line in lines if line.startswith("model name")), model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.machine()} {model} {cores}"


def _hash(text: str | Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in [text.encode()] if isinstance(text, str) else text:
        digest.update(part)
    return digest.hexdigest()
