"""The one timer of the project.

Everything that is compared is timed in one process, in turns: a round runs each callable once, rounds rotate
the order, and what is reported is the median over rounds, so that a slow spell of the machine hits every
callable alike. Ratios are formed round by round before the median is taken.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

# A sample shorter than this is dominated by the clock and the loop around it.
_SHORTEST_SAMPLE_S = 2e-4
# More than the last-level cache of the GPUs the project runs on (H200: 50 MB, MI300X: 256 MB).
_FLUSH_BYTES = 512 << 20


@dataclass(frozen=True)
class Cost:
    """Work of one call: bytes that must move to or from memory, floating-point operations."""

    bytes: float = 0.0
    flops: float = 0.0

    def bound_s(self, bandwidth: float, peak_flops: float = math.inf) -> float:
        """Least time of the roofline model, s, at `bandwidth` in bytes/s and `peak_flops` in operations/s."""
        return max(self.bytes / bandwidth, self.flops / peak_flops)


@dataclass(frozen=True)
class Timing:
    """Times of one callable, in seconds for one call; `samples_s` is in the order of the rounds."""

    samples_s: tuple[float, ...]

    def quantile_s(self, q: float) -> float:
        return float(np.quantile(self.samples_s, q))

    @property
    def median_s(self) -> float:
        return self.quantile_s(0.5)

    @property
    def best_s(self) -> float:
        return min(self.samples_s)

    def gb_per_s(self, cost: Cost) -> float:
        """Achieved memory throughput, 1e9 bytes/s."""
        return cost.bytes / self.median_s / 1e9

    def gflop_per_s(self, cost: Cost) -> float:
        """Achieved arithmetic throughput, 1e9 operations/s."""
        return cost.flops / self.median_s / 1e9

    def roofline_share(self, cost: Cost, bandwidth: float, peak_flops: float = math.inf) -> float:
        """Least possible time over the measured one (above 1 the data came out of a cache)."""
        return cost.bound_s(bandwidth, peak_flops) / self.median_s


class Comparison(Mapping[str, Timing]):
    """Timings by name, measured in the same rounds."""

    def __init__(self, timings: Mapping[str, Timing]):
        self._timings = dict(timings)

    def __getitem__(self, name: str) -> Timing:
        return self._timings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._timings)

    def __len__(self) -> int:
        return len(self._timings)

    def speedup(self, name: str, over: str, q: float = 0.5) -> float:
        """How many times faster `name` is than `over`: quantile `q` of the ratios formed in each round."""
        ours, theirs = self[name].samples_s, self[over].samples_s
        return float(np.quantile(np.divide(theirs, ours), q))

    def table(self, over: str | None = None, cost: Cost | None = None) -> str:
        """Median, 20% and 80% quantiles and the speed relative to `over` (default: the last), as text."""
        over = over if over is not None else list(self)[-1]
        lines = []
        for name, timing in self.items():
            line = (
                f"{name:<24} {timing.median_s * 1e3:10.4f} ms "
                f"[{timing.quantile_s(0.2) * 1e3:.4f}, {timing.quantile_s(0.8) * 1e3:.4f}]"
                f"  {self.speedup(name, over):6.2f}x {over}"
            )
            if cost is not None and cost.bytes:
                line += f"  {timing.gb_per_s(cost):8.2f} GB/s"
            if cost is not None and cost.flops:
                line += f"  {timing.gflop_per_s(cost):8.1f} GFLOP/s"
            lines.append(line)
        return "\n".join(lines)


class _CpuSampler:
    """Wall time of a call; a call too short for the clock is repeated within a sample."""

    def __init__(self, flush: bool):
        self._buffer = torch.empty(64 << 20, dtype=torch.uint8) if flush else None
        self._repeats: dict[str, int] = {}

    def calibrate(self, name: str, call: Callable[[], object]) -> None:
        start = time.perf_counter()
        call()
        once = time.perf_counter() - start
        short = once < _SHORTEST_SAMPLE_S and self._buffer is None
        self._repeats[name] = math.ceil(_SHORTEST_SAMPLE_S / max(once, 1e-7)) if short else 1

    def sample(self, name: str, call: Callable[[], object]) -> Callable[[], float]:
        if self._buffer is not None:
            self._buffer.zero_()
        repeats = range(self._repeats[name])
        start = time.perf_counter()
        for _ in repeats:
            call()
        seconds = (time.perf_counter() - start) / len(repeats)
        return lambda: seconds


class _GpuSampler:
    """Device time of a call between two events, the L2 cache flushed before it."""

    def __init__(self, device: torch.device, flush: bool):
        self._device = device
        self._buffer = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device) if flush else None

    def calibrate(self, name: str, call: Callable[[], object]) -> None:
        call()
        torch.cuda.synchronize(self._device)

    def sample(self, name: str, call: Callable[[], object]) -> Callable[[], float]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if self._buffer is not None:
            self._buffer.zero_()
        start.record()
        call()
        end.record()

        def seconds() -> float:
            end.synchronize()
            return start.elapsed_time(end) / 1e3

        return seconds


def compare(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 20,
    min_time_s: float = 0.0,
    warmup: int = 2,
    device: torch.device | str | None = None,
    flush: bool | None = None,
) -> Comparison:
    """Time several callables of no argument against each other.

    Args:
        calls: the callables, by name. Their output must have been checked before.
        rounds: least number of rounds; each callable gives one sample a round.
        min_time_s: rounds go on until this much time has gone into them.
        warmup: untimed calls of each before the first round (compilation, first touch of memory).
        device: where the work runs; by default the GPU if there is one. A GPU is timed by events on its
            current stream.
        flush: overwrite the caches before every sample; by default only on a GPU, where a small input would
            otherwise stay in L2.

    Returns:
        The timings, in seconds a call.

    Raises:
        ValueError: no callable, or fewer than one round.
    """
    if not calls:
        raise ValueError("calls: need at least one callable")
    if rounds < 1:
        raise ValueError(f"rounds: need at least 1, got {rounds}")
    where = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = where.type == "cuda"
    flush = on_gpu if flush is None else flush
    sampler = _GpuSampler(where, flush) if on_gpu else _CpuSampler(flush)
    for name, call in calls.items():
        for _ in range(warmup):
            call()
        sampler.calibrate(name, call)

    names = list(calls)
    samples: dict[str, list[float]] = {name: [] for name in names}
    begin, done = time.perf_counter(), 0
    while done < rounds or time.perf_counter() - begin < min_time_s:
        first = done % len(names)
        pending = [(name, sampler.sample(name, calls[name])) for name in names[first:] + names[:first]]
        for name, seconds in pending:
            samples[name].append(seconds())
        done += 1
    return Comparison({name: Timing(tuple(samples[name])) for name in names})


@functools.cache
def copy_bandwidth(device: str = "cpu", nbytes: int = 256 << 20) -> float:
    """Bandwidth of a plain copy measured here, bytes/s, counting what is read and what is written.

    `nbytes` is the size of the source, by default well beyond any cache. Measured once a process.
    """
    source = torch.ones(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timing = compare({"copy": lambda: target.copy_(source)}, rounds=7, device=device)["copy"]
    return 2 * nbytes / timing.median_s


@functools.cache
def matmul_peak(device: str = "cpu", dtype: torch.dtype = torch.float32, size: int = 1024) -> float:
    """Throughput of `torch.matmul` on square matrices measured here, operations/s: a practical peak."""
    a = torch.ones(size, size, dtype=dtype, device=device)
    timing = compare({"matmul": lambda: a @ a}, rounds=7, device=device)["matmul"]
    return 2.0 * size**3 / timing.median_s
