"""The hardware profile and the settings derived from it."""

import os
import sys
from types import SimpleNamespace

import pytest

from mnemorank._internal import hardware
from mnemorank._internal.hardware import HardwareProfile, accelerator_budget, detect_hardware


def test_detects_the_hardware_of_this_process():
    profile = detect_hardware()
    assert 1 <= profile.cores <= (os.cpu_count() or 1)
    assert profile.memory_bytes is not None
    assert 2**28 < profile.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert profile.threads == profile.cores
    if profile.accelerator is None:
        assert (profile.device, profile.dtype) == ("cpu", "float32")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no CPU affinity")
def test_cores_follow_the_affinity_of_the_process():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert detect_hardware(accelerators=False).cores == 1
    finally:
        os.sched_setaffinity(0, before)


def test_the_cpu_quota_of_a_container_limits_the_cores(tmp_path, monkeypatch):
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(hardware, "_CGROUP_CPU_QUOTA", str(quota))
    for text, cores in (("50000 100000", 1), ("100000 100000", 1), ("9900000 100000", None), ("max 100000", None)):
        quota.write_text(text + "\n")
        assert detect_hardware(accelerators=False).cores == (cores or len(os.sched_getaffinity(0)))


def test_the_memory_limit_of_a_container_counts(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    limit.write_text("1073741824\n")
    monkeypatch.setattr(hardware, "_CGROUP_MEMORY_LIMITS", (str(limit),))
    small = detect_hardware(accelerators=False)
    assert small.memory_bytes == 2**30
    assert small.token_budget == 1024
    limit.write_text("max\n")
    assert (detect_hardware(accelerators=False).memory_bytes or 0) > 2**30


def test_no_import_of_torch_without_accelerators(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it would raise
    assert detect_hardware(accelerators=False).device == "cpu"


def test_a_broken_torch_falls_back_to_the_cpu(monkeypatch, caplog):
    monkeypatch.setattr(hardware, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "torch", None)
    assert detect_hardware().device == "cpu"
    assert "torch" in caplog.text


@pytest.mark.parametrize(
    ("gigabytes", "tokens"), [(1, 4096), (4, 8192), (8, 16384), (16, 32768), (24, 32768), (80, 65536)]
)
def test_the_batch_of_an_accelerator_grows_with_its_memory(gigabytes, tokens):
    assert accelerator_budget(gigabytes * 2**30) == tokens


def test_options_by_scorer_family():
    machine = HardwareProfile(8, device="cuda", dtype="float16", threads=8, token_budget=16384)
    assert machine.scorer_options("onnx") == {"threads": 8, "token_budget": 512}
    assert machine.scorer_options("yes-no") == {"device": "cuda", "dtype": "float16", "token_budget": 16384}
    assert machine.scorer_options("remote") == {}


@pytest.mark.parametrize(
    ("kind", "dtype", "gigabytes", "budget"), [("cuda", "float16", 24, 32768), ("mps", "float32", 8, 16384)]
)
def test_an_accelerator_decides_device_and_dtype(kind, dtype, gigabytes, budget, monkeypatch):
    """With a torch that pretends to have an accelerator."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: kind == "mps")
    card = SimpleNamespace(name="Card", total_memory=gigabytes * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: card)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: gigabytes * 2**30)
    profile = detect_hardware()
    assert (profile.accelerator, profile.device, profile.dtype, profile.token_budget) == (kind, kind, dtype, budget)
    assert profile.accelerator_bytes == gigabytes * 2**30
    assert detect_hardware(accelerators=False).device == "cpu"
