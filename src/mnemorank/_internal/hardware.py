"""What this process may use (cores, memory, accelerator) and the settings that follow from it."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

# A padded token of a batch takes well under this much memory on the accelerator, in any model up to some billions.
_BYTES_A_TOKEN = 2**19
_CGROUP_CORES = "/sys/fs/cgroup/cpu.max"
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """What there is and how to use it. Make one by hand to overrule what `profile` finds.

    :param cores: cores this process may use, which in a container are fewer than the machine has.
    :param memory_bytes: the machine's memory or the container's limit, whichever is less; None where unknown.
    :param accelerator: `cuda` or `mps` where torch is installed and finds one.
    :param device: where torch models run.
    :param dtype: what torch models compute in: float16 on CUDA, float32 elsewhere.
    :param threads: batches that ONNX models run at once.
    :param token_budget: padded tokens in a batch, which bounds memory whatever the pool.
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
        """The options of this profile that a scorer of the family takes."""
        if family == "onnx":
            return {"threads": self.threads, "token_budget": min(self.token_budget, 512)}
        if family in ("torch", "lora", "yes-no"):
            return {"device": self.device, "dtype": self.dtype, "token_budget": self.token_budget}
        return {}


def profile(*, accelerators: bool = True) -> HardwareProfile:
    """Look at the machine.

    :param accelerators: look for one, which imports torch where it is installed (a second or two).
    """
    cores = available_cores()
    memory = _memory_bytes()
    found = _accelerator() if accelerators else None
    if found is None:
        # Larger batches are no faster on a CPU; smaller ones keep a small machine out of trouble.
        budget = 1024 if memory is not None and memory < 2 * 2**30 else 2048
        return HardwareProfile(cores, memory, threads=cores, token_budget=budget)
    kind, name, size = found
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
    """Tokens in a batch for an accelerator of this size: a power of two from 4096 to 65536."""
    tokens = min(max(memory_bytes // _BYTES_A_TOKEN, 4096), 65536)
    return int(2 ** (tokens.bit_length() - 1))


def available_cores() -> int:
    """Cores this process may use, which in a container or under taskset are fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(_CGROUP_CORES).partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        return max(min(cores, math.ceil(int(quota) / int(period))), 1)
    return cores  # the quota is `max`, or this is no container


def _memory_bytes() -> int | None:
    sizes = [size for size in (_machine_memory(), *map(_cgroup_limit, _CGROUP_LIMITS)) if size is not None]
    return min(sizes, default=None)


def _machine_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return None


def _cgroup_limit(path: str) -> int | None:
    text = _read(path)
    return int(text) if text.isdigit() else None  # `max` is no limit


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _accelerator() -> tuple[str, str, int] | None:
    if find_spec("torch") is None:
        return None
    try:
        import torch
    except (ImportError, OSError) as error:  # a torch whose libraries do not load
        logger.warning("torch is installed but cannot be imported, so no accelerator is used: %s", error)
        return None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return "cuda", properties.name, int(properties.total_memory)
    if torch.backends.mps.is_available():
        return "mps", "Apple GPU", int(torch.mps.recommended_max_memory())
    return None
