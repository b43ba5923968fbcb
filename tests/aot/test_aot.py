"""Every kernel compiles for GPUs that are not here, without spills, and with the loads and instructions it
declares.

The compilers run in a process of their own: what they set up must not leak into tests that run kernels, and
they must do without the CPU backend and without any GPU driver.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from braidwork.kernels import aot

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels are not compiled"
)

CASES = [] if os.environ.get("TRITON_INTERPRET") == "1" else aot.cases()
PAIRS = [(c.name, t) for c in CASES for t, gpu in aot.TARGETS.items() if gpu.backend in c.backends]


@pytest.fixture(scope="session")
def reports(tmp_path_factory):
    """The report of `python -m braidwork.kernels.aot`, by case and target."""
    path = tmp_path_factory.mktemp("aot") / "reports.json"
    command = [sys.executable, "-m", "braidwork.kernels.aot", "--json", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert path.exists(), result.stdout + result.stderr
    return {(r["case"], r["target"]): r for r in json.loads(path.read_text())}


@pytest.mark.parametrize(("case", "target"), PAIRS, ids=[f"{c}-{t}" for c, t in PAIRS])
def test_machine_code(reports, case, target):
    report = reports[case, target]
    assert not report["failures"], report
    assert 0 < report["registers"] <= (512 if target.startswith("gfx") else 255)
    # What one program may use: 163 KiB on sm_80, 227 KiB on sm_90 and sm_100, 64 KiB on gfx942.
    limit_kib = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "gfx942": 64}[target]
    assert report["shared_bytes"] <= limit_kib * 1024
    assert report["load_bits"], "a kernel that loads nothing"


def test_every_kernel_is_declared():
    assert aot.undeclared() == []
    assert len(aot.kernels()) >= 5


_DRIVERLESS = """
import sys
from triton.runtime.driver import driver
from braidwork.kernels import aot
[report] = aot.run(["sm_90"], only="multiply_add_relu-fp32", jobs=1)
assert report.load_bits, report
# The active driver is made on first use; compiling for a given target must not use it.
assert driver._active is None, driver._active
"""


def test_no_driver_is_opened(tmp_path):
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", _DRIVERLESS], capture_output=True, text=True, env=environment, timeout=120
    )
    assert result.returncode == 0, result.stderr
