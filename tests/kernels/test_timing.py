from __future__ import annotations

import time

import pytest
import torch

from braidwork.kernels.timing import Cost, Timing, compare, copy_bandwidth, matmul_peak


def test_compare_interleaves_and_orders_by_speed():
    order = []

    def slow():
        order.append("slow")
        time.sleep(4e-3)

    def fast():
        order.append("fast")
        time.sleep(1e-3)

    times = compare({"slow": slow, "fast": fast}, rounds=6, warmup=1, device="cpu")
    assert list(times) == ["slow", "fast"] and len(times["slow"].samples_s) == 6
    assert times["slow"].median_s >= 4e-3 and times["fast"].median_s >= 1e-3
    assert 1.5 < times.speedup("fast", over="slow") < 5
    assert times.speedup("fast", "slow", q=0.0) <= times.speedup("fast", "slow", q=1.0)
    # Two calls of each before the first round (one warm-up, one calibration), then the order rotates.
    assert order[4:8] == ["slow", "fast", "fast", "slow"]
    table = times.table(cost=Cost(bytes=1e6, flops=1e6))
    assert "GB/s" in table and "GFLOP/s" in table and "1.00x fast" in table


def test_short_calls_are_repeated_and_min_time_is_kept():
    calls = 0

    def tick():
        nonlocal calls
        calls += 1

    start = time.perf_counter()
    times = compare({"tick": tick}, rounds=1, min_time_s=0.05, device="cpu")
    assert time.perf_counter() - start >= 0.05
    assert calls > 10 * len(times["tick"].samples_s)
    assert times["tick"].best_s <= times["tick"].median_s < 1e-4


def test_flush_takes_one_call_a_sample():
    calls = 0

    def tick():
        nonlocal calls
        calls += 1

    compare({"tick": tick}, rounds=3, warmup=0, device="cpu", flush=True)
    assert calls == 4


def test_roofline():
    timing = Timing((2.0, 1.0, 3.0))
    cost = Cost(bytes=10e9, flops=4e9)
    assert timing.gb_per_s(cost) == pytest.approx(5.0)
    assert timing.gflop_per_s(cost) == pytest.approx(2.0)
    assert timing.roofline_share(cost, bandwidth=10e9) == pytest.approx(0.5)
    assert timing.roofline_share(cost, bandwidth=10e9, peak_flops=2e9) == pytest.approx(1.0)


def test_measured_limits_are_plausible():
    assert copy_bandwidth("cpu", 1 << 20) > 1e8
    assert matmul_peak("cpu", torch.float32, 64) > 1e8


@pytest.mark.parametrize("arguments", [{"calls": {}}, {"calls": {"x": lambda: None}, "rounds": 0}])
def test_bad_input(arguments):
    with pytest.raises(ValueError, match="calls|rounds"):
        compare(**arguments)
