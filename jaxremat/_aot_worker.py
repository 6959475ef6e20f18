"""Compiles programs for one chip that need not be here, in a process of its own.

A script, not a module to import. Its environment is what the compiler needs, which is not what the caller's process
has. The first message is the chip, as a dict; then programs come in one after another, exported by `jax.export`, and
what the compiler says of each goes out. Messages are pickles.
"""

import importlib
import importlib.metadata
import os
import pickle
import sys
from typing import Any


def main() -> None:
    # What the compiler prints goes to standard error; answers keep the real standard output.
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with channel:
        compiler = None
        while True:
            try:
                message = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            try:
                if compiler is None:
                    compiler = Compiler(message)
                    answer = {"version": compiler.version, "packages": _packages()}
                else:
                    answer = compiler.compile(**message)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            pickle.dump(answer, channel)
            channel.flush()


class Compiler:
    def __init__(self, chip: dict[str, Any]):
        if chip["platform"] == "cuda":
            _find_nvcc()
        import jax
        from jax.experimental import topologies

        jax.config.update("jax_enable_x64", True)  # a program's own types are what counts
        self.version = jax.__version__
        self.platform = chip["platform"]
        self.options = dict(chip["options"])
        device = topologies.get_topology_desc(**chip["topology"]).devices[0]
        self.sharding = jax.sharding.SingleDeviceSharding(device)
        self.latest: tuple[Any, Any] = (None, None)  # what was asked for, and the compiled program

    def compile(self, text: bool, **program: Any) -> dict[str, Any]:
        if self.latest[0] != program:
            self.latest = (program, self._compiled(**program))
        compiled = self.latest[1]
        stats = compiled.memory_analysis()
        analysis = compiled.cost_analysis() or {}
        return {
            "memory": {
                "arguments": stats.argument_size_in_bytes,
                "outputs": stats.output_size_in_bytes,
                "temporaries": stats.temp_size_in_bytes,
                "aliased": stats.alias_size_in_bytes,
            },
            "analysis": analysis[0] if isinstance(analysis, list) else analysis,
            "text": compiled.as_text() if text else None,
        }

    def _compiled(self, exported: bytes, donated: tuple[int, ...], options: dict[str, Any]) -> Any:
        import jax

        program = jax.export.deserialize(bytearray(exported))
        structs = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type, sharding=self.sharding)
            for a in program.in_avals
        ]
        args, kwargs = jax.tree.unflatten(program.in_tree, structs)
        traced = jax.jit(program.call, keep_unused=True, donate_argnums=donated).trace(*args, **kwargs)
        lowered = traced.lower(lowering_platforms=(self.platform,))
        # With the chip's options, less those that this version of the compiler does not know.
        while True:
            try:
                return lowered.compile(compiler_options=self.options | options or None)
            except jax.errors.JaxRuntimeError as error:
                known = [name for name in self.options if "No such compile option" in str(error) and name in str(error)]
                if not known:
                    raise
                del self.options[known[0]]


def _packages() -> str:
    """What the compilers consist of, with their versions."""
    found = ((dist.name.lower(), dist.version) for dist in importlib.metadata.distributions())
    return " ".join(
        sorted(f"{name}-{version}" for name, version in found if name.startswith(("jax", "libtpu", "nvidia")))
    )


def _find_nvcc() -> None:
    """Tell XLA where the wheel that brings ptxas and libdevice lies, unless it was told already."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_cuda_data_dir" in flags:
        return
    for folder in importlib.import_module("nvidia").__path__:
        if os.path.isdir(os.path.join(folder, "cuda_nvcc")):
            os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_cuda_data_dir={os.path.join(folder, 'cuda_nvcc')}".strip()
            return
    raise ModuleNotFoundError("No module named 'nvidia.cuda_nvcc'")


if __name__ == "__main__":
    main()
