"""Detect the cores, memory and accelerator of this process, and derive settings from them."""

from __future__ import annotations

import ctypes
import logging
import math
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

# More than what a padded token of a batch takes on the accelerator, in any model of up to a few billion parameters.
_BYTES_PER_TOKEN = 2**19
_CGROUP_CPU_QUOTA = "/sys/fs/cgroup/cpu.max"
_CGROUP_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """The hardware of this process and the settings that suit it. Create one to override what `detect_hardware` finds.

    :param cores: the cores that this process may use; fewer than the machine has in many containers.
    :param memory_bytes: the memory of the machine or the limit of the container; None if unknown.
    :param accelerator: `cuda` or `mps` if torch is installed and finds one.
    :param device: where torch models run.
    :param dtype: the data type of torch models: float16 on CUDA, float32 elsewhere.
    :param threads: the number of batches that ONNX models run at the same time.
    :param token_budget: the padded tokens of a batch, which bounds the memory for pools of any size.
    """

    cores: int
    memory_bytes: int | None = None
    accelerator: str | None = None
    accelerator_name: str | None = None
    accelerator_bytes: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    token_budget: int = 2048

    def scorer_options(self, family: str) -> dict[str, Any]:
        """Return the options of this profile that scorers of a family accept."""
        if family == "onnx":
            return {"threads": self.threads, "token_budget": min(self.token_budget, 512)}
        if family in ("torch", "lora", "yes-no"):
            return {"device": self.device, "dtype": self.dtype, "token_budget": self.token_budget}
        return {}


def detect_hardware(*, accelerators: bool = True) -> HardwareProfile:
    """Return the profile of this machine.

    :param accelerators: look for an accelerator, which imports torch if it is installed (a second or two).
    """
    cores = available_cores()
    memory = _memory_bytes()
    accelerator = _find_accelerator() if accelerators else None
    if accelerator is None:
        # Larger batches are no faster on a CPU, and smaller ones suit a machine with little memory.
        budget = 1024 if memory is not None and memory < 2 * 2**30 else 2048
        return HardwareProfile(cores, memory, threads=cores, token_budget=budget)
    kind, name, size = accelerator
    return HardwareProfile(
        cores,
        memory,
        accelerator=kind,
        accelerator_name=name,
        accelerator_bytes=size,
        device=kind,
        dtype="float16" if kind == "cuda" else "float32",
        threads=cores,
        token_budget=accelerator_budget(size),
    )


def accelerator_budget(memory_bytes: int) -> int:
    """Return the tokens of a batch for an accelerator with this much memory: a power of two from 4096 to 65536."""
    tokens = min(max(memory_bytes // _BYTES_PER_TOKEN, 4096), 65536)
    return int(2 ** (tokens.bit_length() - 1))


def available_cores() -> int:
    """Return the number of cores that this process may use, which containers and `taskset` limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(_CGROUP_CPU_QUOTA).partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        return max(min(cores, math.ceil(int(quota) / int(period))), 1)
    return cores  # the quota is `max`, or there is none


def _memory_bytes() -> int | None:
    sizes = [size for size in (_machine_memory(), *map(_cgroup_memory, _CGROUP_MEMORY_LIMITS)) if size is not None]
    return min(sizes, default=None)


def _machine_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return None


def _cgroup_memory(path: str) -> int | None:
    text = _read(path)
    return int(text) if text.isdigit() else None  # `max` means no limit


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _find_accelerator() -> tuple[str, str, int] | None:
    if find_spec("torch") is None:
        return None
    try:
        import torch
    except (ImportError, OSError) as error:  # its native libraries do not load
        logger.warning("torch is installed but cannot be imported; using the CPU: %s", error)
        return None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return "cuda", properties.name, int(properties.total_memory)
    if torch.backends.mps.is_available():
        return "mps", "Apple GPU", int(torch.mps.recommended_max_memory())
    return None


def release_freed_memory() -> None:
    """Return freed memory to the operating system, where the C library (glibc) would otherwise keep it."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    trim(0)
