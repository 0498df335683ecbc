"""A short version of benchmarks/soak.py, which runs for an hour: all routes, feedback, swaps and a learning run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"
# Not the latencies, which depend on what else the machine does.
EXPECTED = ("no failures", "flat memory", "flat file descriptors", "training run done", "swaps")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_soak_of_a_minute(simulation_base, tmp_path):
    from mnemorank.export.exporter import export

    export(simulation_base, tmp_path / "models" / "tiny", quantize="int8")
    arguments = [
        "--model",
        str(tmp_path / "models" / "tiny"),
        "--minutes",
        "1.2",
        "--rate",
        "40",
        "--swap-seconds",
        "4",
    ]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=280, check=False
    )
    failed = [name for name in EXPECTED if f"ok: {name}" not in done.stdout]
    assert not failed, f"{done.stdout}\n{done.stderr[-3000:]}"
