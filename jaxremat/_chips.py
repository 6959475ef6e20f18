"""The chips that a plan can be made for without having one: what XLA must be told, and how fast and large they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_GPU = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64 shared_memory_per_block: 49152
  cuda_compute_capability {{ major: {major} minor: 0 }}
  core_count: {cores} fpus_per_core: {fpus} shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {optin} memory_bandwidth: {bandwidth} l2_cache_size: {cache}
  clock_rate_ghz: {clock} device_memory_size: {memory}
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }} device_description_str: "{name}"
"""


@dataclass(frozen=True)
class Chip:
    """A chip: `platform` is "tpu" or "cuda"; `memory` in bytes, `bandwidth` in bytes and `flops` in operations a second.

    `topology` are the keywords that `jax.experimental.topologies.get_topology_desc` describes one such chip by,
    `environment` what the compiler needs to find in its environment, `options` compiler options that make it tell the
    program's own memory: no rematerialization by XLA, and everything in main memory.
    """

    name: str
    platform: str
    memory: int
    bandwidth: float
    flops: float
    topology: MappingProxyType[str, Any] = field(hash=False, compare=False)
    environment: MappingProxyType[str, str] = field(hash=False, compare=False)
    options: MappingProxyType[str, Any] = field(hash=False, compare=False)


def _tpu(kind: str, accelerator: str, gibibytes: float, bandwidth: float, flops: float) -> Chip:
    dimensions = 3 if kind in ("v4", "v5p") else 2
    topology = {"platform": "tpu", "topology_name": f"{kind}:" + "x".join("1" * dimensions)}
    environment = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": accelerator,
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_LOG_DIR": "disabled",
        "TPU_STDERR_LOG_LEVEL": "3",
        "TPU_MIN_LOG_LEVEL": "3",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    options = {"xla_vf_vmem_memory_space_assignment": False, "exec_time_optimization_effort": -1.0}
    return Chip(
        f"tpu:{kind}",
        "tpu",
        int(gibibytes * 2**30),
        bandwidth,
        flops,
        MappingProxyType(topology | {"chips_per_host_bounds": [1, 1, 1]}),
        MappingProxyType(environment),
        MappingProxyType(options),
    )


def _cuda(kind: str, flops: float, **figures: Any) -> Chip:
    config = _GPU.format(name=kind.upper(), **figures)
    topology = {"platform": "cuda", "topology_name": "", "target_config": config, "topology": "1x1x1"}
    return Chip(
        f"cuda:{kind}",
        "cuda",
        figures["memory"],
        figures["bandwidth"],
        flops,
        MappingProxyType(topology),
        MappingProxyType({}),
        MappingProxyType({"xla_disable_hlo_passes": "rematerialization"}),
    )


CHIPS = {
    chip.name: chip
    for chip in (
        _tpu("v4", "v4-8", 30.75, 1.2e12, 2.75e14),
        _tpu("v5e", "v5litepod-1", 15.75, 8.19e11, 1.97e14),
        _tpu("v5p", "v5p-8", 94.75, 2.765e12, 4.59e14),
        _tpu("v6e", "v6e-1", 31.25, 1.64e12, 9.18e14),
        _cuda(
            "v100",
            1.57e13,
            major=7,
            cores=80,
            fpus=64,
            shared=98304,
            optin=98304,
            bandwidth=898048000000,
            cache=6291456,
            clock=1.53,
            memory=16935682048,
        ),
        _cuda(
            "a100",
            1.56e14,
            major=8,
            cores=108,
            fpus=64,
            shared=167936,
            optin=166912,
            bandwidth=2039040000000,
            cache=41943040,
            clock=1.41,
            memory=85100068864,
        ),
        _cuda(
            "h100",
            4.95e14,
            major=9,
            cores=132,
            fpus=128,
            shared=233472,
            optin=232448,
            bandwidth=3352320000000,
            cache=52428800,
            clock=1.98,
            memory=84942979072,
        ),
    )
}

# Of each platform, the chip that programs too large for another one are compiled for.
ROOMIEST = {chip.platform: chip.name for chip in sorted(CHIPS.values(), key=lambda chip: chip.memory)}
